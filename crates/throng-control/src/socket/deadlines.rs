//! What must have happened by when on one connection.
//!
//! Looked at now and then rather than set and cancelled, so that a request costs no timer.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::control::Settings;
use crate::socket::request_boundary::Gate;

/// Deadlines are looked at this often within the shortest of them: they are late by that much.
const LOOKS_PER_DEADLINE: u32 = 4;
/// And not more often than this.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// A deadline that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// A head has begun and does not end.
    Head,
    /// Nothing has come or gone for too long.
    Idle,
}

/// One connection's deadlines.
#[derive(Debug)]
pub(crate) struct Deadlines {
    interval: Interval,
    head_timeout: Duration,
    idle_timeout: Duration,
    /// When something last came or went, as far as was looked.
    last: (u64, Instant),
    /// Since when the head of this number has been incomplete.
    head: Option<(u64, Instant)>,
}

impl Deadlines {
    pub(crate) fn new(settings: &Settings) -> Deadlines {
        let shortest = settings.head_timeout.min(settings.idle_timeout);
        let period = (shortest / LOOKS_PER_DEADLINE).max(LOOK_INTERVAL_MIN);
        let now = Instant::now();
        let mut interval = interval_at(now + period, period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Deadlines {
            interval,
            head_timeout: settings.head_timeout,
            idle_timeout: settings.idle_timeout,
            last: (0, now),
            head: None,
        }
    }

    /// Ready once a deadline has passed. `answers` is how many requests have been answered.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, gate: &Gate, answers: u64) -> Poll<Missed> {
        while self.interval.poll_tick(cx).is_ready() {
            if let Some(missed) = self.look(gate, answers) {
                return Poll::Ready(missed);
            }
        }
        Poll::Pending
    }

    fn look(&mut self, gate: &Gate, answers: u64) -> Option<Missed> {
        let now = Instant::now();
        // While we work the client waits, not we for it. Waiting for a body has its own deadline.
        let is_busy = answers < gate.heads();
        if !gate.is_mid_head() || is_busy {
            self.head = None;
        } else if self.head.is_none_or(|(number, _)| number != gate.heads()) {
            self.head = Some((gate.heads(), now));
        }
        if let Some((_, since)) = self.head
            && now - since >= self.head_timeout
        {
            return Some(Missed::Head);
        }
        if gate.progress() != self.last.0 || (is_busy && !gate.has_output()) {
            self.last = (gate.progress(), now);
        }
        (now - self.last.1 >= self.idle_timeout).then_some(Missed::Idle)
    }
}
