//! The places that a worker's connections take.
//!
//! A worker has room for a number of subscribers, its capacity, and for a few more connections: the
//! reserve. Every connection begins there, without a place of its own, while its head is read. Then
//! a request that subscribes needs a place among the subscribers, and any other goes to the control
//! plane. So a full server still serves publishers.
//!
//! A few viewers of the status page may stay in the reserve, so that an operator can watch a full
//! server.
//!
//! # Invariants
//!
//! Subscribers, and closing connections beyond `max_lingering`, never exceed the capacity, and
//! viewers beyond it never exceed `max_viewers`. So at least `max_heads` places are left for heads.

use super::flags::Flags;
use crate::limits::Limits;

/// The counts of connections by the places that they take.
#[derive(Debug)]
pub(super) struct Places {
    capacity: u32,
    limits: Limits,
    /// Connections that subscribe or have subscribed: each has a place until it closes.
    admitted: u32,
    /// Those with places in the reserve: viewers, at most `max_viewers`.
    viewers_in_reserve: u32,
    closing: u32,
}

impl Places {
    /// No connections, and room for `capacity` subscribers.
    pub(super) fn new(capacity: u32, limits: Limits) -> Places {
        Places { capacity, limits, admitted: 0, viewers_in_reserve: 0, closing: 0 }
    }

    /// Counts a connection with these flags, which is not closing.
    pub(super) fn take(&mut self, flags: Flags) {
        self.admitted += u32::from(flags.has(Flags::SERVED));
        self.viewers_in_reserve += u32::from(flags.has(Flags::IN_RESERVE));
    }

    /// A connection with these flags, which was not closing, is gone.
    pub(super) fn give_up(&mut self, flags: Flags) {
        self.admitted -= u32::from(flags.has(Flags::SERVED));
        self.viewers_in_reserve -= u32::from(flags.has(Flags::IN_RESERVE));
    }

    /// A connection with these flags begins to close, and gives up its place. Returns whether it
    /// may linger: where its place was, or among `max_lingering`.
    pub(super) fn begin_closing(&mut self, flags: Flags) -> bool {
        let had_place = flags.has(Flags::SERVED) && !flags.has(Flags::IN_RESERVE);
        let lingers = had_place || self.may_linger();
        self.give_up(flags);
        self.closing += 1;
        lingers
    }

    /// Counts a connection that was closing in another worker, and goes on closing here.
    pub(super) fn resume_closing(&mut self) {
        self.closing += 1;
    }

    pub(super) fn end_closing(&mut self) {
        self.closing -= 1;
    }

    /// The number of connections that subscribe or have subscribed, without those that close.
    pub(super) fn admitted(&self) -> u32 {
        self.admitted
    }

    pub(super) fn closing(&self) -> u32 {
        self.closing
    }

    /// The number of places for subscribers that are taken.
    pub(super) fn taken(&self) -> u32 {
        self.subscribers() + self.closing.saturating_sub(self.limits.max_lingering)
    }

    /// The number of places left for subscribers, if `kept` are kept for handoffs.
    pub(super) fn room(&self, kept: u32) -> u32 {
        self.capacity.saturating_sub(self.taken().saturating_add(kept))
    }

    /// True if the reserve has a place for another viewer.
    pub(super) fn has_viewer_place(&self) -> bool {
        self.viewers_in_reserve < self.limits.max_viewers
    }

    /// True if a new connection has a place beside `connections`, even if only in the reserve.
    pub(super) fn has_room_for_head(&self, connections: u32) -> bool {
        // Free places of viewers do not count: heads may not take them.
        let Limits { max_heads, max_lingering, .. } = self.limits;
        let reserve = max_heads + max_lingering + self.viewers_in_reserve;
        connections < self.capacity.saturating_add(reserve)
    }

    /// The number of subscribers with places outside the reserve, without those that close.
    fn subscribers(&self) -> u32 {
        self.admitted - self.viewers_in_reserve
    }

    /// True if one more closing connection that had no place may wait for its peer.
    fn may_linger(&self) -> bool {
        let max_lingering = self.limits.max_lingering;
        self.subscribers() + self.closing < self.capacity.saturating_add(max_lingering)
    }

    /// Panics unless the counts fit connections with these flags, and `closing` ones.
    pub(super) fn check_invariants(&self, open: impl Iterator<Item = Flags>, closing: u32) {
        let (mut admitted, mut viewers) = (0, 0);
        for flags in open {
            admitted += u32::from(flags.has(Flags::SERVED));
            viewers += u32::from(flags.has(Flags::IN_RESERVE));
        }
        assert_eq!(self.closing, closing, "closing connections");
        assert_eq!(self.admitted, admitted, "admitted connections");
        assert_eq!(self.viewers_in_reserve, viewers, "viewers in the reserve");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBSCRIBER: Flags = Flags::SERVED;

    fn viewer() -> Flags {
        SUBSCRIBER.with(Flags::IN_RESERVE, true)
    }

    fn places(capacity: u32) -> Places {
        let limits = Limits { max_heads: 2, max_lingering: 1, max_viewers: 1, ..Limits::default() };
        Places::new(capacity, limits)
    }

    #[test]
    fn viewers_in_the_reserve_take_no_subscribers_place() {
        let mut places = places(2);
        places.take(viewer());
        assert_eq!((places.room(0), places.room(1), places.admitted()), (2, 1, 1));
        assert!(!places.has_viewer_place());
        places.give_up(viewer());
        assert!(places.has_viewer_place());
    }

    #[test]
    fn heads_have_their_places_whatever_else_is_there() {
        let mut places = places(1);
        places.take(SUBSCRIBER);
        assert!(places.has_room_for_head(3) && !places.has_room_for_head(4));
        places.take(viewer());
        assert!(places.has_room_for_head(4), "a viewer takes a place of its own");
    }

    #[test]
    fn closing_connections_beyond_the_limit_take_subscribers_places() {
        let mut places = places(2);
        for lingers in [true, true, true, false] {
            assert_eq!(places.begin_closing(Flags::default()), lingers, "{places:?}");
        }
        assert_eq!((places.closing(), places.room(0)), (4, 0));
        (0..3).for_each(|_| places.end_closing());
        assert_eq!(places.room(0), 2, "one may linger in the reserve");
    }

    #[test]
    fn a_subscriber_lingers_in_its_own_place() {
        let mut places = places(1);
        places.begin_closing(Flags::default());
        places.take(SUBSCRIBER);
        assert!(places.begin_closing(SUBSCRIBER));
        assert_eq!(places.taken(), 1);
    }
}
