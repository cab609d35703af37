//! A worker and its event loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng_core::Listener;
use throng_edge::event_loop::sleep::Sleep;
use throng_edge::net::HandoffHeader;
use throng_edge::worker::{Now, Worker};

use super::{BEGINNING_MS, World};
use crate::net::FakeNet;
use crate::pipe::FakeSocket;
use crate::{Check, ensure};

/// The length of a tick in milliseconds.
pub(super) const TICK_MS: u64 = 100;

/// The maximum numbers of events and sockets for one turn of the loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) events: usize,
    pub(super) sockets: usize,
}

impl Batch {
    pub(super) const ALL: Batch = Batch { events: usize::MAX, sockets: usize::MAX };
}

/// A worker, its incoming sockets, and the state of its event loop.
pub(super) struct Seat {
    pub(super) worker: Worker<FakeNet>,
    /// Sockets connected but not yet accepted.
    pub(super) backlog: VecDeque<FakeSocket>,
    /// Hand-offs not yet received.
    pub(super) handoffs: VecDeque<(HandoffHeader, FakeSocket, Vec<u8>)>,
    /// The real event loop's decisions.
    sleep: Sleep,
    /// While the thread waits for events: its timeout.
    asleep_until: Option<Duration>,
    /// Set when another thread wakes the worker.
    is_woken: Arc<AtomicBool>,
    /// The number of sockets accepted or received so far.
    pub(super) taken: u64,
}

impl Seat {
    pub(super) fn new(worker: Worker<FakeNet>, sleep: Sleep, is_woken: Arc<AtomicBool>) -> Seat {
        Seat {
            worker,
            backlog: VecDeque::new(),
            handoffs: VecDeque::new(),
            sleep,
            asleep_until: None,
            is_woken,
            taken: 0,
        }
    }

    /// Whether the worker's loop runs without waiting: it is awake, or an event has woken it.
    /// Retries without an event count as well, because simulated time is too coarse for them.
    pub(super) fn is_runnable(&mut self, now: Duration) -> bool {
        !self.worker.is_ended()
            && (self.asleep_until.is_none_or(|until| until <= now)
                || self.is_woken.load(Ordering::SeqCst)
                || self.worker.is_waiting()
                || self.worker.net().has_events()
                || !self.backlog.is_empty()
                || !self.handoffs.is_empty())
    }

    /// Lets the loop wait for events. Returns whether it continues at once.
    fn wait(&mut self, now: Duration) -> bool {
        if self.asleep_until.is_none() {
            let timeout = self.sleep.prepare_to_sleep(&self.worker, now);
            self.asleep_until = Some(now + timeout);
        }
        self.is_runnable(now)
    }

    /// Ends the loop's wait.
    fn wake(&mut self) {
        self.asleep_until = None;
        self.is_woken.store(false, Ordering::SeqCst);
        self.sleep.finish_sleep();
    }
}

impl World {
    /// One turn of a worker's loop: events, new sockets, the tick if it is due, a slice of work.
    pub(super) fn turn(&mut self, at: usize, batch: Batch) -> Check {
        let (now_ms, now) = (self.now_ms(), self.now());
        let seat = &mut self.seats[at];
        if seat.worker.is_ended() {
            return Ok(());
        }
        if !seat.wait(now) {
            self.notes.saw("sleep: nothing to do");
            return Ok(());
        }
        if seat.is_woken.load(Ordering::SeqCst) {
            self.notes.saw("sleep: woken by another thread");
        }
        seat.wake();
        let tick = ((now_ms - BEGINNING_MS) / TICK_MS) as u32;
        seat.worker.set_now(Now { unix_ms: now_ms, tick });
        // A small reserve would be filled by a request that waits for the control plane.
        seat.worker.net().refuses = self.random.percent(3) && !self.terms.is_tight();
        for event in seat.worker.net().wait(batch.events, &mut self.random) {
            if event.is_writable {
                seat.worker.writable(event.token);
            }
            if event.is_readable {
                seat.worker.readable(event.token, event.is_ended);
            }
        }
        for _ in 0..batch.sockets.min(seat.backlog.len()) {
            let Some(socket) = seat.backlog.pop_front() else { break };
            seat.taken += 1;
            seat.worker.accepted(socket);
        }
        for _ in 0..batch.sockets.min(seat.handoffs.len()) {
            let Some((header, socket, mut bytes)) = seat.handoffs.pop_front() else { break };
            if header.has_place && self.random.percent(4) {
                self.notes.saw("to worker: lost on its way");
                socket.0.borrow_mut().was_turned_away = true;
                seat.worker.handoff_lost(header);
                continue;
            }
            seat.taken += 1;
            let client = socket.0.borrow().client;
            self.stamp.touch(Some(client));
            seat.worker.handed_off(header, socket, &mut bytes);
        }
        if seat.sleep.is_tick_due(now) {
            seat.worker.tick();
        }
        self.absorb()?;
        self.work(at)
    }

    /// One slice of a worker's work. A worker that sleeps wakes for it, as epoll may wake one for
    /// no reason.
    pub(super) fn work(&mut self, at: usize) -> Check {
        let now = self.now();
        let seat = &mut self.seats[at];
        if seat.worker.is_ended() {
            return Ok(());
        }
        seat.wake();
        seat.sleep.work(&mut seat.worker, now);
        if seat.sleep.awaits_permit(&seat.worker) {
            self.notes.saw("permit: waited for");
        }
        let net = seat.worker.net();
        let (to_control, to_workers) =
            (std::mem::take(&mut net.to_control), std::mem::take(&mut net.to_workers));
        for (socket, bytes) in to_control {
            self.control.take(socket, bytes);
        }
        for (worker, socket, bytes) in to_workers {
            self.seats[usize::from(worker.0)].handoffs.push_back((
                HandoffHeader::TO_WORKER,
                socket,
                bytes,
            ));
        }
        self.check_places()?;
        self.absorb()
    }

    /// A place is kept for each connection on its way to a worker that has not ended, and no other.
    fn check_places(&self) -> Check {
        for (at, seat) in self.seats.iter().enumerate().filter(|(_, seat)| !seat.worker.is_ended())
        {
            let coming = seat.handoffs.iter().filter(|(header, ..)| header.has_place).count();
            let kept = self.metrics.workers()[at].places_kept();
            ensure!(kept as usize == coming, "worker {at} keeps {kept} places, {coming} come");
        }
        Ok(())
    }

    /// A worker beyond those of this world requests a permit, or gives up the one that it has.
    pub(super) fn toggle_rival(&mut self) {
        let now = self.now();
        if self.rival.is_held() || self.random.percent(30) {
            self.rival.release();
        } else {
            self.rival.request(now);
        }
    }

    /// The control plane's turn.
    pub(super) fn control_turn(&mut self) {
        for (socket, bytes) in self.control.turn(&self.notes) {
            // As the real one: to the worker with the most room, or to one that refuses it; not at
            // all once that has ended.
            let worker = usize::from(self.metrics.least_loaded().0);
            if self.seats[worker].worker.is_ended() {
                socket.0.borrow_mut().was_turned_away = true;
            } else {
                let header = HandoffHeader::between_planes(Listener::Public);
                self.seats[worker].handoffs.push_back((header, socket, bytes));
            }
        }
    }
}
