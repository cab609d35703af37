//! As many workers fan out at the same time as the machine is to run at the same time.
//!
//! Where a low descriptor limit asks for more workers than cores, a message to everybody gives all
//! of them something to do at once. The cores would be divided among dozens of threads, and
//! whoever else wants one for a moment (an accept, a publish, a request, clients on the same
//! machine) would wait for all of them. So workers hand batons to each other: who has one fans out,
//! for a while or to the end; the others go on with everything else.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::{WorkerId, WorkerQueue};

/// A baton is kept so long while others wait for it: some ten slices. With a hundred workers on two
/// cores each has its turn twice a second.
const KEPT_MAX: Duration = Duration::from_millis(8);

/// The batons.
#[derive(Debug)]
pub(crate) struct Relay {
    state: Mutex<State>,
    places: Vec<Place>,
}

#[derive(Debug)]
struct State {
    /// Batons that nobody has.
    free: usize,
    waiting: VecDeque<WorkerId>,
}

/// Where a worker waits.
#[derive(Debug)]
struct Place {
    /// Whether it was given a baton and has not noticed yet.
    is_called: AtomicBool,
    queue: Arc<WorkerQueue>,
}

impl Relay {
    /// For the workers with these queues, in order, of whom so many fan out at the same time.
    pub(crate) fn new(queues: &[Arc<WorkerQueue>], batons: usize) -> Relay {
        let place = |queue: &Arc<WorkerQueue>| Place {
            is_called: AtomicBool::new(false),
            queue: Arc::clone(queue),
        };
        let state = State { free: batons.max(1), waiting: VecDeque::new() };
        Relay { state: Mutex::new(state), places: queues.iter().map(place).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, worker: WorkerId) -> &Place {
        &self.places[usize::from(worker.0)]
    }

    /// Takes a baton if there is one; else the worker will be called.
    fn take_or_wait(&self, worker: WorkerId) -> bool {
        let mut state = self.lock();
        if state.free == 0 {
            state.waiting.push_back(worker);
            return false;
        }
        state.free -= 1;
        true
    }

    /// Gives a baton to whoever has waited longest.
    fn pass_on(&self) {
        let mut state = self.lock();
        let Some(next) = state.waiting.pop_front() else {
            state.free += 1;
            return;
        };
        let place = self.place(next);
        // Before it is woken, and in one order with what it does before it sleeps; under the lock,
        // so that a worker that ends is found waiting or called.
        place.is_called.store(true, Ordering::SeqCst);
        drop(state);
        place.queue.wake();
    }

    fn is_awaited(&self) -> bool {
        !self.lock().waiting.is_empty()
    }
}

/// One worker's part.
#[derive(Debug)]
pub(crate) struct Runner {
    relay: Arc<Relay>,
    worker: WorkerId,
    baton: Baton,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Baton {
    Unwanted,
    Awaited,
    /// From then on it is for others, if others want it.
    Held {
        until: Duration,
    },
}

impl Runner {
    /// A worker that has nothing to fan out.
    pub(crate) fn new(relay: Arc<Relay>, worker: WorkerId) -> Runner {
        Runner { relay, worker, baton: Baton::Unwanted }
    }

    /// Whether the worker may fan out.
    pub(crate) fn has_baton(&self) -> bool {
        matches!(self.baton, Baton::Held { .. })
    }

    /// Whether the worker was given a baton and has not noticed yet. To be asked after
    /// [`WorkerQueue::prepare_to_sleep`]: who calls later wakes it.
    pub(crate) fn is_called(&self) -> bool {
        self.relay.place(self.worker).is_called.load(Ordering::SeqCst)
    }

    /// Notes whether the worker has something to fan out at the moment `now`.
    pub(crate) fn wants(&mut self, is_wanted: bool, now: Duration) {
        let held = Baton::Held { until: now + KEPT_MAX };
        self.baton = match self.baton {
            Baton::Unwanted if is_wanted => match self.relay.take_or_wait(self.worker) {
                true => held,
                false => Baton::Awaited,
            },
            Baton::Awaited if self.is_called() => {
                self.relay.place(self.worker).is_called.store(false, Ordering::SeqCst);
                held
            }
            Baton::Held { .. } if !is_wanted => {
                self.relay.pass_on();
                Baton::Unwanted
            }
            Baton::Held { until } if now >= until && self.relay.is_awaited() => {
                self.relay.pass_on();
                match self.relay.take_or_wait(self.worker) {
                    true => held,
                    false => Baton::Awaited,
                }
            }
            same => same,
        };
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let mut state = self.relay.lock();
        state.waiting.retain(|&worker| worker != self.worker);
        let has_one = self.has_baton() || self.is_called();
        drop(state);
        if has_one {
            self.relay.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn runners<const COUNT: usize>(batons: usize) -> [Runner; COUNT] {
        let queues: Vec<_> = (0..COUNT).map(|_| Arc::new(WorkerQueue::new(|| {}))).collect();
        let relay = Arc::new(Relay::new(&queues, batons));
        std::array::from_fn(|nth| Runner::new(Arc::clone(&relay), WorkerId(nth as u16)))
    }

    #[test]
    fn who_waits_longest_is_called_when_another_has_done() {
        let [mut first, mut second, mut third] = runners(1);
        for runner in [&mut first, &mut second, &mut third] {
            runner.wants(true, NOW);
        }
        assert!(first.has_baton() && !second.has_baton() && !third.has_baton());
        first.wants(false, NOW);
        assert!(!first.has_baton() && second.is_called() && !third.is_called());
        second.wants(true, NOW);
        assert!(second.has_baton() && !second.is_called());
    }

    #[test]
    fn nobody_keeps_it_for_ever_while_others_wait() {
        let [mut first, mut second] = runners(1);
        first.wants(true, NOW);
        first.wants(true, KEPT_MAX);
        assert!(first.has_baton(), "nobody else wants it");
        second.wants(true, KEPT_MAX);
        first.wants(true, KEPT_MAX);
        assert!(!first.has_baton() && second.is_called());
        second.wants(true, KEPT_MAX);
        second.wants(false, KEPT_MAX);
        assert!(first.is_called());
    }

    #[test]
    fn what_was_wanted_no_longer_is_passed_on() {
        let [mut first, mut second, mut third] = runners(1);
        first.wants(true, NOW);
        second.wants(true, NOW);
        third.wants(true, NOW);
        first.wants(false, NOW);
        second.wants(false, NOW);
        second.wants(false, NOW);
        assert!(third.is_called());
    }

    #[test]
    fn a_worker_that_ends_leaves_no_baton_behind() {
        let [mut first, mut second, mut third, mut fourth] = runners(1);
        for runner in [&mut first, &mut second, &mut third, &mut fourth] {
            runner.wants(true, NOW);
        }
        drop(third);
        drop(first);
        assert!(second.is_called());
        drop(second);
        assert!(fourth.is_called());
    }
}
