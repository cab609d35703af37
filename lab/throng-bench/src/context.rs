//! The context of a running benchmark: its server, its load, and its results so far.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use throng_flood::Observer;
use throng_flood::plan::{
    Network, Node, Options, Phase, Plan, PublishOptions, PublishTransport, ServerProcess, Streams,
    TargetOptions, TokenOptions, Transport,
};
use throng_flood::report::Report;
use throng_flood::report::live::{Live, Moment};
use throng_host::proc;
use throng_units::format::count;
use throng_units::{Count, Switch};

use crate::definition::{Definition, Size};
use crate::flood::{faults, losses};
use crate::results::{Outcome, Table};
use crate::server::upgrades::Upgrades;
use crate::server::{NO_SETTINGS, Server};

/// Flags of a server that sends only what is published: no heartbeats, no history.
pub(crate) const QUIET: &[&str] = &["--heartbeat", "0", "--history-messages", "0"];

/// Flags of a server with a TLS listener beside its plain one, and without heartbeats. Its
/// certificate has a key on P-256 (ECDSA).
pub(crate) const WITH_TLS: &[&str] =
    &["--heartbeat", "0", "--dev-tls", "--tls-listen", "127.0.0.1:0"];

/// Why a benchmark ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Abort {
    /// An error, in one sentence.
    Failed(String),
    /// Ctrl-C or a signal.
    Interrupted,
}

/// A benchmark that can be run.
pub(crate) struct Benchmark {
    /// Its name, story, measurements and size.
    pub(crate) definition: &'static Definition,
    /// Runs it against the server of the context, and records the results there.
    pub(crate) run: fn(&mut Context<'_>) -> Result<(), Abort>,
}

/// The context of a running benchmark.
pub(crate) struct Context<'a> {
    /// The size of the run, or of the current step.
    pub(crate) size: Size,
    /// Results so far.
    pub(crate) outcome: Outcome,
    network: Network,
    program: &'a Path,
    is_stopped: &'a AtomicBool,
    server: Option<Server>,
    choice: Choice,
}

/// What was asked for on the command line beside the size, for those benchmarks that heed it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The parts of the benchmark that run; all if it is empty.
    pub(crate) parts: Vec<String>,
    /// The nats-server to start, instead of that in PATH.
    pub(crate) nats_server: Option<PathBuf>,
    /// Whether nothing runs on three nats-servers.
    pub(crate) is_single: bool,
}

/// The load of a flood, apart from its phases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    /// How clients receive messages.
    pub(crate) transport: Transport,
    /// Which channels clients follow.
    pub(crate) streams: Streams,
    /// Template of the subscription path; by default the profile's.
    pub(crate) path: Option<&'a str>,
    /// Template of a request header that names what a client follows, if the path does not.
    pub(crate) follows: Option<&'a str>,
    /// Template of the path that messages are published to; by default that of the subscription.
    pub(crate) publish: Option<&'a str>,
    /// Template of the message, which contains `{payload}`; by default the payload alone.
    pub(crate) body: Option<&'a str>,
    /// Whether to publish over a WebSocket, as in a chat, instead of HTTP.
    pub(crate) by_websocket: bool,
    /// Number of publishing connections.
    pub(crate) publishers: usize,
    /// WebSocket subprotocol; by default plain frames.
    pub(crate) subprotocol: Option<&'a str>,
    /// The tokens that clients show; by default none.
    pub(crate) tokens: Option<&'a TokenOptions>,
    /// Whether clients and publishers speak TLS; the server has to, too. They accept any
    /// certificate.
    pub(crate) is_tls: bool,
    /// Publish requests in flight on a connection.
    pub(crate) pipeline: usize,
    /// Base URL of another server, which clients connect to first; when it closes their
    /// connections, they come back to that of the context.
    pub(crate) first: Option<&'a str>,
    /// The nodes that are loaded together instead of the server of the context.
    pub(crate) nodes: Option<Nodes<'a>>,
    /// Whether connections and publishes may fail, since the benchmark ends what they need; lost
    /// messages are faults all the same. Clients whose connections end come back.
    pub(crate) may_fail: bool,
}

/// Nodes of one service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nodes<'a> {
    /// Base URL of the first one.
    pub(crate) url: &'a str,
    /// All others, which share its channels.
    pub(crate) others: &'a [Node],
    /// The nodes that clients come back to, if not to their own.
    pub(crate) failover: &'a [Node],
    /// The processes whose resources are measured.
    pub(crate) pids: &'a [u32],
}

