//! Starts the workers from the settings.
//!
//! | module | what it does |
//! |---|---|
//! | `acceptor` | accepts for the workers on a socket that the service manager has passed |
//! | `capacity` | decides how many workers there are and how many connections each holds |
//! | `send_method` | picks how a worker writes to many sockets |
//! | `thread` | starts one worker's thread |
//! | `error` | why the data plane cannot start |
//! | `assembly` | brings all workers to a halt at the same time |
//! | `succession`, `halt`, `leave` | workers leave for another process |
//! | `ahead`, `arrival`, `arrived`, `gate` | workers come from another process |
//! | `edge` | the running data plane, as the control plane and the binary see it |

mod acceptor;
mod ahead;
mod arrival;
mod arrived;
mod assembly;
mod capacity;
mod edge;
mod error;
mod gate;
mod halt;
mod leave;
mod send_method;
mod succession;
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
use throng_core::{Channels, MemoryPressure, Rules, WorkerId, WorkerQueue};

use crate::compression::Compression;
use crate::event_loop::TakesConnections;
use crate::event_loop::permits::FanOutPermits;
use crate::event_loop::steering::Steering;
use crate::metrics::Metrics;
use crate::settings::{Settings, TlsSettings};
use crate::sys::handoff::{self, HandoffReceiver, HandoffSender};
use crate::sys::listener::{self, Port, PortReservation};
use crate::worker::Setup;
use acceptor::Acceptor;
pub use arrival::Arrivals;
pub use capacity::{DESCRIPTORS_APART, DESCRIPTORS_PER_WORKER};
pub use edge::{ControlHandoffs, Edge, Handoff, WorkerBusyError, WorkerHandoffs};
pub use error::StartError;
use error::{cannot_listen, system};
use gate::Gate;
pub use send_method::SendMethod;
use succession::Succession;
use thread::{Origin, Thread};

/// Opens a listener of the control plane, which the setting `flag` names. The connections that it
/// accepts have the socket options that workers expect of a connection handed off to them.
pub fn listen_alone(
    flag: &'static str,
    address: SocketAddr,
    heartbeat: Duration,
) -> Result<TcpListener, StartError> {
    let listener = listener::open_alone(address, heartbeat)
        .map_err(|source| cannot_listen(flag, address, source))?;
    Ok(TcpListener::from(listener))
}

/// The workers to start, and what they share. It is made before any worker leaves the process's
/// descriptor table, so that its descriptors have the same numbers in all tables.
#[derive(Debug)]
pub struct EdgePlan {
    settings: Settings,
    port: Port,
    tls_port: Option<PortReservation>,
    /// True if another process listens on the port of `listen`, and of `tls-listen`, and passes its
    /// listeners.
    inherits: [bool; 2],
    descriptors_max: u64,
    capacities: Vec<u32>,
    queues: Vec<Arc<WorkerQueue>>,
    /// Wakes the worker of the same number: its queue writes to the event.
    events: Vec<Arc<OwnedFd>>,
    to_workers: Vec<(HandoffSender, HandoffReceiver)>,
    to_control: (HandoffSender, HandoffReceiver),
    /// If workers come from another process: opens once they may act; and how many of them do. The
    /// others are new.
    gate: Option<(Arc<Gate>, usize)>,
}

/// The ports of a server from which another process takes over.
#[derive(Debug, Default)]
pub struct PassedPorts {
    pub workers: usize,
    /// Keeps the port of `listen`; or `listener` listens on it.
    pub reservation: Option<OwnedFd>,
    /// Keeps the port of `tls-listen`, if it speaks TLS.
    pub tls_reservation: Option<OwnedFd>,
    /// The listener that the service manager has opened.
    pub listener: Option<OwnedFd>,
}

