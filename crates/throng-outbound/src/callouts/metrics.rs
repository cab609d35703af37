//! Metrics of callouts.

use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::{Histogram, Snapshot};

use crate::outcomes::Outcomes;

/// Outcomes of a question.
const DECISIONS: [&str; 14] = [
    "allowed",
    "denied",
    "cached",
    "overflow",
    "limited",
    "too_late",
    "breaker_open",
    "connect",
    "tls",
    "timeout",
    "too_large",
    "protocol",
    "status",
    "bad_answer",
];

/// Outcomes of a request with events.
const DELIVERIES: [&str; 7] =
    ["delivered", "connect", "tls", "timeout", "too_large", "protocol", "status"];

/// Outcomes of an event.
const EVENTS: [&str; 3] = ["delivered", "overflow", "undeliverable"];

/// Metrics of all callouts together.
#[derive(Debug)]
pub struct CalloutMetrics {
    pub(super) decisions: Outcomes<{ DECISIONS.len() }>,
    pub(super) deliveries: Outcomes<{ DELIVERIES.len() }>,
    pub(super) events: Outcomes<{ EVENTS.len() }>,
    pub(super) decisions_waiting: Gauge,
    pub(super) events_waiting: Gauge,
    pub(super) breakers_open: Gauge,
    pub(super) durations: Histogram,
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(super) struct Gauge(AtomicU64);

impl Gauge {
    pub(super) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, number: u64) {
        let before = self.0.fetch_sub(number, Ordering::Relaxed);
        debug_assert!(before >= number, "less than nothing");
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for CalloutMetrics {
    fn default() -> CalloutMetrics {
        CalloutMetrics {
            decisions: Outcomes::new(&DECISIONS),
            deliveries: Outcomes::new(&DELIVERIES),
            events: Outcomes::new(&EVENTS),
            decisions_waiting: Gauge::default(),
            events_waiting: Gauge::default(),
            breakers_open: Gauge::default(),
            durations: Histogram::default(),
        }
    }
}

impl CalloutMetrics {
    /// How many questions there were, by the word for their outcome.
    pub fn decisions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.decisions.get()
    }

    /// How many requests with events there were, by the word for their outcome.
    pub fn deliveries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.deliveries.get()
    }

    /// How many events there were, by the word for their outcome.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.events.get()
    }

    /// The questions that wait for an answer, sent or not.
    pub fn decisions_waiting(&self) -> u64 {
        self.decisions_waiting.get()
    }

    /// The events that are not delivered yet.
    pub fn events_waiting(&self) -> u64 {
        self.events_waiting.get()
    }

    /// The callouts whose endpoints are left alone for now.
    pub fn breakers_open(&self) -> u64 {
        self.breakers_open.get()
    }

    /// How long answered questions took, from asking to the answer.
    pub fn durations(&self) -> Snapshot {
        Snapshot::of([&self.durations].into_iter())
    }
}
