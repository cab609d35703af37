//! Moments for clients that come faster than they can be served.
//!
//! When a worker's queue of new connections has become so long that clients would give up, those
//! that subscribe are told a moment to come back instead. The moments are given out one after the
//! other, at a pace that the server keeps up with, so that the queue drains evenly.
//!
//! # Who has been told a moment gets in when it comes
//!
//! Nothing is kept of a client. The schedule is a counter, the time of the last moment that was
//! given out, and beside it the number of moments of each quarter of a second. For each moment that
//! has come, a connection is admitted even if the queue is long: whoever it is, so that as many are
//! admitted as have been told. The pace leaves room for others, so that the queue is mostly short
//! by then, and everybody is admitted.
//!
//! # Why it cannot be abused
//!
//! * *To wait costs nothing here.* A client that is told has no place, no descriptor and no memory
//!   in the server. The counts take 2 KiB, whatever comes.
//! * *To come early pushes nobody out.* Who does is told again as long as the queue is long, for
//!   the price of a request each time, and is admitted as any stranger once it is short, from what
//!   the pace leaves. To come late loses nothing but the time: a moment that nobody has used within
//!   3 s is forgotten.
//! * *There is nothing to forge, to replay or to pass on*: no ticket. A stranger can use a moment
//!   only by connecting while it is due, and is then one of those that the server takes anyway.
//!   Whose moment that was is told again, as one of the many that wait, and the sum stays.
//! * *To push the moments of others back* takes a whole request for each step, with TLS a whole
//!   handshake, and its address is counted before by the limits per address. No moment is further
//!   away than a minute; beyond it clients are spread over the second half of that time, and have
//!   no moment of their own: they are told again if the queue is long then.

mod queue_watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::spread;
pub use queue_watch::{QueueLook, QueueWatch};

/// The most that a moment is ahead: a person before a page waits no longer.
const AHEAD_MS_MAX: u64 = 60_000;

/// The least that a moment is ahead, beside the time that the queue takes.
const AHEAD_MS_MIN: u64 = 250;

/// Cost of sending a client away relative to serving it: three quarters, in the server's processor
/// time for a plain connection.
const TELLING: (u64, u64) = (3, 4);

/// How late a client may come: `Retry-After` has whole seconds, rounded up, and clients that read
/// it spread themselves over another one.
const LATE_MS: u64 = 3_000;

/// The time whose moments are counted together.
const SPAN_MS: u64 = 250;

/// The number of such times: all that are due or ahead.
const SPANS: u64 = 256;
const _: () = assert!((AHEAD_MS_MAX + LATE_MS) / SPAN_MS + 2 < SPANS);

/// The part of the measured rate of connections at which clients are told to come back: others
/// come, too.
const RETURNING: (u64, u64) = (9, 10);

/// The least pace, in clients a second, if little was measured: after a pause of the machine, say.
const RATE_MIN: u64 = 100;

/// The time over which the rate of connections is measured.
const SAMPLE_MS: u64 = 250;

/// The operator's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// The time that new connections may wait in a queue before clients are told moments; zero if
    /// they always wait.
    pub wait: Duration,
    /// The number of clients that are let come in a second; `None` for what is measured.
    pub rate: Option<u64>,
}

impl Default for AdmissionSettings {
    fn default() -> AdmissionSettings {
        AdmissionSettings { wait: Duration::from_millis(600), rate: None }
    }
}

/// The moments of a server, for all of its workers. Times are milliseconds of one clock.
#[derive(Debug)]
pub struct Admission {
    settings: AdmissionSettings,
    /// The time of the next moment that is given out, in microseconds. In the past if nobody waits.
    next_us: AtomicU64,
    /// For each span of [`SPAN_MS`], modulo [`SPANS`]: its number in the upper half, and in the
    /// lower one the moments in it that nobody has used.
    due: [AtomicU64; SPANS as usize],
    /// Clients that were told a moment so far.
    told: AtomicU64,
    /// The last sample: its time, and the work done until then, in connections served.
    sampled_ms: AtomicU64,
    sampled_work: AtomicU64,
    /// Connections a second that the server could have served of late.
    measured: AtomicU64,
    /// If the workers have no queues of their own and the one that they share is long: the time
    /// that it takes, in milliseconds, at least 1. Otherwise 0.
    shared_queue_ms: AtomicU64,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission::new(AdmissionSettings::default())
    }
}

impl Admission {
    /// A schedule in which nobody has a moment.
    pub fn new(settings: AdmissionSettings) -> Admission {
        Admission {
            settings,
            next_us: AtomicU64::new(0),
            due: std::array::from_fn(|_| AtomicU64::new(0)),
            told: AtomicU64::new(0),
            sampled_ms: AtomicU64::new(0),
            sampled_work: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            shared_queue_ms: AtomicU64::new(0),
        }
    }

    /// Shows the queue that all workers share.
    pub fn set_shared_queue(&self, queue: &QueueWatch) {
        let clears_ms = u64::try_from(queue.clears_in().as_millis()).unwrap_or(u64::MAX);
        let shown_ms = if queue.is_long() { clears_ms.max(1) } else { 0 };
        self.shared_queue_ms.store(shown_ms, Ordering::Relaxed);
    }

