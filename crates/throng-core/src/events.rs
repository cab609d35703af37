//! Events of connections and channels, for applications that subscribe to them.

use std::collections::VecDeque;
use std::fmt;

use crate::connection_name::ConnectionName;
use crate::name::ChannelName;
use crate::publication::VolatilePublication;

/// Something that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A client follows something over a WebSocket or a stream. Long-polls are no connections.
    /// Comes again, with the user, for one that becomes a user later.
    Connected {
        connection: ConnectionName,
        /// The user that it belongs to.
        user: Option<&'a str>,
        /// Nothing backs the user's name: the server has no keys.
        is_claimed: bool,
        transport: &'static str,
    },
    /// Such a connection has ended.
    Disconnected {
        connection: ConnectionName,
        /// Why it has ended: a value of the label `reason` in the metrics.
        reason: &'static str,
    },
    /// A channel or an inbox has its first subscriber.
    Occupied(&'a ChannelName),
    /// A channel or an inbox has lost its last subscriber.
    Vacated(&'a ChannelName),
    /// The number of subscribers of a channel or an inbox, for sinks that
    /// [take](EventSink::takes_counts) it.
    Counted(&'a ChannelName, u64),
    /// A channel has a member more, by the key that its list has for it.
    MemberAdded(&'a ChannelName, &'a str),
    /// A member has left, after the grace.
    MemberRemoved(&'a ChannelName, &'a str),
    /// A client of an application has published an event of its own.
    ClientEvent(ConnectionName, &'a VolatilePublication),
    /// A client of an application was to begin with the newest message of a channel, which has
    /// none.
    CacheMiss(&'a ChannelName),
    /// Of several processes, this is the one that tells applications what happens on all of them,
    /// as far as it happened before this time, in milliseconds. `u64::MAX`: there are no others; 0:
    /// nobody is known to be the one.
    Leads(u64),
    /// Another one tells applications.
    Follows,
}

/// Takes events from workers and engine. Those of one channel come in their order.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// Takes an event at `now_ms`. Must not wait: it is called by workers, and under a lock of the
    /// engine.
    fn notify(&self, now_ms: u64, event: Event<'_>);

    /// The sink that gets the events after this one, if there is one.
    fn next(&self) -> Option<&dyn EventSink> {
        None
    }

    /// True if it takes the numbers of channels' subscribers, which change with each of them.
    fn takes_counts(&self) -> bool {
        self.next().is_some_and(|next| next.takes_counts())
    }

    /// Removes the events of before a time, in milliseconds since 1970, that name a user and that
    /// no application has been told of. Returns how many.
    fn forget_user(&self, user: &str, before_ms: u64) -> u64 {
        self.next().map_or(0, |next| next.forget_user(user, before_ms))
    }
}

/// For how long a process that does not tell applications remembers what there was to tell, in
/// milliseconds: until it has noticed that the one which does is gone.
const REMEMBERED_MS: u64 = 12_000;

/// What this process knows of who tells applications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Unknown,
    Leads,
    /// It leads, and there is no other process.
    Alone,
    Follows,
}

/// What [`Standby`] has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped<T> {
    /// What has just happened, which nobody else may tell.
    New(T),
    /// The oldest, which another process tells: only if that one is gone, nobody has.
    Oldest(T),
}

/// What there is to tell applications, on one of several processes: see [`Event::Leads`]. The
/// bounds of number and bytes are the caller's.
#[derive(Debug)]
pub struct Standby<T> {
    /// With the times at which it happened.
    waiting: VecDeque<(u64, T)>,
    role: Role,
}

impl<T> Default for Standby<T> {
    fn default() -> Standby<T> {
        Standby { waiting: VecDeque::new(), role: Role::Unknown }
    }
}

impl<T> Standby<T> {
    /// Something has happened. Returns it if it is to be told now.
    ///
    /// # Errors
    ///
    /// `most` wait already, so that one is dropped.
    pub fn take(&mut self, now_ms: u64, happened: T, most: usize) -> Result<Option<T>, Dropped<T>> {
        if self.role == Role::Alone {
            return Ok(Some(happened));
        }
        if self.waiting.len() < most {
            self.waiting.push_back((now_ms, happened));
            return Ok(None);
        }
        if self.role != Role::Follows {
            return Err(Dropped::New(happened));
        }
        self.waiting.push_back((now_ms, happened));
        self.waiting.pop_front().map_or(Ok(None), |(_, oldest)| Err(Dropped::Oldest(oldest)))
    }

    /// Drops what is meant. Returns how much that is.
    pub fn forget(&mut self, mut is_meant: impl FnMut(&T) -> bool) -> u64 {
        let before = self.waiting.len();
        self.waiting.retain(|(_, happened)| !is_meant(happened));
        (before - self.waiting.len()) as u64
    }

    /// Takes [`Event::Leads`]. Returns what is to be told now, in its order.
    pub fn leads(&mut self, up_to_ms: u64) -> Vec<T> {
        self.role = match up_to_ms {
            0 => Role::Unknown,
            u64::MAX => Role::Alone,
            _ => Role::Leads,
        };
        let is_before = |(at_ms, _): &&(u64, T)| *at_ms < up_to_ms;
        let count = self.waiting.iter().take_while(is_before).count();
        self.waiting.drain(..count).map(|(_, happened)| happened).collect()
    }

    /// Takes [`Event::Follows`]: what happened a while ago was told by the other one.
    pub fn follows(&mut self, now_ms: u64) {
        self.role = Role::Follows;
        while self.waiting.front().is_some_and(|(at_ms, _)| at_ms + REMEMBERED_MS < now_ms) {
            self.waiting.pop_front();
        }
    }

    /// This process ends. Returns what it has to tell before: nothing, unless it leads.
    pub fn end(&mut self) -> Vec<T> {
        let waiting = std::mem::take(&mut self.waiting);
        let is_told = matches!(self.role, Role::Leads | Role::Alone);
        waiting.into_iter().filter(|_| is_told).map(|(_, happened)| happened).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_told_by_the_process_that_leads() {
        let mut standby = Standby::default();
        assert_eq!(standby.take(1, "a", 3), Ok(None), "nobody is known to lead");
        assert_eq!(standby.take(5, "b", 3), Ok(None));
        assert_eq!(standby.leads(5), ["a"]);
        assert_eq!(standby.leads(0), [""; 0]);
        assert_eq!(standby.leads(6), ["b"]);
        assert_eq!(standby.leads(u64::MAX), [""; 0]);
        assert_eq!(standby.take(9, "c", 3), Ok(Some("c")), "there is nobody else");
        standby.leads(0);
        for at_ms in 10..13 {
            assert_eq!(standby.take(at_ms, "d", 3), Ok(None));
        }
        assert_eq!(standby.take(13, "e", 3), Err(Dropped::New("e")));
        standby.follows(11 + REMEMBERED_MS);
        assert_eq!(standby.take(14, "f", 2), Err(Dropped::Oldest("d")));
        assert_eq!(standby.take(14, "g", 3), Ok(None));
        assert_eq!(standby.forget(|it| *it == "f"), 1);
        assert_eq!(standby.leads(u64::MAX), ["d", "g"]);
    }

    #[test]
    fn a_process_that_ends_leaves_the_rest_to_the_one_that_leads() {
        let mut standby = Standby::default();
        for (role, expected) in [(7, 1), (0, 0), (u64::MAX, 0)] {
            standby.leads(role);
            let _ = standby.take(8, "a", 3);
            assert_eq!(standby.end().len(), expected, "{role}");
        }
        standby.follows(9);
        assert_eq!((standby.take(9, "b", 3), standby.end()), (Ok(None), Vec::new()));
    }
}
