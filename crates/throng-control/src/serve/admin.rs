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
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::control::Control;
use crate::edge::Handoff;
use crate::service::Service;
use crate::socket::close::refuse_full_at_once;
use crate::socket::connection::Connection;
use crate::socket::connection_set::{Activity, ConnectionSet};

/// Maximum number of connections. Operators, scrapers and publishing applications need few, and
/// descriptors are reserved for them in each table. Beyond the maximum, the connection that has
/// been idle for longest is closed for a new one.
const CONNECTIONS_MAX: usize = 64;

/// Size of the first read. Most request heads fit.
const FIRST_BYTES: usize = 2 << 10;

/// How long to wait before the next attempt after a connection could not be accepted. The process
/// is short of descriptors or memory, which lasts, and the log must not be flooded.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Accepts and serves connections until `end` is ready, then waits for the open ones to end.
pub(crate) async fn serve(
    control: Arc<Control>,
    service: Service,
    listener: std::net::TcpListener,
    mut end: oneshot::Receiver<()>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve the admin listener"),
    };
    let mut connections = ConnectionSet::default();
    loop {
        tokio::select! {
            biased;
            _ = &mut end => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if has_capacity(&mut connections) => {
                    let connection = Connection::open(&control, Listener::Admin);
                    let service = service.clone();
                    connections.spawn(|activity| run(connection, service, stream, activity));
                }
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
    connection: Connection,
    service: Service,
    mut stream: TcpStream,
    activity: Arc<Activity>,
) {
    let control = connection.control();
    activity.report(0, false);
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    let first = timeout(control.settings.head_timeout, stream.read_buf(&mut bytes)).await;
    if let Ok(Ok(1..)) = first
        && let Ok(stream) = stream.into_std()
    {
        let handoff = Handoff { stream, bytes, client: None, tls: None };
        connection.run(handoff, &activity, |request| service.answer(control, request)).await;
    }
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

/// Whether there is a place for a new connection, if need be that of an idle one.
fn has_capacity(connections: &mut ConnectionSet) -> bool {
    connections.len() < CONNECTIONS_MAX || connections.evict_idle()
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection of the admin listener");
    sleep(ERROR_PAUSE).await;
}
