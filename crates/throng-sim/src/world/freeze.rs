//! Freezes a worker or the whole server to bytes, and goes on with what is thawed from them.

use std::sync::Arc;

use throng_core::EngineMetrics;
use throng_edge::Metrics;
use throng_edge::worker::WorkerThaw;

use super::World;
use crate::client::Client;
use crate::decode::frozen;
use crate::net::FakeNet;
use crate::pipe::FakeSocket;
use crate::{Check, ensure};

/// Rounds in which answers of presence queries go from worker to worker.
const ROUNDS_MAX: usize = 1000;

struct Frozen {
    /// Bytes that its sockets accepted.
    sent_bytes: u64,
    /// Its connections and their subscriptions.
    counts: (usize, usize),
    records: Vec<(Vec<u8>, Option<FakeSocket>)>,
}

impl World {
    /// Replaces one worker, or the engine and all workers. No client must notice.
    pub(super) fn freeze(&mut self) -> Check {
        if self.stopped_accepting_ms.is_some() {
            return Ok(());
        }
        (0..self.seats.len()).for_each(|at| self.pass_handoffs(at));
        self.saw_in_fan_out("freeze: in the middle of a fan-out");
        if self.recorder.fetches().answers().open() > 0 {
            self.notes.saw("freeze: a fetch is open");
        }
        if self.random.percent(60) {
            let at = self.random.below(self.seats.len());
            self.notes.trace(format!("freeze worker {at}"));
            self.notes.saw("freeze: a worker");
            self.set_clock(at);
            self.seats[at].worker.prepare_to_freeze();
            let frozen = self.freeze_worker(at);
            self.thaw_worker(at, frozen)?;
        } else {
            self.notes.trace("freeze the server".into());
            self.notes.saw("freeze: the server");
            if self.model.has_all_kinds() {
                self.notes.saw("freeze: the server, with journals of all kinds");
            }
            self.prepare_all()?;
            let workers: Vec<_> = (0..self.seats.len()).map(|at| self.freeze_worker(at)).collect();
            self.replace_engine()?;
            self.replace_keeper()?;
            self.replace_metrics();
            let now_ms = self.now_ms();
            for (at, frozen) in workers.into_iter().enumerate() {
                self.seats[at].restart_ticks(now_ms);
                self.thaw_worker(at, frozen)?;
            }
        }
        self.absorb()
    }

    pub(super) fn set_clock(&mut self, at: usize) {
        let now_ms = self.now_ms();
        let moment = self.seats[at].moment(now_ms);
        self.seats[at].worker.set_now(moment);
    }

    /// Lets the workers act on all notifications, until none is left anywhere.
    fn prepare_all(&mut self) -> Check {
        for _ in 0..ROUNDS_MAX {
            for at in 0..self.seats.len() {
                self.set_clock(at);
                self.seats[at].worker.prepare_to_freeze();
            }
            if self.queues[..self.seats.len()].iter().all(|queue| queue.is_empty()) {
                return Ok(());
            }
        }
        Err("notifications go from worker to worker for ever".into())
    }

    fn replace_engine(&mut self) -> Check {
        let before = self.engine.metrics();
        let thawed = self.recorder.freeze_and_thaw(&self.engine);
        self.engine = Arc::new(thawed.map_err(|error| format!("the engine: {error}"))?);
        for seat in &mut self.seats {
            seat.setup.engine = Arc::clone(&self.engine);
        }
        let after = self.engine.metrics();
        ensure!(after.channels <= before.channels, "{after:?} came out of {before:?}");
        // Channels without messages and followers are left out. The page of metrics carries the
        // counts of volatile messages and of ends that are over.
        let channels = after.channels;
        let expected =
            EngineMetrics { channels, volatile: 0, visited: 0, ends_forgotten: 0, ..before };
        ensure!(after == expected, "{after:?} came out of {before:?}");
        Ok(())
    }

