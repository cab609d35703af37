//! `throng flood agent`: waits for a coordinator, and runs a pool of clients for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use throng_host::proc;

use super::counts::{WireCounts, WireDeliveries};
use super::message::{AgentCommand, AgentCost, AgentInfo, BeginRun, Discovery, Reply, RunCommand};
use super::nats::{Group, NatsConnection, encode};
use super::split::AgentShare;
use super::{AgentsError, VERSION, clock};
use crate::clients::{ClientPool, ClientShare, PublishDeliveries};
use crate::counts::ClientCounts;
use crate::marker::now_ns;
use crate::plan::Plan;
use crate::publish;
use throng_units::format;

/// A coordinator sends a command at least once a second. After this time without one it is gone,
/// and the agent closes its clients.
const COORDINATOR_LOST: Duration = Duration::from_secs(15);

/// How often the agent checks whether to stop.
const STEP: Duration = Duration::from_millis(100);

/// How long the last reply may take to reach the NATS server.
const LAST_REPLY_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of deliveries in one reply: well below the 1 MiB that a NATS server accepts.
const ANSWER_BYTES_MAX: usize = 400_000;

/// How often memory is read; reading it blocks the process.
const MEMORY_EVERY: Duration = Duration::from_secs(5);

/// The options of an agent.
pub(crate) struct AgentOptions<'a> {
    /// The NATS server.
    pub(crate) nats: &'a str,
    /// The group whose coordinators it serves.
    pub group: &'a str,
    /// The agent's name in reports; host name and process id by default.
    pub name: Option<String>,
    /// Whether it ends after the first run.
    pub is_once: bool,
    /// Turns the text of a plan into this machine's part of it, or says why that is impossible.
    pub plan: &'a dyn Fn(&str, AgentShare) -> Result<Plan, String>,
    /// Prints one line about what happens.
    pub say: &'a dyn Fn(&str),
    /// Called often. Whether to end.
    pub is_stopped: &'a dyn Fn() -> bool,
}

/// How an agent ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentEnd {
    /// After its run, or because it was stopped.
    Done,
    /// Without its coordinator.
    Lost,
}

/// Serves coordinators until it is stopped, or for one run.
pub(crate) fn serve(options: &AgentOptions<'_>) -> Result<AgentEnd, AgentsError> {
    let group = Group::new(options.group)?;
    let nats = NatsConnection::connect(options.nats)?;
    let id = unique_id();
    let host = clock::host_name();
    let pid = std::process::id();
    let name = options.name.clone().unwrap_or_else(|| format!("{host}-{pid}"));
    let mut agent = Agent { options, name, host, id, active: None };
    nats.runtime.block_on(async {
        let client = &nats.client;
        let subscribe = |subject: String| client.subscribe(subject);
        let refuse = |error: async_nats::SubscribeError| nats.server_error(error);
        let calls = subscribe(group.call()).await.map_err(refuse)?;
        let commands = subscribe(group.agent(&agent.id)).await.map_err(refuse)?;
        client.flush().await.map_err(|error| nats.server_error(error))?;
        (options.say)(&format!(
            "agent {} waits for a coordinator at {} in group {:?}",
            agent.name,
            nats.url,
            group.name()
        ));
        let ended = agent.listen(&nats, calls, commands).await;
        // The last reply is on its way, unless the NATS server is gone.
        let _ = tokio::time::timeout(LAST_REPLY_TIME_MAX, client.flush()).await;
        ended
    })
}

/// An id that no other agent has.
fn unique_id() -> String {
    // Process id and time are unique on a machine, and machines differ in name or boot id.
    let machine = format!("{}{}", clock::boot_id(), clock::host_name());
    let hash = machine.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}-{:x}-{:x}", std::process::id(), now_ns())
}

struct Agent<'a> {
    options: &'a AgentOptions<'a>,
    name: String,
    host: String,
    id: String,
    active: Option<ActiveRun>,
}

/// The run that the agent takes part in.
struct ActiveRun {
    run: u32,
    pool: ClientPool,
    asked_at: Instant,
    /// Deliveries that did not fit into the last reply.
    rest: VecDeque<PublishDeliveries>,
    memory_at: Option<Instant>,
    /// Processor time of the process before the run.
    cpu_before_ns: u64,
    subscribed: u64,
    received: u64,
}