/// Looks at a flood while it runs.
pub(crate) trait Watch {
    /// Is called once a second.
    fn on_moment(&mut self, _moment: &Moment<'_>) {}

    /// Is called often, on the main thread. Why the flood has to end, in a sentence.
    fn step(&mut self) -> Option<String> {
        None
    }
}

/// Looks at it once a second.
struct EachSecond<'a>(&'a mut dyn FnMut(&Moment<'_>));

impl Watch for EachSecond<'_> {
    fn on_moment(&mut self, moment: &Moment<'_>) {
        (self.0)(moment);
    }
}

impl Load<'_> {
    /// All clients follow one channel.
    pub(crate) fn of(transport: Transport) -> Load<'static> {
        Load {
            transport,
            streams: Streams::One,
            path: None,
            follows: None,
            publish: None,
            body: None,
            by_websocket: false,
            publishers: 1,
            subprotocol: None,
            tokens: None,
            is_tls: false,
            pipeline: 1,
            first: None,
            nodes: None,
            may_fail: false,
        }
    }
}

/// Shows the live view of a flood, and ends the flood if the server has exited.
struct Screen<'a, 'b> {
    live: Live,
    is_stopped: &'a AtomicBool,
    /// `None` if others are loaded.
    server: Option<&'a mut Server>,
    ended: Option<String>,
    watch: &'a mut (dyn Watch + 'b),
}

impl Observer for Screen<'_, '_> {
    fn on_sample(&mut self, moment: &Moment<'_>) {
        self.live.show(&mut io::stderr(), moment);
        self.watch.on_moment(moment);
    }

    fn should_stop(&mut self) -> bool {
        if self.ended.is_none() {
            let ended = self.server.as_mut().and_then(|server| server.ended());
            let ended = ended.map(|how| format!("the server is gone: it {how}"));
            self.ended = ended.or_else(|| self.watch.step());
        }
        self.ended.is_some() || self.is_stopped.load(Ordering::Relaxed)
    }
}

