//! From settings to running workers.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit, setrlimit};
use throng_core::{
    Access, ConnectionName, Engine, Listener, Notification, Rules, WorkerId, WorkerQueue,
};

use crate::event_loop::{self, Sources};
use crate::figures::Figures;
use crate::limits::RESERVE;
use crate::net::HandOver;
use crate::relay::{Relay, Runner};
use crate::settings::{IoUring, Settings};
use crate::steering::Steering;
use crate::sys::aio::Aio;
use crate::sys::hand_over::{self, Entry, Exit};
use crate::sys::listener::{self, Reservation};
use crate::sys::poll::Poll;
use crate::sys::ring::Ring;
use crate::sys::sockets::Sockets;
use crate::worker::{Setup, Worker};

/// Workers, at most: each has three descriptors in every table.
pub const WORKERS_MAX: usize = 1024;
const _: () = assert!(WORKERS_MAX <= ConnectionName::WORKERS_MAX);

/// Descriptors of a worker's table that are not its connections: those of the process at the start,
/// some to spare, and those of connections beyond its room for subscribers.
pub const DESCRIPTORS_APART: u64 = 56 + RESERVE as u64;

/// Descriptors of each table for every worker that there is.
pub const DESCRIPTORS_PER_WORKER: u64 = 3;

/// Stack of a worker thread, in bytes: nothing there recurses deeply.
const STACK_BYTES: usize = 512 << 10;

/// Why the data plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {}", reason(.source, .flag))]
    Listen {
        /// The setting that says where.
        flag: &'static str,
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// So many connections would take too many workers.
    #[error(
        "{connections} connections would take {workers} workers of {per_worker} descriptors each, \
         and at most {WORKERS_MAX} can be; raise the descriptor limit (ulimit -n)"
    )]
    TooMany {
        /// Asked for.
        connections: usize,
        /// They would take.
        workers: usize,
        /// What one worker holds.
        per_worker: usize,
    },
    /// The descriptor limit leaves no room for connections.
    #[error(
        "the descriptor limit is {0}, which leaves no room for connections; raise it (ulimit -n)"
    )]
    NoRoom(u64),
    /// The kernel refused something else.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

fn reason(error: &io::Error, flag: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another program listens there; choose another port with --{flag}")
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        io::ErrorKind::PermissionDenied => "ports below 1024 need privileges".into(),
        _ => error.to_string(),
    }
}

fn cannot_listen(flag: &'static str, address: SocketAddr, source: io::Error) -> StartError {
    StartError::Listen { flag, address, source }
}

