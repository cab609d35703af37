//! Keeps workers waiting for the last word of the process that they, or others, come from, and the
//! rest of the server until they have thawed.

use std::sync::{Condvar, Mutex, PoisonError};

/// Keeps workers that have arrived from acting until the process that they come from has ended its
/// own.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Whether they may act; `None` until that is decided.
    is_open: Mutex<Option<bool>>,
    changed: Condvar,
    /// The number of new workers that have had their turn.
    turns: Mutex<usize>,
    taken: Condvar,
    /// The number of workers that have arrived and act.
    arrived: Mutex<usize>,
    has_arrived: Condvar,
}

impl Gate {
    pub(super) fn decide(&self, is_open: bool) {
        let mut state = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        state.get_or_insert(is_open);
        self.changed.notify_all();
    }

    pub(super) fn wait(&self) -> bool {
        let mut state = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *state {
                Some(is_open) => return is_open,
                None => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Waits for the decision; if it is to act, runs `begin` after the new workers with smaller
    /// numbers have run theirs: the kernel numbers listeners in the order in which they begin to
    /// listen.
    pub(super) fn take_turn(&self, number: usize, begin: impl FnOnce()) -> bool {
        if !self.wait() {
            return false;
        }
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.taken.wait_while(turns, |turns| *turns < number);
        let mut turns = waited.unwrap_or_else(PoisonError::into_inner);
        begin();
        *turns += 1;
        self.taken.notify_all();
        true
    }

    /// A worker that has arrived acts.
    pub(super) fn arrive(&self) {
        *self.arrived.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.has_arrived.notify_all();
    }

    /// Waits until as many workers have arrived and act.
    pub(super) fn await_arrivals(&self, workers: usize) {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_arrived.wait_while(arrived, |arrived| *arrived < workers);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// True if they will never act.
    pub(super) fn is_shut(&self) -> bool {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) == Some(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn new_workers_begin_in_order_and_only_behind_an_open_gate() {
        let (gate, begun) = (Arc::<Gate>::default(), Arc::<Mutex<Vec<usize>>>::default());
        std::thread::scope(|scope| {
            for number in [2, 0, 1] {
                let (gate, begun) = (&gate, &begun);
                scope.spawn(move || {
                    assert!(gate.take_turn(number, || begun.lock().unwrap().push(number)));
                });
            }
            assert!(begun.lock().unwrap().is_empty());
            gate.decide(true);
        });
        assert_eq!(*begun.lock().unwrap(), [0, 1, 2]);
        std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(|| gate.arrive())));
            gate.await_arrivals(2);
        });
        let shut = Gate::default();
        shut.decide(false);
        assert!(!shut.take_turn(0, || unreachable!("the gate is shut")));
    }
}
