//! Whether the stream stores what is published. It may not, and yet say how it is: a leader that
//! has lost the majority of its servers takes itself for one for ten seconds and more.
//!
//! While the stream stalls, publications are refused at once. One is tried now and then, unless the
//! leader itself says that it hears from no majority.

/// For how long no publication was stored or refused for good, although some were sent, until the
/// stream counts as stalled. Less than a publication is tried for, so that few have to wait for it.
const STALL_MS: u64 = 2_000;

/// A leader that has not heard from so many servers for this time that no majority is left cannot
/// store anything. They answer once a second.
pub(super) const MAJORITY_MS: u64 = 4_000;

/// After this time without publications it is not known any more whether they would be stored.
const QUIET_MS: u64 = 5_000;

/// How long until another publication is tried after one that was not answered.
const TRY_MS: u64 = 1_000;

/// Upper bound on the time counted between two ticks: a node that was stopped itself does not take
/// the stream for stalled.
const TICK_MS_MAX: u64 = 200;

#[derive(Default)]
pub(super) struct Stall {
    ticked_ms: u64,
    /// For how long publications have waited since the last answer.
    waited_ms: u64,
    quiet_ms: u64,
    lacks_majority: bool,
    /// The last report.
    reported: bool,
}

impl Stall {
    /// True if the stream stores nothing.
    pub(super) fn is_stalled(&self) -> bool {
        self.lacks_majority || self.waited_ms >= STALL_MS
    }

    /// True if a publication is sent, if others are under way or not.
    pub(super) fn may_send(&self, are_others: bool) -> bool {
        let may_try = !self.lacks_majority && !are_others && self.quiet_ms >= TRY_MS;
        may_try || !self.is_stalled()
    }

    /// A publication was stored, or refused for good.
    pub(super) fn answered(&mut self) {
        self.waited_ms = 0;
    }

    /// The leader has said whether it hears from a majority.
    pub(super) fn majority_is(&mut self, is_there: bool) {
        self.lacks_majority = !is_there;
    }

    /// Another connection or another leader: nothing is known of it.
    pub(super) fn begin_anew(&mut self) {
        (self.waited_ms, self.lacks_majority) = (0, false);
    }

    /// Time has passed, in which publications had been sent or not. Returns whether the stream
    /// stalls, if that has changed.
    pub(super) fn tick(&mut self, now_ms: u64, is_sent: bool) -> Option<bool> {
        let passed_ms = now_ms.saturating_sub(self.ticked_ms).min(TICK_MS_MAX);
        self.ticked_ms = now_ms;
        if is_sent {
            self.waited_ms += passed_ms;
            self.quiet_ms = 0;
        } else {
            self.quiet_ms += passed_ms;
            if self.quiet_ms >= QUIET_MS {
                self.waited_ms = 0;
            }
        }
        let is_stalled = self.is_stalled();
        (std::mem::replace(&mut self.reported, is_stalled) != is_stalled).then_some(is_stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks for some time. Returns what was said, with its time.
    fn tick(stall: &mut Stall, from_ms: u64, until_ms: u64, is_sent: bool) -> Vec<(u64, bool)> {
        let times = (from_ms..until_ms).step_by(50);
        times.filter_map(|at| stall.tick(at, is_sent).map(|said| (at, said))).collect()
    }

    #[test]
    fn a_stream_without_answers_is_stalled() {
        let mut stall = Stall::default();
        assert_eq!(tick(&mut stall, 0, 10_000, false), []);
        assert_eq!(tick(&mut stall, 10_000, 20_000, true), [(11_950, true)]);
        stall.answered();
        assert_eq!(stall.tick(20_000, true), Some(false));
        // Each answer counts, however long others wait.
        for from_ms in (21_000..30_000).step_by(1_000) {
            assert_eq!(tick(&mut stall, from_ms, from_ms + 1_000, true), []);
            stall.answered();
        }
    }

    #[test]
    fn while_the_stream_stalls_a_publication_is_tried_now_and_then() {
        let mut stall = Stall::default();
        assert!(stall.may_send(true));
        tick(&mut stall, 0, 4_000, true);
        assert!(!stall.may_send(true) && !stall.may_send(false));
        tick(&mut stall, 4_000, 5_000, false);
        assert!(!stall.may_send(true) && stall.may_send(false));
        stall.majority_is(false);
        assert!(!stall.may_send(false));
        stall.begin_anew();
        assert!(stall.may_send(true));
    }

    #[test]
    fn an_idle_stalled_stream_counts_as_sound_again() {
        let mut stall = Stall::default();
        assert_eq!(tick(&mut stall, 0, 3_000, true).len(), 1);
        assert_eq!(tick(&mut stall, 3_000, 7_000, false), []);
        assert_eq!(tick(&mut stall, 7_000, 9_000, false), [(7_950, false)]);
    }

    #[test]
    fn a_node_that_was_stopped_does_not_take_the_stream_for_stalled() {
        let mut stall = Stall::default();
        assert_eq!(tick(&mut stall, 0, 1_000, true), []);
        assert_eq!(stall.tick(60_000, true), None);
    }

    #[test]
    fn a_leader_without_a_majority_is_stalled() {
        let mut stall = Stall::default();
        stall.majority_is(false);
        assert_eq!(stall.tick(0, false), Some(true));
        stall.majority_is(true);
        assert_eq!(stall.tick(50, false), Some(false));
        stall.majority_is(false);
        assert_eq!(stall.tick(100, false), Some(true));
        stall.begin_anew();
        assert_eq!(stall.tick(150, false), Some(false));
    }
}
