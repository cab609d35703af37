//! Asks the application: a bounded number of questions at a time, and a bounded number that waits
//! for its turn. Beyond both, a question is refused at once.
//!
//! The half that asks is called by workers, and owns no socket: their descriptor tables are
//! private, so that a socket dropped there would close another one. The sockets belong to the task.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use throng_access::{Clients, OpenQuestion};
use throng_core::clock;
use throng_core::later::{Answer, Later, Ticket};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::breaker::{Attempt, Breaker};
use super::cache::{Cache, QuestionKey};
use super::caller::{Caller, new_id};
use super::error::CalloutError;
use super::metrics::CalloutMetrics;
use super::verdict::{Answered, Verdict};

/// Both planes refuse a client after five seconds without a decision. A question that cannot be
/// answered in this time is not asked.
const ANSWERED_WITHIN: Duration = Duration::from_millis(4_500);

/// The most bytes of the questions that wait: passed headers make them large.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// How often it is noted that an endpoint refuses questions.
const REFUSAL_NOTES_MS: u64 = 60_000;

/// An endpoint, which all deciders of one callout share.
#[derive(Debug)]
pub(super) struct CalloutEndpoint {
    caller: Caller,
    in_flight: Arc<Semaphore>,
    breaker: Mutex<Breaker>,
    waiting_bytes: AtomicUsize,
    /// When a question that the endpoint refuses is noted again.
    refusal_due_ms: AtomicU64,
    metrics: Arc<CalloutMetrics>,
    /// Has the limit of questions of an address.
    clients: Arc<Clients>,
}

/// Asks one endpoint one kind of question. Any thread may use it.
#[derive(Debug)]
pub(super) struct Decider<V: Verdict> {
    questions: mpsc::Sender<WaitingQuestion<V>>,
    desk: Arc<Desk<V>>,
}

#[derive(Debug)]
struct Desk<V: Verdict> {
    endpoint: Arc<CalloutEndpoint>,
    cache: Mutex<Cache<V>>,
    reader: V::Reader,
}

#[derive(Debug)]
pub(super) struct Inquiry<F, B> {
    /// Names the question, apart from the moment when it is asked.
    pub(super) key: QuestionKey,
    /// Makes the body of the request, of a moment in milliseconds since 1970.
    pub(super) body: F,
    /// Limits that no answer extends, such as the client's token.
    pub(super) bounds: B,
    /// The address of the client, if known.
    pub(super) address: Option<IpAddr>,
}

#[derive(Debug)]
struct WaitingQuestion<V: Verdict> {
    body: Vec<u8>,
    about: Attempt,
    bounds: V::Bounds,
    asked: Instant,
    asked_s: u64,
    ticket: Ticket<V::Given>,
    open: OpenQuestion,
}

/// The half that sends the questions.
#[derive(Debug)]
pub(super) struct DeciderTask<V: Verdict> {
    questions: mpsc::Receiver<WaitingQuestion<V>>,
    desk: Arc<Desk<V>>,
}

impl CalloutEndpoint {
    /// The endpoint of `caller`, which is asked `max_in_flight` questions at a time.
    pub(super) fn new(
        caller: Caller,
        max_in_flight: usize,
        metrics: Arc<CalloutMetrics>,
        clients: Arc<Clients>,
    ) -> Arc<CalloutEndpoint> {
        let in_flight = Arc::new(Semaphore::new(max_in_flight));
        let (breaker, waiting_bytes) = (Mutex::default(), AtomicUsize::default());
        let refusal_due_ms = AtomicU64::default();
        Arc::new(CalloutEndpoint {
            caller,
            in_flight,
            breaker,
            waiting_bytes,
            refusal_due_ms,
            metrics,
            clients,
        })
    }
}

impl<V: Verdict> Decider<V> {
    /// A decider of which `max_waiting` questions wait at most, and which caches `max_cached`
    /// answers at most.
    pub(super) fn new(
        endpoint: &Arc<CalloutEndpoint>,
        max_waiting: usize,
        max_cached: usize,
        reader: V::Reader,
    ) -> (Decider<V>, DeciderTask<V>) {
        let (sender, receiver) = mpsc::channel(max_waiting.max(1));
        let cache = Mutex::new(Cache::new(max_cached));
        let desk = Arc::new(Desk { endpoint: Arc::clone(endpoint), cache, reader });
        let decider = Decider { questions: sender, desk: Arc::clone(&desk) };
        (decider, DeciderTask { questions: receiver, desk })
    }

    /// The cached answer to a question, if it still `holds`.
    pub(super) fn known(&self, key: &QuestionKey, holds: impl FnOnce(&V) -> bool) -> Option<V> {
        let known = lock(&self.desk.cache).get(key, clock::now_ms());
        let known = known.filter(holds)?;
        self.desk.endpoint.metrics.decisions.count("cached");
        Some(known)
    }

