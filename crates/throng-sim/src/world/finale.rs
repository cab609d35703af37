//! The end: all clients leave, or the server drains.

use std::sync::Arc;

use throng_core::{Notification, WorkerId};
use throng_edge::{Counter, Parked};

use super::World;
use super::seat::TICK_MS;
use super::storms::Storms;
use crate::client::plan::{Start, Transport};
use crate::topics::SQUARE;
use crate::{Check, ensure};

/// The time after which lingering closes have ended.
const LINGER_MS: u64 = 2500;

/// The time within which a worker ends after the drain timeout.
const LAST_MS: u64 = 3500;

impl World {
    pub(super) fn finale(&mut self) -> Check {
        self.end_shortage()?;
        self.end_storm();
        self.storms = Storms::none();
        match self.drain {
            Some(_) => self.end_drain(),
            None => self.all_clients_leave(),
        }?;
        self.note_counters();
        Ok(())
    }

    pub(super) fn start_drain(&mut self) -> Check {
        if self.random.percent(60) {
            self.rest()?;
        }
        if self.random.percent(50) {
            self.stop_accepting()?;
        }
        // Some clients stop reading with more pending than their sockets hold: the server cannot
        // close these in time.
        if self.random.percent(40) {
            for number in 0..self.clients.len() {
                self.clients[number].is_reading &= self.random.percent(60);
            }
            for _ in 0..3 {
                for topic in 0..self.model.lists {
                    self.publish_on(topic);
                }
            }
        }
        // Messages still to be delivered; to a crowd this takes several slices.
        for _ in 0..self.random.between(0, 3) {
            self.publish_on(SQUARE);
        }
        if self.random.percent(40) {
            self.begin_waiting_polls()?;
        }
        self.absorb()?;
        self.notes.trace("drain".into());
        let now_ms = self.now_ms();
        self.stopped_accepting_ms.get_or_insert(now_ms);
        self.drain = Some(self.stamp.now());
        for at in 0..self.seats.len() {
            self.engine.post(WorkerId(at as u16), Notification::Drain);
        }
        // The notification wakes them: their deadline is counted from now.
        self.pass(0)
    }

    /// The server asks its clients to leave, within some seconds, or lets them stay.
    pub(super) fn ask_to_leave(&mut self) -> Check {
        let is_leave = self.random.percent(40);
        let over_ms = self.random.between(0, 3000) as u64;
        self.notes.trace(if is_leave { format!("leave in {over_ms} ms") } else { "stay".into() });
        for at in 0..self.seats.len() {
            let notification = if is_leave {
                Notification::Leave { over_ms }
            } else {
                Notification::Stay { held: Arc::new(()) }
            };
            self.engine.post(WorkerId(at as u16), notification);
        }
        if is_leave {
            let now = self.stamp.now();
            self.asked.get_or_insert(now);
        }
        self.pass(0)
    }

    /// Long-polls that wait when the drain begins. Others have mostly been answered by then.
    fn begin_waiting_polls(&mut self) -> Check {
        for _ in 0..3 {
            let mut plan = self.plan();
            let is_fit = |topic: &usize| *topic < self.model.lists;
            if plan.targets.first().is_none_or(|topic| !is_fit(topic)) {
                (plan.targets, plan.state) = (vec![SQUARE], false);
            }
            (plan.transport, plan.start, plan.wait_s) = (Transport::Poll, Start::Live, 5);
            plan.presence.clear();
            plan.compact = None;
            self.connect_as(plan)?;
        }
        for _ in 0..20 {
            self.some_turn()?;
        }
        Ok(())
    }

    /// The server stops accepting some time before it drains.
    fn stop_accepting(&mut self) -> Check {
        self.notes.trace("stop accepting".into());
        let now_ms = self.now_ms();
        self.stopped_accepting_ms.get_or_insert(now_ms);
        for at in 0..self.seats.len() {
            self.engine.post(WorkerId(at as u16), Notification::StopAccepting);
        }
        self.pass(0)?;
        for _ in 0..40 {
            self.step()?;
        }
        self.rest()
    }

