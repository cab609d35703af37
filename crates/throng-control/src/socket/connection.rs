//! One socket's life in the control plane, from the worker that handed it over to its end.

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
use tokio::net::TcpStream;

use crate::control::Control;
use crate::edge::Arrival;
use crate::http::answer::OWN_CUT;
use crate::http::caller::Caller;
use crate::memory_quota::Cut;
use crate::service::Service;
use crate::socket::close::{self, End};
use crate::socket::connection_set::Activity;
use crate::socket::deadlines::{Deadlines, Missed};
use crate::socket::request_boundary::{Gate, Handle};

/// Hyper's buffer for a head, in bytes, is larger than the largest head by this: it refuses one
/// that fills the buffer.
const HEAD_SPARE_BYTES: usize = 1 << 10;
/// Nor is the buffer ever smaller than this, because bodies pass through it too.
const BUFFER_BYTES_MIN: usize = 16 << 10;

/// Serves one socket until it ends or goes back to a worker.
pub(crate) async fn run(
    control: &Control,
    service: Service,
    listener: Listener,
    arrival: Arrival,
    activity: &Activity,
) {
    let Ok(stream) = TcpStream::from_std(arrival.stream) else {
        return;
    };
    let is_logged = tracing::enabled!(tracing::Level::DEBUG);
    let peer = if is_logged { stream.peer_addr().ok() } else { None };
    let gate = Gate::new(stream, &arrival.bytes, control.settings.head_bytes_max);
    drop(arrival.bytes);
    let handle = Handle(Arc::new(Mutex::new(gate)));
    let caller = Caller { listener, peer };
    let cut = Arc::new(Cut::default());
    let serving = serve(control, &service, caller, handle.clone(), &cut, activity);
    let end = OWN_CUT.scope(Arc::clone(&cut), serving).await;
    let Some(gate) = Arc::into_inner(handle.0) else {
        return;
    };
    let gate = gate.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Who is gone needs no farewell.
    let _ = close::take_leave(control, listener, gate, end).await;
}

/// Tells a client that there is no room for it.
pub(crate) async fn refuse(control: &Control, arrival: Arrival) {
    if let Ok(stream) = TcpStream::from_std(arrival.stream) {
        // As above.
        let _ = close::refuse_full(control, stream, &arrival.bytes).await;
    }
}

/// Hyper's part.
async fn serve(
    control: &Control,
    service: &Service,
    caller: Caller,
    handle: Handle,
    cut: &Cut,
    activity: &Activity,
) -> End {
    let answers = AtomicU64::new(0);
    let has_closed = AtomicBool::new(false);
    let answer = service_fn(|mut request: Request<Incoming>| async {
        request.extensions_mut().insert(caller);
        let answer = service.answer(control, request).await;
        has_closed.fetch_or(answer.headers().contains_key(CONNECTION), Ordering::Relaxed);
        answers.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(answer)
    });
    let head_bytes_max = control.settings.head_bytes_max;
    let connection = http1::Builder::new()
        .half_close(true)
        // As the workers write them.
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(BUFFER_BYTES_MIN.max(head_bytes_max + HEAD_SPARE_BYTES))
        .serve_connection(TokioIo::new(handle.clone()), answer);
    let mut connection = pin!(connection);
    let mut draining = pin!(control.drain.beginning());
    let mut cut = pin!(cut.wait());
    let mut is_draining = false;
    let mut deadlines = Deadlines::new(&control.settings);
    std::future::poll_fn(|cx| {
        let mut is_finished = connection.as_mut().poll(cx).is_ready();
        // Only now, so that a request that is here already is answered.
        if !is_finished && !is_draining && draining.as_mut().poll(cx).is_ready() {
            is_draining = true;
            connection.as_mut().graceful_shutdown();
            is_finished = connection.as_mut().poll(cx).is_ready();
        }
        let mut gate = handle.lock();
        if gate.is_done() {
            return Poll::Ready(End::Gate);
        }
        if is_finished {
            // Behind an answer that says so nothing may come.
            let is_cut = is_draining && gate.is_mid_head() && !has_closed.load(Ordering::Relaxed);
            return Poll::Ready(if is_cut { End::Draining } else { End::Finished });
        }
        if let Poll::Ready(Err(_)) = gate.poll_drain(cx) {
            return Poll::Ready(End::Broken);
        }
        if cut.as_mut().poll(cx).is_ready() {
            control.figures.cut.add(1);
            return Poll::Ready(End::Cut);
        }
        let answers = answers.load(Ordering::Relaxed);
        activity.tell(gate.progress(), answers < gate.heads() && gate.has_whole_request());
        deadlines.poll(cx, &gate, answers).map(|missed| match missed {
            Missed::Head => End::SlowHead,
            Missed::Idle => End::Idle,
        })
    })
    .await
}
