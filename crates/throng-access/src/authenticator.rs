//! Verifies tokens, and lets those with an unknown key wait for a newer key set.
//!
//! Both planes ask with a [`Later`]: nearly every answer comes at once. A token whose key id is
//! unknown takes a ticket, and is verified again when the key sets that are being fetched are here.
//! The owner, in the control plane, fetches them: it sleeps until [`Authenticator::due_ms`] or
//! until it is woken, begins what [`Authenticator::begin`] names, and reports with
//! [`Authenticator::fetched`].
//!
//! A token that is forged counts against the address that it comes from, whenever that turns out.
//! From an address with too many of them, only tokens that were verified lately are accepted.

mod slow_lane;
mod verdict;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::later::{Answer, Later, Ticket};

use crate::clients::{Clients, OpenQuestion};
use crate::keys::{Key, KeySources, Refresh, RefreshSettings, SetError, SourceId, Unknown};
use crate::token::TokenError;
use crate::verifier::{Authority, Verifier};
use slow_lane::SlowLane;
pub use verdict::{Now, Refusal, Verdict};

/// The most tokens that wait for a key set at a time. A token has at most 8 KiB, so that they take
/// at most 8 MiB.
pub const WAITING_MAX: usize = 1024;

/// The result of a fetch: the keys, and their lifetime in milliseconds if the response names one.
#[derive(Debug)]
pub struct Fetched {
    pub keys: Vec<Arc<Key>>,
    /// The lifetime that the response names.
    pub lifetime_ms: Option<u64>,
}