/// A listener for the control plane. What it accepts has the options that workers expect of a
/// connection which is handed to them.
pub fn listen_admin(address: SocketAddr, heartbeat: Duration) -> Result<TcpListener, StartError> {
    let listener = listener::open_alone(address, heartbeat)
        .map_err(|source| cannot_listen("admin-listen", address, source))?;
    Ok(TcpListener::from(listener))
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// Everything that is shared, made before any worker leaves the process's descriptor table.
#[derive(Debug)]
pub struct Plan {
    settings: Settings,
    reservation: Reservation,
    descriptors_max: u64,
    capacities: Vec<u32>,
    queues: Vec<Arc<WorkerQueue>>,
    events: Vec<Arc<OwnedFd>>,
    inlets: Vec<(Entry, Exit)>,
    to_control: (Entry, Exit),
}

impl Plan {
    /// Raises the descriptor limit as far as allowed, decides on the workers, and takes the port.
    pub fn new(settings: Settings) -> Result<Plan, StartError> {
        let descriptors_max = raise_descriptor_limit();
        let capacities = capacities(&settings, descriptors_max)?;
        let reservation = Reservation::take(settings.listen)
            .map_err(|source| cannot_listen("listen", settings.listen, source))?;
        let workers = capacities.len();
        let event = |_| {
            let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
            Ok(Arc::new(eventfd(0, flags).map_err(io::Error::from)?))
        };
        let events: Vec<_> = (0..workers)
            .map(event)
            .collect::<io::Result<_>>()
            .map_err(system("make an event descriptor"))?;
        let pair = system("make a socket pair");
        let inlets: Vec<_> =
            (0..workers).map(|_| hand_over::pair()).collect::<io::Result<_>>().map_err(&pair)?;
        let queues = events.iter().map(|event| Arc::new(queue(Arc::clone(event)))).collect();
        let to_control = hand_over::pair().map_err(&pair)?;
        Ok(Plan {
            settings,
            reservation,
            descriptors_max,
            capacities,
            queues,
            events,
            inlets,
            to_control,
        })
    }

    /// Where the server listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.reservation.address()
    }

    /// How many workers there will be.
    pub fn workers(&self) -> usize {
        self.capacities.len()
    }

    /// Descriptors in each worker's table.
    pub fn descriptors_max(&self) -> u64 {
        self.descriptors_max
    }

    /// Connections that fit.
    pub fn connections_max(&self) -> usize {
        self.capacities.iter().map(|&capacity| capacity as usize).sum()
    }

    /// Connections that fit into one worker, if it need not share.
    pub fn worker_connections_max(&self) -> usize {
        worker_connections_max(self.descriptors_max, self.workers())
    }

    /// The workers' inboxes, in order.
    pub fn queues(&self) -> Vec<Arc<WorkerQueue>> {
        self.queues.clone()
    }

    /// Starts the workers; `rules` are the engine's. When this returns, connections are accepted.
    pub fn start(
        self,
        engine: &Arc<dyn Engine>,
        access: &Arc<dyn Access>,
        rules: &Arc<Rules>,
    ) -> Result<Edge, StartError> {
        let figures = Figures::new(self.capacities.iter().copied());
        let workers = self.workers();
        let settings = Arc::new(Settings { listen: self.address(), ..self.settings });
        let entries: Vec<Entry> = self.inlets.iter().map(|(entry, _)| entry.clone()).collect();
        let steering = Arc::new(Steering::new(figures.clone(), at_least(&settings)));
        let relay = Arc::new(Relay::new(&self.queues, at_least(&settings)));
        let mut threads = Vec::new();
        let mut sends = Sends::Ring;
        for (nth, (_, inlet)) in self.inlets.iter().enumerate() {
            let id = WorkerId(nth as u16);
            let queue = Arc::clone(&self.queues[nth]);
            let thread = Thread {
                setup: Setup {
                    generation: RandomState::new().hash_one(nth) as u32,
                    id,
                    settings: Arc::clone(&settings),
                    engine: Arc::clone(engine),
                    access: Arc::clone(access),
                    rules: Arc::clone(rules),
                    queue: Arc::clone(&queue),
                    figures: figures.clone(),
                },
                inlet: inlet.clone(),
                event: Arc::clone(&self.events[nth]),
                to_control: self.to_control.0.clone(),
                to_workers: entries.clone(),
                steering: Arc::clone(&steering),
                runner: Runner::new(Arc::clone(&relay), id),
                is_last: nth + 1 == workers,
            };
            let (started, start) = mpsc::channel();
            let spawned = std::thread::Builder::new()
                .name(format!("worker-{nth}"))
                .stack_size(STACK_BYTES)
                .spawn(move || thread.run(&started));
            threads.push(spawned.map_err(system("start a thread"))?);
            // One after the other: the kernel numbers listeners in the order in which they come.
            let died = |_| Err(system("start a worker")(io::Error::other("it has died")));
            let started = start.recv().unwrap_or_else(died)?;
            if started != Sends::Ring {
                sends = started;
            }
        }
        Ok(Edge {
            arrivals: Arrivals(self.to_control.1),
            inlets: Inlets { entries: entries.into(), figures: figures.clone() },
            figures,
            sends,
            queues: self.queues,
            threads,
            _reservation: self.reservation,
        })
    }
}

fn queue(event: Arc<OwnedFd>) -> WorkerQueue {
    WorkerQueue::new(move || {
        // The counter cannot overflow, so that this cannot fail.
        let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
    })
}

/// Raises the soft limit to the hard one. Returns it.
fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20).min(1 << 30)
}

fn worker_connections_max(descriptors_max: u64, workers: usize) -> usize {
    let apart = DESCRIPTORS_APART + DESCRIPTORS_PER_WORKER * workers as u64;
    // Names tell no more connections apart, whatever the limit.
    let descriptors_max = descriptors_max.min(ConnectionName::INDICES_MAX as u64);
    descriptors_max.saturating_sub(apart) as usize
}

/// Workers that there are however much each of them holds.
fn at_least(settings: &Settings) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    if settings.workers == 0 { cores() } else { settings.workers }
}

