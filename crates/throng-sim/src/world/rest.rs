//! Lets all work finish, and checks that nothing is missing.

use throng_edge::{Counter, Parked};

use super::World;
use super::seat::{Batch, TICK_MS};
use crate::client::Client;
use crate::tls_end::TlsEnd;
use crate::{Check, ensure};

/// The maximum number of rounds until a world is at rest.
const ROUNDS_MAX: usize = 20_000;

/// The minimum size of a message on the wire, in bytes.
const MESSAGE_BYTES_MIN: usize = 6;

/// A client whose socket is full, with more pending in the server.
struct Stuck {
    number: usize,
    /// The bytes in its socket.
    bytes: usize,
    gaps: u64,
    /// Channel, the client's offset, and the head.
    cursors: Vec<(usize, u64, u64)>,
}

impl World {
    /// Lets all bytes be sent, handled and read, and checks that no client misses a message.
    pub(super) fn rest(&mut self) -> Check {
        self.notes.trace("rest".into());
        self.rival.release();
        self.end_shortage()?;
        self.end_storm();
        self.let_keeper_rest()?;
        let stuck = self.let_servers_rest()?;
        self.come_to_rest()?;
        self.check_asleep()?;
        self.end_receipts()?;
        for stuck in stuck {
            self.check_bounded(&stuck)?;
        }
        for number in 0..self.clients.len() {
            let (client, view) = self.client(number);
            let judged = client.check_rest(view);
            judged.map_err(|objection| format!("client {number}, at rest: {objection}"))?;
        }
        self.check_members()?;
        self.check_logs()?;
        self.check_heard()?;
        self.check_counters()
    }

    /// Checks that the application has heard of all connections that are there, and of no others.
    fn check_heard(&self) -> Check {
        let streams = [Parked::WebSocket, Parked::Sse, Parked::Stream];
        self.recorder.heard().check(streams.map(|parked| self.metrics.parked(parked)).iter().sum())
    }

    /// Checks that all logs together keep the expected messages, within their limit.
    fn check_logs(&self) -> Check {
        let metrics = self.engine.metrics();
        let busy = self.busy;
        ensure!(metrics.busy == busy, "{busy} were refused as busy, {} are counted", metrics.busy);
        let evicted = self.model.evicted;
        ensure!(metrics.evicted == evicted, "{} were evicted, not {evicted}", metrics.evicted);
        if self.terms.max_logs_bytes.is_some() {
            let (messages, bytes) = self.model.kept(self.now_ms());
            let is_it = (metrics.messages, metrics.bytes) == (messages, bytes as u64);
            ensure!(is_it, "{metrics:?}, and {messages} must be kept, {bytes} bytes");
        }
        Ok(())
    }

    /// Lets the workers do all that they can while no client reads. Returns the clients that are
    /// stuck then.
    fn let_servers_rest(&mut self) -> Check<Vec<Stuck>> {
        for _ in 0..2 {
            for at in 0..self.seats.len() {
                while self.is_busy(at) {
                    self.turn(at, Batch::ALL)?;
                }
            }
            // The timer scan finds subscriptions beyond the lag limit.
            self.pass(TICK_MS)?;
        }
        let stuck = |client: &Client| {
            let (bytes, cursors) = client.stuck()?;
            let gaps = client.gaps;
            let with_head = |(topic, at)| (topic, at, self.model.head(topic));
            let cursors = cursors.into_iter().map(with_head).collect();
            Some(Stuck { number: client.number, bytes, gaps, cursors })
        };
        Ok(self.clients.iter().filter_map(stuck).collect())
    }

    /// Checks that a client that was stuck got, without a gap, no more than the lag limit.
    fn check_bounded(&self, stuck: &Stuck) -> Check {
        let client = &self.clients[stuck.number];
        if client.gaps != stuck.gaps {
            return Ok(());
        }
        for &(topic, at, head) in &stuck.cursors {
            // Where only the newest message counts, an offset says nothing about how many came.
            if self.model.topics[topic].is_latest() {
                continue;
            }
            let Some(offset) = client.offset(topic) else { continue };
            let rule = &self.model.topics[topic].rule;
            // The messages in the socket, and the one that is partly in it.
            let sent = stuck.bytes / MESSAGE_BYTES_MIN + 1;
            let may_wait = rule.max_lag_messages.max(rule.retention.max_messages);
            // What has expired takes no room from other messages.
            let got = self.model.between(topic, at, offset.min(head)).iter();
            // What has expired takes no room from other messages.
            let got = got.filter(|entry| !entry.is_expired(self.now_ms())).count();
            ensure!(
                got <= may_wait + sent,
                "client {} got {got} messages of {topic}, {sent} of them from its socket",
                stuck.number
            );
            self.notes.saw("lag: within the limit");
        }
        Ok(())
    }

    pub(super) fn come_to_rest(&mut self) -> Check {
        for client in &self.clients {
            client.pipe.borrow_mut().widen();
        }
        for _ in 0..ROUNDS_MAX {
            let mut has_moved = false;
            for number in 0..self.clients.len() {
                if self.clients[number].may_acknowledge() {
                    let (client, view) = self.client(number);
                    client.acknowledge(u64::MAX, view);
                }
                let client = &mut self.clients[number];
                client.is_halting = false;
                if client.has_unsent() {
                    client.send(usize::MAX);
                    has_moved = true;
                }
                let is_ending = client.is_here() && client.pipe.borrow().is_ended();
                if client.pipe.borrow().has_unread_outbound() || is_ending {
                    self.read(number, usize::MAX)?;
                    has_moved = true;
                }
            }
            self.control_turn();
            has_moved |= self.policy.answers().answer_all() > 0;
            has_moved |= self.recorder.fetches().answers().answer_all() > 0;
            for at in 0..self.seats.len() {
                if self.is_busy(at) {
                    self.turn(at, Batch::ALL)?;
                    has_moved = true;
                }
            }
            if !has_moved && !self.pass_interval()? {
                return Ok(());
            }
        }
        Err("the world does not come to rest".into())
    }

