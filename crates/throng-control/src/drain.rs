//! The shutdown, as requests see it.
//!
//! What was accepted is still to be delivered, so the workers must not send anybody home before
//! the last publication is made. Therefore publications are counted, from the moment at which they
//! are no longer refused to their answer; nothing else is waited for. One whose body has not come
//! yet could hold up everybody, and so its client gets only a moment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::http::answer::Refused;
use throng_wire::ErrorCode;

/// Whether the server is shutting down, and what is still under way.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Once it has begun, when publications under way are given up.
    deadline: watch::Sender<Option<Instant>>,
    publications: AtomicUsize,
    has_settled: Notify,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain {
            deadline: watch::Sender::new(None),
            publications: AtomicUsize::new(0),
            has_settled: Notify::new(),
        }
    }
}

impl Drain {
    /// From now on publications are refused, and those under way are waited for until `deadline`.
    pub(crate) fn begin(&self, deadline: Instant) {
        self.deadline.send_replace(Some(deadline));
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Waits for the beginning. Returns the deadline.
    pub(crate) async fn beginning(&self) -> Instant {
        let mut deadline = self.deadline.subscribe();
        match deadline.wait_for(Option::is_some).await.map(|deadline| *deadline) {
            Ok(Some(deadline)) => deadline,
            // The sender is here.
            _ => std::future::pending().await,
        }
    }

    /// Waits for as long as the next piece of a body may still take: until the shutdown begins, and
    /// then for `patience`, within the deadline.
    pub(crate) async fn wait_with(&self, patience: Duration) {
        let deadline = self.beginning().await;
        sleep_until(deadline.min(Instant::now() + patience)).await;
    }

    /// A publication begins. The shutdown waits for it while what this returns is there.
    pub(crate) fn publication(&self) -> Result<Publication<'_>, Refused> {
        // Counted before it is asked, so that none slips through between the two.
        self.publications.fetch_add(1, Ordering::SeqCst);
        let publication = Publication(self);
        if self.has_begun() { Err(Refused::from(ErrorCode::Draining)) } else { Ok(publication) }
    }

    /// Waits until no publication is under way.
    pub(crate) async fn settled(&self) {
        while self.publications.load(Ordering::SeqCst) > 0 {
            self.has_settled.notified().await;
        }
    }
}

/// A publication that is under way.
#[derive(Debug)]
pub(crate) struct Publication<'a>(&'a Drain);

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        if self.0.publications.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Kept until somebody waits, so that it cannot come between looking and waiting.
            self.0.has_settled.notify_one();
        }
    }
}
