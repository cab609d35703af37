//! A connection's end: back to a worker, or last words and a close that does not destroy them.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::time::Duration;

use bytes::BytesMut;
use throng_core::Listener;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::control::Control;
use crate::http::answer::Refused;
use crate::socket::inspect;
use crate::socket::request_boundary::{Closed, Gate};
use throng_wire::{ErrorCode, ErrorResponse};

/// A client that takes nothing of its last answers for so long is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// After a last answer the client gets so long to read it before the socket is closed for good,
/// because closing a socket with unread bytes destroys what was written to it.
const LINGER: Duration = Duration::from_secs(2);
/// What it still sends meanwhile is thrown away, up to so many bytes.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// How hyper's part of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All is answered, or the client is gone.
    Finished,
    /// The gate has closed.
    Gate,
    /// The server is shutting down, and of the next request the head has come in part.
    Draining,
    /// A head has begun and does not end.
    SlowHead,
    /// Nothing has come or gone for too long.
    Idle,
    /// The socket is broken.
    Broken,
    /// Its answers take room that others need.
    Cut,
}

/// What comes after hyper. An error is the client's: it is gone.
pub(crate) async fn take_leave(
    control: &Control,
    listener: Listener,
    mut gate: Gate,
    end: End,
) -> io::Result<()> {
    let refused = match end {
        End::Broken | End::Idle | End::Cut => return Ok(()),
        End::Finished if gate.is_clean() && !gate.has_output() => return Ok(()),
        End::Finished => None,
        End::Draining => Some(Refused::from(ErrorCode::Draining)),
        End::SlowHead => Some(ErrorResponse::slow_head().into()),
        End::Gate => match gate.take_closed() {
            // While the workers are there they know better: something may be ready for a long-poll.
            Some(Closed::Subscription(_))
                if control.is_draining() && (gate.heads() == 0 || control.edge.has_ended()) =>
            {
                Some(Refused::from(ErrorCode::Draining))
            }
            Some(Closed::Subscription(refusal)) if listener == Listener::Admin => {
                let checked = refusal.map_or(Ok(()), |refusal| Err(refusal.into()));
                match checked.and_then(|()| inspect::check_viewer(&control.settings, gate.unread()))
                {
                    Ok(()) => return hand_back(control, listener, gate).await,
                    Err(refused) => Some(refused),
                }
            }
            Some(Closed::Subscription(refusal)) if gate.heads() == 0 => {
                // The worker took it for something else: giving it back would send it to and fro
                // for ever.
                Some(refusal.map_or_else(not_for_here, Refused::from))
            }
            Some(Closed::Subscription(_)) => return hand_back(control, listener, gate).await,
            Some(Closed::Refused(refusal)) => Some(refusal.into()),
            None => None,
        },
    };
    let (stream, unread, out) = gate.into_parts();
    say_and_close(control, listener, stream, &unread, out, refused).await
}

/// Refuses a connection for want of room, and for want of room to wait until it has heard. Mostly
/// its request was read whole, and then the words survive.
pub(crate) fn refuse_full_at_once(control: &Control, mut stream: StdTcpStream, bytes: &[u8]) {
    let mut words = Vec::new();
    let full = ErrorCode::Full.into();
    let peer = || stream.peer_addr();
    write_refusal(control, Listener::Public, peer, &full, bytes, &mut words);
    // So few bytes fit into an empty socket, or it is broken.
    let _ = stream.write(&words);
}

/// Refuses a connection for want of room. `bytes` begin with its request.
pub(crate) async fn refuse_full(
    control: &Control,
    stream: TcpStream,
    bytes: &[u8],
) -> io::Result<()> {
    let full = ErrorCode::Full.into();
    let nothing = BytesMut::new();
    say_and_close(control, Listener::Public, stream, bytes, nothing, Some(full)).await
}

fn not_for_here() -> Refused {
    Refused::new(ErrorCode::BadRequest, "the control plane does not serve subscriptions")
}

/// Gives the socket back to a worker, with the request that subscribes. The answers to the
/// requests before it are written first.
async fn hand_back(control: &Control, listener: Listener, gate: Gate) -> io::Result<()> {
    let (mut stream, unread, mut out) = gate.into_parts();
    write_all(&mut stream, &mut out).await?;
    match control.edge.hand_back(listener, stream.into_std()?, &unread) {
        Ok(()) => {
            control.figures.handed_back.add(1);
            Ok(())
        }
        Err(stream) => {
            let stream = TcpStream::from_std(stream)?;
            let busy = ErrorCode::Busy.into();
            say_and_close(control, listener, stream, &unread, out, Some(busy)).await
        }
    }
}

/// Writes what is left to write and the last words, which answer the request that `unread` begins
/// with, and closes.
async fn say_and_close(
    control: &Control,
    listener: Listener,
    mut stream: TcpStream,
    unread: &[u8],
    mut out: BytesMut,
    refused: Option<Refused>,
) -> io::Result<()> {
    if let Some(refused) = refused {
        let mut words = Vec::new();
        write_refusal(control, listener, || stream.peer_addr(), &refused, unread, &mut words);
        out.extend_from_slice(&words);
    }
    write_all(&mut stream, &mut out).await?;
    linger(stream).await
}

/// Appends a refusal of the request that `unread` begins with. `peer` is asked for the log alone.
fn write_refusal(
    control: &Control,
    listener: Listener,
    peer: impl FnOnce() -> io::Result<SocketAddr>,
    refused: &Refused,
    unread: &[u8],
    out: &mut Vec<u8>,
) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        let (status, code) = (refused.error.code.status(), refused.error.code);
        let request = throng_wire::log::request_line(unread);
        let peer = peer().map(|peer| peer.to_string()).unwrap_or_default();
        tracing::debug!("{request} {status} {code} peer={peer}");
    }
    let (origin, subscription) = inspect::reader(unread, &control.settings, listener);
    refused.write_raw(control, origin.as_deref(), subscription.as_deref(), out);
}

async fn write_all(stream: &mut TcpStream, out: &mut BytesMut) -> io::Result<()> {
    while !out.is_empty() {
        if timeout(WRITE_TIMEOUT, stream.write_buf(out)).await?? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Closes a socket from which something may still come, so that the last answer survives.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
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
    // Either way the time is up.
    let _ = timeout(LINGER, read_all).await;
    Ok(())
}
