//! Delivers events to the application, in batches and in their order: a batch is sent until it
//! arrives, and only then the next one.

use std::sync::Arc;
use std::time::Duration;

use throng_core::clock;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::caller::{Caller, new_id};
use super::events::QueuedEvent;
use super::queue::Queue;
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
    pub(super) queue: Arc<Queue<QueuedEvent>>,
    /// Notified when no further events are to be taken.
    pub(super) stop: Arc<Notify>,
}

impl EventDelivery {
    /// Delivers until it is stopped and nothing is left.
    pub(super) async fn run(self) {
        while self.gather().await {
            self.deliver().await;
        }
    }

    /// Waits for events, and a moment longer for further ones. False if there will be none.
    async fn gather(&self) -> bool {
        while self.queue.len() == 0 {
            if self.queue.is_closed() {
                return false;
            }
            tokio::select! {
                () = self.queue.changed() => {}
                () = self.stop.notified() => self.queue.close(),
            }
        }
        let until = Instant::now() + BATCH_WAIT;
        while self.queue.len() < BATCH_MAX && !self.queue.is_closed() {
            if timeout_at(until, self.queue.changed()).await.is_err() {
                break;
            }
        }
        self.queue.begin_batch(BATCH_MAX);
        true
    }

    /// Sends a batch until it arrives or the attempts are used up.
    async fn deliver(&self) {
        // The same for all attempts: by it the application recognises a batch that it has already.
        let (id, time_ms) = (new_id(), clock::machine_ms());
        let send = || async {
            let sent = self.caller.post(&id, self.queue.body(time_ms), ANSWER_BYTES_MAX).await;
            sent.map(drop)
                .map_err(|error| Failed { label: error.label(), reason: error.to_string() })
        };
        let (metrics, count) = (self.queue.metrics(), || self.queue.sending());
        let has_arrived = deliver(self.caller.endpoint(), &metrics.delivered, count, send).await;
        self.queue.end_batch(has_arrived);
    }
}