    /// Lets the time pass until which workers hold messages back. Returns whether one does.
    fn pass_interval(&mut self) -> Check<bool> {
        let until = self.seats.iter().filter(|seat| !seat.worker.is_ended());
        let until = until.filter_map(|seat| seat.worker.until_due()).max();
        if let Some(until) = until {
            self.notes.saw("compact: messages held back");
            self.pass(until.as_millis() as u64 + 1)?;
        }
        Ok(until.is_some())
    }

    fn is_busy(&mut self, at: usize) -> bool {
        let now = self.now();
        self.seats[at].is_runnable(now)
    }

    /// Checks that no worker sleeps with pending work: no wake-up was lost.
    fn check_asleep(&self) -> Check {
        for (at, seat) in self.seats.iter().enumerate() {
            seat.worker.check_invariants();
            let is_done = self.queues[at].is_empty()
                && !seat.worker.is_fanning_out()
                && seat.worker.until_due().is_none();
            ensure!(is_done || seat.worker.is_ended(), "worker {at} sleeps with something to do");
        }
        let readable = self.recorder.fetches().readable();
        ensure!(readable == 0, "{readable} parts of logs are kept readable for nothing");
        Ok(())
    }

    /// Checks that the counter of deliveries has each message written in full, including those to
    /// clients that left before they read it.
    pub(super) fn check_deliveries(&self) -> Check {
        let received: u64 = self.clients.iter().map(|client| client.messages).sum();
        let delivered = self.count(Counter::Deliveries);
        // A record counts once a part of it is taken. If the rest is not, because its client has
        // left, nobody opens it.
        let part = |client: &Client| {
            let bytes = client.pipe.borrow().tls.as_ref().map_or(0, |tls| tls.part_bytes_max());
            bytes / MESSAGE_BYTES_MIN as u64
        };
        let most = received + self.clients.iter().map(part).sum::<u64>();
        let is_right = (received..=most).contains(&delivered);
        ensure!(is_right, "{received} to {most} messages came, {delivered} are counted");
        Ok(())
    }

    fn check_counters(&mut self) -> Check {
        let open: u64 = self.seats.iter().map(|seat| seat.worker.connection_count() as u64).sum();
        let taken: u64 = self.seats.iter().map(|seat| seat.taken).sum();
        let gone = self.count(Counter::Closed)
            + self.count(Counter::HandedOffToControl)
            + self.count(Counter::HandedOffToWorker);
        ensure!(taken == open + gone, "{taken} connections came, {gone} went, {open} are there");
        let plain: u64 = self.seats.iter_mut().map(|seat| seat.net().sent_bytes).sum();
        let tls = |of: fn(&TlsEnd) -> u64| -> u64 {
            self.clients.iter().filter_map(|it| it.pipe.borrow().tls.as_deref().map(of)).sum()
        };
        // A record counts once a part of it is taken.
        let sent = plain + tls(|tls| tls.content_bytes) - self.control.tls_bytes;
        let most = sent + tls(TlsEnd::part_bytes_max);
        let counted = self.count(Counter::SentBytes);
        // The answers to long-polls and handshakes count too.
        let is_right = (sent..=most).contains(&counted);
        ensure!(is_right, "{counted} bytes are counted, {sent} to {most} were taken");
        let spoken = self.count(Counter::MessagesPublished);
        ensure!(spoken == self.spoken, "{spoken} counted as published, {} were", self.spoken);
        self.check_deliveries()?;
        let gaps = self.clients.iter().map(|client| client.gaps + client.pending_gaps()).sum();
        let counted_gaps = self.count(Counter::Gaps);
        let gaps: u64 = gaps;
        ensure!(counted_gaps >= gaps, "clients got {gaps} gaps, {counted_gaps} are counted");
        let overloads = self.count(Counter::ClosedOverload);
        let overloaded = self.clients.iter().filter(|client| client.is_evicted).count() as u64;
        ensure!(
            self.drain.is_some() || overloads >= overloaded,
            "{overloaded} were evicted, {overloads} are counted"
        );
        let stalled = self.count(Counter::TlsHandshakesStalled);
        let may_be_stalled =
            self.clients.iter().filter(|client| client.may_be_stalled(self.view())).count() as u64;
        ensure!(stalled >= may_be_stalled, "{may_be_stalled} have no answer, {stalled} stalled");
        let has_small_quota = self.terms.held_bytes_floor.is_some();
        let busy = self.clients.iter().filter(|client| client.is_busy).count() as u64;
        ensure!(overloads >= busy, "{busy} were closed as busy, {overloads} are counted");
        ensure!(has_small_quota || overloads == busy, "{overloads} were evicted for no reason");
        let is_given_up = self.clients.iter().any(|client| client.is_given_up);
        if self.kind.clients_stay && self.drain.is_none() && !is_given_up {
            ensure!(counted_gaps == gaps, "clients got {gaps} gaps, {counted_gaps} are counted");
        }
        Ok(())
    }
}
