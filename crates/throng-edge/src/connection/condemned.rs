//! The connections that end with the worker's turn.
//!
//! # Invariants
//!
//! * They are freed between turns only, in the order in which they were condemned.
//! * Outside a turn, once all are freed, there are none.

use std::collections::VecDeque;

use throng_dialect::CloseReason;

use super::id::ConnectionId;
use super::state::State;

/// The list of one worker.
#[derive(Debug, Default)]
pub(super) struct CondemnedList {
    is_turn: bool,
    list: VecDeque<Condemned>,
}

#[derive(Debug)]
pub(super) struct Condemned {
    pub(super) id: ConnectionId,
    pub(super) reason: CloseReason,
    /// Its state before, which says for what it counts.
    pub(super) state: State,
}

impl CondemnedList {
    pub(super) fn begin_turn(&mut self) {
        debug_assert!(self.is_at_rest(), "a turn in a turn");
        self.is_turn = true;
    }

    pub(super) fn end_turn(&mut self) {
        self.is_turn = false;
    }

    pub(super) fn push(&mut self, condemned: Condemned) {
        debug_assert!(self.is_turn, "{condemned:?} would not be freed");
        self.list.push_back(condemned);
    }

    /// Takes the one that was condemned first.
    pub(super) fn next(&mut self) -> Option<Condemned> {
        debug_assert!(!self.is_turn, "somebody may hold its id");
        self.list.pop_front()
    }

    /// True outside a turn, once all are freed.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_turn && self.list.is_empty()
    }
}
