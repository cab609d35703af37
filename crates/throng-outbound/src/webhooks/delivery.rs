//! Sends what has happened to an application, in batches and in its order.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::json;
use throng_access::{AccessControl, ClientApp};
use throng_core::clock;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::happened::Happened;
use super::kind::Webhook;
use super::standby::OnStandby;
use super::waiting::{BATCH_MAX, Outlook, Waiting};
use crate::client::{Origin, OutgoingRequest};
use crate::delivery::{DeliveryMetrics, Failed, deliver};

const KEY: HeaderName = HeaderName::from_static("x-pusher-key");
const SIGNATURE: HeaderName = HeaderName::from_static("x-pusher-signature");

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
    pub(super) waiting: Arc<Waiting>,
    pub(super) standby: Option<Arc<OnStandby>>,
    pub(super) metrics: Arc<DeliveryMetrics>,
    /// Notified when nothing further is to be taken.
    pub(super) stop: Arc<Notify>,
}

impl WebhookDelivery {
    /// Delivers until it is stopped and nothing is left.
    pub(super) async fn run(self) {
        let mut is_open = true;
        while is_open {
            is_open = self.gather().await;
            while self.waiting.begin_batch() {
                self.send_batch().await;
                self.waiting.end_batch();
            }
        }
    }

    /// Waits for something to deliver, and a moment longer for more. False if nothing more will
    /// come.
    async fn gather(&self) -> bool {
        loop {
            let Outlook { ready, next_ms, is_closed } = self.waiting.outlook();
            if is_closed {
                return false;
            }
            if ready > 0 {
                break;
            }
            let left_ms =
                next_ms.map_or(u64::MAX, |at_ms| at_ms.saturating_sub(clock::machine_ms()));
            tokio::select! {
                () = self.waiting.changed() => {}
                () = sleep(Duration::from_millis(left_ms.min(3_600_000))) => {}
                () = self.stop.notified() => {
                    let standby = self.standby.as_ref();
                    self.waiting.close(standby.map(|standby| standby.end()).unwrap_or_default());
                }
            }
        }
        let until = Instant::now() + BATCH_WAIT;
        while self.waiting.outlook().ready < BATCH_MAX {
            if timeout_at(until, self.waiting.changed()).await.is_err() {
                break;
            }
        }
        true
    }

    /// Sends a batch until it arrives or the attempts are used up.
    async fn send_batch(&self) {
        let time_ms = clock::machine_ms();
        let send = || async {
            let events = self.events(|events| events.map(Happened::json).collect::<Vec<_>>());
            if events.is_empty() {
                // The application wants none of them, or they name a user who is erased.
                return Ok(());
            }
            let body = json!({ "time_ms": time_ms, "events": events }).to_string();
            let request = OutgoingRequest {
                method: Method::POST,
                headers: self.headers(&body),
                body: Bytes::from(body),
                timeout: self.timeout,
                max_response_bytes: RESPONSE_BYTES_MAX,
            };
            match self.origin.send(&request).await {
                Ok(response) if response.status.is_success() => Ok(()),
                Ok(response) => {
                    let reason = format!("the status is {}", response.status.as_u16());
                    Err(Failed { label: "status", reason })
                }
                Err(error) => Err(Failed { label: error.label(), reason: error.to_string() }),
            }
        };
        let count = || self.events(|events| events.count() as u64);
        if count() > 0 {
            deliver(self.origin.endpoint(), &self.metrics, count, send).await;
        }
    }

    /// Has `read` look at what is being sent.
    fn events<T>(&self, read: impl FnOnce(&mut dyn Iterator<Item = &Happened>) -> T) -> T {
        let is_wanted = |happened: &&Happened| self.wants.contains(&happened.what.webhook());
        self.waiting.sending(|sending| read(&mut sending.iter().filter(is_wanted)))
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