    /// A new process counts anew, and goes on from the frozen counts. Places that are kept for
    /// handoffs on their way are not frozen: a process takes its handoffs in before.
    fn replace_metrics(&mut self) {
        if self.seats.iter().any(|seat| !seat.handoffs.is_empty()) {
            return;
        }
        let capacities = self.metrics.workers().iter().map(|worker| worker.capacity);
        self.metrics = Metrics::new(capacities);
        for seat in &mut self.seats {
            seat.setup.metrics = self.metrics.clone();
        }
        self.notes.saw("freeze: counters went on");
    }

    /// Ends a worker and returns its records. Another one, without connections, takes its place.
    fn freeze_worker(&mut self, at: usize) -> Frozen {
        let seat = &mut self.seats[at];
        self.receipts.frozen();
        if seat.worker.until_due().is_some() {
            self.notes.saw("frozen: while messages are held back");
        }
        let sent_bytes = seat.net().sent_bytes;
        let vacant = seat.vacant(FakeNet::new(&self.notes));
        let worker = std::mem::replace(&mut seat.worker, vacant);
        let (connections, subscriptions) =
            (worker.connection_count(), worker.subscriptions_in_all());
        let is_open = |client: &&Client| !client.pipe.borrow().is_closed();
        let open: Vec<usize> = self.clients.iter().filter(is_open).map(|it| it.number).collect();
        let mut records = Vec::new();
        worker.freeze(&mut |record, socket: Option<FakeSocket>| {
            if let Some(socket) = &socket {
                socket.0.borrow_mut().unwatch();
            }
            records.push((record, socket));
        });
        // Those in the middle of their handshakes.
        let mut closed = 0;
        for number in open {
            let mut pipe = self.clients[number].pipe.borrow_mut();
            if pipe.is_closed() {
                assert!(pipe.tls.is_some(), "a plain connection is not frozen");
                self.notes.saw("freeze: in the middle of a handshake");
                pipe.handoff_failed = true;
                closed += 1;
            } else if pipe.tls.as_ref().is_some_and(|tls| tls.has_part()) {
                self.notes.saw("freeze: in the middle of a record");
            }
        }
        Frozen { sent_bytes, counts: (connections - closed, subscriptions), records }
    }

    /// Puts a worker in its place that is thawed from records.
    fn thaw_worker(&mut self, at: usize, frozen: Frozen) -> Check {
        let Frozen { sent_bytes, counts, records } = frozen;
        let seat = &mut self.seats[at];
        let mut net = FakeNet::new(&self.notes);
        net.sent_bytes = sent_bytes;
        seat.worker = seat.vacant(net);
        self.set_clock(at);
        let seat = &mut self.seats[at];
        let vacant = seat.vacant(FakeNet::new(&self.notes));
        let mut thaw = WorkerThaw::new(std::mem::replace(&mut seat.worker, vacant));
        // As another process does: it looks at all records before it makes connections of any.
        let is_checked = self.random.percent(50);
        if is_checked {
            self.notes.saw("freeze: checked before the thaw");
            for (record, _) in &records {
                thaw.check(record).map_err(|error| format!("a record: {error}"))?;
            }
            thaw.end_check().map_err(|error| format!("the records: {error}"))?;
        }
        for (record, socket) in records {
            let events = frozen::events(&record);
            events.iter().for_each(|event| self.notes.saw(event));
            // Among these are the connections whose requests wait for decisions.
            if events.contains(&"frozen: read deferred")
                && let Some(socket) = &socket
            {
                let client = socket.0.borrow().client;
                self.clients[client].asked_again();
            }
            thaw.record(&record, socket).map_err(|error| format!("a record: {error}"))?;
        }
        seat.worker = thaw.finish().map_err(|error| format!("a worker: {error}"))?;
        seat.worker.check_invariants();
        seat.wake();
        seat.sleep.expect_work();
        let after = (seat.worker.connection_count(), seat.worker.subscriptions_in_all());
        ensure!(counts == after, "{counts:?} connections and subscriptions became {after:?}");
        Ok(())
    }
}