impl<'a> Context<'a> {
    /// A context for a run of `size`. `program` is started as the server; Ctrl-C sets `is_stopped`.
    pub(crate) fn new(
        benchmark: &Definition,
        size: Size,
        outcome: Outcome,
        program: &'a Path,
        is_stopped: &'a AtomicBool,
    ) -> Context<'a> {
        let network = benchmark.scope.network;
        let choice = Choice::default();
        Context { size, outcome, network, program, is_stopped, server: None, choice }
    }

    /// The same, for what else was asked for.
    pub(crate) fn choosing(self, choice: Choice) -> Context<'a> {
        Context { choice, ..self }
    }

    /// What else was asked for.
    pub(crate) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Runs `step` with `clients` as the size. Warnings and failures of the step name its size.
    pub(crate) fn step<T>(
        &mut self,
        clients: usize,
        step: impl FnOnce(&mut Context<'a>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let whole = std::mem::replace(&mut self.size.connections, clients);
        let done = self.labelled(&format!("at {}", count(clients as u64)), step);
        self.size.connections = whole;
        done
    }

    /// Runs `step`, and puts `label` before its warnings and failures.
    pub(crate) fn labelled<T>(
        &mut self,
        label: &str,
        step: impl FnOnce(&mut Context<'a>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let before = (self.outcome.warnings.len(), self.outcome.reasons.len());
        let done = step(self);
        let labelled = |message: &str| format!("{label}: {message}");
        let (warnings, reasons) = (&mut self.outcome.warnings, &mut self.outcome.reasons);
        let new = warnings[before.0..].iter_mut().chain(&mut reasons[before.1..]);
        new.for_each(|message| *message = labelled(message));
        done.map_err(|abort| match abort {
            Abort::Failed(reason) => Abort::Failed(labelled(&reason)),
            Abort::Interrupted => Abort::Interrupted,
        })
    }

    /// Starts a server with capacity for all clients; stops the previous one first.
    pub(crate) fn serve(&mut self, flags: &[&str]) -> Result<(), Abort> {
        self.serve_with(NO_SETTINGS.as_ref(), flags)
    }

    /// [`serve`](Self::serve) with the settings of a file as well.
    pub(crate) fn serve_with(&mut self, settings: &Path, flags: &[&str]) -> Result<(), Abort> {
        self.server = None;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let server = Server::start(self.program, self.size.connections, settings, &flags)
            .map_err(Abort::Failed)?;
        self.outcome.servers.push(flags.join(" "));
        eprintln!("a server with {}: process {}", self.size.text(), server.pid());
        self.server = Some(server);
        Ok(())
    }

    /// Starts a server that stays beside that of the context.
    pub(crate) fn serve_beside(&mut self, flags: &[&str]) -> Result<Server, Abort> {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let (connections, settings) = (self.size.connections, NO_SETTINGS.as_ref());
        let server = Server::start(self.program, connections, settings, &flags);
        let server = server.map_err(Abort::Failed)?;
        self.outcome.servers.push(flags.join(" "));
        eprintln!("a server with {}: process {}", self.size.text(), server.pid());
        Ok(server)
    }

    /// Stops the server.
    pub(crate) fn stop_server(&mut self) {
        self.server = None;
    }

    /// Kills the server, as a crash would.
    pub(crate) fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Memory of the server, in bytes.
    pub(crate) fn memory(&self) -> Option<f64> {
        proc::pss_bytes(self.pid()?).map(|bytes| bytes as f64)
    }

    /// Processor time that the server has taken, in seconds.
    pub(crate) fn cpu_s(&self) -> Option<f64> {
        proc::cpu_ns(self.pid()?).map(|ns| ns as f64 / 1e9)
    }

    /// Base URL of the server, without a trailing slash.
    pub(crate) fn url(&self) -> String {
        self.server.as_ref().map_or_else(String::new, |server| server.url().to_owned())
    }

    /// Base URL of the server's TLS listener, without a trailing slash.
    fn tls_url(&self) -> String {
        self.server.as_ref().and_then(Server::tls_url).map_or_else(String::new, str::to_owned)
    }

    /// The program that is started as the server.
    pub(crate) fn program(&self) -> &'a Path {
        self.program
    }

    /// Process id of the server.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Upgrades the server, which runs.
    pub(crate) fn upgrades(&self) -> Option<Upgrades> {
        self.server.as_ref().map(Server::upgrades)
    }

    /// Fails if the benchmark was interrupted or the server has exited.
    pub(crate) fn check(&mut self) -> Result<(), Abort> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Abort::Interrupted);
        }
        match self.server.as_mut().and_then(Server::ended) {
            Some(how) => Err(Abort::Failed(format!("the server is gone: it {how}"))),
            None => Ok(()),
        }
    }

    /// Runs phases against the server. Faults of the run fail the benchmark; errors that leave no
    /// report end it.
    pub(crate) fn flood(&mut self, load: &Load<'_>, phases: Vec<Phase>) -> Result<Report, Abort> {
        self.flood_with(load, phases, &mut |_| {})
    }

    /// [`flood`](Self::flood) with a callback once a second.
    pub(crate) fn flood_with(
        &mut self,
        load: &Load<'_>,
        phases: Vec<Phase>,
        on_moment: &mut dyn FnMut(&Moment<'_>),
    ) -> Result<Report, Abort> {
        self.flood_watched(load, phases, &mut EachSecond(on_moment))
    }

    /// [`flood`](Self::flood), looked at while it runs.
    pub(crate) fn flood_watched(
        &mut self,
        load: &Load<'_>,
        phases: Vec<Phase>,
        watch: &mut dyn Watch,
    ) -> Result<Report, Abort> {
        self.check()?;
        let options = self.options(load, phases);
        let server = self.server.as_mut().filter(|_| load.nodes.is_none());
        if server.is_none() && load.nodes.is_none() {
            return Err(Abort::Failed("there is no server".to_owned()));
        }
        let plan = plan(options)?;
        let mut screen = Screen {
            live: Live::on(&io::stderr()),
            is_stopped: self.is_stopped,
            server,
            ended: None,
            watch,
        };
        let report = throng_flood::run(plan, &mut screen);
        screen.live.end();
        let ended = screen.ended.take();
        self.outcome.floods.push(report.clone());
        self.conclude(&report, ended, load.may_fail)?;
        Ok(report)
    }

    fn options(&self, load: &Load<'_>, phases: Vec<Phase>) -> Options {
        let by = load.by_websocket.then_some(PublishTransport::WebSocket);
        let by = by.or(load.publish.map(|_| PublishTransport::Http));
        let own = if load.is_tls { self.tls_url() } else { self.url() };
        let nodes = load.nodes;
        let base = load.first.or(nodes.map(|nodes| nodes.url)).unwrap_or(&own);
        let failover = load.first.and_then(|_| Some(vec![own.split_once("://")?.1.parse().ok()?]));
        let pids = match nodes {
            Some(nodes) => Some(nodes.pids.to_vec()),
            None => self.pid().map(|pid| vec![pid]),
        };
        Options {
            name: Some(self.outcome.name.clone()),
            target: TargetOptions {
                url: Some(format!("{base}{}", load.path.unwrap_or_default())),
                transport: Some(load.transport),
                streams: Some(load.streams),
                subprotocol: load.subprotocol.map(str::to_owned),
                insecure: load.is_tls.then_some(Switch(true)),
                nodes: nodes.map(|nodes| nodes.others.to_vec()),
                failover: failover.or(nodes.map(|nodes| nodes.failover.to_vec())),
                headers: load.follows.and_then(|header| header.parse().ok()).map(|one| vec![one]),
                ..TargetOptions::default()
            },
            publish: PublishOptions {
                by,
                url: load.publish.map(|path| format!("{base}{path}")),
                body: load.body.or(load.publish.map(|_| "{payload}")).map(str::to_owned),
                connections: Some(Count(load.publishers)),
                pipeline: Some(Count(load.pipeline)),
                ..PublishOptions::default()
            },
            tokens: load.tokens.cloned().unwrap_or_default(),
            keep: (load.first.is_some() || load.may_fail).then_some(Switch(true)),
            network: Some(self.network),
            phases: Some(phases),
            server_pid: pids.map(ServerProcess::Ids),
            ..Options::default()
        }
    }

    /// Records the faults and warnings of a flood.
    fn conclude(
        &mut self,
        report: &Report,
        ended: Option<String>,
        may_fail: bool,
    ) -> Result<(), Abort> {
        if let Some(how) = ended {
            let phase = report.phases.last().map_or("first", |phase| &phase.name);
            return Err(Abort::Failed(format!("{how} in the middle of the phase {phase:?}")));
        }
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Abort::Interrupted);
        }
        if let Some(reason) = &report.cut_short {
            return Err(Abort::Failed(format!("the run ended early: {reason}")));
        }
        for warning in &report.warnings {
            if !self.outcome.warnings.contains(warning) {
                self.outcome.warnings.push(warning.clone());
            }
        }
        let found = if may_fail { losses(&report.total) } else { faults(&report.total) };
        found.into_iter().for_each(|fault| self.outcome.fail(fault));
        Ok(())
    }

    /// Records the value of a measurement, and the number of connections it was taken with. A
    /// `None` leaves it absent.
    pub(crate) fn record(&mut self, key: &str, value: Option<f64>, connections: usize) {
        let measurement =
            self.outcome.measurements.iter_mut().find(|measurement| measurement.key == key);
        debug_assert!(measurement.is_some(), "{key} is not a measurement of the benchmark");
        if let (Some(measurement), Some(value)) = (measurement, value) {
            measurement.set(value, connections);
        }
    }

    /// [Records](Self::record) several measurements.
    pub(crate) fn record_all<const N: usize>(
        &mut self,
        values: [(&str, Option<f64>); N],
        connections: usize,
    ) {
        values.into_iter().for_each(|(key, value)| self.record(key, value, connections));
    }

    /// Adds a table of values by size or step.
    pub(crate) fn table(&mut self, title: &str, columns: &[&str], rows: Vec<Vec<Option<f64>>>) {
        self.outcome.tables.push(Table {
            title: title.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows,
        });
    }
}

