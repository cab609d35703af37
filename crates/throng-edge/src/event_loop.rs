//! The thread of a worker: waits for events and passes them to the worker.
//!
//! Events are handled in batches, and after each batch the worker does one slice of its own work:
//! so a fan-out to a million subscribers and a million new connections do not delay each other.
//!
//! | module | what it does |
//! |---|---|
//! | `sleep` | decides how long the thread waits for events, and when the worker fans out |
//! | `permits` | limits how many workers fan out concurrently |
//! | `steering` | picks the workers that take new connections |

pub mod permits;
pub mod sleep;
pub(crate) mod steering;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::Token;
use crate::net::HandoffHeader;
use crate::sys::epoll::Epoll;
use crate::sys::handoff::HandoffReceiver;
use crate::sys::sockets::{self, Sockets};
use crate::worker::{Now, TICKS_PER_S, Worker};
use sleep::Sleep;
use steering::{LAST_PLACES, Steering};

/// The number of connections that one batch accepts, and that it receives from other threads.
const ACCEPTS_PER_BATCH: usize = 64;

// The numbers of the sources of events beside connections. No token has them.
const LISTENER: u64 = 0;
const QUEUE: u64 = 1;
const HANDOFFS: u64 = 2;
const _: () = assert!(HANDOFFS < Token::BITS_MIN);

/// The sources of events beside connections.
pub(crate) struct Sources {
    /// `None` once the worker takes no more connections.
    pub(crate) listener: Option<OwnedFd>,
    /// Whether the listener is out of epoll until the next tick.
    pub(crate) is_listener_resting: bool,
    /// Connections that other threads hand off to this worker.
    pub(crate) handoffs: HandoffReceiver,
    /// Becomes readable when the worker is to wake.
    pub(crate) queue_event: Arc<OwnedFd>,
    pub(crate) steering: Arc<Steering>,
    /// Dropped once the worker takes no more connections: for the thread that accepts them if the
    /// workers have no listeners.
    pub(crate) takes_connections: Option<TakesConnections>,
}

/// A worker that takes connections keeps one.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakesConnections(Arc<()>);

