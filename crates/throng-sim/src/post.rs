//! The expected lengths of the worker queues, counted independently of the queues.

use std::sync::Arc;

use throng_core::{QueueLimits, WorkerId, WorkerQueue};

/// The messages and bytes that wait in each worker queue.
///
/// A worker takes all of its notifications at once, so a posted message waits until the queue is
/// empty. Call [`Post::look`] before each post: a queue that was emptied is noticed in time.
#[derive(Debug)]
pub(crate) struct Post(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    queue: Arc<WorkerQueue>,
    limits: QueueLimits,
    messages: usize,
    bytes: usize,
}

impl Post {
    /// Empty queues and their limits, in the order of the workers.
    pub(crate) fn new(queues: impl IntoIterator<Item = (Arc<WorkerQueue>, QueueLimits)>) -> Post {
        let waiting = |(queue, limits)| Waiting { queue, limits, messages: 0, bytes: 0 };
        Post(queues.into_iter().map(waiting).collect())
    }

    /// Resets the counts of the queues that are empty.
    pub(crate) fn look(&mut self) {
        for waiting in self.0.iter_mut().filter(|waiting| waiting.queue.is_empty()) {
            (waiting.messages, waiting.bytes) = (0, 0);
        }
    }

    /// True if a worker's queue accepts another message.
    pub(crate) fn has_capacity(&self, worker: WorkerId) -> bool {
        let Waiting { limits, messages, bytes, .. } = &self.0[usize::from(worker.0)];
        *messages < limits.max_messages && *bytes < limits.max_bytes
    }

    /// True if a worker's queue accepts another volatile message.
    pub(crate) fn has_capacity_for_volatile(&self, worker: WorkerId) -> bool {
        let Waiting { limits, messages, bytes, .. } = &self.0[usize::from(worker.0)];
        *messages < limits.max_messages / 2 && *bytes < limits.max_bytes / 2
    }

    /// Counts a message posted to a worker.
    pub(crate) fn add(&mut self, worker: WorkerId, bytes: usize) {
        let waiting = &mut self.0[usize::from(worker.0)];
        waiting.messages += 1;
        waiting.bytes += bytes;
    }
}
