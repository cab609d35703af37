//! Which client is opened or closed when: ramps, storms, churn, those that come back, and timeouts.
//!
//! Nothing here has a timer object: what happens after a constant time waits in a queue, whose
//! front is looked at before each sleep.

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::{Client, State};
use super::schedule::Schedule;
use super::thread::Thread;
use super::turns::{LOOK_AGAIN_NS, Turns};
use crate::marker::now_ns;
use crate::tally::Failure;

/// A client that failed and is to come back waits so long: short against the time of a drill, long
/// enough not to be a flood of its own.
const RETRY_PAUSE_NS: u64 = 1_000_000_000;

/// Clients that are closed before events and questions get their turn again: a close takes the
/// kernel some 30 µs, and 100,000 in one go would hold up every sample for seconds.
const CLOSE_SLICE: usize = 256;

/// Timeouts that are over may stay in their queue up to so many beyond twice those in flight.
const OVER_MAX: usize = 1024;

/// What is to be opened and closed.
#[derive(Debug)]
pub(super) struct Opening {
    /// Clients below this position are to be open.
    goal: usize,
    /// The next one to look at on the way up.
    cursor: usize,
    /// No client at this position or above is open.
    top: usize,
    /// When; at once if there is none.
    schedule: Option<Schedule>,
    /// Until this thread has had its turn on the way up: whose turn it is.
    pub(super) turns: Option<Arc<Turns>>,
    /// To be opened as soon as there is room.
    wanted: VecDeque<u32>,
    /// To be opened later, and when.
    retries: VecDeque<(u64, u32)>,
    /// Began to connect then.
    begun: VecDeque<(u64, u32)>,
    pub(super) in_flight: usize,
    in_flight_max: usize,
    churn: Option<Schedule>,
    churn_cursor: usize,
    /// In a storm, the clients below are closed already. Nobody is opened before all are.
    struck: Option<usize>,
}

impl Default for Opening {
    fn default() -> Opening {
        Opening {
            goal: 0,
            cursor: 0,
            top: 0,
            schedule: None,
            turns: None,
            wanted: VecDeque::new(),
            retries: VecDeque::new(),
            begun: VecDeque::new(),
            in_flight: 0,
            in_flight_max: 1,
            churn: None,
            churn_cursor: 0,
            struck: None,
        }
    }
}

impl Thread {
    /// Brings the number of open clients to `to`.
    pub(super) fn ramp(&mut self, to: usize, rate: Option<f64>, in_flight: usize) {
        let schedule =
            rate.and_then(|rate| Schedule::new(rate, self.index, self.setting.threads, now_ns()));
        let opening = &mut self.opening;
        (opening.goal, opening.cursor, opening.schedule) = (to, 0, schedule);
        opening.in_flight_max = in_flight.max(1);
    }

    pub(super) fn churn(&mut self, rate: f64) {
        self.opening.churn = Schedule::new(rate, self.index, self.setting.threads, now_ns());
    }

    /// Closes all and wants them back.
    pub(super) fn storm(&mut self, in_flight: usize) {
        self.opening.in_flight_max = in_flight.max(1);
        self.opening.struck = Some(0);
    }

    /// Closes the next slice of the clients that a storm strikes; whether there are more.
    fn strike(&mut self) -> bool {
        let Some(from) = self.opening.struck else { return false };
        let mut closed = 0;
        for position in from..self.clients.len() {
            if closed == CLOSE_SLICE {
                self.opening.struck = Some(position);
                return true;
            }
            let state = self.clients[position].state;
            if state == State::Active || state.is_in_flight() {
                self.close(position, true, true);
                self.clients[position].returns = true;
                self.reopen(position);
                closed += 1;
            }
        }
        self.opening.struck = None;
        false
    }

    /// The client comes back after a pause.
    pub(super) fn retry(&mut self, position: usize) {
        self.opening.retries.push_back((now_ns() + RETRY_PAUSE_NS, position as u32));
    }

    /// The client comes back as soon as there is room.
    pub(super) fn reopen(&mut self, position: usize) {
        // A thread has fewer clients than that.
        self.opening.wanted.push_back(position as u32);
    }

    /// It began to connect, and fails unless it is subscribed in time.
    pub(super) fn has_begun(&mut self, position: usize, now: u64) {
        self.opening.begun.push_back((now, position as u32));
        let opening = &mut self.opening;
        if opening.begun.len() > 2 * opening.in_flight + OVER_MAX {
            let clients = &self.clients;
            opening
                .begun
                .retain(|&(since, position)| is_pending(&clients[position as usize], since));
        }
    }

