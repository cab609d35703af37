//! The workers' metrics, which any thread may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use throng_core::{Snapshot, WorkerId};

use crate::counters::{Counter, Counters, Parked};

/// The metrics of one worker.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    /// The number of open connections, without those that close.
    pub connections: AtomicU32,
    /// The number of places for subscribers that are taken.
    pub taken: AtomicU32,
    /// The number of connections whose requests are not complete: each may need a place, too.
    pub heads: AtomicU32,
    /// The number of connections whose sockets have not taken all that was written.
    pub behind: AtomicU32,
    /// The number of places that other workers keep here for connections that they are handing off.
    reserved: AtomicU32,
    /// The number of subscribers that it has room for.
    pub capacity: u32,
    /// How long the first connection in its queue had waited when it was accepted, in
    /// milliseconds; 0 if the queue is short.
    pub queue_wait_ms: AtomicU32,
    /// Ticks of its event loop, several a second: they stand still only if the loop does.
    pub ticks: AtomicU64,
    /// True if it has ended, and takes no more connections.
    pub is_ended: AtomicBool,
    pub counters: Arc<Counters>,
}

impl WorkerMetrics {
    /// The number of subscribers that may be added.
    pub fn room(&self) -> u32 {
        if self.is_ended.load(Ordering::Acquire) {
            return 0;
        }
        // A hint, which may be out of date: the worker itself checks its places again.
        let taken = self.taken.load(Ordering::Relaxed);
        let reserved = self.reserved.load(Ordering::Relaxed);
        self.capacity.saturating_sub(taken.saturating_add(reserved))
    }

    /// The number of connections that may be added if each that has not subscribed yet will.
    /// During a TLS handshake a connection needs no place, and most of those under way will.
    pub(crate) fn room_for_new(&self) -> u32 {
        self.room().saturating_sub(self.heads.load(Ordering::Relaxed))
    }

    /// Shows how long the first connection in its queue had waited.
    pub(crate) fn set_queue_wait(&self, waited: Duration) {
        let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
        self.queue_wait_ms.store(waited_ms, Ordering::Relaxed);
    }

    /// Keeps a place for a connection that is about to be handed off to it, so that a burst is
    /// spread over the workers.
    pub(crate) fn keep_place(&self) -> KeptPlace<'_> {
        self.reserved.fetch_add(1, Ordering::Relaxed);
        KeptPlace(self)
    }

    /// The place that was kept for a connection whose handoff has arrived.
    pub(crate) fn kept_place(&self) -> KeptPlace<'_> {
        KeptPlace(self)
    }

    /// The number of places that are kept now.
    pub fn places_kept(&self) -> u32 {
        self.reserved.load(Ordering::Relaxed)
    }
}

/// A place kept at a worker for one connection on its way there. Dropping it frees the place.
///
/// While the connection is on its way, the handoff's header stands for the place
/// ([`has_place`](crate::net::HandoffHeader::has_place)), and the receiver owns it again.
#[derive(Debug)]
#[must_use]
pub(crate) struct KeptPlace<'a>(&'a WorkerMetrics);

impl KeptPlace<'_> {
    /// The handoff is sent: its receiver owns the place.
    pub(crate) fn travel(self) {
        // Not dropped: the place stays kept until the receiver frees it.
        std::mem::forget(self);
    }
}

impl Drop for KeptPlace<'_> {
    fn drop(&mut self) {
        let before = self.0.reserved.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a place was freed that was not kept");
    }
}

/// The metrics of all workers.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<[WorkerMetrics]>);

impl Metrics {
    /// Metrics of workers with these capacities.
    pub fn new(capacities: impl Iterator<Item = u32>) -> Metrics {
        let of_worker = |capacity| WorkerMetrics { capacity, ..WorkerMetrics::default() };
        Metrics(capacities.map(of_worker).collect())
    }

    /// The metrics of each worker, by its number.
    pub fn workers(&self) -> &[WorkerMetrics] {
        &self.0
    }

    /// The metrics of one worker.
    pub fn worker(&self, worker: WorkerId) -> &WorkerMetrics {
        &self.0[usize::from(worker.0)]
    }

    /// A counter, summed over the workers.
    pub fn sum(&self, counter: Counter) -> u64 {
        self.0.iter().map(|worker| worker.counters.get(counter)).sum()
    }

    /// The connections that are parked now, summed over the workers.
    pub fn parked(&self, parked: Parked) -> u64 {
        self.0.iter().map(|worker| worker.counters.parked(parked)).sum()
    }

    /// The TLS handshakes that are under way now, summed over the workers.
    pub fn handshakes(&self) -> u64 {
        let of = |worker: &WorkerMetrics| worker.counters.handshakes.load(Ordering::Relaxed);
        self.0.iter().map(|worker| u64::from(of(worker))).sum()
    }

