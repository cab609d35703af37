//! Starts the workers from the settings.
//!
//! | module | what it does |
//! |---|---|
//! | `acceptor` | accepts for the workers on a socket that the service manager has passed |
//! | `capacity` | decides how many workers there are and how many connections each holds |
//! | `send_method` | picks how a worker writes to many sockets |
//! | `thread` | starts one worker's thread |
//! | `error` | why the data plane cannot start |
//! | `edge` | the running data plane, as the control plane and the binary see it |

mod acceptor;
mod capacity;
mod edge;
mod error;
mod send_method;
mod thread;

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use throng_access::AccessControl;
use throng_core::events::EventSink;
use throng_core::{Engine, MemoryPressure, Rules, WorkerId, WorkerQueue};

use crate::compression::Compression;
use crate::event_loop::TakesConnections;
use crate::event_loop::permits::{FanOutPermits, PermitHolder};
use crate::event_loop::steering::Steering;
use crate::metrics::Metrics;
use crate::settings::{Settings, TlsSettings};
use crate::sys::handoff::{self, HandoffReceiver, HandoffSender};
use crate::sys::listener::{self, Port, PortReservation};
use crate::worker::Setup;
use acceptor::Acceptor;
pub use capacity::{DESCRIPTORS_APART, DESCRIPTORS_PER_WORKER};
pub use edge::{ControlHandoffs, Edge, Handoff, WorkerBusyError, WorkerHandoffs};
pub use error::StartError;
use error::{cannot_listen, system};
pub use send_method::SendMethod;
use thread::Thread;

/// Opens a listener for the control plane. The connections that it accepts have the socket options
/// that workers expect of a connection handed off to them.
pub fn listen_admin(address: SocketAddr, heartbeat: Duration) -> Result<TcpListener, StartError> {
    let listener = listener::open_alone(address, heartbeat)
        .map_err(|source| cannot_listen("admin-listen", address, source))?;
    Ok(TcpListener::from(listener))
}

/// The workers to start, and what they share. It is made before any worker leaves the process's
/// descriptor table, so that its descriptors have the same numbers in all tables.
#[derive(Debug)]
pub struct Plan {
    settings: Settings,
    port: Port,
    tls_port: Option<PortReservation>,
    descriptors_max: u64,
    capacities: Vec<u32>,
    queues: Vec<Arc<WorkerQueue>>,
    /// Wakes the worker of the same number: its queue writes to the event.
    events: Vec<Arc<OwnedFd>>,
    to_workers: Vec<(HandoffSender, HandoffReceiver)>,
    to_control: (HandoffSender, HandoffReceiver),
}

impl Plan {
    /// Raises the descriptor limit as far as allowed, decides how many workers there are, and takes
    /// the port: that of `passed`, a listener that the service manager has opened, if there is one.
    pub fn new(settings: Settings, passed: Option<TcpListener>) -> Result<Plan, StartError> {
        let descriptors_max = capacity::descriptors_max();
        let capacities = capacity::capacities(&settings, descriptors_max)?;
        let port = match passed {
            Some(listener) => listener::adopt(listener, settings.heartbeat),
            None => PortReservation::take(settings.listen).map(Port::Own),
        };
        let port = port.map_err(|source| cannot_listen("listen", settings.listen, source))?;
        let take_tls = |tls: &TlsSettings| {
            PortReservation::take(tls.listen)
                .map_err(|source| cannot_listen("tls-listen", tls.listen, source))
        };
        let tls_port = settings.tls.as_ref().map(take_tls).transpose()?;
        let workers = capacities.len();
        // All of these are opened before a worker leaves the process's descriptor table, so that
        // they have the same numbers in every table.
        let event = |_| {
            let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
            Ok(Arc::new(eventfd(0, flags).map_err(io::Error::from)?))
        };
        let events: Vec<_> = (0..workers)
            .map(event)
            .collect::<io::Result<_>>()
            .map_err(system("make an event descriptor"))?;
        let no_pair = system("make a socket pair");
        let to_workers: Vec<_> =
            (0..workers).map(|_| handoff::pair()).collect::<io::Result<_>>().map_err(&no_pair)?;
        let queues = events.iter().map(|event| Arc::new(queue(Arc::clone(event)))).collect();
        let to_control = handoff::pair().map_err(&no_pair)?;
        Ok(Plan {
            settings,
            port,
            tls_port,
            descriptors_max,
            capacities,
            queues,
            events,
            to_workers,
            to_control,
        })
    }

