//! Publishes all the time, to find out when that works again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::http::Http;

/// How often, whether or not earlier attempts have an answer.
const INTERVAL: Duration = Duration::from_millis(25);

/// How long an attempt waits for its answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// An attempt that succeeded.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    began: Instant,
    ended: Instant,
}

/// Attempts to publish, each to a channel of its own: in one channel, each would wait for those
/// before it.
pub(super) struct Prober {
    accepted: Arc<Mutex<Vec<Accepted>>>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    /// Starts to publish to the server with this base URL.
    pub(super) fn start(url: &str) -> Prober {
        let accepted = Arc::<Mutex<Vec<Accepted>>>::default();
        let is_stopped = Arc::<AtomicBool>::default();
        let url = url.to_owned();
        let (all, stopped) = (Arc::clone(&accepted), Arc::clone(&is_stopped));
        let thread = thread::spawn(move || {
            let attempts = (0_u64..).take_while(|_| !stopped.load(Ordering::Relaxed));
            let attempts = attempts.map(|nth| {
                let all = Arc::clone(&all);
                let url = format!("{url}/channels/probe-{nth}");
                let attempt = thread::spawn(move || attempt(&url, &all));
                thread::sleep(INTERVAL);
                attempt
            });
            let attempts: Vec<_> = attempts.collect();
            // One that panicked has not succeeded.
            attempts.into_iter().for_each(|attempt| drop(attempt.join()));
        });
        Prober { accepted, is_stopped, thread: Some(thread) }
    }

    /// How long after `since` the first message was accepted that was published after it.
    pub(super) fn works_after(&self, since: Instant) -> Option<Duration> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let after = accepted.iter().filter(|accepted| accepted.began >= since);
        after.map(|accepted| accepted.ended - since).min()
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn attempt(url: &str, all: &Mutex<Vec<Accepted>>) {
    let began = Instant::now();
    if Http::new(TIMEOUT).post(url, b"probe", None).is_ok() {
        let accepted = Accepted { began, ended: Instant::now() };
        all.lock().unwrap_or_else(PoisonError::into_inner).push(accepted);
    }
}