    fn end_drain(&mut self) -> Check {
        let started_ms = self.drain.map_or(0, |drain| drain.now_ms);
        let end_ms = started_ms + self.terms.drain_timeout_ms + LAST_MS;
        for number in 0..self.clients.len() {
            if self.clients[number].may_poll() && self.random.percent(95) {
                self.notes.trace(format!("{number} polls once more"));
                let (client, view) = self.client(number);
                client.poll_last(view);
            }
        }
        while self.seats.iter().any(|seat| !seat.worker.is_ended()) {
            ensure!(self.now_ms() <= end_ms, "a worker does not end");
            for _ in 0..10 {
                self.step()?;
            }
            self.pass(TICK_MS)?;
        }
        // Dropping the workers closes their sockets; the control plane owns its own.
        self.seats.clear();
        self.control.end();
        for number in 0..self.clients.len() {
            self.read(number, usize::MAX)?;
            let is_over = !self.clients[number].is_here();
            ensure!(is_over, "client {number} was not closed");
        }
        self.check_deliveries()
    }

    fn all_clients_leave(&mut self) -> Check {
        self.rest()?;
        for number in 0..self.clients.len() {
            if self.clients[number].is_here() {
                self.leave(number);
            }
        }
        self.rest()?;
        self.pass(LINGER_MS)?;
        self.rest()?;
        self.check_nobody_is_member()?;
        for (at, seat) in self.seats.iter().enumerate() {
            let (connections, subscriptions) =
                (seat.worker.connection_count(), seat.worker.subscriptions_in_all());
            ensure!(connections == 0, "worker {at} keeps {connections} connections");
            ensure!(subscriptions == 0, "worker {at} keeps {subscriptions} subscriptions");
            let counters = &self.metrics.workers()[at].counters;
            let parked: u64 = Parked::ALL.iter().map(|&parked| counters.parked(parked)).sum();
            ensure!(parked == 0, "worker {at} counts {parked} parked connections");
        }
        ensure!(self.control.is_empty(), "the control plane keeps connections");
        self.check_engine()
    }

    /// Checks that the engine keeps nothing once all followers have left, all messages have
    /// expired, and states are erased.
    fn check_engine(&mut self) -> Check {
        for (nth, topic) in self.model.topics.iter().enumerate() {
            let (subscribers, pinned) = (self.model.subscribers(nth), u64::from(topic.is_pinned));
            ensure!(subscribers == pinned, "{} has {subscribers} subscribers", topic.name);
            let audience = self.engine.audience(&topic.channel_name());
            ensure!(audience.subscribers == pinned, "{}: {audience:?}", topic.name);
            for (worker, _, channel) in audience.workers {
                self.engine.unfollow(self.now_ms(), channel, worker);
            }
        }
        self.absorb()?;
        self.erase_states();
        self.recorder.heard().check_vacated()?;
        self.stamp.set_now(self.now_ms() + 2 * 3_600_000);
        // Each tick covers part of the shards.
        for _ in 0..256 {
            self.engine.tick(self.now_ms());
        }
        let metrics = self.engine.metrics();
        let is_empty = (metrics.channels, metrics.messages, metrics.bytes) == (0, 0, 0);
        ensure!(is_empty, "the engine keeps {metrics:?}");
        Ok(())
    }

    fn note_counters(&self) {
        for (event, counter) in [
            ("wait: for a decision or more", Counter::Waited),
            ("wait: too long", Counter::WaitsTimedOut),
            ("wait: nothing waits for the answer", Counter::UnawaitedAnswers),
            ("counter: blocked", Counter::WritesBlocked),
            ("counter: lag", Counter::ClosedLagging),
            ("counter: silent", Counter::ClosedPingTimeout),
            ("counter: idle", Counter::ClosedIdle),
            ("counter: draining", Counter::ClosedDraining),
            ("counter: slow head", Counter::RefusedTooSlow),
            ("counter: full", Counter::RefusedFull),
            ("counter: violation", Counter::ClosedForViolation),
            ("counter: deliveries", Counter::Deliveries),
            ("counter: deferred", Counter::DeliveriesDeferred),
            ("counter: overload", Counter::ClosedOverload),
            ("counter: dropped", Counter::ReplayMessagesEvicted),
            ("tls: truncated", Counter::TlsTruncated),
            ("tls: shaken hands", Counter::TlsHandshakes),
            ("tls: abandoned", Counter::TlsHandshakesAbandoned),
            ("tls: stalled", Counter::TlsHandshakesStalled),
        ] {
            self.notes.saw_times(event, self.count(counter));
        }
        let Some(tls) = &self.tls else { return };
        self.notes.saw_times("tls: records of servers", tls.positions.len() as u64);
        for client in &self.clients {
            let key_updates = client.pipe.borrow().tls.as_ref().map_or(0, |tls| tls.key_updates);
            self.notes.saw_times("tls: keys of servers updated", key_updates);
        }
    }
}