/// The room of each worker: as many workers as asked for, more if they would not hold enough.
fn capacities(settings: &Settings, descriptors_max: u64) -> Result<Vec<u32>, StartError> {
    let mut workers = at_least(settings);
    if worker_connections_max(descriptors_max, workers) == 0 {
        return Err(StartError::NoRoom(descriptors_max));
    }
    let holds = |workers| workers * worker_connections_max(descriptors_max, workers);
    while settings.max_connections > holds(workers) && workers <= WORKERS_MAX {
        workers += 1;
    }
    if workers > WORKERS_MAX {
        let per_worker = worker_connections_max(descriptors_max, WORKERS_MAX).max(1);
        return Err(StartError::TooMany {
            connections: settings.max_connections,
            workers: settings.max_connections.div_ceil(per_worker),
            per_worker,
        });
    }
    let total = match settings.max_connections {
        0 => holds(workers),
        most => most,
    };
    let share = |nth| (total / workers + usize::from(nth < total % workers)) as u32;
    Ok((0..workers).map(share).collect())
}

/// Without its loop a worker's connections are dead: better to end, and be started again, than to
/// pretend.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("error: a worker cannot go on: it has panicked");
            std::process::abort();
        }
    }
}

/// The ring of the calling thread; if the settings do not say that there is to be none, why it has
/// none.
fn ring(wanted: IoUring) -> Result<Result<Ring, Option<String>>, StartError> {
    if wanted == IoUring::Off {
        return Ok(Err(None));
    }
    match Ring::open() {
        Ok(ring) => Ok(Ok(ring)),
        Err(error) if wanted == IoUring::On => Err(system("use io_uring")(error)),
        Err(error) => Ok(Err(Some(error.to_string()))),
    }
}

/// How the calling thread sends to many.
fn sends(wanted: IoUring) -> Result<(Option<Ring>, Option<Aio>, Sends), StartError> {
    let without_ring = match ring(wanted)? {
        Ok(ring) => return Ok((Some(ring), None, Sends::Ring)),
        Err(reason) => reason,
    };
    Ok(match Aio::open() {
        Ok(aio) => (None, Some(aio), Sends::Aio { without_ring }),
        Err(error) => {
            let without_aio = error.to_string();
            (None, None, Sends::Single { without_ring, without_aio })
        }
    })
}

/// What a worker's thread starts from.
struct Thread {
    setup: Setup,
    inlet: Exit,
    event: Arc<OwnedFd>,
    to_control: Entry,
    to_workers: Vec<Entry>,
    steering: Arc<Steering>,
    runner: Runner,
    /// With its listener all are there.
    is_last: bool,
}

impl Thread {
    fn run(self, started: &mpsc::Sender<Result<Sends, StartError>>) {
        let prepared = self.prepare();
        let (worker, sources) = match prepared {
            Ok((worker, sources, sends)) => {
                let _ = started.send(Ok(sends));
                (worker, sources)
            }
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _abort = AbortOnPanic;
        if let Err(error) = event_loop::run(worker, sources) {
            eprintln!("error: a worker cannot go on: {error}");
            std::process::abort();
        }
    }

    fn prepare(self) -> Result<(Worker<Sockets>, Sources, Sends), StartError> {
        crate::sys::unshare().map_err(system("give a worker a descriptor table of its own"))?;
        let settings = &self.setup.settings;
        let address = settings.listen;
        let listener = listener::open(address, settings.heartbeat)
            .map_err(|source| cannot_listen("listen", address, source))?;
        if self.is_last {
            self.steering.update(&listener);
        }
        let sources = Sources {
            listener: Some(listener),
            is_listener_resting: false,
            inlet: self.inlet,
            queue_event: self.event,
            queue: Arc::clone(&self.setup.queue),
            steering: self.steering,
            runner: self.runner,
        };
        let (ring, aio, sends) = sends(settings.io_uring)?;
        let sockets = Sockets {
            ring,
            aio,
            counters: Arc::clone(&self.setup.figures.worker(self.setup.id).counters),
            poll: Poll::new().map_err(system("make an epoll instance"))?,
            to_control: self.to_control,
            to_workers: self.to_workers,
        };
        Ok((Worker::new(self.setup, sockets), sources, sends))
    }
}

/// How fan-outs are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sends {
    /// Through io_uring, those of a slice in one call.
    Ring,
    /// Through Linux AIO, likewise.
    Aio {
        /// Why not through io_uring, unless the settings say so: the kernel has none that would
        /// do, or does not let us.
        without_ring: Option<String>,
    },
    /// A call for each.
    Single {
        /// See above.
        without_ring: Option<String>,
        /// Why not through Linux AIO.
        without_aio: String,
    },
}

