//! Opens and closes clients: ramps, storms, churn, reconnects and timeouts.
//!
//! There are no timer objects: clients that are due later wait in queues, whose fronts are checked
//! before each sleep.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, ClientState};
use super::opening::{EventSchedule, RECHECK_NS, RampGroups};
use super::thread::ClientThread;
use crate::failure::Failure;
use crate::marker::now_ns;
use crate::tls::TlsFailure;

/// Clients closed before events and commands are handled again. A close takes the kernel about 30
/// µs, and 100,000 in one go would delay every sample by seconds.
const CLOSE_SLICE: usize = 256;

/// Expired timeouts may stay in their queue while it has fewer than this, plus twice those in
/// flight.
const SPARE_ENTRIES: usize = 1024;

impl ClientThread {
    /// Brings the number of open clients to `to`.
    pub(super) fn ramp(
        &mut self,
        to: usize,
        rate: Option<f64>,
        in_flight: usize,
        groups: Option<Arc<RampGroups>>,
    ) {
        let schedule = rate
            .and_then(|rate| EventSchedule::new(rate, self.index, self.shared.threads, now_ns()));
        let opening = &mut self.opening;
        (opening.goal, opening.cursor, opening.schedule) = (to, 0, schedule);
        opening.max_in_flight = in_flight.max(1);
        opening.groups = groups;
    }

    pub(super) fn churn(&mut self, rate: f64) {
        self.opening.churn = EventSchedule::new(rate, self.index, self.shared.threads, now_ns());
    }

    /// Closes all clients and reopens them.
    pub(super) fn storm(&mut self, in_flight: usize) {
        self.opening.max_in_flight = in_flight.max(1);
        (self.opening.struck, self.opening.is_stormy) = (Some(0), true);
    }

    /// Closes the next slice of clients in a storm. Returns whether there are more.
    fn strike(&mut self) -> bool {
        let Some(from) = self.opening.struck else { return false };
        let mut closed = 0;
        for position in from..self.clients.len() {
            if closed == CLOSE_SLICE {
                self.opening.struck = Some(position);
                return true;
            }
            let state = self.clients[position].state;
            if state == ClientState::Active || state.is_in_flight() {
                self.close(position, true, true);
                self.clients[position].returns = true;
                self.reopen(position);
                closed += 1;
            }
        }
        self.opening.struck = None;
        false
    }

    /// Schedules a reconnect: after the time that the server has told, or after a pause.
    pub(super) fn retry(&mut self, position: usize, told: Option<Duration>) {
        let after_ns = told.map_or(self.shared.retry_ns, |told| told.as_nanos() as u64);
        self.opening.retries.push(Reverse((now_ns() + after_ns, position as u32)));
    }

    /// Schedules a reconnect as soon as the connect limit allows.
    pub(super) fn reopen(&mut self, position: usize) {
        // A thread has fewer than 2^32 clients.
        self.opening.wanted.push_back(position as u32);
    }

    /// Records the start of a connect, which fails unless the client is subscribed in time.
    pub(super) fn has_begun(&mut self, position: usize, now: u64) {
        self.opening.begun.push_back((now, position as u32));
        let opening = &mut self.opening;
        if opening.begun.len() > 2 * opening.in_flight + SPARE_ENTRIES {
            let clients = &self.clients;
            opening
                .begun
                .retain(|&(since, position)| is_pending(&clients[position as usize], since));
        }
    }

