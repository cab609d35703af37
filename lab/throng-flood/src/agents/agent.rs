//! `throng flood agent`: serves one coordinator at a time with a pool of clients.
//!
//! # Invariants
//!
//! * A stranger learns and starts nothing. It costs a thread with a small buffer until the deadline
//!   of the greeting, and at most [`STRANGERS_MAX`] connections are greeted at a time.
//! * Nothing connects before the agent's own bounds allow the plan and the resolved addresses.
//! * A run ends with the connection of its coordinator, or when that is silent for too long.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;
use throng_units::format;

use super::bounds::Bounds;
use super::connection::{
    Connection, GREETING_BYTES_MAX, GREETING_TIME_MAX, MESSAGE_BYTES_MAX, Role, Secret,
};
use super::message::{AgentCommand, AgentCost, AgentInfo, BeginRun, Greeting};
use super::{ANSWER_TIME_MAX, VERSION, clock, reason};
use crate::clients::{ClientCommand, ClientPool, ClientSet as _, ClientShare};
use crate::counts::ClientCounts;
use crate::marker::now_ns;
use crate::plan::Plan;
use crate::publish;
use crate::runner::{ResourceMonitor, ResourceSample};

/// A coordinator sends a command at least once a second. After this time without one the agent
/// closes its clients.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Connections that have proven nothing yet.
const STRANGERS_MAX: usize = 8;

/// Refused secrets that are reported, so that strangers cannot fill the terminal.
const REFUSALS_SAID_MAX: usize = 10;

/// How often the agent checks whether to stop.
const STEP: Duration = Duration::from_millis(100);

/// Turns the text of a plan into this machine's part of it, or says why that is impossible.
type ReadPlan = dyn Fn(&str, ClientShare) -> Result<Plan, String> + Send + Sync;

/// An agent that waits for coordinators.
pub(crate) struct Agent {
    /// Its name in reports.
    pub(crate) name: String,
    pub(crate) secret: Secret,
    pub(crate) bounds: Bounds,
    pub(crate) plan: Box<ReadPlan>,
    /// Prints one line.
    pub(crate) say: fn(&str),
    pub(crate) state: AgentState,
}

#[derive(Default)]
pub(crate) struct AgentState {
    /// Held by each connection that has proven nothing yet.
    strangers: Arc<()>,
    refusals: AtomicUsize,
    /// The socket of the coordinator.
    coordinator: Mutex<Option<TcpStream>>,
    ended: Mutex<Option<AgentEnd>>,
}

/// How a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentEnd {
    /// Its coordinator ended it, or the user stopped the agent.
    Done,
    /// The coordinator was lost.
    Lost,
}

impl Agent {
    /// Serves coordinators until it is stopped or, if it serves only once, for one run.
    pub(crate) fn serve(
        self: &Arc<Agent>,
        listener: &TcpListener,
        is_once: bool,
        is_stopped: &dyn Fn() -> bool,
    ) -> io::Result<AgentEnd> {
        listener.set_nonblocking(true)?;
        (self.say)(&format!("agent {} listens at {}", self.name, listener.local_addr()?));
        let step = Timespec { tv_sec: 0, tv_nsec: STEP.as_nanos() as i64 };
        loop {
            if let Some(end) = lock(&self.state.ended).filter(|_| is_once) {
                return Ok(end);
            }
            if is_stopped() {
                self.stop();
                return Ok(AgentEnd::Done);
            }
            // A signal interrupts it.
            let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&step));
            match listener.accept() {
                Ok((socket, peer)) => self.meet(socket, peer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // No descriptor is free, for example.
                Err(_) => thread::sleep(STEP),
            }
        }
    }

    /// Disconnects the coordinator, and waits until the clients are closed.
    fn stop(&self) {
        loop {
            match &*lock(&self.state.coordinator) {
                // An error means that it is closed already.
                Some(coordinator) => drop(coordinator.shutdown(Shutdown::Both)),
                None => return,
            }
            thread::sleep(STEP);
        }
    }

    /// Greets a stranger on a thread of its own.
    fn meet(self: &Arc<Agent>, socket: TcpStream, peer: SocketAddr) {
        let place = Arc::clone(&self.state.strangers);
        if Arc::strong_count(&place) > STRANGERS_MAX + 1 {
            return;
        }
        let agent = Arc::clone(self);
        // If there is no thread, the connection is closed.
        let _ = thread::Builder::new().name("coordinator".to_owned()).spawn(move || {
            let greeted = agent.greet(socket);
            drop(place);
            match greeted {
                Ok((connection, greeting)) => agent.attend(connection, peer.ip(), &greeting),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    if agent.state.refusals.fetch_add(1, Ordering::Relaxed) < REFUSALS_SAID_MAX {
                        (agent.say)(&format!("{peer} was refused: it has another secret"));
                    }
                }
                Err(_) => {}
            }
        });
    }

    fn greet(&self, socket: TcpStream) -> io::Result<(Connection, Greeting)> {
        let deadline = Instant::now() + GREETING_TIME_MAX;
        let mut connection = Connection::open(socket, &self.secret, Role::Agent, deadline)?;
        let greeting = connection.receive(GREETING_BYTES_MAX, deadline)?;
        Ok((connection, greeting))
    }

    /// Serves a coordinator to its end, unless there is another one.
    fn attend(&self, mut connection: Connection, peer: IpAddr, greeting: &Greeting) {
        let Ok(own) = connection.handle() else { return };
        let mut coordinator = lock(&self.state.coordinator);
        let is_busy = coordinator.is_some();
        coordinator.get_or_insert(own);
        drop(coordinator);
        let info = AgentInfo {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            name: self.name.clone(),
            host: clock::host_name(),
            is_busy,
        };
        let is_sent = connection.send(&info, Instant::now() + ANSWER_TIME_MAX).is_ok();
        if is_busy {
            return;
        }
        let mut session = Session { agent: self, connection, peer, run: None, ended: None };
        if is_sent && greeting.version == VERSION {
            let error = session.follow();
            let reason = format!("the coordinator is gone ({})", reason(&error));
            session.end_run(&reason, AgentEnd::Lost);
        }
        if let Some(end) = session.ended {
            *lock(&self.state.ended) = Some(end);
        }
        *lock(&self.state.coordinator) = None;
    }
}

