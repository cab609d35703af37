//! The canary: the server's own subscriber, which finds out whether messages arrive.
//!
//! It has one connection over each transport. Once in an interval it publishes a message to an
//! internal log and measures how long the message takes to each connection. Then it closes them
//! and opens new ones, at the next workers: so every worker has its turn, and opening, parking and
//! delivery are all tried. Where a message did not arrive, the same worker is tried again.
//!
//! The connections are pairs of TCP sockets over loopback. The server's end is handed off to a
//! worker, like a connection of the control plane that subscribes. From there on everything is
//! real: request head, subscription, log, queue, fan-out, framing, and the kernel. The listener is
//! left out on purpose: it may expect TLS or a PROXY header, may be full, and counts clients by
//! their addresses. A probe over the network tries it anyway.
//!
//! The name of the log cannot be formed by a request: a worker puts it into the requests of sockets
//! that come from here, and these sockets need no token. They are not counted as connections.

use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use throng_core::{Body, ChannelName, Publication, clock};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::canary_report::TRANSPORTS;
use crate::control::Control;

/// A message that takes longer than this, or than so many intervals, does not count as arrived.
const DEADLINE_MAX: Duration = Duration::from_secs(5);
const DEADLINE_INTERVALS: u32 = 10;

/// Two sockets of this machine are connected at once, unless it is short of descriptors or memory.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// The response head, some heartbeats and one message are far smaller.
const BYTES_MAX: usize = 16 << 10;

/// The requests, in the order of [`TRANSPORTS`]. The path only has to be one that subscribes.
const REQUESTS: [&str; TRANSPORTS.len()] = [
    "GET /channels/canary HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "GET /channels/canary HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    "GET /channels/canary HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /channels/canary?wait=120 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
];

/// Publishes and measures until it is dropped. Does nothing if there is no interval.
pub(crate) async fn run(control: Arc<Control>) {
    let interval = control.settings.canary_interval;
    if interval.is_zero() {
        return pending().await;
    }
    // The workers of the next connections, counted in a circle.
    let mut workers: [usize; TRANSPORTS.len()] = std::array::from_fn(|transport| transport);
    let deadline = DEADLINE_MAX.min(interval * DEADLINE_INTERVALS);
    for round in 0u64.. {
        if control.is_leaving() {
            // A server that drains accepts no subscription, but the drain may be cancelled.
            sleep(interval).await;
            continue;
        }
        control.hold.becomes(false).await;
        let held_before = control.hold.times();
        let Some(acting) = control.hold.act() else { continue };
        let connections = open_all(&control, &workers).await;
        drop(acting);
        // Meanwhile they are parked, like connections of clients.
        sleep(interval).await;
        let text = format!("canary {round:010}");
        let published = Instant::now();
        let Some(acting) = control.hold.act() else { continue };
        let is_published = publish(&control, &text);
        drop(acting);
        let arrivals = if is_published {
            let [websocket, sse, stream, poll] = connections;
            let arrivals = tokio::join!(
                arrival(websocket, expected(0, &text), published, deadline),
                arrival(sse, expected(1, &text), published, deadline),
                arrival(stream, expected(2, &text), published, deadline),
                arrival(poll, expected(3, &text), published, deadline),
            );
            arrivals.into()
        } else {
            [None; TRANSPORTS.len()]
        };
        if control.hold.times() != held_before || control.is_leaving() {
            // Its connections may have been closed, and nothing was wrong.
            continue;
        }
        for (worker, arrival) in workers.iter_mut().zip(arrivals) {
            *worker = worker.wrapping_add(usize::from(arrival.is_some()));
        }
        control.canary.record(arrivals);
    }
}

/// Publishes a message to the log of the canary. Returns whether it was accepted.
fn publish(control: &Control, text: &str) -> bool {
    let publication = Publication::new(ChannelName::canary(), Body::Text(text.into()));
    control.engine.publish_internal(clock::now_ms(), publication).is_ok()
}

/// Opens a connection over each transport, at these workers. `None` where that fails.
async fn open_all(
    control: &Control,
    workers: &[usize; TRANSPORTS.len()],
) -> [Option<TcpStream>; TRANSPORTS.len()] {
    let mut connections = [const { None }; TRANSPORTS.len()];
    for (transport, connection) in connections.iter_mut().enumerate() {
        let opened = timeout(OPEN_TIMEOUT, open(control, workers[transport], transport)).await;
        *connection = opened.ok().and_then(Result::ok);
    }
    connections
}

async fn open(control: &Control, worker: usize, transport: usize) -> io::Result<TcpStream> {
    // A namespace may have addresses of one kind only.
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let listener = TcpListener::bind(&loopback.map(|ip| SocketAddr::new(ip, 0))[..]).await?;
    let client = TcpStream::connect(listener.local_addr()?).await?;
    let own = client.local_addr()?;
    let server = loop {
        // Any program of the machine may connect, too.
        let (stream, peer) = listener.accept().await?;
        if peer == own {
            break stream.into_std()?;
        }
    };
    if control.edge.hand_off_canary(worker, &server, REQUESTS[transport].as_bytes()) {
        Ok(client)
    } else {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// How a message looks over a transport.
fn expected(transport: usize, text: &str) -> Vec<u8> {
    match TRANSPORTS[transport] {
        // A frame with the whole text: final, opcode 1, a length of one byte.
        "websocket" => [&[0x81, text.len() as u8], text.as_bytes()].concat(),
        "sse" => format!("\ndata: {text}\n").into_bytes(),
        "stream" => format!("\r\n{text}\n").into_bytes(),
        _ => format!("\r\n\r\n{text}").into_bytes(),
    }
}

/// How long after `published` the bytes `expected` have arrived; `None` if they have not after
/// `deadline`.
async fn arrival(
    connection: Option<TcpStream>,
    expected: Vec<u8>,
    published: Instant,
    deadline: Duration,
) -> Option<Duration> {
    let mut connection = connection?;
    let mut bytes = Vec::with_capacity(1 << 10);
    let arrives = async {
        while bytes.len() < BYTES_MAX && connection.read_buf(&mut bytes).await? > 0 {
            if bytes.windows(expected.len()).any(|window| window == expected) {
                return Ok(published.elapsed());
            }
        }
        Err(io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    timeout(deadline, arrives).await.ok()?.ok()
}
