//! Metrics of callouts.

use throng_core::{Histogram, Snapshot};

use crate::delivery::{DeliveryMetrics, Gauge};
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

/// Metrics of all callouts together.
#[derive(Debug)]
pub struct CalloutMetrics {
    pub(super) decisions: Outcomes<{ DECISIONS.len() }>,
    pub(super) decisions_waiting: Gauge,
    pub(super) delivered: DeliveryMetrics,
    pub(super) breakers_open: Gauge,
    pub(super) durations: Histogram,
}

impl Default for CalloutMetrics {
    fn default() -> CalloutMetrics {
        CalloutMetrics {
            decisions: Outcomes::new(&DECISIONS),
            decisions_waiting: Gauge::default(),
            delivered: DeliveryMetrics::default(),
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
        self.delivered.deliveries()
    }

    /// How many events there were, by the word for their outcome.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.delivered.events()
    }

    /// The questions that wait for an answer, sent or not.
    pub fn decisions_waiting(&self) -> u64 {
        self.decisions_waiting.get()
    }

    /// The events that are not delivered yet.
    pub fn events_waiting(&self) -> u64 {
        self.delivered.waiting()
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