    /// The time that those take that wait in the queue that all workers share; `None` if it is
    /// short, or each worker has its own.
    pub fn shared_queue_clears_in(&self) -> Option<Duration> {
        let clears_ms = self.shared_queue_ms.load(Ordering::Relaxed);
        (clears_ms > 0).then(|| Duration::from_millis(clears_ms))
    }

    /// The operator's settings; `None` if new connections always wait.
    pub fn settings(&self) -> Option<&AdmissionSettings> {
        Some(&self.settings).filter(|settings| !settings.wait.is_zero())
    }

    /// The number of clients that are told to come back in a second.
    pub fn rate(&self) -> u64 {
        let (part, whole) = RETURNING;
        let measured = self.measured.load(Ordering::Relaxed).saturating_mul(part) / whole;
        self.settings.rate.unwrap_or(measured.max(RATE_MIN)).max(1)
    }

    /// How far ahead the last moment is, in milliseconds; 0 if nobody waits for one.
    pub fn ahead_ms(&self, now_ms: u64) -> u64 {
        (self.next_us.load(Ordering::Relaxed) / 1000).saturating_sub(now_ms)
    }

    /// The number of clients that were told a moment since the start.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Measures the rate of connections, of which `accepted` says how many there were so far.
    /// Called often by any thread; `accepted` is called four times a second.
    pub fn measure(&self, now_ms: u64, accepted: impl FnOnce() -> u64) {
        let last_ms = self.sampled_ms.load(Ordering::Relaxed);
        let elapsed_ms = now_ms.saturating_sub(last_ms);
        let is_due = elapsed_ms >= SAMPLE_MS && self.settings.rate.is_none();
        let take = |last_ms| {
            let (to, order) = (now_ms, Ordering::Relaxed);
            self.sampled_ms.compare_exchange(last_ms, to, order, order).is_ok()
        };
        if is_due && take(last_ms) {
            let (part, whole) = TELLING;
            let saved = self.told() * (whole - part) / whole;
            let work = accepted().saturating_sub(saved);
            let before = self.sampled_work.swap(work, Ordering::Relaxed);
            let rate = work.saturating_sub(before).saturating_mul(1000) / elapsed_ms;
            // It rises at once and falls slowly: the end of a storm shows no less power.
            let faded = self.measured.load(Ordering::Relaxed) / 4 * 3;
            self.measured.store(rate.max(faded), Ordering::Relaxed);
        }
    }

    /// Gives a client the next moment: how far ahead it is, in milliseconds. Those that wait in its
    /// queue take the time `behind`.
    pub fn tell(&self, now_ms: u64, behind: Duration) -> u64 {
        let nth = self.told.fetch_add(1, Ordering::Relaxed);
        let interval_us = (1_000_000 / self.rate()).max(1);
        // Those that are in the queue now are answered before: they would use up the moments.
        let behind_ms = u64::try_from(behind.as_millis()).unwrap_or(u64::MAX);
        let ahead_ms = AHEAD_MS_MIN.saturating_add(behind_ms).min(AHEAD_MS_MAX / 2);
        let earliest_us = (now_ms + ahead_ms) * 1000;
        let latest_us = (now_ms + AHEAD_MS_MAX) * 1000;
        let moment = |next_us: u64| next_us.max(earliest_us);
        let give =
            |next_us: u64| (moment(next_us) < latest_us).then(|| moment(next_us) + interval_us);
        let given = self.next_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
        let Ok(next_us) = given else {
            // The schedule is full. Admission then depends on the queue alone: otherwise it would
            // exceed the pace.
            return spread::delay_ms(nth as u32, &(AHEAD_MS_MAX / 2..AHEAD_MS_MAX));
        };
        let at_ms = moment(next_us) / 1000;
        self.add_moment(at_ms / SPAN_MS);
        at_ms.saturating_sub(now_ms)
    }

    /// Takes a moment that has come, if there is one: a connection may come in for it.
    pub fn take_due(&self, now_ms: u64) -> bool {
        let last_ms = self.next_us.load(Ordering::Relaxed) / 1000;
        if last_ms + LATE_MS + SPAN_MS < now_ms {
            // All are over, as they mostly are.
            return false;
        }
        let oldest = now_ms.saturating_sub(LATE_MS) / SPAN_MS;
        (oldest..=now_ms / SPAN_MS).any(|span| {
            let take = |bits: u64| {
                let (of, count) = (bits >> 32, bits & COUNT_MASK);
                (of == span & COUNT_MASK && count > 0).then(|| bits - 1)
            };
            let cell = &self.due[(span % SPANS) as usize];
            cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        })
    }

    /// Counts a moment in a span.
    fn add_moment(&self, span: u64) {
        let add = |bits: u64| {
            let is_same = bits >> 32 == span & COUNT_MASK;
            let count = if is_same { (bits & COUNT_MASK).saturating_add(1) } else { 1 };
            Some((span & COUNT_MASK) << 32 | count.min(COUNT_MASK))
        };
        let cell = &self.due[(span % SPANS) as usize];
        let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// The lower half of a count's word.
const COUNT_MASK: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests;