    /// The TLS handshakes that have ended, whatever their result, summed over the workers.
    pub fn handshakes_ended(&self) -> u64 {
        self.0.iter().map(|worker| worker.counters.handshakes_ended()).sum()
    }

    /// The longest wait of new connections in the queues of the workers, in milliseconds.
    pub fn queue_wait_ms(&self) -> u64 {
        let of = |worker: &WorkerMetrics| worker.queue_wait_ms.load(Ordering::Relaxed);
        self.0.iter().map(|worker| u64::from(of(worker))).max().unwrap_or(0)
    }

    /// The connections that are behind now, summed over the workers.
    pub fn behind(&self) -> u64 {
        self.0.iter().map(|worker| u64::from(worker.behind.load(Ordering::Relaxed))).sum()
    }

    /// The counters of one metric, each with the value of its label, summed over the workers.
    pub fn by_label(&self, metric: &str) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = Counter::ALL.iter().filter(move |counter| counter.metric() == metric);
        counters.map(|&counter| (counter.label_value(), self.sum(counter)))
    }

    /// The time from accepting a message to its last write, over all workers.
    pub fn latency(&self) -> Snapshot {
        Snapshot::of(self.0.iter().map(|worker| &worker.counters.latency))
    }

    /// The worker with the most room for new connections, or at least for a subscriber; if none has
    /// room, any that has not ended; if all have ended, any.
    pub fn least_loaded(&self) -> WorkerId {
        let is_running = |worker: &WorkerMetrics| !worker.is_ended.load(Ordering::Acquire);
        let rooms =
            self.0.iter().map(|worker| (is_running(worker), worker.room_for_new(), worker.room()));
        let most = rooms.enumerate().max_by_key(|&(_, room)| room);
        WorkerId(most.map_or(0, |(index, _)| index as u16))
    }

    /// As [`Metrics::least_loaded`]; `None` if no worker has room.
    pub(crate) fn least_loaded_with_room(&self) -> Option<WorkerId> {
        let worker = self.least_loaded();
        (self.worker(worker).room() > 0).then_some(worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_is_handed_off_to_a_worker_that_has_ended() {
        let metrics = Metrics::new([2, 3].into_iter());
        metrics.worker(WorkerId(1)).is_ended.store(true, Ordering::Release);
        assert_eq!(
            (metrics.least_loaded(), metrics.least_loaded_with_room()),
            (WorkerId(0), Some(WorkerId(0)))
        );
        metrics.worker(WorkerId(0)).taken.store(2, Ordering::Relaxed);
        assert_eq!((metrics.least_loaded(), metrics.least_loaded_with_room()), (WorkerId(0), None));
    }

    #[test]
    fn a_kept_place_is_freed_once_wherever_its_handoff_ends() {
        let metrics = Metrics::new([2].into_iter());
        let worker = metrics.worker(WorkerId(0));
        drop(worker.keep_place());
        assert_eq!((worker.places_kept(), worker.room()), (0, 2));
        worker.keep_place().travel();
        assert_eq!((worker.places_kept(), worker.room()), (1, 1));
        drop(worker.kept_place());
        assert_eq!((worker.places_kept(), worker.room()), (0, 2));
    }

    #[test]
    fn room_is_by_connections_before_subscriptions() {
        let metrics = Metrics::new([5, 9].into_iter());
        let [first, second] = metrics.workers() else { unreachable!() };
        second.heads.store(8, Ordering::Relaxed);
        assert_eq!((second.room(), second.room_for_new()), (9, 1));
        assert_eq!(metrics.least_loaded_with_room(), Some(WorkerId(0)));
        first.heads.store(7, Ordering::Relaxed);
        second.heads.store(20, Ordering::Relaxed);
        assert_eq!((first.room_for_new(), second.room_for_new()), (0, 0));
        assert_eq!(metrics.least_loaded_with_room(), Some(WorkerId(1)), "its heads may leave");
        second.taken.store(9, Ordering::Relaxed);
        assert_eq!(metrics.least_loaded_with_room(), Some(WorkerId(0)));
    }

    #[test]
    fn the_least_loaded_worker_has_the_most_room() {
        let metrics = Metrics::new([2, 3].into_iter());
        let fill = |worker| {
            metrics.worker(WorkerId(worker)).taken.fetch_add(1, Ordering::Relaxed);
        };
        assert_eq!(metrics.least_loaded_with_room(), Some(WorkerId(1)));
        (0..3).for_each(|_| fill(1));
        assert_eq!(metrics.least_loaded_with_room(), Some(WorkerId(0)));
        (0..2).for_each(|_| fill(0));
        assert_eq!(metrics.least_loaded_with_room(), None);
        fill(0);
        assert_eq!(
            metrics.least_loaded_with_room(),
            None,
            "a connection on its way may take more than the capacity"
        );
    }
}
