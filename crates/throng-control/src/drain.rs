//! The state of a graceful shutdown, as requests see it.
//!
//! An accepted message must still be delivered, so the workers must not close their connections
//! before the last publication is made. Therefore publications are counted from the moment they
//! pass the check for a drain until they are answered. Nothing else delays the workers. A body that
//! is still arriving would delay them too, so its client gets [`Drain::cut_body`]'s timeout only.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

/// The state of a shutdown, and the number of publications in progress.
#[derive(Debug)]
pub(crate) struct Drain {
    /// When publications in progress are abandoned; `None` until the drain begins.
    deadline: watch::Sender<Option<Instant>>,
    /// True if long operations are to end, for another reason than a drain.
    is_rushed: watch::Sender<bool>,
    /// Publications in progress. The workers drain once this is zero.
    publications: AtomicUsize,
    /// Notified when `publications` drops to zero.
    finished: Notify,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain {
            deadline: watch::Sender::new(None),
            is_rushed: watch::Sender::new(false),
            publications: AtomicUsize::new(0),
            finished: Notify::new(),
        }
    }
}

impl Drain {
    /// Begins the drain. New publications are refused, those in progress have until `deadline`.
    pub(crate) fn begin(&self, deadline: Instant) {
        self.deadline.send_replace(Some(deadline));
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Waits until the drain begins. Returns the deadline.
    pub(crate) async fn begun(&self) -> Instant {
        let mut deadline = self.deadline.subscribe();
        match deadline.wait_for(Option::is_some).await.map(|deadline| *deadline) {
            Ok(Some(deadline)) => deadline,
            // Not reached: `self` owns the sender, and `wait_for` returns `Some` only.
            _ => std::future::pending().await,
        }
    }

    /// Ready when the next piece of a body is overdue: `timeout` after the drain has begun, and at
    /// the deadline at the latest; or when what takes long is to end.
    pub(crate) async fn cut_body(&self, timeout: Duration) {
        let drained = async {
            let deadline = self.begun().await;
            sleep_until(deadline.min(Instant::now() + timeout)).await;
        };
        tokio::select! {
            () = drained => {}
            () = self.rushed() => {}
        }
    }

    /// Says that what takes long is to end, or need not any more.
    pub(crate) fn rush(&self, is_rushed: bool) {
        self.is_rushed.send_replace(is_rushed);
    }

    /// Waits until what takes long is to end, without a drain.
    pub(crate) async fn rushed(&self) {
        // Fails only once `self` is gone.
        let _ = self.is_rushed.subscribe().wait_for(|is_rushed| *is_rushed).await;
    }

    /// Begins a publication, which delays the shutdown until the returned guard is dropped.
    pub(crate) fn begin_publication(&self) -> Result<PublicationGuard<'_>, Draining> {
        // Count first, check second: the other way round, a drain that begins in between would not
        // wait for this publication.
        self.publications.fetch_add(1, Ordering::SeqCst);
        let guard = PublicationGuard(self);
        if self.has_begun() { Err(Draining) } else { Ok(guard) }
    }

    /// Waits until no publication is in progress.
    pub(crate) async fn publications_finished(&self) {
        while self.publications.load(Ordering::SeqCst) > 0 {
            self.finished.notified().await;
        }
    }
}

/// The server is shutting down and accepts no more publications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Draining;

#[derive(Debug)]
pub(crate) struct PublicationGuard<'a>(&'a Drain);

impl Drop for PublicationGuard<'_> {
    fn drop(&mut self) {
        if self.0.publications.fetch_sub(1, Ordering::SeqCst) == 1 {
            // `notify_one` stores a permit, so a notification between the check and the wait of
            // `publications_finished` is not lost.
            self.0.finished.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_refuses_publications_and_waits_for_those_in_progress() {
        let drain = Drain::default();
        let publication = drain.begin_publication().unwrap();
        drain.begin(Instant::now());
        assert_eq!(drain.begin_publication().unwrap_err(), Draining);
        let mut finished = Box::pin(drain.publications_finished());
        assert!(is_pending(&mut finished).await);
        drop(publication);
        finished.await;
    }

    async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())
        })
        .await
    }
}
