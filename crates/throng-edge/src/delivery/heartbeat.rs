//! Heartbeats and pings: they keep idle connections alive, and find those that are dead.
//!
//! A **heartbeat** needs no answer. It is an unsolicited pong (RFC 6455 section 5.5.3), on
//! `throng.v1` a frame that a page can see, a comment (SSE), or an empty line. A peer that has gone
//! does not acknowledge it, and the kernel closes the connection (`TCP_USER_TIMEOUT`, see
//! `sys/listener.rs`). A **ping** needs an answer from the client itself: it finds a client that
//! has died behind a proxy which still acknowledges. See
//! `docs/decisions/0008-heartbeats-without-answers.md`.
//!
//! # Invariants
//!
//! * A connection that takes what it is sent is never silent for longer than the interval, beside
//!   the time by which a check may be late: [`DEFERRED_TICKS_MAX`] and one pass of the timer scan.
//! * A connection is checked twice in each interval. The checks are spread evenly over the
//!   interval, whenever connections came and whatever was sent to them. Neighbours in the table,
//!   which mostly are neighbours in the kernel's memory, are checked together.
//! * A client that chooses a longer interval gets fewer heartbeats, and as many checks and pings as
//!   others: it is found dead as soon. The interval is at most the ping interval, so that a stream,
//!   which has no pings, is written to as often.
//! * `HEARD` is cleared by a ping that is sent, and set by anything that is read, and while the
//!   socket takes nothing. A check closes a connection without `HEARD` if the last ping was due at
//!   least [`CheckSchedule::answer_ticks`] ago: two intervals, 20 s if that is longer, the ping
//!   interval if that is shorter.
//! * So a silent client is closed within the ping interval, the time to answer, and the time by
//!   which that check is late.
//! * So a client has at least three quarters of the time to answer, because a ping that is late by
//!   more than a quarter of it is left out. A check that is later than that closes no connection:
//!   what the client sent meanwhile may not be read yet.

pub(crate) mod queue;
mod schedule;

use std::time::Duration;

use throng_core::Waiting;
use throng_dialect::CloseReason;
use throng_wire::subscribe::ConnectionOption;