impl EdgePlan {
    /// Raises the descriptor limit as far as allowed, decides how many workers there are, and takes
    /// the port: of `passed`, a listener that the service manager has opened, if there is one.
    pub fn new(settings: Settings, passed: Option<TcpListener>) -> Result<EdgePlan, StartError> {
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
        let ports = Ports { plain: port, tls: tls_port, inherits: [false; 2] };
        EdgePlan::with_ports(settings, descriptors_max, capacities, ports, None)
    }

    /// As [`EdgePlan::new`], with the ports of a running server, whose workers are to go on here.
    /// Other addresses are new here: workers listen there once they may act, and no longer at the
    /// old.
    pub fn take_over(settings: Settings, passed: PassedPorts) -> Result<EdgePlan, StartError> {
        let descriptors_max = capacity::descriptors_max();
        let differs = |what: String| Err(StartError::TakeOver(what));
        let capacities = capacity::capacities_after(passed.workers, &settings, descriptors_max)?;
        let Some(capacities) = capacities else {
            return differs(format!(
                "it has {} workers, and the settings ask for fewer, which needs a restart",
                passed.workers
            ));
        };
        let (plain, inherits_plain) = match (passed.reservation, passed.listener) {
            (Some(its), _) => {
                let (port, inherits) = take_port("listen", settings.listen, Some(its))?;
                (Port::Own(port), inherits)
            }
            (None, Some(listener)) => {
                let port = listener::adopt(listener.into(), settings.heartbeat)
                    .map_err(|source| cannot_listen("listen", settings.listen, source))?;
                if !is_same(settings.listen, port.address()) {
                    return differs(
                        "the service manager has opened its listener, and the setting `listen` \
                         names another address, which needs a restart"
                            .to_owned(),
                    );
                }
                (port, true)
            }
            (None, None) => return differs("it listens nowhere".to_owned()),
        };
        let tls = match (&settings.tls, passed.tls_reservation) {
            (Some(tls), its) => Some(take_port("tls-listen", tls.listen, its)?),
            (None, None) => None,
            (None, Some(_)) => {
                return differs(
                    "it speaks TLS, and the settings have no `tls-listen`: its connections would \
                     end, which needs a restart"
                        .to_owned(),
                );
            }
        };
        let inherits = [inherits_plain, tls.as_ref().is_some_and(|(_, inherits)| *inherits)];
        let ports = Ports { plain, tls: tls.map(|(port, _)| port), inherits };
        let gate = Some((Arc::<Gate>::default(), passed.workers));
        EdgePlan::with_ports(settings, descriptors_max, capacities, ports, gate)
    }

    fn with_ports(
        settings: Settings,
        descriptors_max: u64,
        capacities: Vec<u32>,
        ports: Ports,
        gate: Option<(Arc<Gate>, usize)>,
    ) -> Result<EdgePlan, StartError> {
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
        let Ports { plain: port, tls: tls_port, inherits } = ports;
        Ok(EdgePlan {
            settings,
            port,
            tls_port,
            inherits,
            descriptors_max,
            capacities,
            queues,
            events,
            to_workers,
            to_control,
            gate,
        })
    }

