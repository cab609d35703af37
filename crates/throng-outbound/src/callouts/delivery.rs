//! Delivers events to the application, in batches and in their order: a batch is sent until it
//! arrives, and only then the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use throng_core::clock;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use super::caller::{Caller, new_id};
use super::events::QueuedEvent;
use super::metrics::CalloutMetrics;
use super::verdict::ANSWER_BYTES_MAX;
use crate::delivery::{Failed, deliver};

/// The most events of a request.
const BATCH_MAX: usize = 500;

/// How long an event waits for others to share its request.
const BATCH_WAIT: Duration = Duration::from_millis(50);

/// Delivers the events of one queue.
#[derive(Debug)]
pub(super) struct EventDelivery {
    pub(super) caller: Caller,
    pub(super) events: mpsc::Receiver<QueuedEvent>,
    /// Events that were dropped since the last batch.
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) metrics: Arc<CalloutMetrics>,
    /// Notified when no further events are to be taken.
    pub(super) stop: Arc<Notify>,
}

#[derive(Serialize)]
struct EventsBody<'a> {
    r#type: &'static str,
    time: u64,
    data: EventBatch<'a>,
}

#[derive(Serialize)]
struct EventBatch<'a> {
    events: &'a [QueuedEvent],
    /// Events that are missing before these.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

impl EventDelivery {
    /// Delivers until it is stopped and nothing is left.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.gather(&mut batch).await {
            self.deliver(&batch).await;
            self.metrics.delivered.waiting.subtract(batch.len() as u64);
            batch.clear();
        }
    }

    /// Waits for events, and a moment longer for further ones. False if there will be none.
    async fn gather(&mut self, batch: &mut Vec<QueuedEvent>) -> bool {
        let count = tokio::select! {
            count = self.events.recv_many(batch, BATCH_MAX) => count,
            () = self.stop.notified() => {
                self.events.close();
                self.events.recv_many(batch, BATCH_MAX).await
            }
        };
        let until = Instant::now() + BATCH_WAIT;
        while (1..BATCH_MAX).contains(&batch.len()) && !self.events.is_closed() {
            let left = BATCH_MAX - batch.len();
            match timeout_at(until, self.events.recv_many(batch, left)).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        count > 0
    }

    /// Sends a batch until it arrives or the attempts are used up.
    async fn deliver(&self, batch: &[QueuedEvent]) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let data = EventBatch { events: batch, dropped };
        let body = EventsBody { r#type: "events", time: clock::machine_ms(), data };
        // Writing texts and numbers to memory does not fail.
        let body = Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
        // The same for all attempts: by it the application recognises a batch that it has already.
        let id = new_id();
        let send = || async {
            let sent = self.caller.post(&id, body.clone(), ANSWER_BYTES_MAX).await;
            sent.map(drop)
                .map_err(|error| Failed { label: error.label(), reason: error.to_string() })
        };
        let count = batch.len() as u64;
        if !deliver(self.caller.endpoint(), &self.metrics.delivered, count, send).await {
            // The next batch that arrives tells of these.
            self.dropped.fetch_add(dropped + count, Ordering::Relaxed);
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