    /// The address that the server listens on, with the port that the kernel has chosen for 0.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The address where TLS is spoken, with the port that the kernel has chosen for 0; `None`
    /// without TLS.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_port.as_ref().map(PortReservation::address)
    }

    /// The address that decides which host names requests may have, in both planes.
    pub fn reachable_ip(&self) -> IpAddr {
        self.settings.reachable_ip()
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.capacities.len()
    }

    /// Size of each worker's descriptor table.
    pub fn descriptors_max(&self) -> u64 {
        self.descriptors_max
    }

    /// Connections that all workers together hold.
    pub fn max_connections(&self) -> usize {
        self.capacities.iter().map(|&capacity| capacity as usize).sum()
    }

    /// Connections that the descriptor limit allows one worker, whatever its share of
    /// [`Plan::max_connections`] is.
    pub fn max_worker_connections(&self) -> usize {
        capacity::max_worker_connections(self.descriptors_max, self.workers())
    }

    /// The workers' queues, in the order of the workers.
    pub fn queues(&self) -> Vec<Arc<WorkerQueue>> {
        self.queues.clone()
    }

    /// Starts the workers; `rules` are the engine's, `events` hears of connections, and
    /// `pressure` says what to give up for want of memory. When this returns, connections are
    /// accepted.
    pub fn start(
        self,
        engine: &Arc<dyn Engine>,
        access: &Arc<AccessControl>,
        rules: &Arc<Rules>,
        events: Option<Arc<dyn EventSink>>,
        pressure: &Arc<MemoryPressure>,
    ) -> Result<Edge, StartError> {
        let metrics = Metrics::new(self.capacities.iter().copied());
        let tls_address = self.tls_address();
        let mut settings = Settings { listen: self.address(), ..self.settings };
        if let (Some(tls), Some(address)) = (&mut settings.tls, tls_address) {
            tls.listen = address;
        }
        let settings = Arc::new(settings);
        let compression = Arc::new(Compression::new(settings.compression));
        let concurrency = capacity::workers_min(&settings);
        let senders: Vec<_> = self.to_workers.iter().map(|(sender, _)| sender.clone()).collect();
        let steering = [(); 2].map(|()| Arc::new(Steering::new(metrics.clone(), concurrency)));
        let permits = Arc::new(FanOutPermits::new(&self.queues, concurrency));
        let takers = TakesConnections::default();
        let mut threads = Vec::new();
        let mut send_method = SendMethod::IoUring;
        for (number, (_, handoffs)) in self.to_workers.iter().enumerate() {
            let id = WorkerId(number as u16);
            let thread = Thread {
                setup: Setup {
                    generation: RandomState::new().hash_one(number) as u32,
                    id,
                    settings: Arc::clone(&settings),
                    engine: Arc::clone(engine),
                    access: Arc::clone(access),
                    rules: Arc::clone(rules),
                    compression: Arc::clone(&compression),
                    events: events.clone(),
                    queue: Arc::clone(&self.queues[number]),
                    pressure: Arc::clone(pressure),
                    metrics: metrics.clone(),
                },
                handoffs: handoffs.clone(),
                event: Arc::clone(&self.events[number]),
                to_control: self.to_control.0.clone(),
                to_workers: senders.clone(),
                steering: steering.to_vec(),
                permit: PermitHolder::new(Arc::clone(&permits), id),
                takes_connections: takers.clone(),
                has_listener: self.port.passed().is_none(),
                is_last: number + 1 == self.to_workers.len(),
            };
            let (started, start) = mpsc::channel();
            threads.push(thread.spawn(started).map_err(system("start a thread"))?);
            // One after another: the kernel numbers the listeners in the order of their `listen`.
            let died = |_| Err(system("start a worker")(io::Error::other("it has died")));
            let method = start.recv().unwrap_or_else(died)?;
            if method != SendMethod::IoUring {
                send_method = method;
            }
        }
        if let Some(listener) = self.port.passed() {
            let acceptor = Acceptor {
                listener: Arc::clone(listener),
                to_workers: senders.clone(),
                steering: Arc::clone(&steering[0]),
                metrics: metrics.clone(),
                takers,
            };
            threads.push(acceptor.spawn().map_err(system("start the acceptor"))?);
        }
        Ok(Edge {
            to_control: ControlHandoffs::new(self.to_control.1, Arc::clone(&access.clients)),
            to_workers: WorkerHandoffs::new(senders, metrics.clone()),
            metrics,
            send_method,
            queues: self.queues,
            threads,
            _ports: (self.port, self.tls_port),
        })
    }
}

fn queue(event: Arc<OwnedFd>) -> WorkerQueue {
    WorkerQueue::new(move || {
        // Fails only if the counter overflows, after 2^64 - 1 wake-ups.
        let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
    })
}