/// The plan of these options. A benchmark whose plan is invalid is aborted.
pub(crate) fn plan(options: Options) -> Result<Plan, Abort> {
    options.into_plan().map_err(|errors| {
        let lines = errors.iter().map(|error| format!("{}: {}", error.key, error.message));
        Abort::Failed(lines.collect::<Vec<_>>().join("; "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::ALL;

    #[test]
    fn messages_of_a_step_name_its_size() {
        let benchmark = ALL[0].definition;
        let size = Size { connections: 100_000, ..benchmark.scope.size };
        let outcome = Outcome::of(benchmark, &size, 0);
        let never = AtomicBool::new(false);
        let mut context = Context::new(benchmark, size, outcome, Path::new("/bin/false"), &never);
        context.outcome.warnings.push("before".to_owned());
        let done = context.step(30_000, |context| {
            context.outcome.warnings.push("hold 2 s: late".to_owned());
            context.outcome.fail("1 of 2 deliveries: lost");
            Ok(context.size.connections)
        });
        assert_eq!(done, Ok(30_000));
        assert_eq!(context.size.connections, 100_000);
        assert_eq!(context.outcome.warnings, ["before", "at 30,000: hold 2 s: late"]);
        assert_eq!(context.outcome.reasons, ["at 30,000: 1 of 2 deliveries: lost"]);
        let abort = context.step(7, |context| context.serve(QUIET)).expect_err("no server");
        let Abort::Failed(reason) = abort else { panic!("{abort:?}") };
        assert!(reason.starts_with("at 7: the server did not start"), "{reason}");
    }
}
