//! How a control connection ends: handed off to a worker, or closed after a final response.

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use throng_access::{CountedAddress, RefusedClient};
use throng_core::Listener;
use throng_tls::Alert;
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::inspect;
use super::request_boundary::{Closed, RequestBoundary};
use super::stream::ClientStream;
use crate::control::Control;
use crate::edge::Handoff;
use crate::hold::Acting;
use crate::metrics::HttpCounter;

/// How long a client may take nothing of its final responses before the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a lingering close waits for the client to close first. A socket that is closed with
/// unread input is reset, which destroys what was written to it.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait when a worker takes no more connections for now.
const MOVE_PAUSE: Duration = Duration::from_millis(2);
/// Maximum input that a lingering close reads and drops.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// Why hyper's part of a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// All requests are answered, or the client has disconnected.
    Finished,
    Boundary,
    /// Another process may take over, and all requests that had begun are answered.
    Moving,
    /// The server is shutting down, and the head of the next request is incomplete.
    Draining,
    /// A request head was not complete in time.
    SlowHead,
    Idle,
    WriteFailed,
    /// The memory of its responses was evicted.
    Evicted,
}

/// The next owner of a connection after hyper.
enum NextOwner {
    /// Close it at once: the client has disconnected, or there is nothing to tell it.
    Drop,
    /// Write the collected responses and close.
    Close,
    /// Respond with an error and close.
    Refuse(ErrorResponse),
    /// Hand it off to a worker, which treats it as a connection of this listener.
    HandOff(Listener),
    /// Hand it off to a worker as it is, or keep it: it is between two requests.
    Move,
}

/// Ends a connection after hyper's part, with the address of its client. An error means that the
/// client has disconnected.
pub(super) async fn finish(
    control: &Control,
    listener: Listener,
    mut boundary: RequestBoundary,
    acting: Option<Acting>,
    end: ConnectionEnd,
    client: Option<CountedAddress>,
) -> io::Result<()> {
    let error = match next(control, listener, &mut boundary, end) {
        NextOwner::Drop => return Ok(()),
        NextOwner::Move => {
            let is_late = acting.is_none();
            return move_on(control, listener, boundary, is_late, client).await;
        }
        NextOwner::HandOff(listener) => return hand_off(control, listener, boundary, client).await,
        NextOwner::Close => None,
        NextOwner::Refuse(error) => Some(error),
    };
    // It acts no more, and the client may take its time.
    drop(acting);
    let (stream, unread, out) = boundary.into_parts();
    respond_and_close(control, listener, stream, &unread, out, error).await
}

fn next(
    control: &Control,
    listener: Listener,
    boundary: &mut RequestBoundary,
    end: ConnectionEnd,
) -> NextOwner {
    match end {
        ConnectionEnd::WriteFailed | ConnectionEnd::Evicted => NextOwner::Drop,
        // Over TLS, a close must be said, but for a client that reads nothing.
        ConnectionEnd::Idle if boundary.has_output() || !boundary.is_tls() => NextOwner::Drop,
        ConnectionEnd::Finished
            if boundary.is_clean() && !boundary.has_output() && !boundary.is_tls() =>
        {
            NextOwner::Drop
        }
        ConnectionEnd::Finished | ConnectionEnd::Idle => NextOwner::Close,
        ConnectionEnd::Draining => NextOwner::Refuse(ErrorCode::Draining.into()),
        ConnectionEnd::SlowHead => NextOwner::Refuse(ErrorResponse::slow_head()),
        ConnectionEnd::Moving => NextOwner::Move,
        ConnectionEnd::Boundary => match boundary.take_closed() {
            None => NextOwner::Close,
            Some(Closed::Moving) => NextOwner::Move,
            Some(Closed::Malformed(error)) => NextOwner::Refuse(error),
            Some(Closed::Subscription(error)) => subscribe(control, listener, boundary, error),
        },
    }
}

/// The next owner of a connection whose next request subscribes. `error` is the response that a
/// worker would give, if any.
fn subscribe(
    control: &Control,
    listener: Listener,
    boundary: &RequestBoundary,
    error: Option<ErrorResponse>,
) -> NextOwner {
    let is_first = boundary.heads() == 0;
    // During a drain the workers decide as long as they run: a long-poll may have messages waiting.
    if control.is_draining() && (is_first || control.edge.has_ended()) {
        return NextOwner::Refuse(ErrorCode::Draining.into());
    }
    if listener == Listener::Admin
        && let Some(error) = error
    {
        return NextOwner::Refuse(error);
    }
    match inspect::check_viewer(control, listener, boundary.unread()) {
        Some(Ok(())) => return NextOwner::HandOff(Listener::Admin),
        Some(Err(error)) => return NextOwner::Refuse(error.error),
        None => {}
    }
    if is_first {
        // A worker handed this request off because it did not see a subscription. Handing it back
        // would start an endless exchange.
        return NextOwner::Refuse(error.unwrap_or_else(|| {
            let message = "the control plane does not serve subscriptions";
            ErrorResponse::new(ErrorCode::BadRequest, message)
        }));
    }
    NextOwner::HandOff(listener)
}

