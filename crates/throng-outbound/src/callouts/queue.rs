//! The events that wait for one endpoint, in a bounded queue.
//!
//! A queue that is full takes no further event. It counts what it has dropped, and the next batch
//! tells the application how many events are missing. Those that are being sent stay in the queue
//! until they have arrived, so that those of a user who is erased can be removed between two
//! attempts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;

use super::metrics::CalloutMetrics;

#[derive(Debug)]
struct Waiting<T> {
    /// The oldest first.
    events: VecDeque<T>,
    /// The first ones, which are being sent.
    sending: usize,
    /// Events that are missing, of which the batch that is being sent tells. All attempts tell the
    /// same, as the application may take only the first one.
    told: u64,
    /// Those of which the next one tells.
    dropped: u64,
    is_closed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    /// The most events that wait, beside those that are being sent.
    max: usize,
    changed: Notify,
    metrics: Arc<CalloutMetrics>,
}

#[derive(Serialize)]
struct EventsBody<'a, T> {
    r#type: &'static str,
    time: u64,
    data: EventBatch<'a, T>,
}

#[derive(Serialize)]
struct EventBatch<'a, T> {
    events: &'a [T],
    /// Events that are missing before these.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

impl<T: Serialize> Queue<T> {
    pub(super) fn new(max: usize, metrics: Arc<CalloutMetrics>) -> Queue<T> {
        let waiting =
            Waiting { events: VecDeque::new(), sending: 0, told: 0, dropped: 0, is_closed: false };
        Queue { waiting: Mutex::new(waiting), max, changed: Notify::new(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn metrics(&self) -> &CalloutMetrics {
        &self.metrics
    }

    /// Takes an event, if there is room.
    pub(super) fn push(&self, event: impl FnOnce() -> T) {
        let mut waiting = self.lock();
        if waiting.is_closed || waiting.events.len() - waiting.sending >= self.max {
            waiting.dropped += 1;
            drop(waiting);
            return self.metrics.delivered.events.count("overflow");
        }
        waiting.events.push_back(event());
        self.metrics.delivered.waiting.add(1);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Drops events. Returns how many. An attempt that is under way may still deliver them.
    pub(super) fn forget(&self, is_meant: impl Fn(&T) -> bool) -> u64 {
        let mut waiting = self.lock();
        let Waiting { events, sending, dropped, .. } = &mut *waiting;
        let (mut at, before, of_batch) = (0, events.len(), *sending);
        events.retain(|event| {
            let goes = is_meant(event);
            *sending -= usize::from(goes && at < of_batch);
            at += 1;
            !goes
        });
        let gone = (before - events.len()) as u64;
        *dropped += gone;
        self.metrics.delivered.waiting.subtract(gone);
        gone
    }

    /// Waits for an event, or until it is closed: one of either may be told of already.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Takes no further events.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// The first events are being sent.
    pub(super) fn begin_batch(&self, max: usize) {
        let mut waiting = self.lock();
        waiting.sending = waiting.events.len().min(max);
        waiting.told = std::mem::take(&mut waiting.dropped);
    }

    /// How many are being sent.
    pub(super) fn sending(&self) -> u64 {
        self.lock().sending as u64
    }

    /// A request of this time with those that are being sent.
    pub(super) fn body(&self, time: u64) -> Bytes {
        let mut waiting = self.lock();
        let Waiting { events, sending, told, .. } = &mut *waiting;
        let events = &events.make_contiguous()[..*sending];
        let data = EventBatch { events, dropped: *told };
        let body = EventsBody { r#type: "events", time, data };
        // Writing texts and numbers to memory does not fail.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }

    /// Those that were being sent have arrived, or are given up.
    pub(super) fn end_batch(&self, have_arrived: bool) {
        let mut waiting = self.lock();
        let (count, told) = (waiting.sending, waiting.told);
        (waiting.sending, waiting.told) = (0, 0);
        waiting.events.drain(..count);
        if !have_arrived {
            // The next batch that arrives tells of these.
            waiting.dropped += told + count as u64;
        }
        self.metrics.delivered.waiting.subtract(count as u64);
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
