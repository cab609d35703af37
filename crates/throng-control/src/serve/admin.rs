//! The admin listener: the status page, metrics and publishing, on an address of their own.
//!
//! Its connections are accepted here and not by a worker, so that a server that is full of
//! subscribers, or busy with them, still accepts them. Only a connection that requests the status
//! stream is handed off to a worker.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use throng_core::Listener;
use throng_tls::{Acceptor, HandshakeError};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::control::Control;
use crate::edge::Handoff;
use crate::http::answer::Reader;
use crate::service::Service;
use crate::socket::close::refuse_full_at_once;
use crate::socket::connection::ControlConnection;
use crate::socket::connection_set::{Activity, ConnectionSet};
use crate::socket::handshake::{ShakeError, shake_hands};

/// Maximum number of connections. Operators, scrapers and publishing applications need few, and
/// descriptors are reserved for them in each table. Beyond the maximum, the connection that has
/// been idle for longest is closed for a new one.
const CONNECTIONS_MAX: usize = 64;

/// Size of the first read. Most request heads fit.
const FIRST_BYTES: usize = 2 << 10;

/// How long to wait before the next attempt after a connection could not be accepted. The process
/// is short of descriptors or memory, which lasts, and the log must not be flooded.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// The admin listener.
#[derive(Debug)]
pub struct AdminListener {
    /// The listening socket, in nonblocking mode.
    pub listener: std::net::TcpListener,
    /// Begins TLS handshakes; `None` for plain connections.
    pub tls: Option<Acceptor>,
}

/// Accepts and serves connections until `end` is ready, then waits for the open ones to end.
pub(crate) async fn serve(
    control: Arc<Control>,
    service: Service,
    AdminListener { listener, tls }: AdminListener,
    mut end: oneshot::Receiver<()>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve the admin listener"),
    };
    let mut connections = ConnectionSet::default();
    loop {
        let is_held = control.hold.is_held();
        tokio::select! {
            biased;
            _ = &mut end => break,
            Some(_) = connections.join_next() => {}
            () = control.hold.becomes(!is_held) => {}
            handoffs = control.hold.served(Listener::Admin) => for handoff in handoffs {
                let connection = ControlConnection::open(&control, Listener::Admin);
                let service = service.clone();
                connections.spawn(|activity| go_on(connection, service, handoff, activity));
            },
            accepted = listener.accept(), if !is_held => match accepted {
                Ok((stream, _)) if has_capacity(&mut connections) => {
                    let connection = ControlConnection::open(&control, Listener::Admin);
                    let service = service.clone();
                    let tls = tls.clone();
                    connections.spawn(|activity| run(connection, service, stream, tls, activity));
                }
                // Over TLS, a refusal would cost a handshake.
                Ok(_) if tls.is_some() => {}
                Ok((stream, _)) => refuse(&control, stream),
                Err(error) => pause(&error).await,
            }
        }
    }
    if let Err(error) = close(listener) {
        tracing::warn!(%error, "cannot close the admin listener");
    }
    while connections.join_next().await.is_some() {}
}

/// Serves one connection. Like a worker, it reads the first bytes before the connection is served:
/// a drain closes a connection that has not begun a request.
async fn run(
    connection: ControlConnection,
    service: Service,
    mut stream: TcpStream,
    tls: Option<Acceptor>,
    activity: Arc<Activity>,
) {
    let control = connection.control();
    activity.report(0, false);
    // A handshake may stall.
    connection.set_acting(tls.is_none());
    let begin = async {
        match tls {
            None => tokio::select! {
                biased;
                bytes = read_first(&mut stream) => bytes.map(|bytes| (bytes, None)),
                // It is kept as it is.
                () = control.hold.becomes(true) => Some((Vec::new(), None)),
            },
            Some(acceptor) => match shake_hands(&mut stream, &acceptor).await {
                Ok(tls) => Some((Vec::new(), Some(tls))),
                Err(error) => {
                    tell(control, &mut stream, error).await;
                    None
                }
            },
        }
    };
    let begun = timeout(control.settings.head_timeout, begin).await;
    if let Ok(Some((bytes, tls))) = begun
        && let Ok(stream) = stream.into_std()
    {
        let handoff = Handoff { stream, bytes, client: None, tls };
        connection.set_acting(true);
        connection.run(handoff, &activity, |request| service.answer(control, request)).await;
    }
}

/// Serves a connection that has been served before.
async fn go_on(
    connection: ControlConnection,
    service: Service,
    handoff: Handoff,
    activity: Arc<Activity>,
) {
    let control = connection.control();
    connection.run(handoff, &activity, |request| service.answer(control, request)).await;
}

/// The first bytes of a plain connection; `None` if it has ended.
async fn read_first(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    let read = stream.read_buf(&mut bytes).await;
    read.is_ok_and(|count| count > 0).then_some(bytes)
}

/// Tells a client that speaks plain HTTP where it is, and the log why another has failed.
async fn tell(control: &Control, stream: &mut TcpStream, error: ShakeError) {
    if let ShakeError::Handshake(HandshakeError::NotTls) = error {
        let message = "this port speaks TLS; use https";
        let error = ErrorResponse::new(ErrorCode::BadRequest, message);
        let mut out = Vec::new();
        control.refusals.write(&error, &Reader::default(), &mut out);
        // The client may be gone.
        let _ = stream.write_all(&out).await;
        return;
    }
    if let ShakeError::Handshake(error) = &error
        && let Some(flaw) = error.certificate_flaw()
    {
        control.tell_flaw(flaw, || stream.peer_addr().ok().map(|peer| peer.ip()));
    }
    let peer = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
    tracing::debug!(%error, "a TLS handshake failed at the admin listener, peer={peer}");
}

fn refuse(control: &Control, stream: TcpStream) {
    if let Ok(stream) = stream.into_std() {
        let handoff = Handoff { stream, bytes: Vec::new(), client: None, tls: None };
        refuse_full_at_once(control, handoff);
    }
}

/// Makes the kernel refuse further connections. Dropping the listener would leave it open, because
/// the workers' descriptor tables have copies of it, and new clients would wait in vain.
fn close(listener: TcpListener) -> io::Result<()> {
    let descriptor = OwnedFd::from(listener.into_std()?);
    std::net::TcpStream::from(descriptor).shutdown(Shutdown::Both)
}

/// Makes a place for a new connection, if need be by closing an idle one. False if there is none.
fn has_capacity(connections: &mut ConnectionSet) -> bool {
    connections.len() < CONNECTIONS_MAX || connections.evict_idle()
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection of the admin listener");
    sleep(ERROR_PAUSE).await;
}
