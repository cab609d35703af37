//! Sends what has happened to an application, in batches and in its order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use throng_access::{AccessControl, ClientApp};
use throng_core::clock;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::happened::Happened;
use super::kind::Webhook;
use super::pending::Pending;
use super::standby::OnStandby;
use crate::client::{Origin, OutgoingRequest};
use crate::delivery::{DeliveryMetrics, Failed, deliver};

const KEY: HeaderName = HeaderName::from_static("x-pusher-key");
const SIGNATURE: HeaderName = HeaderName::from_static("x-pusher-signature");

/// The most events and bytes of a request.
const BATCH_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 256 << 10;

/// How long an event waits for others to share its request.
const BATCH_WAIT: Duration = Duration::from_millis(50);

/// The most bytes of a response, which means nothing but its status.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Delivers the events of one application.
#[derive(Debug)]
pub(super) struct WebhookDelivery {
    pub(super) origin: Origin,
    pub(super) timeout: Duration,
    pub(super) access: Arc<AccessControl>,
    /// As it was at the start.
    pub(super) app: Arc<ClientApp>,
    pub(super) wants: Vec<Webhook>,
    pub(super) events: mpsc::Receiver<Happened>,
    /// The most departures that wait for a return.
    pub(super) max_pending: usize,
    /// The bytes of all that waits here.
    pub(super) waiting_bytes: Arc<AtomicUsize>,
    pub(super) standby: Option<Arc<OnStandby>>,
    pub(super) metrics: Arc<DeliveryMetrics>,
    /// Notified when nothing further is to be taken.
    pub(super) stop: Arc<Notify>,
}

impl WebhookDelivery {
    /// Delivers until it is stopped and nothing is left.
    pub(super) async fn run(mut self) {
        let (mut pending, mut ready) = (Pending::default(), Vec::new());
        let mut is_open = true;
        while is_open {
            is_open = self.gather(&mut pending, &mut ready).await;
            if !is_open {
                pending.until(u64::MAX, &mut ready);
            }
            self.send(&mut ready).await;
        }
    }

    /// Waits for something to deliver, and a moment longer for more. False if nothing more will
    /// come.
    async fn gather(&mut self, pending: &mut Pending, ready: &mut Vec<Happened>) -> bool {
        let mut is_open = true;
        while ready.is_empty() && is_open {
            let now_ms = clock::machine_ms();
            let left_ms =
                pending.next_ms().map_or(u64::MAX, |due_ms| due_ms.saturating_sub(now_ms));
            let next = tokio::select! {
                next = self.events.recv() => next,
                () = sleep(Duration::from_millis(left_ms.min(3_600_000))) => {
                    pending.until(clock::machine_ms(), ready);
                    continue;
                }
                () = self.stop.notified() => {
                    self.events.close();
                    self.end_standby(pending, ready);
                    continue;
                }
            };
            is_open = self.take(next, pending, ready);
        }
        let more = async {
            while ready.len() < BATCH_MAX && is_open {
                let next = self.events.recv().await;
                is_open = self.take(next, pending, ready);
            }
        };
        // When the time is up, all that has come is taken.
        let _ = timeout(BATCH_WAIT, more).await;
        is_open
    }

    /// Takes an event; false if there will be no further one.
    fn take(
        &self,
        next: Option<Happened>,
        pending: &mut Pending,
        ready: &mut Vec<Happened>,
    ) -> bool {
        let Some(happened) = next else { return false };
        let gone = pending.take(happened, self.max_pending, ready);
        gone.iter().flatten().for_each(|gone| self.release(gone));
        true
    }

    /// Takes what is on standby and nobody else sends.
    fn end_standby(&self, pending: &mut Pending, ready: &mut Vec<Happened>) {
        let left = self.standby.as_ref().map(|standby| standby.end());
        for happened in left.into_iter().flatten() {
            self.waiting_bytes.fetch_add(happened.bytes(), Ordering::Relaxed);
            self.metrics.waiting.add(1);
            self.take(Some(happened), pending, ready);
        }
    }

    /// An event waits no longer.
    fn release(&self, happened: &Happened) {
        self.waiting_bytes.fetch_sub(happened.bytes(), Ordering::Relaxed);
        self.metrics.waiting.subtract(1);
    }

    /// Sends all that is ready, in as many requests as it takes.
    async fn send(&self, ready: &mut Vec<Happened>) {
        let mut rest = std::mem::take(ready).into_iter().peekable();
        while rest.peek().is_some() {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while batch.len() < BATCH_MAX
                && bytes < BATCH_BYTES_MAX
                && let Some(happened) = rest.next()
            {
                bytes += happened.bytes();
                batch.push(happened);
            }
            let is_wanted = |happened: &&Happened| self.wants.contains(&happened.what.webhook());
            let events = batch.iter().filter(is_wanted).map(Happened::json).collect();
            self.send_batch(events).await;
            batch.iter().for_each(|happened| self.release(happened));
        }
    }

    async fn send_batch(&self, events: Vec<Value>) {
        if events.is_empty() {
            return;
        }
        let count = events.len() as u64;
        let body = json!({ "time_ms": clock::machine_ms(), "events": events }).to_string();
        let headers = self.headers(&body);
        let request = OutgoingRequest {
            method: Method::POST,
            headers,
            body: Bytes::from(body),
            timeout: self.timeout,
            max_response_bytes: RESPONSE_BYTES_MAX,
        };
        let send = || async {
            match self.origin.send(&request).await {
                Ok(response) if response.status.is_success() => Ok(()),
                Ok(response) => {
                    let reason = format!("the status is {}", response.status.as_u16());
                    Err(Failed { label: "status", reason })
                }
                Err(error) => Err(Failed { label: error.label(), reason: error.to_string() }),
            }
        };
        deliver(self.origin.endpoint(), &self.metrics, || count, send).await;
    }

    /// Signed by the first key that is enabled now.
    fn headers(&self, body: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // With a character set, the library for Node would not read it.
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let apps = self.access.apps.load();
        // One that has gone is told of the end.
        let app = apps.with_id(self.app.app().id()).unwrap_or(&self.app);
        let Some(key) = app.app().keys().iter().find(|key| key.is_enabled()) else {
            return headers;
        };
        let signature = key.signer().sign(body);
        for (name, value) in [(KEY, key.name()), (SIGNATURE, &signature)] {
            // Both are letters and digits.
            headers.extend(HeaderValue::from_str(value).map(|value| (name, value)));
        }
        headers
    }
}
