//! The thread of a worker: waits for events and passes them to the worker.
//!
//! Events are handled in batches, and after each batch the worker does one slice of its own work:
//! so a fan-out to a million subscribers and a million new connections do not delay each other.
//!
//! | module | what it does |
//! |---|---|
//! | `ahead` | sends copies of sockets to the process that takes over |
//! | `sleep` | decides how long the thread waits for events, and when the worker fans out |
//! | `permits` | limits how many workers fan out concurrently |
//! | `spare` | empties the allocator's cache of the thread after a storm of handshakes |
//! | `steering` | picks the workers that take new connections |

pub(crate) mod ahead;
pub mod permits;
pub mod sleep;
mod spare;
pub(crate) mod steering;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use throng_core::{AdmissionSettings, QueueLook, QueueWatch};

use crate::connection::Token;
use crate::net::HandoffHeader;
use crate::sys::epoll::Epoll;
use crate::sys::handoff::HandoffReceiver;
use crate::sys::listener;
use crate::sys::sockets::{self, KernelSockets};
use crate::tls::TlsNet;
use crate::worker::{Now, Worker};
use ahead::Ahead;
use sleep::Sleep;
use spare::Spare;
use steering::{LAST_PLACES, Steering};

/// The number of connections that one batch accepts, and that it receives from other threads.
const ACCEPTS_PER_BATCH: usize = 64;

// The numbers of the sources of events beside connections. No token has them.
const LISTENER: u64 = 0;
const QUEUE: u64 = 1;
const HANDOFFS: u64 = 2;
const TLS_LISTENER: u64 = 3;
const _: () = assert!(TLS_LISTENER < Token::BITS_MIN);

/// The sources of events beside connections.
pub(crate) struct Sources {
    /// Empty once the worker takes no more connections.
    pub(crate) listeners: Vec<Listening>,
    /// Listeners of the process before at addresses where this one does not listen, and whether
    /// they speak TLS.
    pub(crate) former: Vec<(OwnedFd, bool)>,
    /// Connections that other threads hand off to this worker.
    pub(crate) handoffs: HandoffReceiver,
    /// Becomes readable when the worker is to wake.
    pub(crate) queue_event: Arc<OwnedFd>,
    /// Dropped once the worker takes no more connections: for the thread that accepts them if the
    /// workers have no listeners.
    pub(crate) takes_connections: Option<TakesConnections>,
    /// The channel to the process that takes over, once it has come.
    pub(crate) channel: Option<OwnedFd>,
    /// Sends sockets ahead through that channel, while there are some to send.
    pub(crate) ahead: Option<Ahead>,
}

/// A worker that takes connections keeps one.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakesConnections(Arc<()>);

impl TakesConnections {
    /// True if any worker has kept its clone.
    pub(crate) fn has_any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

pub(crate) struct Listening {
    socket: OwnedFd,
    /// Steers the connections of its port.
    steering: Arc<Steering>,
    /// True if all connections begin with a TLS handshake.
    is_tls: bool,
    /// True if it is out of epoll until the next tick.
    is_resting: bool,
    /// True if the last batch left connections in the queue.
    has_left: bool,
    /// Connections accepted since the last look at the queue.
    accepted: u32,
    queue: QueueWatch,
}

impl Listening {
    pub(crate) fn new(socket: OwnedFd, steering: Arc<Steering>, is_tls: bool) -> Listening {
        let queue = QueueWatch::default();
        let (is_resting, has_left, accepted) = (false, false, 0);
        Listening { socket, steering, is_tls, is_resting, has_left, accepted, queue }
    }

    /// Looks how long `first`, the first connection of a batch, has waited, if the batch before did
    /// not empty the queue. So a server that keeps up never looks.
    fn look(&mut self, first: &OwnedFd, worker: &mut ThreadWorker) {
        if let Some(settings) = worker.admission_settings().filter(|_| self.has_left) {
            let AdmissionSettings { wait, rate } = *settings;
            let queued = listener::queued(&self.socket);
            let (at, waited) = (Instant::now(), sockets::waited(first));
            let accepted = std::mem::take(&mut self.accepted);
            self.queue.observe(wait, QueueLook { at, waited, queued, accepted, rate });
            worker.set_crowd(self.is_tls, self.queue);
        }
    }

    /// Finds out whether a batch that was full has emptied the queue: no event says so.
    fn look_again(&mut self, worker: &mut ThreadWorker) {
        if self.has_left && listener::queued(&self.socket) == 0 {
            self.emptied(worker);
        }
    }