use crate::connection::{Connection, ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::delivery::Delivery;
use crate::net::Net;
use crate::sockets::{TICKS_PER_S, ticks};
use queue::Heartbeat;
use schedule::{CheckSchedule, GROUP, Intervals};

/// While a fan-out is under way, heartbeats wait for this long, in ticks.
pub(crate) const DEFERRED_TICKS_MAX: u32 = 2 * TICKS_PER_S;

impl<N: Net> Delivery<N> {
    /// The longest silence on a connection; zero if it gets no heartbeats. A client may choose it,
    /// up to the ping interval: the kernel finds that a peer has gone when something is written,
    /// and nothing else is written to a stream.
    pub(crate) fn heartbeat_interval(&self, id: ConnectionId) -> Duration {
        let own = self.own_interval(id);
        let chosen = self.connections().options(id).get(ConnectionOption::Heartbeat);
        match chosen.map(|chosen_s| Duration::from_secs(chosen_s.into())) {
            None => own,
            // A server without heartbeats has the kernel probe its peers.
            Some(chosen) if own.is_zero() => chosen,
            Some(chosen) => chosen.min(own.max(self.settings.ping_interval)),
        }
    }

    /// The longest silence on a connection whose client has chosen none.
    fn own_interval(&self, id: ConnectionId) -> Duration {
        let of_dialect = self[id].encoding().dialect().heartbeat_interval();
        of_dialect.unwrap_or(self.settings.heartbeat)
    }

    /// When the connection is checked. Workers start at different groups, so that they do not write
    /// their heartbeats at the same time.
    fn check_schedule(&self, id: ConnectionId) -> CheckSchedule {
        let is_websocket = self[id].is_websocket();
        let group = (id.index() / GROUP).wrapping_add(u32::from(self.metrics().worker().0));
        let ping = if is_websocket { self.settings.ping_interval } else { Duration::ZERO };
        let intervals = Intervals {
            own: ticks(self.own_interval(id)),
            heartbeat: ticks(self.heartbeat_interval(id)),
            ping: ticks(ping),
        };
        CheckSchedule::new(group, intervals)
    }

    /// Notes the connection's interval, if its dialect has a shorter one than the settings, or its
    /// client: more heartbeats are allowed from then on.
    fn note_interval(&mut self, id: ConnectionId) {
        if let Some(own) = self[id].encoding().dialect().heartbeat_interval() {
            self.heartbeats.note_dialect(ticks(own));
        }
        if self.connections().options(id).get(ConnectionOption::Heartbeat).is_some() {
            self.heartbeats.note_chosen(ticks(self.heartbeat_interval(id)));
        }
    }

    /// Schedules the first check of a connection that begins to stream.
    pub(crate) fn schedule_first_heartbeat(&mut self, id: ConnectionId) {
        self.note_interval(id);
        let due = self.check_schedule(id).next(self.clock().tick());
        if self[id].state() == State::Streaming {
            self.connections_mut().set_own_due(id, due);
        }
    }

    /// Lets as many heartbeats be sent in this tick as [`HeartbeatQueue`](queue::HeartbeatQueue)
    /// allows.
    pub(crate) fn allow_heartbeats(&mut self) {
        let own = ticks(self.settings.heartbeat);
        let (connections, choosers) = (self.connections().len(), self.connections().choosers());
        self.heartbeats.refill(self.clock().tick(), connections, choosers, own);
    }

    /// Checks a streaming connection that is due: it gets a heartbeat if it needs one, or a ping. A
    /// WebSocket that has not answered the last ping in its time is closed.
    ///
    /// A check sees what was written since the one before, half an interval ago. If that is
    /// nothing, the connection gets a heartbeat. One that is sent at a regular check counts as
    /// written, so that an idle connection gets the next one at the next regular check. One that is
    /// sent at a halfway check, because messages came in the half before, does not count: so
    /// heartbeats return to the regular checks, and stay spread after a message to all.
    pub(crate) fn heartbeat(&mut self, id: ConnectionId) {
        self.note_interval(id);
        if !self.heartbeats.has_allowance() {
            // It stays due.
            return;
        }
        let due = self.connections().side().own_due(&self[id]);
        let tick = self.clock().tick();
        let schedule = self.check_schedule(id);
        let is_written_soon = self.is_written_soon(id);
        self.connections_mut().set_own_due(id, schedule.next(tick));
        // Nothing is read while a command waits for its answer.
        let is_reading = self.connections().pending(id).is_none();
        let connection = &mut self[id];
        // If a check was missed, that may have been written more than half an interval ago.
        let was_written = connection.has(Flags::WRITTEN) && !schedule.is_missed(due, tick);
        let is_heartbeat = schedule.is_heartbeat(due, tick);
        if is_heartbeat {
            connection.flags.set(Flags::WRITTEN, false);
        }
        if connection.has(Flags::BLOCKED) {
            // No ping gets through to be answered. If the peer takes nothing at all, the kernel
            // closes the socket (`TCP_USER_TIMEOUT`).
            connection.flags.set(Flags::HEARD, true);
            return self.check_blocked(id);
        }
        // Input that waits for a turn to be read may be the answer.
        let is_unheard =
            is_reading && !connection.has(Flags::HEARD) && !connection.has(Flags::READ_DEFERRED);
        if is_unheard && schedule.is_answer_due(due, tick) {
            return self.close_for(id, CloseReason::PingTimeout);
        }
        if schedule.is_ping(due, tick) {
            return self.ping(id);
        }
        if !is_heartbeat || was_written || is_written_soon {
            return;
        }
        let bytes = heartbeat_bytes(connection);
        let counts_as_written = schedule.is_regular(tick);
        self.count(Counter::Heartbeats);
        self.queue_heartbeat(Heartbeat { id, bytes, counts_as_written });
    }

    /// Requests an answer from the client.
    fn ping(&mut self, id: ConnectionId) {
        let connection = &mut self[id];
        connection.flags.set(Flags::HEARD, false);
        let bytes = connection.encoding().dialect().ping();
        self.count(Counter::Pings);
        self.queue_heartbeat(Heartbeat { id, bytes, counts_as_written: true });
    }

    fn queue_heartbeat(&mut self, heartbeat: Heartbeat) {
        if self.heartbeats.push(heartbeat) {
            self.send_heartbeats();
        }
    }

    /// Hands what is queued to the [`Net`] together: a client that the first write wakes finds the
    /// rest, too, instead of going to sleep and being woken for each.
    pub(crate) fn send_heartbeats(&mut self) {
        if self.heartbeats.is_empty() {
            return;
        }
        let (mut heartbeats, mut transfers) = self.heartbeats.take();
        // No place is reused within a tick, but a later check may have ended a connection.
        heartbeats.retain(|heartbeat| {
            self.connections().get(heartbeat.id).is_some_and(Connection::takes_messages)
        });
        let id_of = |heartbeat: &Heartbeat| heartbeat.id;
        self.write_each(&heartbeats, id_of, &mut transfers, |heartbeat, _, _| heartbeat.bytes);
        for (heartbeat, transfer) in heartbeats.drain(..).zip(transfers.drain(..)) {
            self.sent_messages(heartbeat.id, heartbeat.bytes, 0, transfer);
            let flags = &mut self[heartbeat.id].flags;
            flags.set(Flags::WRITTEN, heartbeat.counts_as_written);
        }
        self.heartbeats.return_buffers(heartbeats, transfers);
    }

    /// True if a fan-out that is under way is about to write to the connection.
    fn is_written_soon(&self, id: ConnectionId) -> bool {
        let reader = self.connections().reader_of(id, &self[id]);
        let now_ms = self.clock().unix_ms();
        let lacks = |subscription| match self.subscriptions.waiting(subscription) {
            Waiting::Nothing => false,
            _ if self.awaits_acks(id, subscription) => false,
            Waiting::Messages(mut messages) => messages.any(|it| it.is_for(reader, now_ms)),
            Waiting::Gap { .. } | Waiting::StateEnd(_) => true,
        };
        self.subscriptions.is_fanning_out() && self.subscriptions(id).any(lacks)
    }
}

/// A heartbeat in the framing of the connection, which needs no answer.
pub(crate) fn heartbeat_bytes<S>(connection: &Connection<S>) -> &'static [u8] {
    connection.encoding().dialect().heartbeat(connection.has(Flags::CHUNKED))
}
