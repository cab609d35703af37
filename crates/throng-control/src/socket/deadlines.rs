//! The timeouts of one connection.
//!
//! They are checked periodically instead of set and cancelled, so that a request costs no timer.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::request_boundary::RequestBoundary;
use crate::settings::Settings;

/// Number of checks within the shorter of the two timeouts. A timeout may be late by one of these
/// intervals.
const CHECKS_PER_TIMEOUT: u32 = 4;
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// A request head has begun and is not complete.
    Head,
    /// The connection has made no progress while it waited for its client.
    Idle,
}

/// The timeouts of one connection, as of the last check.
#[derive(Debug)]
pub(crate) struct Deadlines {
    interval: Interval,
    head_timeout: Duration,
    idle_timeout: Duration,
    /// The last progress that a check has seen, and when.
    last: (u64, Instant),
    /// The number of the incomplete head, and the first check that has seen it.
    head: Option<(u64, Instant)>,
}

impl Deadlines {
    pub(crate) fn new(settings: &Settings) -> Deadlines {
        let shortest = settings.head_timeout.min(settings.idle_timeout);
        let period = (shortest / CHECKS_PER_TIMEOUT).max(CHECK_INTERVAL_MIN);
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

    /// Ready once a timeout has expired. `answers` is the number of requests answered so far.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        boundary: &RequestBoundary,
        answers: u64,
    ) -> Poll<Missed> {
        while self.interval.poll_tick(cx).is_ready() {
            if let Some(missed) = self.check(boundary, answers) {
                return Poll::Ready(missed);
            }
        }
        Poll::Pending
    }

    fn check(&mut self, boundary: &RequestBoundary, answers: u64) -> Option<Missed> {
        let now = Instant::now();
        // While the server works on a request, the client waits for the server. A body that is
        // still arriving has a timeout of its own.
        let is_busy = answers < boundary.heads();
        if !boundary.is_mid_head() || is_busy {
            self.head = None;
        } else if self.head.is_none_or(|(number, _)| number != boundary.heads()) {
            self.head = Some((boundary.heads(), now));
        }
        if let Some((_, since)) = self.head
            && now - since >= self.head_timeout
        {
            return Some(Missed::Head);
        }
        if boundary.progress() != self.last.0 || (is_busy && !boundary.has_output()) {
            self.last = (boundary.progress(), now);
        }
        (now - self.last.1 >= self.idle_timeout).then_some(Missed::Idle)
    }
}
