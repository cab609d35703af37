//! What a benchmark has while it runs: a server, clients, and places for what it finds.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_flood::plan::{
    Network, Options, Phase, PublishOptions, PublishTransport, ServerProcess, Streams,
    TargetOptions, Transport,
};
use throng_flood::report::Report;
use throng_flood::report::live::{Live, Moment};
use throng_flood::runner::Observer;
use throng_units::Count;
use throng_units::format::count;

use crate::benchmark::{Benchmark, Size};
use crate::measures::faults;
use crate::results::{Outcome, Table};
use crate::server::Server;

/// Flags of a server that sends nothing but what is published: no heartbeats, and no history.
pub const QUIET: &[&str] = &["--heartbeat", "0", "--history-messages", "0"];

/// Why a benchmark cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// In one sentence.
    Failed(String),
    /// By the wish of whoever started it.
    Interrupted,
}

impl From<String> for Cut {
    fn from(reason: String) -> Cut {
        Cut::Failed(reason)
    }
}

/// What a benchmark has while it runs.
pub struct Stage<'a> {
    /// How much is asked for.
    pub size: Size,
    /// What is found.
    pub outcome: Outcome,
    network: Network,
    program: &'a Path,
    is_stopped: &'a AtomicBool,
    server: Option<Server>,
}

/// What a flood of a benchmark does besides its phases.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// How messages come.
    pub transport: Transport,
    /// Who follows what.
    pub streams: Streams,
    /// Path of a subscription, a template; the profile's channels unless given.
    pub path: Option<&'a str>,
    /// Text around each message; `{payload}` stands for the message.
    pub body: Option<&'a str>,
    /// Messages go over a WebSocket, as those of a chat do, and not by HTTP.
    pub by_websocket: bool,
    /// Publishing connections.
    pub publishers: usize,
    /// What WebSockets speak; plain frames unless given.
    pub subprotocol: Option<&'a str>,
}

impl Load<'_> {
    /// All clients follow one channel.
    pub fn of(transport: Transport) -> Load<'static> {
        Load {
            transport,
            streams: Streams::One,
            path: None,
            body: None,
            by_websocket: false,
            publishers: 1,
            subprotocol: None,
        }
    }
}

/// Shows a flood while it goes, and ends it if the server is gone.
struct Screen<'a, 'b> {
    live: Live,
    is_stopped: &'a AtomicBool,
    server: &'a mut Server,
    ended: Option<String>,
    on_moment: &'a mut (dyn FnMut(&Moment<'_>) + 'b),
}

impl Observer for Screen<'_, '_> {
    fn on_sample(&mut self, moment: &Moment<'_>) {
        self.live.show(&mut io::stderr(), moment);
        (self.on_moment)(moment);
    }

    fn should_stop(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.server.ended();
        }
        self.ended.is_some() || self.is_stopped.load(Ordering::Relaxed)
    }
}