/// Responds `full` to the request of a connection, and closes the socket without lingering.
/// Usually the request was read completely, so that the close destroys nothing.
pub(crate) fn refuse_full_at_once(control: &Control, handoff: Handoff) {
    let Handoff { mut stream, bytes, tls, client: _client } = handoff;
    let mut out = Vec::new();
    let full = ErrorResponse::no_more_connections();
    let peer = || stream.peer_addr();
    write_error(control, Listener::Public, peer, &full, &bytes, &mut out);
    if let Some(mut tls) = tls {
        let mut records = std::mem::take(&mut tls.outbound);
        let Ok(sealed) = tls.outgoing.seal([&out[..]], &mut records) else { return };
        tls.outgoing.keep(sealed);
        // It fails only after an alert, which says the same.
        let _ = tls.outgoing.seal_alert(Alert::CloseNotify, &mut records);
        out = records;
    }
    // The empty send buffer of a new socket takes all of it, unless the client has disconnected.
    let _ = stream.write(&out);
}

/// Responds `full` to the request that begins `bytes`, and closes the socket.
pub(crate) async fn refuse_full(control: &Control, handoff: Handoff) -> io::Result<()> {
    let Handoff { stream, bytes, tls, client: _client } = handoff;
    let stream = ClientStream::new(stream, tls)?;
    let full = ErrorResponse::no_more_connections();
    let out = BytesMut::new();
    respond_and_close(control, Listener::Public, stream, &bytes, out, Some(full)).await
}

/// Hands the socket off to a worker, with the request that subscribes. The responses to previous
/// requests are written first.
async fn hand_off(
    control: &Control,
    listener: Listener,
    boundary: RequestBoundary,
    client: Option<CountedAddress>,
) -> io::Result<()> {
    let (mut stream, unread, mut out) = boundary.into_parts();
    write_all(&mut stream, &mut out).await?;
    let (stream, tls) = stream.into_parts()?;
    let handoff = Handoff { stream, bytes: unread.to_vec(), client, tls };
    match control.edge.hand_off(listener, handoff) {
        Ok(()) => {
            control.metrics.count(HttpCounter::Handoffs);
            Ok(())
        }
        Err(Handoff { stream, client: _client, tls, .. }) => {
            let stream = ClientStream::new(stream, tls)?;
            let busy = ErrorCode::Busy.into();
            respond_and_close(control, listener, stream, &unread, out, Some(busy)).await
        }
    }
}

/// Passes a connection between two requests to a worker. Connections of the admin listener stay
/// here, and so does one that is so late that the workers may have been frozen.
async fn move_on(
    control: &Control,
    listener: Listener,
    boundary: RequestBoundary,
    is_late: bool,
    client: Option<CountedAddress>,
) -> io::Result<()> {
    let (mut stream, unread, mut out) = boundary.into_parts();
    write_all(&mut stream, &mut out).await?;
    let (stream, tls) = stream.into_parts()?;
    let mut handoff = Handoff { stream, bytes: unread.to_vec(), client, tls };
    if listener == Listener::Admin || is_late {
        control.hold.put_moved(listener, handoff);
        return Ok(());
    }
    let deadline = Instant::now() + WRITE_TIMEOUT;
    loop {
        match control.edge.hand_off(listener, handoff) {
            Ok(()) => return Ok(()),
            Err(_) if Instant::now() >= deadline => return Ok(()),
            // So many are on their way to the worker that it takes no more for now.
            Err(returned) => handoff = returned,
        }
        sleep(MOVE_PAUSE).await;
    }
}

/// Writes `out`, then the response with `error` to the request that begins `unread`, and closes.
async fn respond_and_close(
    control: &Control,
    listener: Listener,
    mut stream: ClientStream,
    unread: &[u8],
    mut out: BytesMut,
    error: Option<ErrorResponse>,
) -> io::Result<()> {
    if let Some(error) = error {
        let mut response = Vec::new();
        write_error(control, listener, || stream.peer_addr(), &error, unread, &mut response);
        out.extend_from_slice(&response);
    }
    write_all(&mut stream, &mut out).await?;
    lingering_close(stream).await
}

/// Appends the response with `error` to the request that begins `unread`. `peer` is called only for
/// what may be logged.
fn write_error(
    control: &Control,
    listener: Listener,
    peer: impl Fn() -> io::Result<SocketAddr>,
    error: &ErrorResponse,
    unread: &[u8],
    out: &mut Vec<u8>,
) {
    let address = || peer().ok().map(|peer| peer.ip());
    control.tell_refusal(error, || RefusedClient { address: address(), app: None });
    if tracing::enabled!(tracing::Level::DEBUG) {
        let (status, code) = (error.code.status(), error.code);
        let request = throng_wire::log::request_line(unread);
        let peer = peer().map(|peer| peer.to_string()).unwrap_or_default();
        tracing::debug!("{request} {status} {code} peer={peer}");
    }
    let reader = inspect::reader(unread, &control.settings, listener);
    control.refusals.write(error, &reader, out);
}

async fn write_all(stream: &mut ClientStream, out: &mut BytesMut) -> io::Result<()> {
    while !out.is_empty() {
        timeout(WRITE_TIMEOUT, stream.write_some(out)).await??;
    }
    timeout(WRITE_TIMEOUT, poll_fn(|cx| stream.poll_flush(cx))).await?
}

/// Shuts down writing, and closes the socket once the client has closed its side.
async fn lingering_close(mut stream: ClientStream) -> io::Result<()> {
    stream.end();
    timeout(WRITE_TIMEOUT, poll_fn(|cx| stream.poll_flush(cx))).await??;
    let mut stream = stream.into_socket();
    stream.shutdown().await?;
    let mut scratch = vec![0; 8 << 10];
    let mut left = LINGER_BYTES_MAX;
    let read_all = async {
        while left > 0 {
            match stream.read(&mut scratch).await {
                Ok(0) | Err(_) => break,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    // The socket is closed after a timeout, too.
    let _ = timeout(LINGER_TIMEOUT, read_all).await;
    Ok(())
}
