//! A value that is swapped while threads read it.
//!
//! A reader keeps the value of its last look, and looks again only after it has changed: reading
//! costs one atomic load and takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A shared value and the number of its current version.
#[derive(Debug)]
pub struct PublishedKeys<T> {
    current: Mutex<Arc<T>>,
    generation: AtomicU64,
}

impl<T> PublishedKeys<T> {
    /// A value to start with.
    pub fn new(value: T) -> Arc<PublishedKeys<T>> {
        let current = Mutex::new(Arc::new(value));
        Arc::new(PublishedKeys { current, generation: AtomicU64::new(1) })
    }

    /// Replaces the value. Every look that begins later sees the new one.
    pub fn publish(&self, value: T) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(value);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The current value and its version.
    fn load(&self) -> (Arc<T>, u64) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that both belong together.
        (Arc::clone(&current), self.generation.load(Ordering::Acquire))
    }

    /// A reader for one thread.
    pub fn reader(self: &Arc<PublishedKeys<T>>) -> Reader<T> {
        let (value, generation) = self.load();
        Reader { shared: Arc::clone(self), value, generation }
    }
}

/// One thread's view of a [`PublishedKeys`] value.
#[derive(Debug)]
pub struct Reader<T> {
    shared: Arc<PublishedKeys<T>>,
    value: Arc<T>,
    generation: u64,
}

impl<T> Reader<T> {
    /// The current value, and its version, which grows with each change.
    pub fn get(&mut self) -> (&T, u64) {
        if self.shared.generation.load(Ordering::Acquire) != self.generation {
            (self.value, self.generation) = self.shared.load();
        }
        (&self.value, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_newest_value() {
        let shared = PublishedKeys::new(1);
        let (mut one, mut other) = (shared.reader(), shared.reader());
        assert_eq!(one.get(), (&1, 1));
        shared.publish(2);
        assert_eq!(one.get(), (&2, 2));
        shared.publish(3);
        shared.publish(4);
        assert_eq!(other.get(), (&4, 4));
        assert_eq!(one.get(), (&4, 4));
    }

    #[test]
    fn values_and_versions_belong_together() {
        let shared = PublishedKeys::new(1_u64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let mut reader = shared.reader();
                scope.spawn(move || {
                    let mut last = 0;
                    while last < 1000 {
                        let (&value, generation) = reader.get();
                        assert_eq!(value, generation);
                        assert!(value >= last);
                        last = value;
                    }
                });
            }
            for value in 2..=1000 {
                shared.publish(value);
            }
        });
    }
}
