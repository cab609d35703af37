//! The admin listener: the status page, metrics and publishing, on an address of their own.
//!
//! Its connections are accepted here and not by a worker, so that a server full of subscribers, or
//! busy with them, still takes them. Only one that asks for the samples goes to a worker, as those
//! of the status page do on a public listener on loopback.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use throng_core::Listener;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::control::Control;
use crate::edge::Arrival;
use crate::serve::{ERROR_PAUSE, Life};
use crate::service::Service;
use crate::socket::close;
use crate::socket::connection;
use crate::socket::connection_set::{Activity, Guests};

/// Connections at once. Operators, scrapers and the publishing application need few, and
/// descriptors are apart for them in every table. When there are as many, the one that has been
/// silent for longest gives way.
const CONNECTIONS_MAX: usize = 64;

/// Bytes of the first read, which most heads fit into.
const FIRST_BYTES: usize = 2 << 10;

/// Accepts and serves connections until `end` is ready, then waits for those that are there.
pub(crate) async fn serve(
    control: Arc<Control>,
    service: Service,
    listener: std::net::TcpListener,
    mut end: oneshot::Receiver<()>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin listener cannot be served"),
    };
    let mut guests = Guests::default();
    loop {
        tokio::select! {
            biased;
            _ = &mut end => break,
            Some(_) = guests.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if guests.len() < CONNECTIONS_MAX || guests.make_way() => {
                    let (life, service) = (Life::begin(&control), service.clone());
                    guests.spawn(|activity| guest(life, service, stream, activity));
                }
                Ok((stream, _)) => refuse(&control, stream),
                Err(error) => rest(&error).await,
            }
        }
    }
    if let Err(error) = close(listener) {
        tracing::warn!(%error, "the admin listener could not be closed");
    }
    while guests.join_next().await.is_some() {}
}

/// One connection. As from a worker, its first bytes are there before anything else looks at it: a
/// drain closes what has not begun a request.
async fn guest(life: Life, service: Service, mut stream: TcpStream, activity: Arc<Activity>) {
    let control = &*life.0;
    activity.tell(0, false);
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    let first = timeout(control.settings.head_timeout, stream.read_buf(&mut bytes)).await;
    if let Ok(Ok(1..)) = first
        && let Ok(stream) = stream.into_std()
    {
        let arrival = Arrival { stream, bytes };
        connection::run(control, service, Listener::Admin, arrival, &activity).await;
    }
}

fn refuse(control: &Control, stream: TcpStream) {
    if let Ok(stream) = stream.into_std() {
        close::refuse_full_at_once(control, stream, &[]);
    }
}

/// Has the kernel refuse further connections. Dropping the listener alone would leave it open, as
/// the workers' descriptor tables have copies, and who connects would wait for nothing.
fn close(listener: TcpListener) -> io::Result<()> {
    let descriptor = OwnedFd::from(listener.into_std()?);
    std::net::TcpStream::from(descriptor).shutdown(Shutdown::Both)
}

/// Descriptors or memory are short: not over at once, and the log must not be flooded.
async fn rest(error: &io::Error) {
    tracing::warn!(%error, "the admin listener could not accept a connection");
    sleep(ERROR_PAUSE).await;
}
