//! A worker and its event loop.

use std::collections::VecDeque;

use throng_core::Listener;
use throng_edge::net::HandOver;
use throng_edge::worker::{Now, Worker};

use super::{BEGINNING_MS, World};
use crate::net::FakeNet;
use crate::pipe::FakeSocket;
use crate::{Check, ensure};

/// Milliseconds between two ticks.
pub(super) const TICK_MS: u64 = 100;

/// What one turn of the loop takes in, at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) events: usize,
    pub(super) sockets: usize,
}

impl Batch {
    pub(super) const ALL: Batch = Batch { events: usize::MAX, sockets: usize::MAX };
}

/// A worker, what waits for it, and where its loop stands.
pub(super) struct Seat {
    pub(super) worker: Worker<FakeNet>,
    /// Connected, not yet accepted.
    pub(super) backlog: VecDeque<FakeSocket>,
    /// Handed over, not yet taken.
    pub(super) inlet: VecDeque<(HandOver, FakeSocket, Vec<u8>)>,
    next_tick_ms: u64,
    pub(super) has_work: bool,
    /// Sockets taken in so far.
    pub(super) taken: u64,
}

impl Seat {
    pub(super) fn new(worker: Worker<FakeNet>) -> Seat {
        Seat {
            worker,
            backlog: VecDeque::new(),
            inlet: VecDeque::new(),
            next_tick_ms: BEGINNING_MS + TICK_MS,
            has_work: false,
            taken: 0,
        }
    }
}

impl World {
    /// One turn of a worker's loop: events, new sockets, the tick if it is time, a slice of work.
    pub(super) fn turn(&mut self, at: usize, batch: Batch) -> Check {
        let now_ms = self.now_ms();
        let seat = &mut self.seats[at];
        if seat.worker.is_ended() {
            return Ok(());
        }
        let tick = ((now_ms - BEGINNING_MS) / TICK_MS) as u32;
        seat.worker.set_now(Now { unix_ms: now_ms, tick });
        // Where the reserve is small, a request that waits for the control plane would fill it.
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
        for _ in 0..batch.sockets.min(seat.inlet.len()) {
            let Some((hand_over, socket, mut bytes)) = seat.inlet.pop_front() else { break };
            if hand_over.has_place && self.random.percent(4) {
                self.notes.saw("to worker: lost on its way");
                socket.0.borrow_mut().was_turned_away = true;
                seat.worker.hand_over_lost(hand_over);
                continue;
            }
            seat.taken += 1;
            let client = socket.0.borrow().client;
            self.stamp.touch(Some(client));
            seat.worker.handed_over(hand_over, socket, &mut bytes);
        }
        if now_ms >= seat.next_tick_ms {
            seat.next_tick_ms = now_ms + TICK_MS;
            seat.worker.tick();
        }
        self.absorb()?;
        self.work(at)
    }

    /// One slice of a worker's work.
    pub(super) fn work(&mut self, at: usize) -> Check {
        let seat = &mut self.seats[at];
        if seat.worker.is_ended() {
            return Ok(());
        }
        let may_fan_out = self.random.percent(75);
        let has_more = seat.worker.work(may_fan_out);
        seat.has_work = has_more || seat.worker.is_fanning_out() || seat.worker.is_waiting();
        if seat.has_work {
            self.notes.saw("work: more than a slice");
        }
        let net = seat.worker.net();
        let (to_control, to_workers) =
            (std::mem::take(&mut net.to_control), std::mem::take(&mut net.to_workers));
        for (socket, bytes) in to_control {
            self.control.take(socket, bytes);
        }
        for (worker, socket, bytes) in to_workers {
            self.seats[usize::from(worker.0)].inlet.push_back((HandOver::TO_WORKER, socket, bytes));
        }
        self.check_places()?;
        self.absorb()
    }

    /// A place is kept for each connection on its way to a worker that has not ended, and no other.
    fn check_places(&self) -> Check {
        for (at, seat) in self.seats.iter().enumerate().filter(|(_, it)| !it.worker.is_ended()) {
            let coming = seat.inlet.iter().filter(|(hand_over, ..)| hand_over.has_place).count();
            let kept = self.figures.workers()[at].places_kept();
            ensure!(kept as usize == coming, "worker {at} keeps {kept} places, {coming} come");
        }
        Ok(())
    }

    /// The control plane's turn.
    pub(super) fn control_turn(&mut self) {
        for (socket, bytes) in self.control.turn(&self.notes) {
            // As the real one: to the worker with the most room, or to one that refuses it; not at
            // all once that has ended.
            let worker = usize::from(self.figures.emptiest().0);
            if self.seats[worker].worker.is_ended() {
                socket.0.borrow_mut().was_turned_away = true;
            } else {
                let hand_over = HandOver::between_planes(Listener::Public);
                self.seats[worker].inlet.push_back((hand_over, socket, bytes));
            }
        }
    }
}
