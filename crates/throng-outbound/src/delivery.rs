//! Delivers requests to the application that have to arrive: each is sent until it does, for some
//! minutes.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::sleep;

use crate::endpoint::Endpoint;
use crate::outcomes::Outcomes;
use crate::retry;

/// Outcomes of a request with events.
const DELIVERIES: [&str; 7] =
    ["delivered", "connect", "tls", "timeout", "too_large", "protocol", "status"];

/// Outcomes of an event.
const EVENTS: [&str; 3] = ["delivered", "overflow", "undeliverable"];

/// Metrics of events that are delivered.
#[derive(Debug)]
pub struct DeliveryMetrics {
    pub(crate) deliveries: Outcomes<{ DELIVERIES.len() }>,
    pub(crate) events: Outcomes<{ EVENTS.len() }>,
    pub(crate) waiting: Gauge,
    /// Events that another node sends, of which this one keeps no copy any more.
    pub(crate) not_repeated: Gauge,
}

impl Default for DeliveryMetrics {
    fn default() -> DeliveryMetrics {
        DeliveryMetrics {
            deliveries: Outcomes::new(&DELIVERIES),
            events: Outcomes::new(&EVENTS),
            waiting: Gauge::default(),
            not_repeated: Gauge::default(),
        }
    }
}

impl DeliveryMetrics {
    /// How many requests with events there were, by the word for their outcome.
    pub fn deliveries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.deliveries.get()
    }

    /// How many events there were, by the word for their outcome.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.events.get()
    }

    /// How many events another node sends that this one could not repeat if that one goes, as there
    /// were too many.
    pub fn not_repeated(&self) -> u64 {
        self.not_repeated.get()
    }

    /// The events that are not delivered yet.
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, number: u64) {
        let before = self.0.fetch_sub(number, Ordering::Relaxed);
        debug_assert!(before >= number, "less than nothing");
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a request has not arrived.
#[derive(Debug)]
pub(crate) struct Failed {
    /// One of the outcomes of a request.
    pub(crate) label: &'static str,
    pub(crate) reason: String,
}

/// Sends a request with `count` events until it arrives or the attempts are used up. Returns
/// whether it has arrived. The count may change between attempts.
pub(crate) async fn deliver<F: Future<Output = Result<(), Failed>>>(
    endpoint: &Endpoint,
    metrics: &DeliveryMetrics,
    count: impl Fn() -> u64,
    send: impl Fn() -> F,
) -> bool {
    for attempt in 1.. {
        let Err(Failed { label, reason }) = send().await else {
            metrics.deliveries.count("delivered");
            metrics.events.add("delivered", count());
            return true;
        };
        metrics.deliveries.count(label);
        let Some(pause_ms) = retry::pause_ms(attempt, random()) else {
            tracing::warn!("{endpoint} takes no events ({reason}): {} dropped", count());
            break;
        };
        if attempt == 1 {
            tracing::warn!("{endpoint} takes no events for now: {reason}");
        }
        sleep(Duration::from_millis(pause_ms)).await;
    }
    metrics.events.add("undeliverable", count());
    false
}

/// A random number; 0 if the system has none, which only makes pauses shorter.
fn random() -> u32 {
    let mut bytes = [0; 4];
    let _ = SystemRandom::new().fill(&mut bytes);
    u32::from_le_bytes(bytes)
}