    /// Opens, closes and fails the clients whose time has come. Returns when the next is due.
    pub(super) fn open_due(&mut self) -> u64 {
        let now = now_ns();
        if self.strike() {
            return now;
        }
        self.time_out(now);
        self.churn_due(now);
        self.close_due(now);
        while self.opening.retries.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let retry = self.opening.retries.pop();
            self.opening.wanted.extend(retry.map(|Reverse((_, position))| position));
        }
        while self.opening.in_flight < self.max_in_flight() {
            let Some(position) = self.next_to_open(now) else { break };
            self.open(position);
        }
        self.next_due()
    }

    fn next_to_open(&mut self, now: u64) -> Option<usize> {
        while let Some(position) = self.opening.wanted.pop_front() {
            let position = position as usize;
            if self.clients[position].state != ClientState::Waiting {
                continue;
            }
            if self.has_reason_to_open(position) {
                return Some(position);
            }
            self.set_state(position, ClientState::Closed);
        }
        if self.opening.wanted.capacity() > SPARE_ENTRIES {
            self.opening.wanted = VecDeque::new();
        }
        if !self.is_on() {
            return None;
        }
        while self.opening.cursor < self.opening.goal {
            let position = self.opening.cursor;
            let state = self.clients.get(position).map_or(ClientState::New, |client| client.state);
            if matches!(state, ClientState::New | ClientState::Closed) {
                if self.opening.schedule.as_mut().is_some_and(|schedule| !schedule.take(now)) {
                    return None;
                }
                if position == self.clients.len() {
                    self.clients.push(Client::default());
                }
                self.opening.cursor += 1;
                self.opening.top = self.opening.top.max(position + 1);
                return Some(position);
            }
            self.opening.cursor += 1;
        }
        if let Some(groups) = self.opening.groups.take() {
            groups.finish();
        }
        None
    }

    /// Connects that may be in progress at a time.
    fn max_in_flight(&self) -> usize {
        match &self.opening.groups {
            Some(groups) if groups.is_on(self.index) => groups.in_flight(),
            _ => self.opening.max_in_flight,
        }
    }

    /// True if the thread may continue with a ramp.
    fn is_on(&self) -> bool {
        self.opening.groups.as_ref().is_none_or(|groups| groups.is_on(self.index))
    }

    /// Closes clients from the end in a downward ramp.
    fn close_due(&mut self, now: u64) {
        for _ in 0..CLOSE_SLICE {
            if self.opening.top <= self.opening.goal {
                return;
            }
            let position = self.opening.top - 1;
            if !matches!(self.clients[position].state, ClientState::New | ClientState::Closed) {
                if self.opening.schedule.as_mut().is_some_and(|schedule| !schedule.take(now)) {
                    return;
                }
                self.close(position, false, true);
                self.counts.ended += 1;
            }
            self.opening.top = position;
        }
    }

    fn churn_due(&mut self, now: u64) {
        while self.opening.churn.as_mut().is_some_and(|churn| churn.take(now)) {
            let count = self.clients.len();
            let from = self.opening.churn_cursor;
            let active = (from..from + count)
                .map(|position| position % count)
                .find(|&position| self.clients[position].state == ClientState::Active);
            let Some(position) = active else { return };
            self.opening.churn_cursor = position + 1;
            self.close(position, true, true);
            self.counts.ended += 1;
            self.clients[position].returns = true;
            self.reopen(position);
        }
    }

    fn time_out(&mut self, now: u64) {
        while let Some(&(since, position)) = self.opening.begun.front() {
            let position = position as usize;
            let is_pending = is_pending(&self.clients[position], since);
            if is_pending && now.saturating_sub(since) < self.shared.handshake_timeout_ns {
                return;
            }
            self.opening.begun.pop_front();
            if is_pending {
                let is_connecting = self.clients[position].state == ClientState::Connecting;
                let failure = if self.network.is_shaking_hands(position) {
                    TlsFailure::Timeout.into()
                } else if is_connecting {
                    Failure::ConnectTimeout
                } else {
                    Failure::HandshakeTimeout
                };
                self.fail(position, failure);
            }
        }
    }

    fn next_due(&self) -> u64 {
        let opening = &self.opening;
        let is_falling = opening.top > opening.goal;
        if is_falling && opening.schedule.is_none() {
            return 0;
        }
        let has_room = opening.in_flight < self.max_in_flight();
        let is_ramping = opening.cursor < opening.goal && has_room || is_falling;
        let is_in_turns = opening.groups.is_some() && has_room;
        let look_again = is_in_turns.then(|| now_ns() + RECHECK_NS);
        let ramp = opening.schedule.filter(|_| is_ramping).map(|schedule| schedule.next_ns());
        let churn = opening.churn.map(|churn| churn.next_ns());
        let retry = opening.retries.peek().map(|Reverse((due, _))| *due);
        let timeout_ns = self.shared.handshake_timeout_ns;
        let timeout = opening.begun.front().map(|&(since, _)| since.saturating_add(timeout_ns));
        [ramp, churn, retry, timeout, look_again].into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

fn is_pending(client: &Client, since: u64) -> bool {
    client.state.is_in_flight() && client.since_ns == since
}
