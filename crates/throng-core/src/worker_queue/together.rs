//! Wakes workers once for several publications.
//!
//! A worker that is woken by the first message of a batch takes that one alone, and readers get it
//! in a frame of its own, ahead of the others. So a batch wakes no worker before it has posted what
//! it can.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;

pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

thread_local! {
    /// The workers to wake when the present poll of [`wake_together`] ends; `None` outside of one.
    static WAITING: RefCell<Option<Vec<Wake>>> = const { RefCell::new(None) };
}

/// Runs a future such that each of its polls wakes all workers that it posts to at its end, once.
///
/// A poll delays what others post to a worker that sleeps as well, because they find it about to
/// be woken. So it must be short.
pub async fn wake_together<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let _ended = Together::begin();
        future.as_mut().poll(context)
    })
    .await
}

/// Wakes a worker, now or when the present poll ends.
pub(super) fn wake(wake: &Wake) {
    let waits = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(waiting) => {
            waiting.push(Arc::clone(wake));
            true
        }
        None => false,
    });
    if !waits {
        wake();
    }
}

/// The time of one poll. Its end wakes the workers, also if the poll panics.
struct Together {
    /// Those that wait for the end of the poll around this one.
    outer: Option<Vec<Wake>>,
}

impl Together {
    fn begin() -> Together {
        Together { outer: WAITING.replace(Some(Vec::new())) }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        let waiting = WAITING.replace(self.outer.take());
        waiting.into_iter().flatten().for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::super::{Notification, WorkerQueue};
    use super::*;

    #[test]
    fn workers_are_woken_once_when_a_poll_ends() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let queue = WorkerQueue::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let post = || {
            queue.post(Notification::StopAccepting);
            queue.wake();
            woken.load(Ordering::SeqCst)
        };
        let mut is_first = true;
        let mut future = pin!(wake_together(std::future::poll_fn(|_| {
            assert!(queue.prepare_to_sleep() || !is_first);
            queue.force_sleep();
            let before = woken.load(Ordering::SeqCst);
            assert_eq!((post(), post()), (before, before));
            if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }
        })));
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(future.as_mut().poll(&mut context).is_ready());
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        queue.force_sleep();
        assert_eq!(post(), 3, "outside of a poll it is woken at once");
    }

    #[test]
    fn workers_are_woken_although_a_poll_panics() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let queue = Arc::new(WorkerQueue::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let future = wake_together(async {
                queue.wake();
                panic!("on purpose");
            });
            pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        }));
        assert!(ended.is_err());
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }
}