    /// Does what is due, and says when something is due next.
    pub(super) fn open_due(&mut self) -> u64 {
        let now = now_ns();
        if self.strike() {
            return now;
        }
        self.time_out(now);
        self.churn_due(now);
        self.close_due(now);
        while self.opening.retries.front().is_some_and(|&(due, _)| due <= now) {
            let retry = self.opening.retries.pop_front();
            self.opening.wanted.extend(retry.map(|(_, position)| position));
        }
        while self.opening.in_flight < self.in_flight_max() {
            let Some(position) = self.next_to_open(now) else { break };
            self.open(position);
        }
        self.next_due()
    }

    fn next_to_open(&mut self, now: u64) -> Option<usize> {
        while let Some(position) = self.opening.wanted.pop_front() {
            let position = position as usize;
            if self.clients[position].state == State::Waiting {
                return Some(position);
            }
        }
        if self.opening.wanted.capacity() > OVER_MAX {
            self.opening.wanted = VecDeque::new();
        }
        if !self.is_on() {
            return None;
        }
        while self.opening.cursor < self.opening.goal {
            let position = self.opening.cursor;
            let state = self.clients.get(position).map_or(State::New, |client| client.state);
            if matches!(state, State::New | State::Closed) {
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
        if let Some(turns) = self.opening.turns.take() {
            turns.finish();
        }
        None
    }

    /// Connects that may be under way.
    fn in_flight_max(&self) -> usize {
        match &self.opening.turns {
            Some(turns) if turns.is_on(self.index) => turns.in_flight(),
            _ => self.opening.in_flight_max,
        }
    }

    /// Whether the thread may go on with a ramp.
    fn is_on(&self) -> bool {
        self.opening.turns.as_ref().is_none_or(|turns| turns.is_on(self.index))
    }

    /// On the way down: closes from the end.
    fn close_due(&mut self, now: u64) {
        for _ in 0..CLOSE_SLICE {
            if self.opening.top <= self.opening.goal {
                return;
            }
            let position = self.opening.top - 1;
            if !matches!(self.clients[position].state, State::New | State::Closed) {
                if self.opening.schedule.as_mut().is_some_and(|schedule| !schedule.take(now)) {
                    return;
                }
                self.close(position, false, true);
                self.tally.ended += 1;
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
                .find(|&position| self.clients[position].state == State::Active);
            let Some(position) = active else { return };
            self.opening.churn_cursor = position + 1;
            self.close(position, true, true);
            self.tally.ended += 1;
            self.clients[position].returns = true;
            self.reopen(position);
        }
    }

    fn time_out(&mut self, now: u64) {
        while let Some(&(since, position)) = self.opening.begun.front() {
            let position = position as usize;
            let is_pending = is_pending(&self.clients[position], since);
            if is_pending && now.saturating_sub(since) < self.setting.handshake_timeout_ns {
                return;
            }
            self.opening.begun.pop_front();
            if is_pending {
                let is_connecting = self.clients[position].state == State::Connecting;
                self.fail(
                    position,
                    match is_connecting {
                        true => Failure::ConnectTimeout,
                        false => Failure::HandshakeTimeout,
                    },
                );
            }
        }
    }

    fn next_due(&self) -> u64 {
        let opening = &self.opening;
        let is_falling = opening.top > opening.goal;
        if is_falling && opening.schedule.is_none() {
            return 0;
        }
        let has_room = opening.in_flight < self.in_flight_max();
        let is_ramping = opening.cursor < opening.goal && has_room || is_falling;
        let is_in_turns = opening.turns.is_some() && has_room;
        let look_again = is_in_turns.then(|| now_ns() + LOOK_AGAIN_NS);
        let ramp = opening.schedule.filter(|_| is_ramping).map(|schedule| schedule.next_ns());
        let churn = opening.churn.map(|churn| churn.next_ns());
        let retry = opening.retries.front().map(|&(due, _)| due);
        let timeout_ns = self.setting.handshake_timeout_ns;
        let timeout = opening.begun.front().map(|&(since, _)| since.saturating_add(timeout_ns));
        [ramp, churn, retry, timeout, look_again].into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

fn is_pending(client: &Client, since: u64) -> bool {
    client.state.is_in_flight() && client.since_ns == since
}