    /// True if a process with these settings could take over from one with as many workers as are
    /// `running`.
    pub fn keeps_workers(settings: &Settings, running: usize) -> bool {
        let capacities = capacity::capacities_after(running, settings, capacity::descriptors_max());
        matches!(capacities, Ok(Some(_)))
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

    /// The number of workers that will start.
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
    /// [`EdgePlan::max_connections`] is.
    pub fn max_worker_connections(&self) -> usize {
        capacity::max_worker_connections(self.descriptors_max, self.workers())
    }

    /// The workers' queues, in the order of the workers.
    pub fn queues(&self) -> Vec<Arc<WorkerQueue>> {
        self.queues.clone()
    }

    /// Starts the threads of the workers that come from another process; `None` if none do. They
    /// receive copies of sockets while that process serves.
    pub fn receive_ahead(&self) -> Result<Option<Arrivals>, StartError> {
        let start = |(gate, arriving): &(Arc<Gate>, usize)| {
            Arrivals::start(&self.to_workers[..*arriving], gate)
        };
        self.gate.as_ref().map(start).transpose()
    }

    /// Starts the workers with what they share. When this returns, connections are accepted; or the
    /// `arrivals` have everything, and wait for [`Edge::take_over`].
    pub fn start(
        self,
        shared: &EdgeContext,
        arrivals: Option<Arrivals>,
    ) -> Result<Edge, StartError> {
        let common = self.common();
        let mut starts = Vec::new();
        let mut send_method = SendMethod::IoUring;
        let died = |_| Err(system("start a worker")(io::Error::other("it has died")));
        let takes_over = arrivals.is_some();
        let arriving = self.gate.as_ref().map_or(0, |(_, arriving)| *arriving);
        let mut threads = arrivals.map_or_else(Vec::new, |arrivals| {
            let threads = (0..arriving).map(|number| {
                let (started, start) = mpsc::channel();
                starts.push(start);
                (self.thread(number, shared, &common), started)
            });
            arrivals.begin(threads)
        });
        for number in threads.len()..self.to_workers.len() {
            let (started, start) = mpsc::channel();
            let thread = self.thread(number, shared, &common);
            threads.push(thread.spawn(started).map_err(system("start a thread"))?);
            if takes_over {
                starts.push(start);
                continue;
            }
            // One after another: the kernel numbers the listeners in the order of their `listen`.
            let method = start.recv().unwrap_or_else(died)?;
            if method != SendMethod::IoUring {
                send_method = method;
            }
        }
        let ThreadContext { senders, metrics, succession, .. } = &common;
        let gate = self.gate;
        let arrived = starts.iter().try_for_each(|start| {
            send_method = start.recv().unwrap_or_else(died)?;
            Ok(())
        });
        if let (Err(_), Some((gate, _))) = (&arrived, &gate) {
            gate.decide(false);
        }
        arrived?;
        if let Some(listener) = self.port.passed() {
            let acceptor = Acceptor {
                listener: Arc::clone(listener),
                to_workers: senders.clone(),
                steering: Arc::clone(&common.steering[0]),
                metrics: metrics.clone(),
                admission: Arc::clone(&common.settings.admission),
                takers: common.takers.clone(),
                succession: Arc::clone(succession),
            };
            let thread = acceptor.spawn(gate.as_ref().map(|(gate, _)| Arc::clone(gate)));
            threads.push(thread.map_err(system("start the acceptor"))?);
        }
        Ok(Edge {
            to_control: ControlHandoffs::new(self.to_control.1, Arc::clone(&shared.access.clients)),
            to_workers: WorkerHandoffs::new(senders.clone(), metrics.clone()),
            metrics: metrics.clone(),
            admission: Arc::clone(&common.settings.admission),
            send_method,
            queues: self.queues,
            threads,
            succession: Arc::clone(succession),
            gate,
            ports: (self.port, self.tls_port),
        })
    }

    fn common(&self) -> ThreadContext {
        let metrics = Metrics::new(self.capacities.iter().copied());
        let mut settings = Settings { listen: self.address(), ..self.settings.clone() };
        if let (Some(tls), Some(address)) = (&mut settings.tls, self.tls_address()) {
            tls.listen = address;
        }
        let concurrency = capacity::workers_min(&settings);
        ThreadContext {
            compression: Arc::new(Compression::new(settings.compression)),
            senders: self.to_workers.iter().map(|(sender, _)| sender.clone()).collect(),
            steering: self
                .inherits
                .map(|inherits| Arc::new(Steering::new(metrics.clone(), concurrency, inherits))),
            permits: Arc::new(FanOutPermits::new(&self.queues, concurrency)),
            takers: TakesConnections::default(),
            succession: Arc::default(),
            settings: Arc::new(settings),
            metrics,
        }
    }

    /// Where a worker comes from, and its turn to listen.
    fn origin(&self, number: usize) -> Origin {
        let Some((gate, arriving)) = &self.gate else { return Origin::Start };
        let gate = Arc::clone(gate);
        // Only those that join listen for the first time, unless a port is new for all.
        let is_new = self.port.passed().is_none() && !self.inherits[0]
            || self.tls_port.is_some() && !self.inherits[1];
        let first = if is_new { 0 } else { *arriving };
        match number.checked_sub(*arriving) {
            None => Origin::Arrives(gate, is_new.then_some(number)),
            Some(_) => Origin::Joins(gate, number - first),
        }
    }

    fn thread(&self, number: usize, shared: &EdgeContext, common: &ThreadContext) -> Thread {
        let EdgeContext { engine, access, rules, events, pressure } = shared;
        let id = WorkerId(number as u16);
        Thread {
            setup: Setup {
                generation: RandomState::new().hash_one(number) as u32,
                id,
                settings: Arc::clone(&common.settings),
                engine: Arc::clone(engine),
                access: Arc::clone(access),
                rules: Arc::clone(rules),
                compression: Arc::clone(&common.compression),
                events: events.clone(),
                queue: Arc::clone(&self.queues[number]),
                pressure: Arc::clone(pressure),
                metrics: common.metrics.clone(),
            },
            handoffs: self.to_workers[number].1.clone(),
            event: Arc::clone(&self.events[number]),
            to_control: self.to_control.0.clone(),
            to_workers: common.senders.clone(),
            steering: common.steering.to_vec(),
            permits: Arc::clone(&common.permits),
            takes_connections: common.takers.clone(),
            has_listener: self.port.passed().is_none(),
            inherits: self.inherits,
            is_last: number + 1 == self.to_workers.len(),
            succession: Arc::clone(&common.succession),
            origin: self.origin(number),
        }
    }
}

struct Ports {
    plain: Port,
    tls: Option<PortReservation>,
    inherits: [bool; 2],
}

/// The port for `address`: `its` of a running server if it is the same, or a new one. Returns
/// whether it is the same.
fn take_port(
    setting: &'static str,
    address: SocketAddr,
    its: Option<OwnedFd>,
) -> Result<(PortReservation, bool), StartError> {
    let its = its.map(PortReservation::passed).transpose();
    let its = its.map_err(system("keep the port of the server"))?;
    match its.filter(|its| is_same(address, its.address())) {
        Some(its) => Ok((its, true)),
        None => {
            let taken = PortReservation::take(address);
            Ok((taken.map_err(|source| cannot_listen(setting, address, source))?, false))
        }
    }
}

/// True if a server that listens at `its` address does so for the setting `own`.
fn is_same(own: SocketAddr, its: SocketAddr) -> bool {
    own == its || (own.port() == 0 && own.ip() == its.ip())
}

/// State of the edge that the threads of all workers share, beside [`EdgeContext`].
struct ThreadContext {
    settings: Arc<Settings>,
    metrics: Metrics,
    compression: Arc<Compression>,
    senders: Vec<HandoffSender>,
    /// For the plain port, then for the TLS port.
    steering: [Arc<Steering>; 2],
    permits: Arc<FanOutPermits>,
    takers: TakesConnections,
    succession: Arc<Succession>,
}

/// State that all workers share with the rest of the server.
#[derive(Clone)]
pub struct EdgeContext {
    /// The logs, which both planes use.
    pub engine: Arc<Channels>,
    pub access: Arc<AccessControl>,
    pub rules: Arc<Rules>,
    pub events: Option<Arc<dyn EventSink>>,
    pub pressure: Arc<MemoryPressure>,
}

fn queue(event: Arc<OwnedFd>) -> WorkerQueue {
    WorkerQueue::new(move || {
        // Fails only if the counter overflows, after 2^64 - 1 wake-ups.
        let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
    })
}
