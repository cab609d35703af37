//! Limits concurrent fan-outs to the number of cores.
//!
//! With more workers than cores, as a low descriptor limit requires, a message to all subscribers
//! gives all workers work at once. They would share the cores, and everything else that needs a
//! core for a moment (an accept, a publish, a request, clients on the same machine) would wait for
//! all of them. So a worker fans out only while it holds a permit; without one it does everything
//! else.
//!
//! Permits are granted in the order of the requests. A worker that sleeps is woken through its
//! queue when its request is granted; see [`Sleep`](super::sleep::Sleep) for why no such wake-up is
//! lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::{WorkerId, WorkerQueue};

/// The time for which a worker keeps a permit that others wait for: some ten slices. With a hundred
/// workers on two cores, each has its turn about twice a second.
const HOLD_MAX: Duration = Duration::from_millis(8);

/// Limits how many workers fan out at once.
#[derive(Debug)]
pub struct FanOutPermits {
    state: Mutex<State>,
    /// The slots of all workers, in order.
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct State {
    /// Permits that no worker holds or has been granted.
    free: usize,
    /// Workers whose requests are not granted yet, oldest first.
    waiting: VecDeque<WorkerId>,
}

/// Where a worker learns that its request is granted.
#[derive(Debug)]
struct Slot {
    /// Set when a permit is granted; cleared when the worker takes it.
    is_granted: AtomicBool,
    queue: Arc<WorkerQueue>,
}

impl FanOutPermits {
    /// Permits for the workers with these `queues`: `permits` in number, at least one.
    pub fn new(queues: &[Arc<WorkerQueue>], permits: usize) -> FanOutPermits {
        let slot = |queue: &Arc<WorkerQueue>| Slot {
            is_granted: AtomicBool::new(false),
            queue: Arc::clone(queue),
        };
        let state = State { free: permits.max(1), waiting: VecDeque::new() };
        FanOutPermits { state: Mutex::new(state), slots: queues.iter().map(slot).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, worker: WorkerId) -> &Slot {
        &self.slots[usize::from(worker.0)]
    }

    /// Takes a free permit. If there is none, appends the worker to those that wait and returns
    /// false.
    fn take_or_wait(&self, worker: WorkerId) -> bool {
        let mut state = self.lock();
        if state.free == 0 {
            debug_assert!(!state.waiting.contains(&worker), "one request at a time");
            state.waiting.push_back(worker);
            return false;
        }
        state.free -= 1;
        true
    }

    /// Withdraws a request. Returns false if it has been granted meanwhile.
    fn withdraw(&self, worker: WorkerId) -> bool {
        let mut state = self.lock();
        let before = state.waiting.len();
        state.waiting.retain(|&waiting| waiting != worker);
        state.waiting.len() < before
    }

    /// Grants a permit that its holder gives up to the worker that has waited longest.
    fn give_back(&self) {
        let mut state = self.lock();
        // The next worker that asks finds it free.
        let Some(next) = state.waiting.pop_front() else {
            state.free += 1;
            return;
        };
        let slot = self.slot(next);
        // Set before the worker is woken, because it reads the flag after it has announced its
        // sleep; and under the lock, so that `withdraw` finds a worker either waiting or granted.
        slot.is_granted.store(true, Ordering::SeqCst);
        drop(state);
        slot.queue.wake();
    }

    fn has_waiting(&self) -> bool {
        !self.lock().waiting.is_empty()
    }
}

/// One worker's request for a permit, or the permit that it holds. Dropping it gives the permit
/// back.
#[derive(Debug)]
pub struct PermitHolder {
    permits: Arc<FanOutPermits>,
    worker: WorkerId,
    permit: Permit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permit {
    NotRequested,
    Requested,
    /// After `until` the permit is given back if others wait.
    Held {
        until: Duration,
    },
}

impl PermitHolder {
    /// The holder of a worker that has requested no permit.
    pub fn new(permits: Arc<FanOutPermits>, worker: WorkerId) -> PermitHolder {
        PermitHolder { permits, worker, permit: Permit::NotRequested }
    }

    /// True if the worker may fan out.
    pub fn is_held(&self) -> bool {
        matches!(self.permit, Permit::Held { .. })
    }

    /// True if the worker has been granted a permit that [`PermitHolder::request`] will take. Ask
    /// after the worker has announced its sleep: a later grant wakes it.
    pub(super) fn is_granted(&self) -> bool {
        self.permits.slot(self.worker).is_granted.load(Ordering::SeqCst)
    }