impl TakesConnections {
    /// Whether any worker has kept its clone.
    pub(crate) fn has_any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Runs until the worker has ended.
pub(crate) fn run(
    mut worker: Worker<Sockets>,
    mut sources: Sources,
    mut sleep: Sleep,
) -> io::Result<()> {
    let clock = Clock::start();
    let epoll = &worker.net().epoll;
    if let Some(listener) = &sources.listener {
        epoll.add_level(listener, LISTENER)?;
    }
    epoll.add_level(&sources.handoffs, HANDOFFS)?;
    epoll.add_level(&*sources.queue_event, QUEUE)?;
    // The bytes that come with connections handed off; reused.
    let mut buffer = Vec::new();
    while !worker.is_ended() {
        // The order of `Sleep`: announce, wait, handle, work. It loses no wake-up.
        let timeout = sleep.prepare_to_sleep(&worker, clock.elapsed());
        worker.net().epoll.wait(timeout)?;
        sleep.finish_sleep();
        worker.set_now(clock.now());
        handle(&mut worker, &mut sources, &mut buffer);
        if sleep.is_tick_due(clock.elapsed()) {
            tick(&mut worker, &mut sources);
        }
        // Also after a batch without events, for what was deferred.
        sleep.work(&mut worker, clock.elapsed());
        if !worker.takes_connections() {
            close_listener(&mut worker, &mut sources)?;
        }
    }
    close_handoffs(&mut worker, &sources, &mut buffer)
}

/// Passes the events of the last wait to the worker.
fn handle(worker: &mut Worker<Sockets>, sources: &mut Sources, buffer: &mut Vec<u8>) {
    let mut number = 0;
    while let Some(ready) = worker.net().epoll.ready(number) {
        number += 1;
        match ready.token {
            LISTENER => accept(worker, sources),
            HANDOFFS => receive_handoffs(worker, sources, buffer),
            QUEUE => {
                let mut count = [0u8; 8];
                // The event only wakes: its count does not matter.
                let _ = rustix::io::read(&*sources.queue_event, &mut count);
            }
            bits => {
                let token = Token::from_bits(bits);
                debug_assert!(token.is_some(), "no source has the number {bits}");
                let Some(token) = token else { continue };
                // Writing first frees buffers, and may release the connection: then `readable`
                // finds its token stale.
                if ready.is_writable {
                    worker.writable(token);
                }
                if ready.is_readable {
                    worker.readable(token, ready.is_ended);
                }
            }
        }
    }
}

fn tick(worker: &mut Worker<Sockets>, sources: &mut Sources) {
    worker.tick();
    let Sources { listener, is_listener_resting, .. } = &mut *sources;
    wake_listener(&worker.net().epoll, listener.as_ref(), is_listener_resting);
    if let Some(listener) = &sources.listener {
        sources.steering.update(listener);
    }
}

fn accept(worker: &mut Worker<Sockets>, sources: &mut Sources) {
    // An event of the same batch may have made the worker close its listener.
    let Some(listener) = &sources.listener else { return };
    for _ in 0..ACCEPTS_PER_BATCH {
        match sockets::accept(listener) {
            Ok(Some(socket)) => {
                // Before the client is answered: its next connection may follow at once, and has
                // to go to the next group of workers.
                if worker.room() <= LAST_PLACES {
                    sources.steering.update(listener);
                }
                worker.accepted(socket);
            }
            Ok(None) => return,
            Err(_) => {
                // Descriptors or memory are exhausted. The listener stays readable, so that epoll
                // would report it again at once: it rests until the next tick.
                worker.accept_failed();
                sources.is_listener_resting = worker.net().epoll.remove(listener).is_ok();
                return;
            }
        }
    }
}

/// Puts a resting listener back into epoll. If that fails for the same shortage, it rests until the
/// next tick.
fn wake_listener(epoll: &Epoll, listener: Option<&OwnedFd>, is_resting: &mut bool) {
    if let Some(listener) = listener.filter(|_| *is_resting) {
        *is_resting = epoll.add_level(listener, LISTENER).is_err();
    }
}

fn receive_handoffs(worker: &mut Worker<Sockets>, sources: &Sources, buffer: &mut Vec<u8>) {
    for _ in 0..ACCEPTS_PER_BATCH {
        match sources.handoffs.receive(buffer) {
            Ok(Some((header, socket))) => take_handoff(worker, header, socket, buffer),
            Ok(None) | Err(_) => return,
        }
    }
}

/// Passes a handoff to the worker. The socket is missing if no descriptor was left for it.
fn take_handoff(
    worker: &mut Worker<Sockets>,
    header: HandoffHeader,
    socket: Option<OwnedFd>,
    bytes: &mut [u8],
) {
    match socket {
        Some(socket) => worker.handed_off(header, socket, bytes),
        None => worker.handoff_lost(header),
    }
}

/// Accepts the connections that wait, then closes the listener: closing it would reset them.
fn close_listener(worker: &mut Worker<Sockets>, sources: &mut Sources) -> io::Result<()> {
    sources.takes_connections = None;
    // An earlier turn has closed it, or it never had one.
    let Some(listener) = sources.listener.take() else { return Ok(()) };
    while let Ok(Some(socket)) = sockets::accept(&listener) {
        worker.accepted(socket);
    }
    if !std::mem::take(&mut sources.is_listener_resting) {
        worker.net().epoll.remove(&listener)?;
    }
    Ok(())
}

/// Refuses further handoffs, and answers those that were sent before.
fn close_handoffs(
    worker: &mut Worker<Sockets>,
    sources: &Sources,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    sources.handoffs.close()?;
    while let Ok(Some((header, socket))) = sources.handoffs.receive(buffer) {
        take_handoff(worker, header, socket, buffer);
    }
    Ok(())
}

/// The time since the start of the thread.
struct Clock {
    started: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn now(&self) -> Now {
        let elapsed_ms = self.elapsed().as_millis() as u64;
        Now {
            unix_ms: throng_core::clock::now_ms(),
            tick: (elapsed_ms * u64::from(TICKS_PER_S) / 1000) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// epoll refuses a source that it has already, as it does when it has no memory for it.
    #[test]
    fn a_listener_that_epoll_refuses_rests_on() {
        let mut epoll = Epoll::new().expect("an epoll instance");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let listener = OwnedFd::from(listener);
        let mut is_resting = true;
        epoll.add_level(&listener, QUEUE).expect("it is new");
        wake_listener(&epoll, Some(&listener), &mut is_resting);
        assert!(is_resting, "it is not waited for as the listener");
        epoll.remove(&listener).expect("it is there");
        wake_listener(&epoll, Some(&listener), &mut is_resting);
        assert!(!is_resting);
        let _client = TcpStream::connect(address).expect("it listens");
        epoll.wait(Duration::from_secs(60)).expect("epoll waits");
        assert_eq!(epoll.ready(0).map(|ready| ready.token), Some(LISTENER));
        wake_listener(&epoll, None, &mut is_resting);
        assert!(!is_resting);
    }
}