    /// The queue is empty.
    fn emptied(&mut self, worker: &mut ThreadWorker) {
        self.accepted = 0;
        if std::mem::take(&mut self.has_left) {
            self.queue.emptied();
            worker.set_crowd(self.is_tls, self.queue);
        }
    }

    /// Tells the kernel which workers take connections, if that has changed.
    pub(crate) fn steer(&self) {
        self.steering.update(&self.socket);
    }

    /// The socket, and whether all of its connections begin with a TLS handshake.
    pub(crate) fn socket(&self) -> (&OwnedFd, bool) {
        (&self.socket, self.is_tls)
    }

    fn token(&self) -> u64 {
        if self.is_tls { TLS_LISTENER } else { LISTENER }
    }

    /// Takes it out of epoll until the next tick: it stays readable and would be reported again at
    /// once.
    fn rest(&mut self, epoll: &Epoll) {
        self.is_resting = epoll.remove(&self.socket).is_ok();
    }

    /// Puts it back into epoll if it rests. If that fails for want of memory, it rests until the
    /// next tick.
    fn wake(&mut self, epoll: &Epoll) {
        if self.is_resting {
            self.is_resting = epoll.add_level(&self.socket, self.token()).is_err();
        }
    }
}

pub(crate) type ThreadWorker = Worker<TlsNet<KernelSockets>>;

/// Asks for the events of all sources, from a worker that has no events yet.
pub(crate) fn register(worker: &mut ThreadWorker, sources: &mut Sources) -> io::Result<()> {
    let epoll = &worker.net().inner().epoll;
    for listening in &mut sources.listeners {
        listening.is_resting = false;
        epoll.add_level(&listening.socket, listening.token())?;
    }
    epoll.add_level(&sources.handoffs, HANDOFFS)?;
    epoll.add_level(&*sources.queue_event, QUEUE)
}

/// Runs until the worker has ended, or until it is to leave for another process, which
/// `sources.channel` leads to: then returns it.
pub(crate) fn run(
    mut worker: ThreadWorker,
    sources: &mut Sources,
    sleep: &mut Sleep,
    clock: &Clock,
) -> io::Result<Option<ThreadWorker>> {
    // The bytes that come with connections handed off; reused.
    let mut buffer = Vec::new();
    let mut spare = Spare::default();
    while !worker.is_ended() {
        // The order of `Sleep`: announce, wait, handle, work. It loses no wake-up.
        let timeout = sleep.prepare_to_sleep(&worker, clock.elapsed());
        let ahead = sources.ahead.as_ref().map(Ahead::sleep_max);
        let timeout = ahead.map_or(timeout, |most| timeout.min(most));
        worker.net().inner().epoll.wait(timeout)?;
        sleep.finish_sleep();
        worker.set_now(clock.now());
        handle(&mut worker, sources, &mut buffer);
        if sources.channel.is_some() {
            sources.ahead = None;
            return Ok(Some(worker));
        }
        sources.ahead.take_if(|ahead| !ahead.step(&mut worker));
        if sleep.is_tick_due(clock.elapsed()) {
            tick(&mut worker, sources);
            spare.tick(worker.net().handshakes_ended());
        }
        // Also after a batch without events, for what was deferred.
        sleep.work(&mut worker, clock.elapsed());
        if !worker.takes_connections() {
            close_listeners(&mut worker, sources)?;
        }
    }
    close_handoffs(&mut worker, sources, &mut buffer)?;
    Ok(None)
}

/// Passes the events of the last wait to the worker.
fn handle(worker: &mut ThreadWorker, sources: &mut Sources, buffer: &mut Vec<u8>) {
    let mut number = 0;
    while let Some(ready) = worker.net().inner().epoll.ready(number) {
        number += 1;
        match ready.token {
            LISTENER | TLS_LISTENER => accept(worker, sources, ready.token),
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

fn tick(worker: &mut ThreadWorker, sources: &mut Sources) {
    worker.tick();
    for listening in &mut sources.listeners {
        listening.look_again(worker);
        listening.wake(&worker.net().inner().epoll);
        listening.steer();
    }
}

fn accept(worker: &mut ThreadWorker, sources: &mut Sources, token: u64) {
    // An event of the same batch may have made the worker close its listeners.
    let listening = sources.listeners.iter_mut().find(|listening| listening.token() == token);
    let Some(listening) = listening else { return };
    for number in 0..ACCEPTS_PER_BATCH {
        let is_held = worker.net().inner().is_held.load(Ordering::SeqCst);
        if listening.is_tls && (is_held || !worker.net().takes_handshakes()) {
            // They wait in the backlog. A handshake cannot leave for another process.
            listening.has_left = true;
            return listening.rest(&worker.net().inner().epoll);
        }
        match sockets::accept(&listening.socket) {
            Ok(Some(socket)) => {
                // Before the client is answered: its next connection may follow at once, and has
                // to go to the next group of workers.
                if worker.room_for_new() <= LAST_PLACES {
                    listening.steer();
                }
                if number == 0 {
                    listening.look(&socket, worker);
                }
                listening.accepted = listening.accepted.wrapping_add(1);
                take_accepted(worker, socket, listening.is_tls);
            }
            Ok(None) => return listening.emptied(worker),
            Err(_) => {
                // Descriptors or memory are exhausted.
                worker.accept_failed();
                return listening.rest(&worker.net().inner().epoll);
            }
        }
    }
    listening.has_left = true;
}

fn take_accepted(worker: &mut ThreadWorker, socket: OwnedFd, is_tls: bool) {
    if is_tls {
        worker.accepted_tls(socket);
    } else {
        worker.accepted(socket);
    }
}

fn receive_handoffs(worker: &mut ThreadWorker, sources: &mut Sources, buffer: &mut Vec<u8>) {
    for _ in 0..ACCEPTS_PER_BATCH {
        if !receive_handoff(worker, sources, buffer) {
            return;
        }
    }
}

/// Passes the next handoff to the worker. Returns whether there was one.
pub(crate) fn receive_handoff(
    worker: &mut ThreadWorker,
    sources: &mut Sources,
    buffer: &mut Vec<u8>,
) -> bool {
    match sources.handoffs.receive(buffer) {
        Ok(Some((header, socket))) if header.is_channel && header.is_new => {
            worker.net().inner().copies.clear();
            sources.ahead = socket.and_then(|channel| Ahead::begin(channel).ok());
        }
        Ok(Some((header, socket))) if header.is_channel => sources.channel = socket,
        Ok(Some((header, socket))) => take_handoff(worker, header, socket, buffer),
        Ok(None) | Err(_) => return false,
    }
    true
}

/// Passes a handoff to the worker. The socket is missing if no descriptor was left for it.
fn take_handoff(
    worker: &mut ThreadWorker,
    header: HandoffHeader,
    socket: Option<OwnedFd>,
    bytes: &mut [u8],
) {
    match socket {
        Some(socket) => worker.handed_off(header, socket, bytes),
        None => worker.handoff_lost(header),
    }
}

/// Accepts the connections that wait, then closes the listeners: closing them would reset these.
fn close_listeners(worker: &mut ThreadWorker, sources: &mut Sources) -> io::Result<()> {
    sources.takes_connections = None;
    // An earlier turn has closed them.
    for listening in std::mem::take(&mut sources.listeners) {
        while let Ok(Some(socket)) = sockets::accept(&listening.socket) {
            take_accepted(worker, socket, listening.is_tls);
        }
        worker.set_crowd(listening.is_tls, QueueWatch::default());
        if !listening.is_resting {
            worker.net().inner().epoll.remove(&listening.socket)?;
        }
    }
    Ok(())
}

/// Takes the connections that wait at addresses where the server listens no more, and ends the
/// listeners there, which the process before has, too.
pub(crate) fn leave_addresses(worker: &mut ThreadWorker, sources: &mut Sources) {
    for (listener, is_tls) in std::mem::take(&mut sources.former) {
        while let Ok(Some(socket)) = sockets::accept(&listener) {
            take_accepted(worker, socket, is_tls);
        }
        listener::end(&listener);
    }
}

/// Refuses further handoffs, and answers those that were sent before.
fn close_handoffs(
    worker: &mut ThreadWorker,
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
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn now(&self) -> Now {
        Now::after(self.elapsed().as_millis() as u64, throng_core::clock::now_ms())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::metrics::Metrics;

    /// epoll refuses a source that it has already, as it does when it has no memory for it.
    #[test]
    fn a_listener_that_epoll_refuses_rests_on() {
        let mut epoll = Epoll::new().expect("an epoll instance");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let listener = OwnedFd::from(listener);
        let steering = Arc::new(Steering::new(Metrics::default(), 1, false));
        let mut listening = Listening::new(listener, steering, false);
        listening.is_resting = true;
        epoll.add_level(&listening.socket, QUEUE).expect("it is new");
        listening.wake(&epoll);
        assert!(listening.is_resting, "it is not waited for as the listener");
        epoll.remove(&listening.socket).expect("it is there");
        listening.wake(&epoll);
        assert!(!listening.is_resting);
        let _client = TcpStream::connect(address).expect("it listens");
        epoll.wait(Duration::from_secs(60)).expect("epoll waits");
        assert_eq!(epoll.ready(0).map(|ready| ready.token), Some(LISTENER));
    }
}