/// The running data plane.
#[derive(Debug)]
pub struct Edge {
    /// Connections for the control plane.
    pub arrivals: Arrivals,
    /// The way back.
    pub inlets: Inlets,
    /// What the workers tell about themselves.
    pub figures: Figures,
    /// How fan-outs are written.
    pub sends: Sends,
    queues: Vec<Arc<WorkerQueue>>,
    threads: Vec<JoinHandle<()>>,
    _reservation: Reservation,
}

impl Edge {
    /// From now on takes no new connections and no new subscriptions; what is there goes on.
    pub fn stop_accepting(&self) {
        self.notify_all(|| Notification::StopAccepting);
    }

    /// Delivers what was accepted, sends everybody home, and ends.
    pub fn drain(&self) {
        self.notify_all(|| Notification::Drain);
    }

    fn notify_all(&self, notification: impl Fn() -> Notification) {
        for queue in &self.queues {
            queue.post(notification());
            queue.wake();
        }
    }

    /// Waits until all workers have ended.
    pub fn join(self) {
        for thread in self.threads {
            // A worker that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

/// Sockets that the workers hand to the control plane. Readable when there is one.
#[derive(Debug)]
pub struct Arrivals(Exit);

/// A connection for the control plane.
#[derive(Debug)]
pub struct Arrival {
    /// The connection, non-blocking.
    pub stream: TcpStream,
    /// What was read from it already: begins with a request head.
    pub bytes: Vec<u8>,
}

impl Arrivals {
    /// The next connection; `None` if there is none now.
    pub fn receive(&self) -> io::Result<Option<Arrival>> {
        let mut bytes = Vec::new();
        let Some((_, socket)) = self.0.receive(&mut bytes)? else { return Ok(None) };
        let lost = || io::Error::other("a socket was lost on its way: no descriptor left for it");
        bytes.shrink_to_fit();
        Ok(Some(Arrival { stream: TcpStream::from(socket.ok_or_else(lost)?), bytes }))
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The worker takes no more for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the worker takes no more connections for now")]
pub struct HandBackError;

/// The way from the control plane to the workers.
#[derive(Debug, Clone)]
pub struct Inlets {
    entries: Arc<[Entry]>,
    figures: Figures,
}

impl Inlets {
    /// Gives a connection to the worker with the most room; if none has any, to one that refuses
    /// it. `bytes` begin with a request head. One of the admin listener may follow the samples of
    /// the status page, whatever its head says of host and origin.
    pub fn hand_back(
        &self,
        listener: Listener,
        stream: &TcpStream,
        bytes: &[u8],
    ) -> Result<(), HandBackError> {
        let worker = self.figures.emptiest();
        let entry = &self.entries[usize::from(worker.0)];
        let hand_over = HandOver::between_planes(listener);
        entry.send(hand_over, stream.as_fd(), bytes).map_err(|_| HandBackError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(workers: usize, max_connections: usize) -> Settings {
        Settings { workers, max_connections, ..Settings::for_tests() }
    }

    #[test]
    fn room_is_shared_out_to_the_last_connection() {
        let shares = capacities(&settings(3, 10), 1024).unwrap();
        assert_eq!(shares, [4, 3, 3]);
    }

    #[test]
    fn a_low_descriptor_limit_is_met_with_more_workers() {
        let shares = capacities(&settings(2, 1_000_000), 20_000).unwrap();
        assert_eq!(shares.iter().sum::<u32>(), 1_000_000);
        let per_worker = worker_connections_max(20_000, shares.len());
        assert!(shares.iter().all(|&share| share as usize <= per_worker));
    }

    #[test]
    fn without_a_number_the_limit_decides() {
        let shares = capacities(&settings(2, 0), 1024).unwrap();
        let per_worker = worker_connections_max(1024, 2) as u32;
        assert_eq!(shares, [per_worker, per_worker]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_numbers() {
        let refused = |settings, limit| capacities(&settings, limit).unwrap_err().to_string();
        assert!(refused(settings(2, 0), 64).contains("the descriptor limit is 64"));
        let sentence = refused(settings(2, 1_000_000_000), 20_000);
        assert!(sentence.contains("1000000000 connections would take"), "{sentence}");
    }
}
