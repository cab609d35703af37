//! Tells the clients of applications how many follow a channel, where the settings say so: by a
//! volatile message of the channel, which nobody keeps.
//!
//! A small channel is told of each number, at most ten times a second. A large one is told every
//! five seconds: each number goes to all of its subscribers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_control::Control;
use throng_core::events::{Event, EventSink};
use throng_core::{Attributes, Body, ChannelName, Channels, Kind, VolatilePublication, clock};
use throng_pusher::app::split_prefix;
use throng_pusher::channel::{Access, Channel, SUBSCRIPTION_COUNT};
use throng_wire::Labels;
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use crate::presence_events::PresenceShared;
use crate::settings::Settings;

/// How often numbers are told, and channels looked at that have changed: how late an event may be.
const TICK: Duration = Duration::from_millis(100);

/// A channel with more subscribers is large.
const SMALL_MAX: u64 = 100;

/// How often a large channel is told.
const LARGE_PAUSE_MS: u64 = 5_000;

/// The numbers that are to be told. Stands before the applications' sinks of events.
#[derive(Debug)]
pub(crate) struct SubscriptionCounts {
    /// The beginnings of the names of channels that are told.
    prefixes: Vec<String>,
    state: Mutex<State>,
    next: Option<Arc<dyn EventSink>>,
}

#[derive(Debug, Default)]
struct State {
    /// Numbers that are not told yet.
    changed: HashMap<ChannelName, u64>,
    /// When a large channel was told last.
    told: HashMap<ChannelName, u64>,
}

impl SubscriptionCounts {
    /// `None` if no application wants its clients to be told. `next` gets all events, too.
    pub(crate) fn new(
        settings: &Settings,
        next: Option<Arc<dyn EventSink>>,
    ) -> Option<Arc<SubscriptionCounts>> {
        let wants = settings.apps.iter().filter(|app| app.subscription_counts == Some(true));
        let prefixes: Vec<_> = wants.map(|app| app.prefix()).collect();
        let state = Mutex::default();
        (!prefixes.is_empty()).then(|| Arc::new(SubscriptionCounts { prefixes, state, next }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the clients of a channel are told: members of a presence channel count themselves.
    fn is_told(&self, channel: &ChannelName) -> bool {
        let (prefix, own) = split_prefix(channel.name());
        channel.kind() == Kind::Channel
            && self.prefixes.iter().any(|known| known == prefix)
            && Channel::of(own).is_some_and(|own| own.access() != Access::Presence)
    }

    /// The numbers that are due. Nobody is told that nobody is there.
    fn due(&self, now_ms: u64) -> Vec<(ChannelName, u64)> {
        let mut state = self.state();
        let State { changed, told } = &mut *state;
        told.retain(|_, at_ms| *at_ms + LARGE_PAUSE_MS > now_ms);
        let is_due = |channel: &ChannelName, count: &mut u64| {
            *count <= SMALL_MAX || !told.contains_key(channel)
        };
        let due: Vec<_> = changed.extract_if(is_due).filter(|(_, count)| *count > 0).collect();
        for (channel, _) in due.iter().filter(|(_, count)| *count > SMALL_MAX) {
            told.insert(channel.clone(), now_ms);
        }
        due
    }

    /// Tells what is due. What a busy worker does not take is due again.
    fn step(&self, now_ms: u64, channels: &Channels) {
        for (channel, count) in self.due(now_ms) {
            let publication = message(channel.clone(), count);
            if channels.is_shared() {
                // Each node tells its own.
                channels.memory().publish_volatile(now_ms, publication);
            } else if channels.publish_volatile(now_ms, publication).is_err() {
                self.state().changed.entry(channel).or_insert(count);
            }
        }
    }
}

impl EventSink for SubscriptionCounts {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        if let Event::Counted(channel, count) = event
            && self.is_told(channel)
        {
            self.state().changed.insert(channel.clone(), count);
        }
        if let Some(next) = &self.next {
            next.notify(now_ms, event);
        }
    }

    fn takes_counts(&self) -> bool {
        true
    }

    fn next(&self) -> Option<&dyn EventSink> {
        self.next.as_deref()
    }
}

fn message(channel: ChannelName, count: u64) -> VolatilePublication {
    let labels = Labels { event: Some(SUBSCRIPTION_COUNT.into()), ..Labels::default() };
    let body = Body::Json(format!(r#"{{"subscription_count":{count}}}"#).into());
    VolatilePublication {
        attributes: Attributes::of_publication(&labels, None),
        ..VolatilePublication::new(channel, body)
    }
}

/// Tells numbers and publishes presence events, if there are any, until it is aborted. Requires the
/// runtime.
pub(crate) fn spawn_events(
    counts: Option<Arc<SubscriptionCounts>>,
    presence: &Option<PresenceShared>,
    channels: &Arc<Channels>,
    control: &Arc<Control>,
) -> Option<AbortHandle> {
    if counts.is_none() && presence.is_none() {
        return None;
    }
    let (presence, channels, control) =
        (presence.clone(), Arc::clone(channels), Arc::clone(control));
    let task = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            // Another process may go on with them.
            let Some(_acting) = control.hold().act() else { continue };
            let now_ms = clock::now_ms();
            if let Some(presence) = &presence {
                presence.lock().unwrap_or_else(PoisonError::into_inner).step(now_ms, &channels);
            }
            if let Some(counts) = &counts {
                counts.step(now_ms, &channels);
            }
        }
    });
    Some(task.abort_handle())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::read_text;

    #[test]
    fn large_channels_are_told_every_five_seconds() {
        let text = "[[apps]]\nid = '1'\nsubscription-counts = true\n[[apps]]\nid = '2'\n";
        let counts = SubscriptionCounts::new(&read_text(text).unwrap(), None).unwrap();
        let due = |now_ms| {
            let mut due: Vec<_> = counts.due(now_ms);
            due.sort_by_key(|(_, count)| *count);
            due.into_iter().map(|(name, count)| (name.name().to_owned(), count)).collect::<Vec<_>>()
        };
        let count = |name: &str, count| {
            counts.notify(0, Event::Counted(&ChannelName::channel(name), count));
        };
        for name in ["1/presence-a", "2/news", "news", "1/a/b"] {
            count(name, 5);
        }
        counts.notify(0, Event::Counted(&ChannelName::user("1/ann"), 5));
        assert_eq!(due(0), []);
        count("1/news", 1);
        count("1/news", 2);
        count("1/many", SMALL_MAX + 1);
        assert_eq!(due(10), [("1/news".to_owned(), 2), ("1/many".to_owned(), SMALL_MAX + 1)]);
        count("1/news", 1);
        count("1/many", SMALL_MAX + 2);
        assert_eq!(due(20), [("1/news".to_owned(), 1)]);
        assert_eq!(due(10 + LARGE_PAUSE_MS - 1), []);
        assert_eq!(due(10 + LARGE_PAUSE_MS), [("1/many".to_owned(), SMALL_MAX + 2)]);
        assert!(counts.state().changed.is_empty());
        count("1/many", 3);
        assert_eq!(due(10 + LARGE_PAUSE_MS), [("1/many".to_owned(), 3)], "it is small again");
        count("1/news", 0);
        assert_eq!(due(9_000), []);
        assert!(counts.state().changed.is_empty());
    }
}