impl Agent<'_> {
    async fn listen(
        &mut self,
        nats: &NatsConnection,
        mut calls: Subscriber,
        mut commands: Subscriber,
    ) -> Result<AgentEnd, AgentsError> {
        let mut step = tokio::time::interval(STEP);
        loop {
            let (message, is_call) = tokio::select! {
                message = calls.next() => (message, true),
                message = commands.next() => (message, false),
                _ = step.tick() => {
                    if (self.options.is_stopped)() {
                        return Ok(AgentEnd::Done);
                    }
                    if self.is_coordinator_lost() && self.options.is_once {
                        return Ok(AgentEnd::Lost);
                    }
                    continue;
                }
            };
            let Some(message) = message else {
                return Err(nats.server_error("the connection was closed"));
            };
            let Some(reply) = message.reply.clone() else { continue };
            let (answer, is_over) =
                if is_call { (self.called(&message), false) } else { self.asked(&message) };
            let Some(answer) = answer else { continue };
            let sent = nats.client.publish(reply, answer.into()).await;
            sent.map_err(|error| nats.server_error(error))?;
            if is_over && self.options.is_once {
                return Ok(AgentEnd::Done);
            }
        }
    }

    /// Ends a run whose coordinator is gone.
    fn is_coordinator_lost(&mut self) -> bool {
        let is_late = |active: &ActiveRun| active.asked_at.elapsed() >= COORDINATOR_LOST;
        if !self.active.as_ref().is_some_and(is_late) {
            return false;
        }
        let clients = self.end_run();
        (self.options.say)(&format!(
            "the coordinator has not asked for {} s: {clients}",
            COORDINATOR_LOST.as_secs()
        ));
        true
    }

    fn called(&mut self, message: &Message) -> Option<Vec<u8>> {
        let call: Discovery = serde_json::from_slice(&message.payload).ok()?;
        if call.version != VERSION {
            (self.options.say)(&format!(
                "a coordinator of version {} ({}) called; this is version {VERSION} ({}): run the \
                 same one on all machines",
                call.version,
                call.program,
                env!("CARGO_PKG_VERSION"),
            ));
        }
        Some(encode(&AgentInfo {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            id: self.id.clone(),
            name: self.name.clone(),
            host: self.host.clone(),
            boot_id: clock::boot_id(),
            is_busy: self.active.is_some(),
        }))
    }

    /// The reply, and whether the run ends with it.
    fn asked(&mut self, message: &Message) -> (Option<Vec<u8>>, bool) {
        let command: RunCommand = match serde_json::from_slice(&message.payload) {
            Ok(command) => command,
            Err(error) => {
                let words = format!("the command cannot be read: {error}");
                return (Some(encode(&Reply::Refused(words))), false);
            }
        };
        if self.active.as_ref().is_some_and(|active| active.run != command.run) {
            return (Some(encode(&Reply::Refused("it takes part in another run".into()))), false);
        }
        let is_over = matches!(command.command, AgentCommand::End);
        let answer = match command.command {
            AgentCommand::Clock => {
                self.active.iter_mut().for_each(|active| active.asked_at = Instant::now());
                Reply::Clock { now_ns: now_ns() }
            }
            AgentCommand::Begin(begin) => self.begin(command.run, &begin),
            AgentCommand::End => {
                if self.active.is_some() {
                    let clients = self.end_run();
                    (self.options.say)(&format!("the run is over: {clients}"));
                }
                Reply::Done
            }
            ask => match &mut self.active {
                Some(active) => active.answer(ask),
                None => Reply::Refused("it does not take part any more".to_owned()),
            },
        };
        (Some(encode(&answer)), is_over)
    }

    fn begin(&mut self, run: u32, begin: &BeginRun) -> Reply {
        let share_of_agent = AgentShare { agent: begin.agent, agents: begin.agents };
        let pool = (self.options.plan)(&begin.plan, share_of_agent).and_then(|plan| {
            let share = ClientShare {
                run,
                first: begin.agent,
                step: begin.agents,
                total: begin.clients,
                clock_ahead_ns: begin.clock_ahead_ns,
            };
            let own = plan.max_clients();
            ClientPool::start_share(&plan, own, share).map_err(|error| error.to_string())
        });
        let pool = match pool {
            Ok(pool) => pool,
            Err(reason) => {
                (self.options.say)(&format!("a run was refused: {reason}"));
                return Reply::Refused(reason);
            }
        };
        (self.options.say)(&format!(
            "run {run:08x}: agent {} of {}, up to {}",
            begin.agent + 1,
            begin.agents,
            format::counted(share_of_agent.of(begin.clients) as u64, "client", "clients"),
        ));
        self.active = Some(ActiveRun {
            run,
            pool,
            asked_at: Instant::now(),
            rest: VecDeque::new(),
            memory_at: None,
            cpu_before_ns: proc::cpu_ns(std::process::id()).unwrap_or_default(),
            subscribed: 0,
            received: 0,
        });
        Reply::Done
    }

    /// Ends the run. Returns a summary.
    fn end_run(&mut self) -> String {
        let Some(mut active) = self.active.take() else { return String::new() };
        active.count(&active.pool.counts());
        active.pool.stop();
        format!(
            "{} were subscribed, {} received",
            format::counted(active.subscribed, "client", "clients"),
            format::counted(active.received, "message", "messages"),
        )
    }
}

