//! Whether a queue of new connections is so long that clients would give up.

use std::time::{Duration, Instant};

/// Time for which a queue is served before its pace is known. The server's rate is measured within
/// that time, too: after a standstill it would be the rate of the standstill, and retry times would
/// be much too far apart.
const PACE_KNOWN_AFTER: Duration = Duration::from_millis(400);

/// Connections older than this count half towards the pace, which may change during a queue of
/// hours.
const PACE_OF: Duration = Duration::from_secs(4);

/// The observed state of one listener's accept queue.
///
/// A queue becomes long when its first connection has waited longer than allowed and the ones
/// behind it take half that time again. A shorter queue is the trace of a pause: its last client is
/// served sooner than it could come back. The queue stays long until it is emptied or no connection
/// in it has waited longer than allowed. So a served client has waited for at most one and a half
/// times the limit, and all others get a retry time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct QueueWatch {
    is_long: bool,
    waited: Duration,
    /// Since when its pace is counted, if it was not empty since.
    began: Option<Instant>,
    /// Connections accepted since then, and in which time.
    accepted: u32,
    took: Duration,
    /// Connections that wait.
    queued: u32,
    /// The number of them that an operator lets come in a second, if that is set.
    rate: Option<u64>,
}

/// The result of one look at a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueLook {
    pub at: Instant,
    /// How long the first connection has waited.
    pub waited: Duration,
    /// How many are behind it.
    pub queued: u32,
    /// How many were accepted since the last look.
    pub accepted: u32,
    /// The number that an operator lets come in a second, if that is set.
    pub rate: Option<u64>,
}

impl QueueWatch {
    /// Looks at the queue, in which connections may wait for `wait`.
    pub fn observe(&mut self, wait: Duration, look: QueueLook) {
        let QueueLook { at, waited, queued, accepted, rate } = look;
        match self.began {
            None => self.began = Some(at),
            Some(began) => {
                // Over all looks: between two of them other work may come.
                self.took = at.saturating_duration_since(began);
                self.accepted = self.accepted.saturating_add(accepted);
                if self.took > PACE_OF {
                    (self.took, self.accepted) = (self.took / 2, self.accepted / 2);
                    self.began = Some(at - self.took);
                }
            }
        }
        (self.waited, self.queued, self.rate) = (waited, queued, rate);
        self.is_long = waited > wait && (self.is_long || self.clears_in() > wait / 2);
    }

    /// The time that those take that waited at the last look: at the pace of those before, once it
    /// is known, or at the rate that is set, if that is slower.
    pub fn clears_in(&self) -> Duration {
        let known = Some(self.took).filter(|&took| took >= PACE_KNOWN_AFTER).unwrap_or_default();
        let at_pace = known.saturating_mul(self.queued) / self.accepted.max(1);
        let us_at = |rate: u64| u64::from(self.queued) * 1_000_000 / rate.max(1);
        at_pace.max(self.rate.map(us_at).map(Duration::from_micros).unwrap_or_default())
    }

    /// All that waited were accepted.
    pub fn emptied(&mut self) {
        *self = QueueWatch::default();
    }

    /// True if clients are told moments instead of being served.
    pub fn is_long(&self) -> bool {
        self.is_long
    }

    /// How long the first connection had waited when it was accepted.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(500);

    /// The look at a queue whose first connection has waited so long, at a rate of 1000 a second.
    fn look(waited_ms: u64, queued: u32) -> QueueLook {
        let waited = Duration::from_millis(waited_ms);
        QueueLook { at: Instant::now(), waited, queued, accepted: 64, rate: Some(1000) }
    }

    #[test]
    fn a_queue_is_long_until_nobody_has_waited_too_long() {
        let mut watch = QueueWatch::default();
        watch.observe(WAIT, look(500, 9000));
        assert!(!watch.is_long(), "nobody has waited for longer than allowed");
        watch.observe(WAIT, look(501, 251));
        assert!(watch.is_long());
        watch.observe(WAIT, look(1400, 3));
        assert!(watch.is_long(), "the last ones came with the others");
        watch.observe(WAIT, look(500, 9000));
        assert!(!watch.is_long());
    }

    #[test]
    fn what_a_pause_has_left_is_served() {
        let mut watch = QueueWatch::default();
        watch.observe(WAIT, look(3000, 250));
        assert!(!watch.is_long());
        watch.observe(WAIT, look(3000, 251));
        assert!(watch.is_long());
        watch.emptied();
        assert_eq!(watch, QueueWatch::default());
    }

    #[test]
    fn the_wait_in_a_queue_follows_from_earlier_waits() {
        let mut watch = QueueWatch::default();
        let mut at = Instant::now();
        for _ in 0..13 {
            watch.observe(WAIT, QueueLook { at, rate: None, ..look(3000, 4096) });
            assert!(!watch.is_long(), "too little is known of the pace");
            at += Duration::from_millis(32);
        }
        watch.observe(WAIT, QueueLook { at, rate: None, ..look(3000, 4096) });
        assert!(watch.is_long());
        for _ in 0..100 {
            at += Duration::from_millis(32);
            watch.observe(WAIT, QueueLook { at, rate: None, ..look(100, 3000) });
        }
        assert_eq!(watch.clears_in(), Duration::from_millis(1500), "half a millisecond each");
        watch.observe(WAIT, QueueLook { at, rate: None, ..look(100, 0) });
        assert_eq!(watch.clears_in(), Duration::ZERO);
        watch.observe(WAIT, QueueLook { at, rate: None, ..look(501, 400) });
        assert!(!watch.is_long(), "a fifth of a second");
        watch.observe(WAIT, QueueLook { at, rate: None, ..look(501, 600) });
        assert!(watch.is_long(), "few, but they take long");
    }

    #[test]
    fn the_pace_of_long_ago_is_forgotten() {
        let (mut watch, mut at) = (QueueWatch::default(), Instant::now());
        let mut looks = |every_ms: u64, seconds: u64| {
            for _ in 0..seconds * 1000 / every_ms {
                at += Duration::from_millis(every_ms);
                watch.observe(WAIT, QueueLook { at, rate: None, ..look(100, 1000) });
            }
            watch.clears_in()
        };
        assert!(looks(8, 3600) < Duration::from_millis(150), "an eighth of a millisecond each");
        let slower = looks(128, 20);
        assert!(slower > Duration::from_millis(1900), "two milliseconds each, not {slower:?}");
    }

    #[test]
    fn the_rate_that_is_set_counts_if_it_is_slower_than_the_pace() {
        let (mut watch, at) = (QueueWatch::default(), Instant::now());
        watch.observe(WAIT, QueueLook { at, ..look(100, 1000) });
        assert_eq!(watch.clears_in(), Duration::from_secs(1));
        let at = at + Duration::from_millis(640);
        watch.observe(WAIT, QueueLook { at, ..look(100, 1000) });
        assert_eq!(watch.clears_in(), Duration::from_secs(10), "ten milliseconds each");
    }
}
