//! One worker's thread, from its start to the event loop.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::ahead::Ahead;
use super::arrived::Arrived;
use super::error::{StartError, cannot_go_on, cannot_listen, system};
use super::gate::Gate;
use super::send_method::{self, SendMethod};
use super::succession::Succession;
use crate::event_loop::permits::{FanOutPermits, PermitHolder};
use crate::event_loop::sleep::Sleep;
use crate::event_loop::steering::Steering;
use crate::event_loop::{self, Clock, Listening, Sources, TakesConnections, ThreadWorker};
use crate::sys::copies::Copies;
use crate::sys::epoll::Epoll;
use crate::sys::handoff::{HandoffReceiver, HandoffSender};
use crate::sys::listener;
use crate::sys::sockets::KernelSockets;
use crate::tls::TlsNet;
use crate::worker::{Setup, Worker};

/// The stack of a worker thread, in bytes. Nothing recurses deeply there.
const STACK_BYTES: usize = 512 << 10;

/// The worker or arrival of a thread, its sources of events, and its way to write to many sockets.
pub(super) type Prepared = (Beginning, Sources, SendMethod);

/// The worker that a thread begins with, once it may.
pub(super) enum Beginning {
    /// A worker that can begin at once.
    Worker(Box<ThreadWorker>),
    /// One that is to be thawed first.
    Arrived(Box<Arrived>),
}

/// The parameters of a worker's thread.
pub(super) struct Thread {
    pub(super) setup: Setup,
    /// Connections that other threads hand off to this worker.
    pub(super) handoffs: HandoffReceiver,
    /// Wakes the worker.
    pub(super) event: Arc<OwnedFd>,
    pub(super) to_control: HandoffSender,
    pub(super) to_workers: Vec<HandoffSender>,
    /// For the ports in the order of the settings: the plain one, then the one for TLS.
    pub(super) steering: Vec<Arc<Steering>>,
    pub(super) permits: Arc<FanOutPermits>,
    /// Kept as long as the worker takes connections.
    pub(super) takes_connections: TakesConnections,
    /// True if the worker accepts connections itself.
    pub(super) has_listener: bool,
    /// Whether listeners come from another process, for the ports in the order of the settings.
    pub(super) inherits: [bool; 2],
    /// True if all listeners are open once this worker has opened its own: only then can they be
    /// steered.
    pub(super) is_last: bool,
    /// Brings all workers to a halt when another process takes over.
    pub(super) succession: Arc<Succession>,
    pub(super) origin: Origin,
}

/// Reports that a worker has started.
pub(super) type Started = mpsc::Sender<Result<SendMethod, StartError>>;

pub(super) enum Origin {
    Start,
    /// From another process. The gate opens once that has ended its own. With new ports, it then
    /// listens there as the one of this number.
    Arrives(Arc<Gate>, Option<usize>),
    /// It is new beside those that arrive. The gate opens for it as for them; then it listens as
    /// the one of this number.
    Joins(Arc<Gate>, usize),
}

/// Starts the thread of the worker with this number.
pub(super) fn builder(number: u16) -> std::thread::Builder {
    std::thread::Builder::new().name(format!("worker-{number}")).stack_size(STACK_BYTES)
}

impl Thread {
    /// Starts the thread. It reports through `started` once it accepts connections, or cannot; one
    /// that arrives from another process, once it has everything and has checked it.
    pub(super) fn spawn(self, started: Started) -> io::Result<JoinHandle<()>> {
        builder(self.setup.id.0).spawn(move || self.run(&started, None))
    }

    /// Runs the worker, on its thread. One that arrives has a descriptor table of its own already,
    /// and what came `ahead`.
    pub(super) fn run(self, started: &Started, ahead: Option<Ahead>) {
        let clock = Clock::start();
        let prepared = match ahead {
            Some(ahead) => self.arrive(ahead, &clock),
            None => self.prepare(),
        };
        let (beginning, mut sources, method) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        // If the starting thread has given up meanwhile, the process is about to exit.
        let _ = started.send(Ok(method));
        let permit = PermitHolder::new(Arc::clone(&self.permits), self.setup.id);
        let mut sleep = Sleep::new(Arc::clone(&self.setup.queue), permit);
        match &self.origin {
            Origin::Start => {}
            Origin::Arrives(gate, None) => {
                if !gate.wait() {
                    return;
                }
            }
            Origin::Arrives(gate, Some(turn)) | Origin::Joins(gate, turn) => {
                if !gate.take_turn(*turn, || self.listen(&mut sources)) {
                    return;
                }
            }
        }
        let _abort = AbortOnPanic;
        let mut worker = match beginning {
            Beginning::Worker(worker) => *worker,
            Beginning::Arrived(arrived) => arrived.thaw(&clock),
        };
        if let Origin::Arrives(gate, _) = &self.origin {
            event_loop::leave_addresses(&mut worker, &mut sources);
            sleep.expect_work();
            gate.arrive();
        }
        loop {
            match event_loop::run(worker, &mut sources, &mut sleep, &clock) {
                Ok(None) => return,
                Ok(Some(leaving)) => match self.leave(leaving, &mut sources, &clock) {
                    Some(back) => worker = back,
                    None => return,
                },
                Err(error) => cannot_go_on(&error),
            }
            sleep.expect_work();
        }
    }

