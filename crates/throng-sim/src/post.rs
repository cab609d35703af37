//! The messages that wait for each worker, counted apart from its queue.

use std::sync::Arc;

use throng_core::{QueueLimits, WorkerId, WorkerQueue};

/// What waits in the queues of a world.
///
/// A worker takes all of its notifications or none: so what was posted waits until the queue is
/// found empty. [`Post::look`] before each notification misses no such moment that
/// matters.
#[derive(Debug)]
pub struct Post(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    queue: Arc<WorkerQueue>,
    limits: QueueLimits,
    messages: usize,
    bytes: usize,
}

impl Post {
    /// Empty queues and their limits, in the order of the workers.
    pub fn new(queues: impl IntoIterator<Item = (Arc<WorkerQueue>, QueueLimits)>) -> Post {
        let waiting = |(queue, limits)| Waiting { queue, limits, messages: 0, bytes: 0 };
        Post(queues.into_iter().map(waiting).collect())
    }

    /// Forgets what has been taken.
    pub fn look(&mut self) {
        for waiting in self.0.iter_mut().filter(|waiting| waiting.queue.is_empty()) {
            (waiting.messages, waiting.bytes) = (0, 0);
        }
    }

    /// Whether another message may be posted to a worker.
    pub fn has_room(&self, worker: WorkerId) -> bool {
        let Waiting { limits, messages, bytes, .. } = &self.0[usize::from(worker.0)];
        *messages < limits.messages_max && *bytes < limits.bytes_max
    }

    /// A message has been posted to a worker.
    pub fn add(&mut self, worker: WorkerId, bytes: usize) {
        let waiting = &mut self.0[usize::from(worker.0)];
        waiting.messages += 1;
        waiting.bytes += bytes;
    }
}
