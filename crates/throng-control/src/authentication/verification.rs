//! Verifies tokens without holding up other connections.
//!
//! Most verifications take some microseconds: the token was verified lately, or has an HMAC. They
//! run where they are asked for. A signature with ES384 takes a millisecond, in which a thread of
//! the runtime would serve nothing else, so that those few algorithms go to other threads, not more
//! than a few at a time: else forged tokens would take all cores from the workers.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_access::authenticator::Now;
use throng_access::{Authenticator, Verdict, Verifier};
use throng_core::{Later, clock};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::late_answer::{PendingAnswer, ask};

/// How long a request waits until its token is verified, before it is refused with `busy`. The key
/// set that has the token's key may have to be fetched.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of slow verifications at a time.
const SLOW_MAX: usize = 2;

/// Verifies the tokens of all connections of the control plane.
pub(super) struct Verification {
    tokens: Option<Arc<Authenticator>>,
    /// Verifiers that no request uses now: as many as there were requests at the same moment.
    idle: Mutex<Vec<Verifier>>,
    slow: Arc<Semaphore>,
}

impl Verification {
    pub(super) fn new(tokens: Option<Arc<Authenticator>>) -> Verification {
        let slow = Arc::new(Semaphore::new(SLOW_MAX));
        Verification { tokens, idle: Mutex::default(), slow }
    }

    /// Verifies a token that comes from `address`, if known; `None` if no verdict comes in time, or
    /// the server has no keys for tokens.
    pub(super) async fn verify(&self, token: &str, address: Option<IpAddr>) -> Option<Verdict> {
        let tokens = self.tokens.as_ref()?;
        if let Some(asked) = self.verify_here(tokens, token, address) {
            return asked.within(VERIFICATION_TIMEOUT).await;
        }
        // Before it waits for a thread.
        if let Err(refusal) = tokens.admit(address, now()) {
            return Some(Err(refusal));
        }
        let verifying = self.verify_elsewhere(Arc::clone(tokens), token.into(), address);
        timeout(VERIFICATION_TIMEOUT, verifying).await.ok().flatten()
    }

    /// Verifies a token on this thread; `None` if that takes long.
    fn verify_here(
        &self,
        tokens: &Authenticator,
        token: &str,
        address: Option<IpAddr>,
    ) -> Option<PendingAnswer<Verdict>> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verifier = idle().pop().unwrap_or_else(|| tokens.verifier());
        let takes_long = verifier.takes_long(token);
        let asked = (!takes_long).then(|| verify(tokens, &mut verifier, token, address));
        idle().push(verifier);
        asked
    }

    /// Verifies a token on a thread that serves no connections; `None` if no verdict will come.
    async fn verify_elsewhere(
        &self,
        tokens: Arc<Authenticator>,
        token: Box<str>,
        address: Option<IpAddr>,
    ) -> Option<Verdict> {
        let permit = Arc::clone(&self.slow).acquire_owned().await.ok()?;
        let verifying = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            verify(&tokens, &mut tokens.verifier(), &token, address)
        });
        verifying.await.ok()?.within(VERIFICATION_TIMEOUT).await
    }
}

fn verify(
    tokens: &Authenticator,
    verifier: &mut Verifier,
    token: &str,
    address: Option<IpAddr>,
) -> PendingAnswer<Verdict> {
    let Ok(asked) = ask(|later: Later<'_, _>| {
        Ok::<_, Infallible>(tokens.verify(verifier, token, || address, now(), later))
    });
    asked
}

/// The time by which tokens and logins are judged.
pub(super) fn now() -> Now {
    Now { steady_ms: clock::now_ms(), unix_s: clock::machine_ms() / 1000 }
}
