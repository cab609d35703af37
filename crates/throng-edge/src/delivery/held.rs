//! The subscriptions that are held until what they lack is written together, and the interval that
//! some of them wait for.

use std::time::Duration;

use throng_core::SubscriptionId;

use crate::connection::ConnectionId;

/// The length of an interval. Longer ones would spare few writes more: in 2 ms, a reader of 10,000
/// messages a second gets about 20.
const INTERVAL_MS: u64 = 2;

/// How long those that are due wait while fan-outs go on, which may add messages to their frames.
const GATHERING_MS: u64 = 1;

/// Lists with a larger capacity are freed once they are empty.
const KEPT: usize = 1024;

/// A held subscription and its connection.
pub(super) type Held = (ConnectionId, SubscriptionId);

/// Held subscriptions.
#[derive(Debug, Default)]
pub(super) struct HeldSubscriptions {
    /// Those that are due now.
    now: Vec<Held>,
    /// When the first of them was added, by the worker's clock.
    since_ms: u64,
    /// True if `now` is in the order of connections.
    is_sorted: bool,
    /// Those that are due at the end of the interval.
    later: Vec<SubscriptionId>,
    /// Connections that have had a frame within the interval, maybe gone.
    written: Vec<ConnectionId>,
    /// The end of the interval, by the worker's clock; `None` while none runs.
    ends_ms: Option<u64>,
}

impl HeldSubscriptions {
    /// True if some are due now.
    pub(super) fn are_due(&self) -> bool {
        !self.now.is_empty()
    }

    /// True if some wait for the end of the interval.
    pub(super) fn wait(&self) -> bool {
        !self.later.is_empty()
    }

    /// The time until those are due that wait; `None` if none waits.
    pub(super) fn until_due(&self, now_ms: u64) -> Option<Duration> {
        let ends_ms = self.ends_ms.filter(|_| self.wait())?;
        Some(Duration::from_millis(ends_ms.saturating_sub(now_ms)))
    }

    /// True if those that are due may wait for messages of further channels.
    pub(super) fn may_gather(&self, now_ms: u64) -> bool {
        self.are_due() && now_ms < self.since_ms + GATHERING_MS
    }

    /// Adds one that is due now.
    pub(super) fn add(&mut self, held: Held, now_ms: u64) {
        if self.now.is_empty() {
            self.since_ms = now_ms;
        }
        self.now.push(held);
        self.is_sorted = false;
    }

    /// Adds one that waits for the end of the interval.
    pub(super) fn add_later(&mut self, subscription: SubscriptionId) {
        debug_assert!(self.ends_ms.is_some(), "an interval runs");
        self.later.push(subscription);
    }

    /// Notes that a connection has had its first frame of an interval, which begins now if none
    /// runs.
    pub(super) fn note_written(&mut self, id: ConnectionId, now_ms: u64) {
        self.written.push(id);
        self.ends_ms.get_or_insert(now_ms + INTERVAL_MS);
    }

    /// Ends the interval if its time is over. Returns the connections that have had a frame, and
    /// the subscriptions that have waited: they are due if they are there.
    pub(super) fn end_interval(
        &mut self,
        now_ms: u64,
    ) -> Option<(Vec<ConnectionId>, Vec<SubscriptionId>)> {
        self.ends_ms.take_if(|ends_ms| *ends_ms <= now_ms)?;
        Some((std::mem::take(&mut self.written), std::mem::take(&mut self.later)))
    }

    /// Keeps the memory of lists that [`HeldSubscriptions::end_interval`] has returned.
    pub(super) fn reuse(
        &mut self,
        (mut written, mut later): (Vec<ConnectionId>, Vec<SubscriptionId>),
    ) {
        if written.capacity() <= KEPT && later.capacity() <= KEPT {
            written.clear();
            later.clear();
            (self.written, self.later) = (written, later);
        }
    }

    /// Takes those that are due, in the order of connections.
    pub(super) fn take_due(&mut self) -> Vec<Held> {
        if !std::mem::replace(&mut self.is_sorted, true) {
            self.now.sort_unstable_by_key(|&(id, _)| id);
        }
        std::mem::take(&mut self.now)
    }

    /// Puts back the first of those that were taken.
    pub(super) fn put_back(&mut self, due: Vec<Held>) {
        debug_assert!(self.now.is_empty() && self.is_sorted, "nothing is visited meanwhile");
        if !due.is_empty() || due.capacity() <= KEPT {
            self.now = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_runs_from_the_first_frame_and_only_then() {
        let mut held = HeldSubscriptions::default();
        assert_eq!(held.end_interval(1_000), None);
        held.note_written(ConnectionId::new(1), 1_000);
        held.note_written(ConnectionId::new(2), 1_001);
        assert_eq!(held.until_due(1_001), None, "nothing waits");
        assert_eq!(held.end_interval(1_000 + INTERVAL_MS - 1), None);
        let ended = held.end_interval(1_000 + INTERVAL_MS).expect("it is over");
        assert_eq!(ended, (vec![ConnectionId::new(1), ConnectionId::new(2)], Vec::new()));
        held.reuse(ended);
        assert_eq!(held.end_interval(2_000), None, "it runs no more");
    }
}