impl<'a> Stage<'a> {
    /// For a benchmark of a size, with what is known of it; `program` serves, `is_stopped` is set
    /// by Ctrl-C.
    pub fn new(
        benchmark: &Benchmark,
        size: Size,
        outcome: Outcome,
        program: &'a Path,
        is_stopped: &'a AtomicBool,
    ) -> Stage<'a> {
        let network = benchmark.scope.network;
        Stage { size, outcome, network, program, is_stopped, server: None }
    }

    /// Does a step of the benchmark as if so many clients were all of it. What goes wrong or is
    /// doubtful meanwhile says at which step.
    pub fn step<T>(
        &mut self,
        clients: usize,
        of: impl FnOnce(&mut Stage<'a>) -> Result<T, Cut>,
    ) -> Result<T, Cut> {
        let whole = std::mem::replace(&mut self.size.connections, clients);
        let before = (self.outcome.warnings.len(), self.outcome.reasons.len());
        let done = of(self);
        self.size.connections = whole;
        let at = |sentence: &str| format!("at {}: {sentence}", count(clients as u64));
        let (warnings, reasons) = (&mut self.outcome.warnings, &mut self.outcome.reasons);
        let new = warnings[before.0..].iter_mut().chain(&mut reasons[before.1..]);
        new.for_each(|sentence| *sentence = at(sentence));
        done.map_err(|cut| match cut {
            Cut::Failed(reason) => Cut::Failed(at(&reason)),
            Cut::Interrupted => Cut::Interrupted,
        })
    }

    /// Starts a server with room for all clients, instead of the one before.
    pub fn serve(&mut self, flags: &[&str]) -> Result<(), Cut> {
        self.server = None;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let server = Server::start(self.program, self.size.connections, &flags)?;
        self.outcome.servers.push(flags.join(" "));
        eprintln!("a server with {}: process {}", self.size.words(), server.pid());
        self.server = Some(server);
        Ok(())
    }

    /// Ends the server.
    pub fn end_server(&mut self) {
        self.server = None;
    }

    /// Where the server is, without a slash at the end.
    pub fn url(&self) -> String {
        self.server.as_ref().map_or_else(String::new, |server| server.url().to_owned())
    }

    /// The server's process.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Whether the benchmark is to go on: nobody has stopped it, and the server is there.
    pub fn check(&mut self) -> Result<(), Cut> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Cut::Interrupted);
        }
        match self.server.as_mut().and_then(Server::ended) {
            Some(how) => Err(Cut::Failed(format!("the server is gone: it {how}"))),
            None => Ok(()),
        }
    }

    /// Runs phases against the server. What goes wrong makes the benchmark fail; if nothing more
    /// can come of it, it ends here.
    pub fn flood(&mut self, load: &Load<'_>, phases: Vec<Phase>) -> Result<Report, Cut> {
        self.flood_with(load, phases, &mut |_| {})
    }

    /// [`flood`](Self::flood), and tells `on_moment` once a second how it stands.
    pub fn flood_with(
        &mut self,
        load: &Load<'_>,
        phases: Vec<Phase>,
        on_moment: &mut dyn FnMut(&Moment<'_>),
    ) -> Result<Report, Cut> {
        self.check()?;
        let options = self.options(load, phases);
        let Some(server) = self.server.as_mut() else {
            return Err(Cut::Failed("there is no server".to_owned()));
        };
        let plan = options.into_plan().map_err(|errors| {
            let said = errors.iter().map(|each| format!("{}: {}", each.key, each.message));
            Cut::Failed(said.collect::<Vec<_>>().join("; "))
        })?;
        let mut screen = Screen {
            live: Live::on(&io::stderr()),
            is_stopped: self.is_stopped,
            server,
            ended: None,
            on_moment,
        };
        let report = throng_flood::run::run(plan, &mut screen);
        screen.live.end();
        let ended = screen.ended.take();
        self.outcome.floods.push(report.clone());
        self.conclude(&report, ended)?;
        Ok(report)
    }

    fn options(&self, load: &Load<'_>, phases: Vec<Phase>) -> Options {
        let by = load.by_websocket.then_some(PublishTransport::WebSocket);
        Options {
            name: Some(self.outcome.name.clone()),
            target: TargetOptions {
                url: Some(format!("{}{}", self.url(), load.path.unwrap_or_default())),
                transport: Some(load.transport),
                streams: Some(load.streams),
                subprotocol: load.subprotocol.map(str::to_owned),
                ..TargetOptions::default()
            },
            publish: PublishOptions {
                by,
                body: load.body.map(str::to_owned),
                connections: Some(Count(load.publishers)),
                ..PublishOptions::default()
            },
            network: Some(self.network),
            phases: Some(phases),
            server_pid: self.pid().map(|pid| ServerProcess::Ids(vec![pid])),
            ..Options::default()
        }
    }

    /// What went wrong in a flood.
    fn conclude(&mut self, report: &Report, ended: Option<String>) -> Result<(), Cut> {
        if let Some(how) = ended {
            let phase = report.phases.last().map_or("first", |phase| &phase.name);
            return Err(Cut::Failed(format!(
                "the server is gone: it {how} in the middle of the phase {phase:?}"
            )));
        }
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Cut::Interrupted);
        }
        if let Some(reason) = &report.cut_short {
            return Err(Cut::Failed(format!("the run ended early: {reason}")));
        }
        for warning in &report.warnings {
            if !self.outcome.warnings.contains(warning) {
                self.outcome.warnings.push(warning.clone());
            }
        }
        for fault in faults(&report.total) {
            self.outcome.fail(fault);
        }
        Ok(())
    }

    /// What was measured, with so many connections. What could not be measured stays absent.
    pub fn figure(&mut self, key: &str, value: Option<f64>, connections: usize) {
        let figure = self.outcome.figures.iter_mut().find(|figure| figure.key == key);
        debug_assert!(figure.is_some(), "{key} is no figure of the benchmark");
        if let (Some(figure), Some(value)) = (figure, value) {
            figure.set(value, connections);
        }
    }

    /// Several [figures](Self::figure) of as many connections.
    pub fn figures<const N: usize>(
        &mut self,
        values: [(&str, Option<f64>); N],
        connections: usize,
    ) {
        values.into_iter().for_each(|(key, value)| self.figure(key, value, connections));
    }

    /// Measures by size or step.
    pub fn table(&mut self, title: &str, columns: &[&str], rows: Vec<Vec<Option<f64>>>) {
        self.outcome.tables.push(Table {
            title: title.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::ALL;

    #[test]
    fn what_goes_wrong_in_a_step_names_it() {
        let benchmark = ALL[0];
        let size = Size { connections: 100_000, ..benchmark.scope.size };
        let outcome = Outcome::of(benchmark, &size, 0);
        let never = AtomicBool::new(false);
        let mut stage = Stage::new(benchmark, size, outcome, Path::new("/bin/false"), &never);
        stage.outcome.warnings.push("before".to_owned());
        let done = stage.step(30_000, |stage| {
            stage.outcome.warnings.push("hold 2 s: doubtful".to_owned());
            stage.outcome.fail("1 of 2 deliveries: lost");
            Ok(stage.size.connections)
        });
        assert_eq!(done, Ok(30_000));
        assert_eq!(stage.size.connections, 100_000);
        assert_eq!(stage.outcome.warnings, ["before", "at 30,000: hold 2 s: doubtful"]);
        assert_eq!(stage.outcome.reasons, ["at 30,000: 1 of 2 deliveries: lost"]);
        let cut = stage.step(7, |stage| stage.serve(QUIET)).expect_err("no server");
        let Cut::Failed(reason) = cut else { panic!("{cut:?}") };
        assert!(reason.starts_with("at 7: the server did not start"), "{reason}");
    }
}
