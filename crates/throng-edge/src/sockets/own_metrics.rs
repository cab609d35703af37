//! The counters of a worker, and the load of the others through the metrics that all share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_core::WorkerId;

use crate::counters::{Counter, Counters};
use crate::metrics::{KeptPlace, Metrics, WorkerMetrics};

/// One worker's part in the metrics of all workers.
#[derive(Debug)]
pub(crate) struct OwnMetrics {
    worker: WorkerId,
    /// The counters of `worker` in `all`: looked up once.
    counters: Arc<Counters>,
    all: Metrics,
}

impl OwnMetrics {
    pub(crate) fn new(worker: WorkerId, all: Metrics) -> OwnMetrics {
        let counters = Arc::clone(&all.worker(worker).counters);
        OwnMetrics { worker, counters, all }
    }

    pub(crate) fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The open connections of all workers.
    pub(crate) fn all_connections(&self) -> u64 {
        let of = |worker: &WorkerMetrics| worker.connections.load(Ordering::Relaxed);
        self.all.workers().iter().map(|worker| u64::from(of(worker))).sum()
    }

    /// The metrics of all workers.
    pub(crate) fn all(&self) -> &Metrics {
        &self.all
    }

    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.counters.add(counter, amount);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }

    /// Sets a counter to a total that is counted elsewhere, and that never decreases.
    pub(crate) fn set_total(&self, counter: Counter, total: u64) {
        let counted = self.counters.get(counter);
        debug_assert!(total >= counted, "a total decreases: {counter:?}");
        self.counters.add(counter, total.saturating_sub(counted));
    }

    /// Records the time from the acceptance of a message to the end of its fan-out.
    pub(crate) fn record_latency(&self, us: u64) {
        self.counters.latency.record(us);
    }

    /// The other worker with the most room, if it has any.
    pub(crate) fn other_with_room(&self) -> Option<WorkerId> {
        self.all.least_loaded_with_room().filter(|&other| other != self.worker)
    }

    /// Keeps a place at another worker for a connection that is about to be handed off to it.
    pub(crate) fn keep_place(&self, other: WorkerId) -> KeptPlace<'_> {
        debug_assert!(other != self.worker, "a worker hands nothing off to itself");
        self.all.worker(other).keep_place()
    }

    /// Frees the place that another worker has kept here: its handoff has arrived.
    pub(crate) fn give_back_place(&self) {
        drop(self.own().kept_place());
    }

    /// Shows other threads that the event loop turns. Only the worker calls this.
    pub(crate) fn count_tick(&self) {
        let ticks = &self.own().ticks;
        ticks.store(ticks.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Tells the other workers that this one takes no more connections.
    pub(crate) fn set_ended(&self) {
        self.own().is_ended.store(true, Ordering::Release);
    }

    /// The metrics of this worker, which all others can read.
    pub(crate) fn own(&self) -> &WorkerMetrics {
        self.all.worker(self.worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: WorkerId = WorkerId(0);
    const SECOND: WorkerId = WorkerId(1);

    #[test]
    fn a_kept_place_is_free_again_once_its_handoff_has_arrived() {
        let all = Metrics::new([1, 2].into_iter());
        let (first, second) =
            (OwnMetrics::new(FIRST, all.clone()), OwnMetrics::new(SECOND, all.clone()));
        first.keep_place(SECOND).travel();
        assert_eq!(all.worker(SECOND).places_kept(), 1);
        second.give_back_place();
        assert_eq!(all.worker(SECOND).places_kept(), 0);
    }

    #[test]
    fn a_handoff_goes_to_a_live_worker_with_room() {
        let all = Metrics::new([1, 2].into_iter());
        let (first, second) =
            (OwnMetrics::new(FIRST, all.clone()), OwnMetrics::new(SECOND, all.clone()));
        assert_eq!(first.other_with_room(), Some(SECOND));
        assert_eq!(second.other_with_room(), None, "it has the most room itself");
        second.set_ended();
        assert_eq!((first.other_with_room(), second.other_with_room()), (None, Some(FIRST)));
    }

    #[test]
    fn a_total_is_not_added_twice() {
        let metrics = OwnMetrics::new(FIRST, Metrics::new([1].into_iter()));
        for total in [3, 3, 10] {
            metrics.set_total(Counter::ReplayMessagesEvicted, total);
            assert_eq!(metrics.counters.get(Counter::ReplayMessagesEvicted), total);
        }
    }
}
