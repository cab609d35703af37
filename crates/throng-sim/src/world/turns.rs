//! Turns of the workers' event loops, and of the control plane.

use throng_access::CountedAddress;
use throng_core::Listener;
use throng_edge::net::HandoffHeader;

use super::World;
use super::seat::Batch;
use crate::{Check, ensure};

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
        if seat.holds_back() {
            self.notes.saw("pace: a clock runs");
        }
        if seat.is_woken() {
            self.notes.saw("sleep: woken by another thread");
        }
        seat.wake();
        let moment = seat.moment(now_ms);
        seat.worker.set_now(moment);
        // A small reserve would be filled by a request that waits for the control plane.
        seat.net().refuses = self.random.percent(3) && !self.terms.is_tight();
        for event in seat.net().wait(batch.events, &mut self.random) {
            if event.is_writable {
                seat.worker.writable(event.token);
            }
            if event.is_readable {
                seat.worker.readable(event.token, event.is_ended);
            }
        }
        self.look_at_queue(at);
        let seat = &mut self.seats[at];
        for _ in 0..batch.sockets.min(seat.backlog.len()) {
            let Some(socket) = seat.next_socket() else {
                if !seat.backlog.is_empty() {
                    self.notes.saw("tls: waits for the end of other handshakes");
                }
                break;
            };
            seat.taken += 1;
            let is_tls = socket.0.borrow().tls.is_some();
            if is_tls {
                seat.worker.accepted_tls(socket);
            } else {
                seat.worker.accepted(socket);
            }
        }
        for _ in 0..batch.sockets.min(seat.handoffs.len()) {
            self.receive_handoff(at);
        }
        let seat = &mut self.seats[at];
        if seat.sleep.is_tick_due(now) {
            seat.worker.tick();
        }
        self.absorb()?;
        // Events leave what the slice of work ends: close frames to answer, deferred reads.
        if self.random.percent(4) {
            self.freeze()?;
        }
        self.work(at)
    }

    /// Passes the next handoff to its worker. Returns whether there was one.
    fn receive_handoff(&mut self, at: usize) -> bool {
        let seat = &mut self.seats[at];
        let Some((header, socket, mut bytes)) = seat.handoffs.pop_front() else { return false };
        if header.has_place && self.random.percent(4) {
            self.notes.saw("to worker: lost on its way");
            socket.0.borrow_mut().handoff_failed = true;
            seat.worker.handoff_lost(header);
            return true;
        }
        seat.taken += 1;
        let client = socket.0.borrow().client;
        self.stamp.touch(Some(client));
        seat.worker.handed_off(header, socket, &mut bytes);
        true
    }

    /// Passes handoffs to the workers that have ended since they were sent, as the event loop does
    /// behind its last turn.
    fn close_handoffs(&mut self) {
        for at in 0..self.seats.len() {
            if !self.seats[at].worker.is_ended() || self.seats[at].handoffs.is_empty() {
                continue;
            }
            self.set_clock(at);
            while self.receive_handoff(at) {
                self.notes.saw("to worker: answered after its end");
            }
            self.pass_handoffs(at);
        }
    }

    /// Lets the handoffs of a worker arrive where they go.
    pub(super) fn pass_handoffs(&mut self, at: usize) {
        let net = self.seats[at].net();
        let (to_control, to_workers) =
            (std::mem::take(&mut net.to_control), std::mem::take(&mut net.to_workers));
        for handoff in to_control {
            self.control.take(handoff);
        }
        for (worker, handoff) in to_workers {
            self.seats[usize::from(worker.0)].handoffs.push_back(handoff);
        }
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
        self.pass_handoffs(at);
        self.close_handoffs();
        self.check_places()?;
        self.absorb()
    }

    /// Checks that the workers reserve one place for each connection handed off to them, and no
    /// more.
    fn check_places(&self) -> Check {
        for (at, seat) in self.seats.iter().enumerate().filter(|(_, seat)| !seat.worker.is_ended())
        {
            let coming = seat.handoffs.iter().filter(|(header, ..)| header.has_place).count();
            let kept = self.metrics.workers()[at].places_kept();
            ensure!(
                kept as usize == coming,
                "worker {at} reserves {kept} places for {coming} connections"
            );
        }
        Ok(())
    }

    /// A worker outside of this world requests a permit, or gives up its permit.
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
        for (client, is_tls, socket, bytes) in self.control.turn(&self.notes) {
            // Like the real control plane: to the least loaded worker, which may refuse it; nowhere
            // if that worker has ended.
            let worker = usize::from(self.metrics.least_loaded().0);
            if self.seats[worker].worker.is_ended() {
                socket.0.borrow_mut().handoff_failed = true;
            } else {
                let address = client.map(CountedAddress::into_address);
                let header = HandoffHeader {
                    address,
                    is_tls,
                    ..HandoffHeader::between_planes(Listener::Public)
                };
                self.seats[worker].handoffs.push_back((header, socket, bytes));
            }
        }
    }
}
