//! Limits how much a worker does for one connection, and in one slice, before others have their
//! turn.

/// The number of heads and frames that one connection may have in a turn. Each may cost a write.
const STEPS_PER_TURN: u32 = 32;

/// The number of subscriptions that a slice of a fan-out visits: about a millisecond of writing,
/// unless messages are large.
const VISITS_PER_SLICE: u32 = 96;

/// The least number of visits in a slice, however large the messages are.
const VISITS_PER_SLICE_MIN: u32 = 6;

/// This many bytes of an answer cost as much as one step of a turn.
const BYTES_PER_STEP: usize = 8 << 10;

/// The rest of the current slice, and of the current connection's turn.
#[derive(Debug)]
pub(crate) struct Budget {
    max_slice_bytes: usize,
    /// Bytes that may still be written in this slice.
    slice_bytes: usize,
    /// Heads and frames that the connection being read may still have.
    steps: u32,
    /// Visits in the next slice of a fan-out.
    visits: u32,
}

impl Budget {
    /// An empty budget: a slice has to begin first. A slice may write about `max_slice_bytes`.
    pub(crate) fn new(max_slice_bytes: usize) -> Budget {
        Budget { max_slice_bytes, slice_bytes: 0, steps: 0, visits: VISITS_PER_SLICE }
    }

    pub(crate) fn begin_slice(&mut self) {
        self.slice_bytes = self.max_slice_bytes;
    }

    /// Begins a slice of a fan-out, and returns how many subscriptions it visits.
    pub(crate) fn begin_fan_out(&mut self) -> u32 {
        self.begin_slice();
        self.visits
    }

    /// Ends a slice of a fan-out. Where each visit writes much, the next slice has fewer.
    pub(crate) fn end_fan_out(&mut self) {
        self.visits = if self.is_slice_spent() {
            (self.visits / 2).max(VISITS_PER_SLICE_MIN)
        } else {
            (self.visits * 2).min(VISITS_PER_SLICE)
        };
    }

    pub(crate) fn is_slice_spent(&self) -> bool {
        self.slice_bytes == 0
    }

    pub(crate) fn begin_turn(&mut self) {
        self.steps = STEPS_PER_TURN;
    }

    pub(crate) fn has_steps(&self) -> bool {
        self.steps > 0
    }

    /// Uses up a step of the turn.
    pub(crate) fn take_step(&mut self) {
        debug_assert!(self.has_steps());
        self.steps = self.steps.saturating_sub(1);
    }

    /// Counts bytes that were written to subscribers. They cost no turn: the connection being read
    /// is another one.
    pub(crate) fn charge_slice(&mut self, bytes: usize) {
        self.slice_bytes = self.slice_bytes.saturating_sub(bytes);
    }

    /// Counts the bytes of an answer, to the slice and to the turn.
    pub(crate) fn charge(&mut self, bytes: usize) {
        self.charge_slice(bytes);
        let steps = bytes / BYTES_PER_STEP;
        self.steps = self.steps.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_spend_a_slice_and_steps_spend_a_turn() {
        let mut budget = Budget::new(100_000);
        assert!(budget.is_slice_spent() && !budget.has_steps());
        budget.begin_slice();
        budget.begin_turn();
        budget.charge_slice(90_000);
        budget.take_step();
        assert!(!budget.is_slice_spent() && budget.steps == STEPS_PER_TURN - 1);
        budget.charge(3 * BYTES_PER_STEP);
        assert!(budget.is_slice_spent() && budget.steps == STEPS_PER_TURN - 4);
        budget.charge(usize::MAX);
        assert!(!budget.has_steps());
    }

    #[test]
    fn slices_of_large_messages_visit_fewer_subscriptions() {
        let mut budget = Budget::new(100);
        let mut slice = |bytes| {
            let visits = budget.begin_fan_out();
            budget.charge_slice(bytes);
            budget.end_fan_out();
            visits
        };
        let large: Vec<_> = (0..6).map(|_| slice(100)).collect();
        assert_eq!(large, [96, 48, 24, 12, 6, 6]);
        let small: Vec<_> = (0..6).map(|_| slice(99)).collect();
        assert_eq!(small, [6, 12, 24, 48, 96, 96]);
    }
}
