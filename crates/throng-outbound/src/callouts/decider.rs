//! Asks the application for decisions: a bounded number at a time, and a bounded number that waits
//! for its turn. Beyond both, a question is refused at once.
//!
//! The half that asks is called by workers, and owns no socket: their descriptor tables are
//! private, so that a socket dropped there would close another one. The sockets belong to the task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use throng_access::{Credentials, Decision};
use throng_core::clock;
use throng_core::later::{Answer, Later, Ticket};
use throng_core::name::ChannelName;
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::answer::{ANSWER_BYTES_MAX, Answered};
use super::breaker::Breaker;
use super::cache::{Cache, Key};
use super::caller::{Caller, new_id};
use super::error::CalloutError;
use super::metrics::CalloutMetrics;
use super::question::{Asks, Data, body};

/// Both planes refuse a client after five seconds without a decision. A question that cannot be
/// answered in this time is not asked.
const ANSWERED_WITHIN: Duration = Duration::from_millis(4_500);

/// Limits of the questions to one endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeciderLimits {
    /// The most questions that the endpoint is asked at a time.
    pub(super) max_in_flight: usize,
    /// The most questions that wait for their turn.
    pub(super) max_waiting: usize,
    /// The most answers that are cached.
    pub(super) max_cached: usize,
}

/// Asks one endpoint. Any thread may use it.
#[derive(Debug)]
pub(super) struct Decider {
    questions: mpsc::Sender<Question>,
    shared: Arc<Shared>,
}

/// What the two halves share.
#[derive(Debug)]
struct Shared {
    breaker: Mutex<Breaker>,
    cache: Mutex<Cache<Decision>>,
    metrics: Arc<CalloutMetrics>,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inquiry<'a> {
    pub(super) asks: Asks,
    /// The channel or the inbox that it is about.
    pub(super) name: &'a ChannelName,
    /// What the client has shown of who it is.
    pub(super) credentials: Credentials<'a>,
    /// Until when the rules allow it at most, in milliseconds since 1970.
    pub(super) until_ms: Option<u64>,
}

/// A question that waits.
#[derive(Debug)]
struct Question {
    body: Vec<u8>,
    key: Key,
    until_ms: Option<u64>,
    asked: Instant,
    ticket: Ticket<Decision>,
}

/// The half that sends the questions.
#[derive(Debug)]
pub(super) struct DeciderTask {
    caller: Arc<Caller>,
    questions: mpsc::Receiver<Question>,
    in_flight: Arc<Semaphore>,
    shared: Arc<Shared>,
}

impl Decider {
    pub(super) fn new(
        caller: Caller,
        limits: DeciderLimits,
        metrics: Arc<CalloutMetrics>,
    ) -> (Decider, DeciderTask) {
        let (sender, receiver) = mpsc::channel(limits.max_waiting.max(1));
        let (breaker, cache) = (Mutex::default(), Mutex::new(Cache::new(limits.max_cached)));
        let shared = Arc::new(Shared { breaker, cache, metrics });
        let in_flight = Arc::new(Semaphore::new(limits.max_in_flight));
        let decider = Decider { questions: sender, shared: Arc::clone(&shared) };
        let caller = Arc::new(caller);
        (decider, DeciderTask { caller, questions: receiver, in_flight, shared })
    }

    /// Asks about a channel, unless the answer is known or the endpoint is left alone.
    pub(super) fn decide(
        &self,
        inquiry: Inquiry<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let Inquiry { asks, name, credentials, until_ms } = inquiry;
        let data = Data::new(name, credentials);
        let key = data.key(asks);
        let shared = &self.shared;
        let now_ms = clock::now_ms();
        if let Some(decision) = lock(&shared.cache).get(&key, now_ms) {
            shared.metrics.decisions.count("cached");
            return limited(decision, until_ms).into();
        }
        if lock(&shared.breaker).refuses(now_ms) {
            return shared.refuse("breaker_open").into();
        }
        let Ok(place) = self.questions.try_reserve() else {
            return shared.refuse("overflow").into();
        };
        let (ticket, answer) = later.ticket();
        let body = body(asks, clock::machine_ms(), data);
        shared.metrics.decisions_waiting.add(1);
        place.send(Question { body, key, until_ms, asked: Instant::now(), ticket });
        answer
    }
}

impl DeciderTask {
    /// Sends questions until it is dropped.
    pub(super) async fn run(mut self) {
        while let Some(question) = self.questions.recv().await {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&self.in_flight).acquire_owned().await else { return };
            let (caller, shared) = (Arc::clone(&self.caller), Arc::clone(&self.shared));
            tokio::spawn(ask(caller, shared, question, permit));
        }
    }
}

async fn ask(
    caller: Arc<Caller>,
    shared: Arc<Shared>,
    question: Question,
    _permit: OwnedSemaphorePermit,
) {
    let Question { body, key, until_ms, asked, ticket } = question;
    let is_too_late = asked.elapsed() + caller.timeout > ANSWERED_WITHIN;
    let decision = if is_too_late {
        shared.refuse("too_late")
    } else if !lock(&shared.breaker).admits(clock::now_ms()) {
        shared.refuse("breaker_open")
    } else {
        let answer = caller.post(&new_id(), Bytes::from(body), ANSWER_BYTES_MAX).await;
        let answer = answer.and_then(|answer| Ok(Answered::parse(&answer)?));
        shared.metrics.durations.record_shared(asked.elapsed().as_micros() as u64);
        shared.conclude(&caller, key, answer)
    };
    shared.metrics.decisions_waiting.subtract(1);
    ticket.answer(limited(decision, until_ms));
}

impl Shared {
    /// The decision, after an answer or a failure.
    fn conclude(
        &self,
        caller: &Caller,
        key: Key,
        answer: Result<Answered, CalloutError>,
    ) -> Decision {
        let endpoint = caller.endpoint();
        match answer {
            Ok(Answered { decision, cache_ms }) => {
                if lock(&self.breaker).succeeded() {
                    self.metrics.breakers_open.subtract(1);
                    tracing::info!("{endpoint} answers again");
                }
                let is_denied = matches!(decision, Decision::Denied(_));
                self.metrics.decisions.count(if is_denied { "denied" } else { "allowed" });
                if cache_ms > 0 {
                    let until_ms = clock::now_ms() + cache_ms;
                    lock(&self.cache).insert(key, decision.clone(), until_ms);
                }
                decision
            }
            Err(error) => {
                tracing::debug!("callout to {endpoint} failed: {error}");
                if lock(&self.breaker).failed(clock::now_ms()) {
                    self.metrics.breakers_open.add(1);
                    tracing::warn!(
                        "{endpoint} does not decide ({error}): what it decides is refused \
                         until it does"
                    );
                }
                self.refuse(error.label())
            }
        }
    }

    /// Counts a question without an answer, and refuses what it asks.
    fn refuse(&self, outcome: &str) -> Decision {
        self.metrics.decisions.count(outcome);
        let message = "the application that decides this does not answer; try again later";
        Decision::Denied(ErrorResponse::new(ErrorCode::Busy, message))
    }
}

/// A decision that holds no longer than the rules allow.
fn limited(decision: Decision, until_ms: Option<u64>) -> Decision {
    match (decision, until_ms) {
        (Decision::Allowed, Some(until_ms)) => Decision::AllowedUntil(until_ms),
        (Decision::AllowedUntil(one), Some(other)) => Decision::AllowedUntil(one.min(other)),
        (decision, _) => decision,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
