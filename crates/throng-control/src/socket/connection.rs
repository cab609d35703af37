//! Serves one socket, from the worker that handed it off to its close or the way back.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use http::Request;
use http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use throng_core::Listener;

use super::close::{self, ConnectionEnd};
use super::connection_set::Activity;
use super::deadlines::{Deadlines, Missed};
use super::request_boundary::{RequestBoundary, SharedBoundary};
use super::stream::ClientStream;
use crate::control::Control;
use crate::edge::Handoff;
use crate::hold::Acting;
use crate::http::answer::Answer;
use crate::http::caller::{Caller, Certificate};
use crate::http::large_answer::CONNECTION_EVICTION;
use crate::memory_quota::EvictionSignal;
use crate::metrics::HttpCounter;

/// Hyper refuses a head that fills its buffer, so the buffer is larger than the largest head by
/// this number of bytes.
const HEAD_SPARE_BYTES: usize = 1 << 10;
/// Minimum size of hyper's buffer, because bodies pass through it, too.
const BUFFER_BYTES_MIN: usize = 16 << 10;

/// A connection of the control plane, which counts as open until this is dropped.
pub(crate) struct ControlConnection {
    control: Arc<Control>,
    /// The listener that accepted it. It decides which requests are allowed.
    listener: Listener,
    /// Counted from the moment that the connection is here: its task may begin late.
    acting: Mutex<Option<Acting>>,
}

impl ControlConnection {
    pub(crate) fn open(control: &Arc<Control>, listener: Listener) -> ControlConnection {
        control.metrics.connection_opened();
        let acting = Mutex::new(Some(control.hold.count()));
        ControlConnection { control: Arc::clone(control), listener, acting }
    }

    /// Ends or begins to act: one that does not is not waited for when another process takes over.
    pub(crate) fn set_acting(&self, is_acting: bool) {
        let acting = is_acting.then(|| self.control.hold.count());
        *self.acting.lock().unwrap_or_else(PoisonError::into_inner) = acting;
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Serves a socket until it is closed or handed off to a worker. `answer` makes the response to
    /// a request. The state of the connection is reported to `activity`.
    pub(crate) async fn run<F>(
        &self,
        handoff: Handoff,
        activity: &Activity,
        answer: impl Fn(Request<Incoming>) -> F,
    ) where
        F: Future<Output = Answer>,
    {
        let user = handoff.tls.as_ref().and_then(|tls| tls.user.clone());
        let certificate = user.map(|user| Certificate(user.into()));
        let Ok(stream) = ClientStream::new(handoff.stream, handoff.tls) else { return };
        let peer = stream.peer_addr().ok();
        let source = &self.control.clients.source;
        let connected = match (&handoff.client, peer) {
            (Some(client), _) => Some(client.address()),
            // A PROXY header has not named the client.
            (None, _) if source.expects_proxy_header() => None,
            (None, Some(peer)) => source.of_connection(peer.ip()),
            (None, None) => None,
        };
        let caller = Caller { listener: self.listener, peer, connected };
        let max_head_bytes = self.control.settings.max_head_bytes;
        let boundary = RequestBoundary::new(stream, &handoff.bytes, max_head_bytes);
        // The boundary has copied them. They would be kept as long as the connection.
        drop(handoff.bytes);
        let boundary = SharedBoundary::new(boundary);
        let eviction = Arc::new(EvictionSignal::default());
        let answer = |mut request: Request<Incoming>| {
            request.extensions_mut().insert(caller);
            if let Some(certificate) = &certificate {
                request.extensions_mut().insert(certificate.clone());
            }
            answer(request)
        };
        let mut acting = self.acting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let serving =
            serve(&self.control, boundary.clone(), &mut acting, &eviction, activity, answer);
        let end = CONNECTION_EVICTION.scope(Arc::clone(&eviction), serving).await;
        let Some(boundary) = boundary.into_inner() else { return };
        // An error means that the client has disconnected, which ends the connection as well.
        let ending =
            close::finish(&self.control, self.listener, boundary, acting, end, handoff.client);
        let _ = ending.await;
    }

    /// Responds `full` to the request of a socket, and closes it.
    pub(crate) async fn refuse(&self, handoff: Handoff) {
        self.set_acting(false);
        // As above.
        let _ = close::refuse_full(&self.control, handoff).await;
    }
}

impl Drop for ControlConnection {
    fn drop(&mut self) {
        self.control.metrics.connection_closed();
    }
}

/// Hyper's settings. [`Deadlines`] has the timeouts.
fn builder(max_head_bytes: usize) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .half_close(true)
        // The spelling of the workers' responses.
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(BUFFER_BYTES_MIN.max(max_head_bytes + HEAD_SPARE_BYTES));
    builder
}