    /// Opens the worker's descriptors, on its own thread. The private descriptor table comes first:
    /// descriptors that the thread did not open itself (queue events, handoff sockets) were open
    /// before, are shared by `Arc` and stay open while any worker runs, so that their numbers mean
    /// the same in every table. KernelSockets cross threads only as messages of `sys/handoff.rs`.
    fn prepare(&self) -> Result<Prepared, StartError> {
        throng_host::private_table::unshare()
            .map_err(system("give a worker a descriptor table of its own"))?;
        let joins = matches!(self.origin, Origin::Joins(..));
        // Connections that the kernel gives to a listener are lost if it closes. So the
        // listener of a worker that may not begin does not listen yet.
        let open = if joins { listener::prepare } else { listener::open };
        let mut listeners = Vec::new();
        for port in self.ports() {
            let listening = self.open(port, open)?;
            // Not before: the steering chooses among the listeners by the order in which they were
            // opened.
            if self.is_last && !joins {
                listening.steer();
            }
            listeners.push(listening);
        }
        let (mut worker, method) = self.worker()?;
        let mut sources = self.sources(listeners);
        event_loop::register(&mut worker, &mut sources).map_err(system("wait for events"))?;
        Ok((Beginning::Worker(Box::new(worker)), sources, method))
    }

    /// The ports that the worker listens on, by their number in the settings.
    fn ports(&self) -> impl Iterator<Item = usize> {
        let has_tls = self.setup.settings.tls.is_some();
        [self.has_listener, has_tls].into_iter().enumerate().filter_map(|(n, has)| has.then_some(n))
    }

    /// The listeners of ports that the process before does not listen on. They do not listen yet.
    pub(super) fn new_listeners(&self) -> Result<Vec<Listening>, StartError> {
        let new = self.ports().filter(|port| !self.inherits[*port]);
        new.map(|port| self.open(port, listener::prepare)).collect()
    }

    fn open(
        &self,
        port: usize,
        open: fn(SocketAddr, Duration) -> io::Result<OwnedFd>,
    ) -> Result<Listening, StartError> {
        let settings = &self.setup.settings;
        let (setting, address) = match &settings.tls {
            Some(tls) if port > 0 => ("tls-listen", tls.listen),
            _ => ("listen", settings.listen),
        };
        let listener = open(address, settings.heartbeat)
            .map_err(|source| cannot_listen(setting, address, source))?;
        Ok(Listening::new(listener, Arc::clone(&self.steering[port]), port > 0))
    }

    /// Begins to listen with listeners that were prepared. The worker goes on without those that
    /// fail: its process serves already.
    fn listen(&self, sources: &mut Sources) {
        sources.listeners.retain(|listening| {
            let (socket, _) = listening.socket();
            let listens = listener::listen(socket);
            if let Err(error) = &listens {
                tracing::error!("a new worker cannot listen: {error}");
            } else if self.is_last {
                // The process before may have told the kernel of fewer workers.
                listening.steer();
            }
            listens.is_ok()
        });
    }

    pub(super) fn sources(&self, listeners: Vec<Listening>) -> Sources {
        Sources {
            listeners,
            former: Vec::new(),
            handoffs: self.handoffs.clone(),
            queue_event: Arc::clone(&self.event),
            takes_connections: Some(self.takes_connections.clone()),
            channel: None,
            ahead: None,
        }
    }

    pub(super) fn worker(&self) -> Result<(ThreadWorker, SendMethod), StartError> {
        let settings = &self.setup.settings;
        let (io_uring, aio, method) = send_method::open(settings.io_uring)?;
        let counters = &self.setup.metrics.worker(self.setup.id).counters;
        let sockets = KernelSockets {
            io_uring,
            aio,
            counters: Arc::clone(counters),
            epoll: Epoll::new().map_err(system("make an epoll instance"))?,
            to_control: self.to_control.clone(),
            is_held: Arc::clone(&self.succession.is_held),
            copies: Copies::default(),
            to_workers: self.to_workers.clone(),
        };
        let acceptor = settings.tls.as_ref().map(|tls| tls.acceptor.clone());
        let max_handshakes = settings.limits.max_handshakes;
        let net = TlsNet::new(sockets, acceptor, Arc::clone(counters), max_handshakes);
        Ok((Worker::new(self.setup.clone(), net), method))
    }
}

/// Aborts the process if a worker panics: its connections would be open and never served. A service
/// manager restarts the process.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("error: a worker cannot continue: it has panicked");
            std::process::abort();
        }
    }
}
