//! Verifies tokens whose signatures take long, on a thread of its own: a worker that verified them
//! itself would deliver nothing meanwhile, and one thread bounds what forged tokens cost a server.
//!
//! The tokens that wait have a limit, of which an address may have as many as it leaves to others.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use throng_core::later::Ticket;

use super::verdict::{Now, Refusal, Verdict};
use crate::clients::Clients;
use crate::verifier::{Authority, Verifier};

/// Tokens that wait at a time: a quarter of a second for signatures of a millisecond.
const WAITING_MAX: usize = 256;

/// A token that waits.
struct SlowToken {
    token: Box<str>,
    /// Where it comes from, if that is known.
    from: Option<IpAddr>,
    now: Now,
    ticket: Ticket<Verdict>,
}

#[derive(Default)]
struct Waiting {
    tokens: VecDeque<SlowToken>,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    verified: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token that has waited for longest; `None` if there will be none.
    fn next(&self) -> Option<SlowToken> {
        let is_idle = |waiting: &mut Waiting| waiting.tokens.is_empty() && !waiting.is_over;
        let waiting = self.changed.wait_while(self.lock(), is_idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        if waiting.is_over { None } else { waiting.tokens.pop_front() }
    }
}

/// The way to the thread, which ends when this is dropped.
pub(super) struct SlowLane(Arc<Shared>);

impl SlowLane {
    /// `None` if the system has no thread to spare: then each verifies for itself.
    pub(super) fn start(authority: &Arc<Authority>, clients: &Arc<Clients>) -> Option<SlowLane> {
        let shared = Arc::<Shared>::default();
        let (of_thread, clients) = (Arc::clone(&shared), Arc::clone(clients));
        let mut verifier = authority.verifier();
        let run = move || {
            while let Some(slow) = of_thread.next() {
                of_thread.verified.fetch_add(1, Ordering::Relaxed);
                let verdict = verify(&mut verifier, &clients, &slow);
                slow.ticket.answer(verdict);
            }
        };
        thread::Builder::new().name("verifier".into()).spawn(run).ok()?;
        Some(SlowLane(shared))
    }

    /// Verifies a token, and answers the ticket.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyWaiting`] without a place.
    pub(super) fn verify(
        &self,
        token: &str,
        from: Option<IpAddr>,
        now: Now,
        ticket: impl FnOnce() -> Ticket<Verdict>,
    ) -> Result<(), Refusal> {
        let mut waiting = self.0.lock();
        let left = WAITING_MAX - waiting.tokens.len();
        let is_own = |slow: &&SlowToken| from.is_some() && slow.from == from;
        if left == 0 || waiting.tokens.iter().filter(is_own).count() >= left {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::TooManyWaiting);
        }
        let ticket = ticket();
        waiting.tokens.push_back(SlowToken { token: token.into(), from, now, ticket });
        drop(waiting);
        self.0.changed.notify_one();
        Ok(())
    }

    /// How many were verified, and how many were refused since the start.
    pub(super) fn counts(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.0.verified), of(&self.0.refused))
    }
}

impl Drop for SlowLane {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

/// The verdict on a token. A forged one counts against its address, from which no more may come.
fn verify(verifier: &mut Verifier, clients: &Clients, slow: &SlowToken) -> Verdict {
    let now = slow.now;
    let admit = || Ok(clients.limiter.may_verify(slow.from, now.steady_ms)?);
    let verdict: Verdict = verifier.verify_if(&slow.token, now.unix_s, admit);
    if let Err(Refusal::Token(error)) = &verdict
        && error.is_forged()
    {
        clients.limiter.charge_bad_token(slow.from, now.steady_ms);
    }
    verdict
}