/// The connection of a coordinator.
struct Session<'a> {
    agent: &'a Agent,
    connection: Connection,
    peer: IpAddr,
    run: Option<ActiveRun>,
    ended: Option<AgentEnd>,
}

/// The run that the agent takes part in.
struct ActiveRun {
    pool: ClientPool,
    clients_max: usize,
    resources: ResourceMonitor,
    /// The resources before the run.
    start: ResourceSample,
    subscribed: u64,
    received: u64,
}

impl Session<'_> {
    /// Executes commands until the connection ends. Returns why it did.
    fn follow(&mut self) -> io::Error {
        loop {
            let command = self.connection.receive(MESSAGE_BYTES_MAX, Instant::now() + SILENCE_MAX);
            let sent = command.and_then(|command| {
                let reply = self.execute(command);
                self.connection.send(&reply, Instant::now() + ANSWER_TIME_MAX)
            });
            if let Err(error) = sent {
                return error;
            }
        }
    }

    fn execute(&mut self, command: AgentCommand) -> Result<Value, String> {
        match (command, &mut self.run) {
            (AgentCommand::Clock, _) => reply(now_ns()),
            (AgentCommand::Begin(begin), None) => {
                self.run = Some(self.begin(&begin).inspect_err(|reason| {
                    (self.agent.say)(&format!("a run was refused: {reason}"));
                })?);
                reply(())
            }
            (AgentCommand::End, _) => {
                self.end_run("the run is over", AgentEnd::Done);
                reply(())
            }
            (command, Some(run)) => run.execute(command),
            (_, None) => Err("it does not take part".to_owned()),
        }
    }

    /// Starts the threads, within the bounds of the agent.
    fn begin(&self, begin: &BeginRun) -> Result<ActiveRun, String> {
        let Agent { bounds, say, plan, .. } = self.agent;
        let share = ClientShare { step: begin.share.step.max(1), ..begin.share };
        let plan = plan(&begin.plan, share)?;
        let clients_max = plan.max_clients();
        bounds.check_clients(clients_max)?;
        let pool = ClientPool::start_share(&plan, clients_max, share);
        let pool = pool.map_err(|error| error.to_string())?;
        let targets = pool.targets();
        bounds.check_targets(&targets)?;
        let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
        say(&format!(
            "run {:08x} of {}: agent {} of {}, up to {} at {}, for at most {} s, with the plan",
            share.run,
            self.peer,
            share.first + 1,
            share.step,
            format::counted(clients_max as u64, "client", "clients"),
            targets.join(", "),
            plan.deadline.as_secs(),
        ));
        plan.without_secrets().toml().lines().for_each(say);
        let mut resources = ResourceMonitor::new(&[], None);
        Ok(ActiveRun {
            pool,
            clients_max,
            start: resources.read_all(),
            resources,
            subscribed: 0,
            received: 0,
        })
    }

    /// Closes the clients and reports what they did, if there is a run.
    fn end_run(&mut self, reason: &str, end: AgentEnd) {
        let Some(mut run) = self.run.take() else { return };
        run.counts();
        run.pool.stop();
        (self.agent.say)(&format!(
            "{reason}: {} were subscribed, {} received",
            format::counted(run.subscribed, "client", "clients"),
            format::counted(run.received, "message", "messages"),
        ));
        self.ended = Some(end);
    }
}

impl ActiveRun {
    fn execute(&mut self, command: AgentCommand) -> Result<Value, String> {
        let pool = &self.pool;
        match command {
            AgentCommand::Update { published, refused, is_behind } => {
                let counters = pool.counters();
                for (stream, sequence) in refused {
                    counters.refused(stream, sequence);
                }
                for (stream, sequence) in published {
                    counters.published(stream, sequence);
                }
                pool.counters_updated(is_behind);
            }
            AgentCommand::Clients(ClientCommand::Ramp { to, .. }) if to > self.clients_max => {
                return Err("it has agreed to fewer clients".to_owned());
            }
            AgentCommand::Clients(command) => pool.command(command),
            AgentCommand::Counts => return reply(self.counts()),
            AgentCommand::Cost => return reply(self.cost()),
            AgentCommand::Publishes { until_ns } => return reply(pool.publishes(until_ns)),
            AgentCommand::Audit => return reply(pool.audit(publish::sent(&pool.counters()))),
            AgentCommand::Clock | AgentCommand::Begin(_) | AgentCommand::End => {
                return Err("it takes part already".to_owned());
            }
        }
        reply(())
    }

    fn counts(&mut self) -> ClientCounts {
        let counts = self.pool.counts();
        self.subscribed += counts.subscribed;
        self.received += counts.received;
        counts
    }

    fn cost(&mut self) -> AgentCost {
        let now = self.resources.read();
        AgentCost {
            busiest: self.pool.busiest(),
            cpu_s: now.generator_cpu_s_since(&self.start),
            pss_bytes: now.generator_pss_bytes,
        }
    }
}

fn reply(value: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// A panic with one of these locks held leaves its value whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