impl ActiveRun {
    fn answer(&mut self, command: AgentCommand) -> Reply {
        self.asked_at = Instant::now();
        let pool = &self.pool;
        match command {
            AgentCommand::Update { published, refused, has_more, is_behind } => {
                let counters = pool.counters();
                refused.iter().for_each(|&(stream, sequence)| counters.refused(stream, sequence));
                published
                    .iter()
                    .for_each(|&(stream, sequence)| counters.published(stream, sequence));
                if !has_more {
                    pool.counters_updated(is_behind);
                }
            }
            AgentCommand::Ramp { to, rate, in_flight } => pool.ramp(to, rate, in_flight),
            AgentCommand::Churn { rate } => pool.churn(rate),
            AgentCommand::Storm { in_flight } => pool.storm(in_flight),
            AgentCommand::Slow { share, is_slow } => pool.slow(share, is_slow),
            AgentCommand::Counts => {
                let counts = pool.counts();
                self.count(&counts);
                return Reply::Counts(Box::new(WireCounts::of(&counts)));
            }
            AgentCommand::Cost => return Reply::Cost(self.cost()),
            AgentCommand::Publishes { until_ns } => {
                let publishes = pool.publishes_until(until_ns);
                self.rest.extend(publishes);
                return self.publishes();
            }
            AgentCommand::MorePublishes => return self.publishes(),
            AgentCommand::Audit => {
                return Reply::Audit(pool.audit(publish::sent(&pool.counters())));
            }
            // Handled by the caller.
            AgentCommand::Clock | AgentCommand::Begin(_) | AgentCommand::End => {}
        }
        Reply::Done
    }

    fn count(&mut self, counts: &ClientCounts) {
        self.subscribed += counts.subscribed;
        self.received += counts.received;
    }

    fn cost(&mut self) -> AgentCost {
        let pid = std::process::id();
        let is_turn = self.memory_at.is_none_or(|at| at.elapsed() >= MEMORY_EVERY);
        if is_turn {
            self.memory_at = Some(Instant::now());
        }
        AgentCost {
            busiest: self.pool.busiest(),
            cpu_ns: proc::cpu_ns(pid).map(|ns| ns.saturating_sub(self.cpu_before_ns)),
            pss_bytes: is_turn.then(|| proc::pss_bytes(pid)).flatten(),
        }
    }

    /// As many deliveries as fit into a reply.
    fn publishes(&mut self) -> Reply {
        let (mut publishes, mut bytes) = (Vec::new(), 0);
        while bytes < ANSWER_BYTES_MAX
            && let Some(publish) = self.rest.pop_front()
        {
            let counts = WireDeliveries::of(&publish);
            bytes += counts.bytes();
            publishes.push(counts);
        }
        Reply::Publishes { publishes, has_more: !self.rest.is_empty() }
    }
}
