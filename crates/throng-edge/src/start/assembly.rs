//! Brings all workers to a halt at the same time, and gives them orders.
//!
//! Answers go from one worker to another, so none may be frozen before all have nothing left to do:
//! they go through rounds until nobody has done anything. The thread that gives the orders freezes
//! what they share while they wait.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Finish what is under way between the workers, then wait.
    Settle,
    /// Freeze, send what was frozen, then wait.
    Send,
    /// End: the other process has everything.
    Leave,
    /// Go on as if nothing had been.
    Return,
}

/// All workers, or those that have come.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// True if workers are to wait for orders.
    is_open: bool,
    /// Workers that wait for the next order.
    waiting: usize,
    /// The order that was given last, and its number.
    order: Option<(u64, Order)>,
    /// Votes of the round, and whether all were for its end.
    votes: usize,
    is_unanimous: bool,
    /// The round's number, and the outcome of the one before.
    round: u64,
    outcome: bool,
    /// Why a worker could not do what it was ordered to.
    failure: Option<String>,
}

impl Assembly {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets workers come.
    pub(super) fn open(&self) {
        let mut state = self.lock();
        (state.is_open, state.failure) = (true, None);
    }

    /// Waits for the next order. One that comes late finds the last one.
    pub(super) fn await_order(&self) -> Order {
        let mut state = self.lock();
        if !state.is_open {
            return state.order.map_or(Order::Return, |(_, order)| order);
        }
        let before = state.order.map_or(0, |(number, _)| number);
        state.waiting += 1;
        self.changed.notify_all();
        loop {
            match state.order {
                Some((number, order)) if number > before => return order,
                _ => state = self.wait(state),
            }
        }
    }

    /// Votes for the end of the rounds, and waits for the votes of all `workers`. Returns whether
    /// all voted for it.
    pub(super) fn vote(&self, for_the_end: bool, workers: usize) -> bool {
        let mut state = self.lock();
        let round = state.round;
        state.is_unanimous = for_the_end && (state.votes == 0 || state.is_unanimous);
        state.votes += 1;
        if state.votes == workers {
            state.outcome = state.is_unanimous;
            state.votes = 0;
            state.round += 1;
            self.changed.notify_all();
            return state.outcome;
        }
        while state.round == round {
            state = self.wait(state);
        }
        state.outcome
    }

    /// A worker could not do what it was ordered to.
    pub(super) fn fail(&self, why: String) {
        self.lock().failure.get_or_insert(why);
    }

    /// Takes the reason why a worker could not do what it was ordered to.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.lock().failure.take()
    }

    /// Waits until all `workers` wait for an order, at most for `timeout`. Returns whether they do.
    pub(super) fn all_wait(&self, workers: usize, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.waiting < workers {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Gives an order to all workers, which wait for one. The last one is also for those that come
    /// late.
    pub(super) fn order(&self, order: Order) {
        let mut state = self.lock();
        state.waiting = 0;
        state.is_open = matches!(order, Order::Settle | Order::Send);
        let number = state.order.map_or(0, |(number, _)| number) + 1;
        state.order = Some((number, order));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const WORKERS: usize = 4;

    #[test]
    fn no_worker_freezes_before_all_have_nothing_left_to_do() {
        let assembly = Assembly::default();
        assembly.open();
        let (left, frozen) = (AtomicUsize::new(20), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    assert_eq!(assembly.await_order(), Order::Settle);
                    loop {
                        let has_work = left
                            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| {
                                it.checked_sub(1)
                            })
                            .is_ok();
                        if assembly.vote(!has_work, WORKERS) {
                            break;
                        }
                    }
                    assert_eq!(assembly.await_order(), Order::Send);
                    assert_eq!(left.load(Ordering::SeqCst), 0);
                    frozen.fetch_add(1, Ordering::SeqCst);
                    assembly.fail("no room".to_owned());
                    assert_eq!(assembly.await_order(), Order::Return);
                });
            }
            let minute = Duration::from_secs(60);
            for order in [Order::Settle, Order::Send] {
                assert!(assembly.all_wait(WORKERS, minute));
                assembly.order(order);
            }
            assert!(assembly.all_wait(WORKERS, minute));
            assert_eq!(frozen.load(Ordering::SeqCst), WORKERS);
            assert_eq!(assembly.take_failure().as_deref(), Some("no room"));
            assembly.order(Order::Return);
        });
    }

    #[test]
    fn a_worker_that_does_not_come_is_not_waited_for_forever() {
        let assembly = Assembly::default();
        assembly.open();
        assert!(!assembly.all_wait(1, Duration::from_millis(1)));
        assembly.order(Order::Return);
        assert_eq!(assembly.await_order(), Order::Return);
    }
}