/// Runs hyper until the connection ends or its next request is not hyper's.
async fn serve<F>(
    control: &Control,
    boundary: SharedBoundary,
    acting: &mut Option<Acting>,
    eviction: &EvictionSignal,
    activity: &Activity,
    answer: impl Fn(Request<Incoming>) -> F,
) -> ConnectionEnd
where
    F: Future<Output = Answer>,
{
    let answers = AtomicU64::new(0);
    // True if a response has told the client that it is the last one.
    let has_closed = AtomicBool::new(false);
    let answer = service_fn(|request: Request<Incoming>| {
        let answer = answer(request);
        async {
            let answer = answer.await;
            has_closed.fetch_or(answer.headers().contains_key(CONNECTION), Ordering::Relaxed);
            answers.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let builder = builder(control.settings.max_head_bytes);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(boundary.clone()), answer));
    let mut draining = pin!(control.drain.begun());
    let mut evicted = pin!(eviction.wait());
    let mut held = pin!(control.hold.becomes(true));
    let (mut is_draining, mut is_held) = (false, false);
    let mut deadlines = Deadlines::new(&control.settings);
    std::future::poll_fn(|cx| {
        // Before hyper: no request may begin from now on.
        if !is_held && held.as_mut().poll(cx).is_ready() {
            is_held = true;
            boundary.lock().begin_move();
        }
        let mut is_finished = connection.as_mut().poll(cx).is_ready();
        // After hyper, so that a request that has arrived already is answered.
        if !is_finished && !is_draining && draining.as_mut().poll(cx).is_ready() {
            is_draining = true;
            connection.as_mut().graceful_shutdown();
            is_finished = connection.as_mut().poll(cx).is_ready();
        }
        let mut boundary = boundary.lock();
        if boundary.is_done() {
            return Poll::Ready(ConnectionEnd::Boundary);
        }
        if is_finished {
            // A response with `Connection: close` must stay the last one.
            let refuses_next =
                is_draining && boundary.is_mid_head() && !has_closed.load(Ordering::Relaxed);
            return Poll::Ready(if refuses_next {
                ConnectionEnd::Draining
            } else {
                ConnectionEnd::Finished
            });
        }
        if let Poll::Ready(Err(_)) = boundary.poll_flush(cx) {
            return Poll::Ready(ConnectionEnd::WriteFailed);
        }
        if evicted.as_mut().poll(cx).is_ready() {
            control.metrics.count(HttpCounter::Aborted);
            return Poll::Ready(ConnectionEnd::Evicted);
        }
        let answers = answers.load(Ordering::Relaxed);
        if boundary.is_moving() && boundary.has_answered(answers) {
            if boundary.has_written_all() {
                return Poll::Ready(ConnectionEnd::Moving);
            }
            // Only output is left, which its client does not read.
            *acting = None;
        }
        let is_busy = answers < boundary.heads() && boundary.has_whole_request();
        activity.report(boundary.progress(), is_busy);
        deadlines.poll(cx, &boundary, answers).map(|missed| match missed {
            Missed::Head => ConnectionEnd::SlowHead,
            Missed::Idle => ConnectionEnd::Idle,
        })
    })
    .await
}