/// Verifies tokens for all threads, and knows the key sets at URLs.
pub struct Authenticator {
    authority: Arc<Authority>,
    /// Has the limit of forged tokens.
    clients: Arc<Clients>,
    state: Mutex<State>,
    /// Verifies what would hold up a worker.
    slow_lane: Option<SlowLane>,
    /// Every URL was read once.
    has_all_sets: AtomicBool,
    /// Wakes the owner, because a fetch is due earlier than it knew.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug)]
struct State {
    sources: KeySources,
    urls: Vec<Url>,
    waiting: Vec<Waiting>,
    /// For the tokens that wait.
    verifier: Verifier,
}

/// A source whose keys are fetched.
#[derive(Debug)]
struct Url {
    source: SourceId,
    refresh: Refresh,
}

#[derive(Debug)]
struct Waiting {
    token: Box<str>,
    /// Where it comes from, if that is known and an address has limits.
    address: Option<IpAddr>,
    ticket: Ticket<Verdict>,
    /// Counts for the address.
    _open: OpenQuestion,
}

impl Authenticator {
    /// An authenticator whose keys come from `sources`, which publish to the authority. Forged
    /// tokens count against the limits of `clients`. `wake` may be called by any thread, and must
    /// not wait.
    pub fn new(
        authority: Arc<Authority>,
        sources: KeySources,
        clients: Arc<Clients>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Authenticator {
        let verifier = authority.verifier();
        let state = State { sources, urls: Vec::new(), waiting: Vec::new(), verifier };
        Authenticator {
            slow_lane: SlowLane::start(&authority, &clients),
            authority,
            clients,
            state: Mutex::new(state),
            has_all_sets: AtomicBool::new(true),
            wake: Box::new(wake),
        }
    }

    /// Adds a key set at a URL, which is to be fetched at once.
    pub fn add_url(&self, settings: RefreshSettings, now: Now) -> SourceId {
        let mut state = self.lock();
        let source = state.sources.add();
        self.has_all_sets.store(false, Ordering::Relaxed);
        state.urls.push(Url { source, refresh: Refresh::new(settings, now.steady_ms) });
        source
    }

    /// The verifier of one thread.
    pub fn verifier(&self) -> Verifier {
        self.authority.verifier()
    }

    /// State that all verifiers share.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// The claims of a token, by the verifier of the calling thread. `address` finds out where it
    /// comes from; it is called at most once, if the token was not verified lately and an address
    /// has limits.
    pub fn verify(
        &self,
        verifier: &mut Verifier,
        token: &str,
        address: impl FnOnce() -> Option<IpAddr>,
        now: Now,
        later: Later<'_, Verdict>,
    ) -> Answer<Verdict> {
        let mut from = None;
        let admit = || {
            from = self.limited_address(address);
            self.admit(from, now)
        };
        match verifier.verify_if(token, now.unix_s, admit) {
            Err(Refusal::Token(error)) if self.is_curable(error) => {
                self.ask_for_newer_keys(token, from, now, later)
            }
            verdict => self.judge(verdict, from, now).into(),
        }
    }

    /// As [`Authenticator::verify`], for a thread that must not be held up: a token whose signature
    /// takes long is verified on another one. Once its ticket is answered, it was verified lately.
    pub fn verify_shortly(
        &self,
        verifier: &mut Verifier,
        token: &str,
        address: impl FnOnce() -> Option<IpAddr>,
        now: Now,
        later: Later<'_, Verdict>,
    ) -> Answer<Verdict> {
        let Some(lane) = self.slow_lane.as_ref().filter(|_| verifier.takes_long(token)) else {
            return self.verify(verifier, token, address, now, later);
        };
        let from = self.limited_address(address);
        // Before it waits.
        if let Err(refusal) = self.admit(from, now) {
            return Err(refusal).into();
        }
        let mut answer = None;
        let ticket = || {
            let (ticket, coming) = later.ticket();
            answer = Some(coming);
            ticket
        };
        let refused = lane.verify(token, from, now, ticket);
        // There is a ticket unless there was no place for the token.
        answer.unwrap_or_else(|| Err(refused.err().unwrap_or(Refusal::TooManyWaiting)).into())
    }

    /// How many tokens were verified on another thread, and how many were refused because too many
    /// waited for it.
    pub fn slow_counts(&self) -> (u64, u64) {
        self.slow_lane.as_ref().map_or((0, 0), SlowLane::counts)
    }

    /// Whether tokens from this address are verified at all: not so after too many forged ones.
    /// For a caller to whom even the attempt is costly; [`Authenticator::verify`] asks by itself.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limited`] if not.
    pub fn admit(&self, address: Option<IpAddr>, now: Now) -> Result<(), Refusal> {
        Ok(self.clients.limiter.may_verify(address, now.steady_ms)?)
    }

    /// The address for which a token counts that is forged or waits; `None` without such limits.
    fn limited_address(&self, address: impl FnOnce() -> Option<IpAddr>) -> Option<IpAddr> {
        if self.clients.limiter.limits_strangers() { address() } else { None }
    }

    /// The final verdict on a token. A forged one counts against its address.
    fn judge(&self, verdict: Verdict, from: Option<IpAddr>, now: Now) -> Verdict {
        if let Err(Refusal::Token(error)) = &verdict
            && error.is_forged()
        {
            self.clients.limiter.charge_bad_token(from, now.steady_ms);
        }
        verdict
    }

    /// True if a newer key set may have the key of a token that was refused. Until each URL was
    /// read once, that holds for tokens that name no key, too.
    fn is_curable(&self, error: TokenError) -> bool {
        let lacks_sets = !self.has_all_sets.load(Ordering::Relaxed);
        match error {
            TokenError::UnknownKey => true,
            TokenError::Algorithm | TokenError::Signature => lacks_sets,
            _ => false,
        }
    }

    fn ask_for_newer_keys(
        &self,
        token: &str,
        from: Option<IpAddr>,
        now: Now,
        later: Later<'_, Verdict>,
    ) -> Answer<Verdict> {
        let mut state = self.lock();
        // A newer set may have come since. None can come now: it is published under this lock.
        let error = match state.verifier.verify(token, now.unix_s) {
            Err(error) if self.is_curable(error) => error,
            verdict => return self.judge(verdict.map_err(Refusal::Token), from, now).into(),
        };
        match state.ask_urls(now) {
            Unknown::Refuse => self.judge(Err(Refusal::Token(error)), from, now).into(),
            Unknown::Unavailable { retry_ms } => Err(Refusal::KeysUnavailable { retry_ms }).into(),
            Unknown::Wait if state.waiting.len() >= WAITING_MAX => {
                Err(Refusal::TooManyWaiting).into()
            }
            Unknown::Wait => {
                let _open = match OpenQuestion::begin(&self.clients, from) {
                    Ok(open) => open,
                    Err(refusal) => return Err(Refusal::Limited(refusal)).into(),
                };
                let (ticket, answer) = later.ticket();
                state.waiting.push(Waiting { token: token.into(), address: from, ticket, _open });
                // The woken thread needs the lock.
                drop(state);
                (self.wake)();
                answer
            }
        }
    }

    /// Replaces the keys of a source that is not fetched, such as files that were read again. The
    /// result says whether the keys differ from those before.
    ///
    /// # Errors
    ///
    /// [`SetError`] if the keys conflict with other sources. Then the old ones stay.
    pub fn replace(&self, source: SourceId, keys: Vec<Arc<Key>>) -> Result<bool, SetError> {
        let mut state = self.lock();
        debug_assert!(state.urls.iter().all(|url| url.source != source), "this source is fetched");
        state.sources.replace(source, keys)
    }

    /// When the next fetch is due; `None` while all are under way, or if there is no URL.
    pub fn due_ms(&self) -> Option<u64> {
        self.lock().urls.iter().filter_map(|url| url.refresh.due_ms()).min()
    }

    /// The sources to fetch now. The owner calls [`Authenticator::fetched`] for each, after a
    /// deadline at the latest.
    pub fn begin(&self, now: Now) -> Vec<SourceId> {
        let mut state = self.lock();
        let due = state.urls.iter_mut().filter_map(|url| {
            let is_due = url.refresh.begin(now.steady_ms);
            is_due.then_some(url.source)
        });
        due.collect()
    }

    /// Reports what came of a fetch; `None` if it failed. Answers the tokens that waited for it.
    /// The result says whether the keys differ from those before.
    ///
    /// # Errors
    ///
    /// [`SetError`] if the keys conflict with other sources. Then, as after a failed fetch, the
    /// last good ones stay.
    pub fn fetched(
        &self,
        source: SourceId,
        fetched: Option<Fetched>,
        now: Now,
    ) -> Result<bool, SetError> {
        let mut state = self.lock();
        let replaced = state.take_over(source, fetched, now);
        let is_good = |url: &Url| url.refresh.age_ms(now.steady_ms).is_some();
        self.has_all_sets.store(state.urls.iter().all(is_good), Ordering::Relaxed);
        let answers = state.answers(now, |error| self.is_curable(error));
        drop(state);
        for (Waiting { address, ticket, _open, .. }, verdict) in answers {
            drop(_open);
            ticket.answer(self.judge(verdict, address, now));
        }
        replaced
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next step for a token whose key no source has.
    fn ask_urls(&mut self, now: Now) -> Unknown {
        let mut result = Unknown::Refuse;
        for url in &mut self.urls {
            result = match (url.refresh.unknown_key(now.steady_ms), result) {
                (Unknown::Wait, _) | (_, Unknown::Wait) => Unknown::Wait,
                (
                    Unknown::Unavailable { retry_ms },
                    Unknown::Unavailable { retry_ms: other_ms },
                ) => Unknown::Unavailable { retry_ms: retry_ms.min(other_ms) },
                (Unknown::Refuse, other) | (other, Unknown::Refuse) => other,
            };
        }
        result
    }

    fn take_over(
        &mut self,
        source: SourceId,
        fetched: Option<Fetched>,
        now: Now,
    ) -> Result<bool, SetError> {
        let refresh = self.urls.iter_mut().find(|url| url.source == source);
        let refresh = &mut refresh.expect("it was named by `begin`").refresh;
        let Some(Fetched { keys, lifetime_ms }) = fetched else {
            refresh.failed(now.steady_ms);
            return Ok(false);
        };
        let replaced = self.sources.replace(source, keys);
        if replaced.is_ok() {
            refresh.succeeded(now.steady_ms, lifetime_ms);
        } else {
            refresh.failed(now.steady_ms);
        }
        replaced
    }

    /// The verdicts on the tokens that need not wait any longer.
    fn answers(
        &mut self,
        now: Now,
        is_curable: impl Fn(TokenError) -> bool,
    ) -> Vec<(Waiting, Verdict)> {
        let mut answers = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let verdict = self.verifier.verify(&waiting.token, now.unix_s);
            let is_open = matches!(verdict, Err(error) if is_curable(error));
            let next = if is_open { self.ask_urls(now) } else { Unknown::Refuse };
            let verdict = match next {
                Unknown::Wait => {
                    self.waiting.push(waiting);
                    continue;
                }
                Unknown::Refuse => verdict.map_err(Refusal::Token),
                Unknown::Unavailable { retry_ms } => Err(Refusal::KeysUnavailable { retry_ms }),
            };
            answers.push((waiting, verdict));
        }
        answers
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").field("authority", &self.authority).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
