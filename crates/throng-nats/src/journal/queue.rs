//! Queues through which very many pass at a time, and few otherwise.

use std::collections::VecDeque;

/// A queue without entries keeps the memory of this many at most.
const KEPT: usize = 1_024;

/// Gives back the memory of a queue through which many have passed.
pub(super) fn shrink<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > KEPT {
        *queue = VecDeque::new();
    }
}