    /// Asks, unless an answer is known that still `holds`, or the endpoint is left alone.
    pub(super) fn decide(
        &self,
        inquiry: Inquiry<impl FnOnce(u64) -> Vec<u8>, V::Bounds>,
        holds: impl FnOnce(&V) -> bool,
        later: Later<'_, V::Given>,
    ) -> Answer<V::Given> {
        let Inquiry { key, body, bounds, address } = inquiry;
        let endpoint = &self.desk.endpoint;
        if let Some(verdict) = self.known(&key, holds) {
            return Answer::Now(verdict.within(&bounds));
        }
        let refuse = |outcome| Answer::Now(endpoint.refuse::<V>(outcome).within(&bounds));
        // Behind the cache: a known answer needs no endpoint.
        let about = Attempt { key, address };
        if lock(&endpoint.breaker).refuses(about, clock::now_ms()) {
            return refuse("breaker_open");
        }
        // Before the place is taken: one address must not fill the queue.
        let open = match OpenQuestion::begin(&endpoint.clients, address) {
            Ok(open) => open,
            Err(refusal) => {
                endpoint.metrics.decisions.count("limited");
                return Answer::Now(V::refused(refusal.into()).within(&bounds));
            }
        };
        // Before the body is made, so that an overflow costs little.
        let Ok(place) = self.questions.try_reserve() else {
            return refuse("overflow");
        };
        let asked_ms = clock::machine_ms();
        let body = body(asked_ms);
        // Added first and looked at later, so that two at once cannot both get the last bytes.
        let before = endpoint.waiting_bytes.fetch_add(body.len(), Ordering::Relaxed);
        if before + body.len() > WAITING_BYTES_MAX {
            endpoint.waiting_bytes.fetch_sub(body.len(), Ordering::Relaxed);
            return refuse("overflow");
        }
        let (ticket, answer) = later.ticket();
        endpoint.metrics.decisions_waiting.add(1);
        let (asked, asked_s) = (Instant::now(), asked_ms / 1000);
        place.send(WaitingQuestion { body, about, bounds, asked, asked_s, ticket, open });
        answer
    }
}

impl<V: Verdict> DeciderTask<V> {
    /// Sends questions until it is dropped.
    pub(super) async fn run(mut self) {
        while let Some(question) = self.questions.recv().await {
            // The semaphore is never closed.
            let in_flight = Arc::clone(&self.desk.endpoint.in_flight);
            let Ok(permit) = in_flight.acquire_owned().await else { return };
            tokio::spawn(ask(Arc::clone(&self.desk), question, permit));
        }
    }
}

async fn ask<V: Verdict>(
    desk: Arc<Desk<V>>,
    question: WaitingQuestion<V>,
    _permit: OwnedSemaphorePermit,
) {
    let WaitingQuestion { body, about, bounds, asked, asked_s, ticket, open } = question;
    let (endpoint, bytes) = (&desk.endpoint, body.len());
    let is_too_late = asked.elapsed() + endpoint.caller.timeout > ANSWERED_WITHIN;
    let verdict = if is_too_late {
        endpoint.refuse("too_late")
    } else if !lock(&endpoint.breaker).admits(about, clock::now_ms()) {
        endpoint.refuse("breaker_open")
    } else {
        let bytes_max = V::answer_bytes_max(&desk.reader);
        let answer = endpoint.caller.post(&new_id(), Bytes::from(body), bytes_max).await;
        let answer = answer.and_then(|answer| Ok(V::read(&desk.reader, &answer, asked_s)?));
        endpoint.metrics.durations.record_shared(asked.elapsed().as_micros() as u64);
        desk.conclude(about, answer)
    };
    endpoint.metrics.decisions_waiting.subtract(1);
    endpoint.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    drop(open);
    ticket.answer(verdict.within(&bounds));
}

impl<V: Verdict> Desk<V> {
    /// The verdict, after an answer or a failure.
    fn conclude(&self, about: Attempt, answer: Result<Answered<V>, CalloutError>) -> V {
        let endpoint = &self.endpoint;
        let url = endpoint.caller.endpoint();
        match answer {
            Ok(Answered { verdict, cache_ms }) => {
                endpoint.note_answer();
                let outcome = if verdict.is_denial() { "denied" } else { "allowed" };
                endpoint.metrics.decisions.count(outcome);
                if cache_ms > 0 {
                    let until_ms = clock::now_ms() + cache_ms;
                    // Without the asker's bounds, which are applied to each answer given.
                    lock(&self.cache).insert(about.key, verdict.clone(), until_ms);
                }
                verdict
            }
            Err(error) => {
                tracing::debug!("callout to {url} failed: {error}");
                if error.is_about_question() {
                    endpoint.note_refusal(&error);
                } else if lock(&endpoint.breaker).failed(
                    about,
                    error.is_of_endpoint(),
                    clock::now_ms(),
                ) {
                    endpoint.metrics.breakers_open.add(1);
                    tracing::warn!(
                        "{url} does not decide ({error}): its clients are refused until it \
                         does"
                    );
                }
                endpoint.refuse(error.label())
            }
        }
    }
}

impl CalloutEndpoint {
    fn note_answer(&self) {
        if lock(&self.breaker).succeeded(clock::now_ms()) {
            self.metrics.breakers_open.subtract(1);
            tracing::info!("{} answers again", self.caller.endpoint());
        }
    }

    /// The endpoint has refused one question, as it may do for any that a client makes up. It is
    /// said once in a while: if it does so for all, its address may be wrong.
    fn note_refusal(&self, error: &CalloutError) {
        self.note_answer();
        let now_ms = clock::now_ms();
        let due_ms = self.refusal_due_ms.load(Ordering::Relaxed);
        let next_ms = now_ms + REFUSAL_NOTES_MS;
        let set = |from, to| {
            self.refusal_due_ms.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
        };
        if now_ms >= due_ms && set(due_ms, next_ms).is_ok() {
            let endpoint = self.caller.endpoint();
            tracing::warn!("{endpoint} does not decide a question ({error}): it is refused");
        }
    }

    /// Counts a question without an answer, and refuses what it asks.
    fn refuse<V: Verdict>(&self, outcome: &str) -> V {
        self.metrics.decisions.count(outcome);
        let message = "the application that decides this does not answer; try again later";
        V::refused(ErrorResponse::new(ErrorCode::Busy, message))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