    /// Requests a permit at the time `now`, takes one that has been granted, or keeps the one that
    /// is held. A permit that has been held for long goes to the end of the queue if others wait.
    pub fn request(&mut self, now: Duration) {
        match self.permit {
            Permit::NotRequested => self.take_or_wait(now),
            Permit::Requested if self.is_granted() => {
                self.permits.slot(self.worker).is_granted.store(false, Ordering::SeqCst);
                self.permit = Permit::Held { until: now + HOLD_MAX };
            }
            Permit::Held { until } if now >= until && self.permits.has_waiting() => {
                self.permits.give_back();
                self.take_or_wait(now);
            }
            Permit::Requested | Permit::Held { .. } => {}
        }
    }

    fn take_or_wait(&mut self, now: Duration) {
        let is_taken = self.permits.take_or_wait(self.worker);
        let held = Permit::Held { until: now + HOLD_MAX };
        self.permit = if is_taken { held } else { Permit::Requested };
    }

    /// Gives the permit back, or withdraws the request.
    pub fn release(&mut self) {
        match std::mem::replace(&mut self.permit, Permit::NotRequested) {
            Permit::NotRequested => {}
            Permit::Requested if self.permits.withdraw(self.worker) => {}
            Permit::Requested => {
                self.permits.slot(self.worker).is_granted.store(false, Ordering::SeqCst);
                self.permits.give_back();
            }
            Permit::Held { .. } => self.permits.give_back(),
        }
    }
}

impl Drop for PermitHolder {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn holders<const COUNT: usize>(permits: usize) -> [PermitHolder; COUNT] {
        let queues: Vec<_> = (0..COUNT).map(|_| Arc::new(WorkerQueue::new(|| {}))).collect();
        let permits = Arc::new(FanOutPermits::new(&queues, permits));
        std::array::from_fn(|worker| {
            PermitHolder::new(Arc::clone(&permits), WorkerId(worker as u16))
        })
    }

    #[test]
    fn a_released_permit_goes_to_the_longest_waiter() {
        let [mut first, mut second, mut third] = holders(1);
        for holder in [&mut first, &mut second, &mut third] {
            holder.request(NOW);
        }
        assert!(first.is_held() && !second.is_held() && !third.is_held());
        first.release();
        assert!(!first.is_held() && second.is_granted() && !third.is_granted());
        second.request(NOW);
        assert!(second.is_held() && !second.is_granted());
    }

    #[test]
    fn as_many_workers_as_permits_hold_one() {
        let [mut first, mut second, mut third] = holders(2);
        for holder in [&mut first, &mut second, &mut third] {
            holder.request(NOW);
        }
        assert!(first.is_held() && second.is_held() && !third.is_held());
    }

    #[test]
    fn a_permit_held_for_long_is_given_up_only_if_others_wait() {
        let [mut first, mut second] = holders(1);
        first.request(NOW);
        first.request(HOLD_MAX);
        assert!(first.is_held(), "no other worker waits");
        second.request(HOLD_MAX);
        first.request(HOLD_MAX);
        assert!(!first.is_held() && second.is_granted());
        second.request(HOLD_MAX);
        second.release();
        assert!(first.is_granted());
    }

    #[test]
    fn a_withdrawn_request_is_never_granted() {
        let [mut first, mut second, mut third] = holders(1);
        for holder in [&mut first, &mut second, &mut third] {
            holder.request(NOW);
        }
        second.release();
        first.release();
        assert!(!second.is_granted() && third.is_granted());
    }

    #[test]
    fn a_granted_permit_that_is_not_needed_any_more_is_passed_on() {
        let [mut first, mut second, mut third] = holders(1);
        for holder in [&mut first, &mut second, &mut third] {
            holder.request(NOW);
        }
        first.release();
        second.release();
        assert!(!second.is_granted() && third.is_granted());
    }

    #[test]
    fn a_worker_that_ends_takes_no_permit_with_it() {
        let [mut first, mut second, mut third, mut fourth] = holders(1);
        for holder in [&mut first, &mut second, &mut third, &mut fourth] {
            holder.request(NOW);
        }
        drop(third);
        drop(first);
        assert!(second.is_granted());
        drop(second);
        assert!(fourth.is_granted());
    }
}
