//! Limits of the channels that applications have at a time, in all processes.
//!
//! A channel counts while it has a subscriber anywhere. The numbers follow the events of first and
//! last subscribers, so they are as new as what processes have told each other. Workers that look
//! at the same time may each let one more channel begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::events::{Event, EventSink};
use crate::name::{ChannelName, Kind};

/// Channels with other names are open to strangers, whom a part of the limit stays closed to.
const SIGNED: [&str; 2] = ["private-", "presence-"];

/// The part of the limit, as its divisor, that only signed channels may use.
const RESERVE: u64 = 10;

/// The limit of an application, and how many channels it has.
#[derive(Debug)]
struct AppChannels {
    /// One segment and a slash, with which the names of its channels begin.
    prefix: String,
    max: AtomicU64,
    count: AtomicU64,
}

impl AppChannels {
    /// True if a channel is one of the application's protocol.
    fn has(&self, channel: &ChannelName) -> bool {
        let own = channel.name().strip_prefix(&self.prefix).filter(|own| !own.contains('/'));
        channel.kind() == Kind::Channel && own.is_some()
    }

    /// The most channels with which one more of this name may begin.
    fn max_for(&self, channel: &ChannelName) -> u64 {
        let own = channel.name().strip_prefix(&self.prefix).unwrap_or_default();
        let is_signed = SIGNED.iter().any(|kind| own.starts_with(kind));
        let max = self.max.load(Ordering::Relaxed);
        if is_signed { max } else { max - max / RESERVE }
    }
}

/// See the module. Stands before the sink of events that mean all processes.
#[derive(Debug)]
pub struct ChannelLimits {
    apps: Vec<AppChannels>,
    refused: AtomicU64,
    next: Option<Arc<dyn EventSink>>,
}

impl ChannelLimits {
    /// For applications with these prefixes, each with as many channels. `next` gets all events,
    /// too.
    pub fn new(
        limits: impl IntoIterator<Item = (String, u64)>,
        next: Option<Arc<dyn EventSink>>,
    ) -> ChannelLimits {
        let app = |(prefix, max)| {
            let (max, count) = (AtomicU64::new(max), AtomicU64::new(0));
            AppChannels { prefix, max, count }
        };
        let apps = limits.into_iter().map(app).collect();
        ChannelLimits { apps, refused: AtomicU64::new(0), next }
    }

    /// Replaces the numbers of applications that have a limit. Channels beyond a lower one stay
    /// until they are left.
    pub fn change(&self, limits: impl IntoIterator<Item = (String, u64)>) {
        for (prefix, max) in limits {
            if let Some(app) = self.apps.iter().find(|app| app.prefix == prefix) {
                app.max.store(max, Ordering::Relaxed);
            }
        }
    }

    fn of(&self, channel: &ChannelName) -> Option<&AppChannels> {
        self.apps.iter().find(|app| app.has(channel))
    }

    /// These have subscribers already.
    pub(crate) fn begin<'a>(&self, followed: impl Iterator<Item = &'a ChannelName>) {
        for app in followed.filter_map(|channel| self.of(channel)) {
            app.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether all of some channels may have a subscriber: those that `is_followed` says nothing
    /// good of need room.
    ///
    /// # Errors
    ///
    /// The most channels of the application that has too many for one of these.
    pub(crate) fn check(
        &self,
        channels: &[ChannelName],
        is_followed: impl Fn(&ChannelName) -> bool,
    ) -> Result<(), u64> {
        let limited = channels.iter().filter_map(|channel| Some((self.of(channel)?, channel)));
        let mut new = 0;
        for (app, channel) in limited {
            // Of several applications at once, each counts for all: nobody may follow two.
            new += u64::from(!is_followed(channel));
            let max = app.max_for(channel);
            if new > 0 && app.count.load(Ordering::Relaxed) + new > max {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(max);
            }
        }
        Ok(())
    }

    /// How often a subscription was refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl EventSink for ChannelLimits {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        match event {
            Event::Occupied(channel) => {
                if let Some(app) = self.of(channel) {
                    app.count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Event::Vacated(channel) => {
                let fewer = |count: u64| Some(count.saturating_sub(1));
                if let Some(app) = self.of(channel) {
                    let _ = app.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
                }
            }
            _ => {}
        }
        if let Some(next) = &self.next {
            next.notify(now_ms, event);
        }
    }

    fn next(&self) -> Option<&dyn EventSink> {
        self.next.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_counts_while_it_has_a_subscriber() {
        let limits = ChannelLimits::new([("shop/".to_owned(), 2), ("mall/".to_owned(), 1)], None);
        let name = |name: &str| ChannelName::channel(name);
        let check = |names: &[&str], followed: &[&str]| {
            let names: Vec<_> = names.iter().map(|one| name(one)).collect();
            limits.check(&names, |channel| followed.contains(&channel.name()))
        };
        limits.begin([name("shop/a"), name("shop/a/b"), name("a")].iter());
        assert_eq!(check(&["shop/b"], &[]), Ok(()));
        assert_eq!(check(&["shop/b", "shop/c"], &[]), Err(2));
        limits.notify(0, Event::Occupied(&name("shop/b")));
        limits.notify(0, Event::Occupied(&ChannelName::user("shop/ann")));
        assert_eq!((check(&["shop/c"], &[]), check(&["shop/b"], &["shop/b"])), (Err(2), Ok(())));
        assert_eq!((check(&["mall/a"], &[]), check(&["x", "shop/a/b"], &[])), (Ok(()), Ok(())));
        limits.notify(0, Event::Vacated(&name("shop/a")));
        assert_eq!((check(&["shop/c"], &[]), limits.refused()), (Ok(()), 2));
        limits.change([("shop/".to_owned(), 1), ("other/".to_owned(), 0)]);
        assert_eq!((check(&["shop/c"], &[]), check(&["other/a"], &[])), (Err(1), Ok(())));
    }

    #[test]
    fn strangers_leave_room_for_signed_channels() {
        let limits = ChannelLimits::new([("shop/".to_owned(), 20)], None);
        let check = |channel| limits.check(&[ChannelName::channel(channel)], |_| false);
        let signed = ["shop/private-a", "shop/presence-a"];
        let names: Vec<_> = (0..20).map(|at| ChannelName::channel(&format!("shop/{at}"))).collect();
        limits.begin(names[..18].iter());
        assert_eq!((check("shop/news"), signed.map(check)), (Err(18), [Ok(()); 2]));
        limits.begin(names[18..].iter());
        assert_eq!(signed.map(check), [Err(20); 2]);
    }
}
