//! The context of a running benchmark: its server, its load, and what it has measured so far.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use throng_flood::Observer;
use throng_flood::plan::Plan;
use throng_flood::report::Report;
use throng_flood::report::live::{Live, Moment};
use throng_host::proc;

use crate::background::Background;
use crate::directory::Directory;
use crate::expression::Figure;
use crate::faults::{faults, losses};
use crate::figures::{Figures, RunFigures};
use crate::file::{Benchmark, Run, Size};
use crate::plan::{self, Target};
use crate::results::Outcome;
use crate::server::upgrades::Upgrades;
use crate::server::{NO_SETTINGS, Server};

/// Why a benchmark ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Abort {
    /// An error, in one sentence.
    Failed(String),
    /// Ctrl-C or a signal.
    Interrupted,
}

impl From<String> for Abort {
    fn from(reason: String) -> Abort {
        Abort::Failed(reason)
    }
}

/// The options of the command line that apply to all benchmarks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The program that is started as the server.
    pub(crate) server: PathBuf,
    /// The runs to make, by name or by words of their names; all if it is empty.
    pub(crate) parts: Vec<String>,
    /// The nats-server to start, instead of that in PATH.
    pub(crate) nats_server: Option<PathBuf>,
    /// Nothing runs on three nats-servers.
    pub(crate) is_single: bool,
}

impl Choice {
    /// True if a run is to be made.
    pub(crate) fn has(&self, run: &Run) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| run.is(part))
    }
}

/// The context of a running benchmark.
pub(crate) struct Context<'a> {
    pub(crate) benchmark: &'a Benchmark,
    pub(crate) choice: &'a Choice,
    /// The size of the execution, or of the current run.
    pub(crate) size: Size,
    pub(crate) outcome: Outcome,
    pub(crate) figures: Figures,
    is_stopped: &'a AtomicBool,
    server: Option<Server>,
    /// Settings, keys and data of the server.
    directory: Option<Directory>,
}

/// The phase that holds the clients, in the plans of programs.
pub(crate) const HELD: usize = 2;

/// Looks at a load while it runs.
pub(crate) trait Watch {
    /// Is called once a second with the number of the phase, from 1.
    fn on_second(&mut self, _phase: usize) {}

    /// Is called often, on the main thread. Why the load has to end, in a sentence.
    fn step(&mut self) -> Option<String> {
        None
    }
}

/// Watches nothing.
impl Watch for () {}

/// Sends once, when the phase with this number has begun.
struct Begin(usize, Option<Sender<()>>);

impl Watch for Begin {
    fn on_second(&mut self, phase: usize) {
        if phase >= self.0 {
            // Nobody waits for it if the thread has panicked.
            let _ = self.1.take().map(|begin| begin.send(()));
        }
    }
}

/// Shows the live view of a load, and ends the load if the server has exited.
struct Screen<'a, 'b> {
    live: Live,
    is_stopped: &'a AtomicBool,
    /// `None` if others are loaded.
    server: Option<&'a mut Server>,
    background: &'a mut Background,
    watch: &'a mut (dyn Watch + 'b),
    ended: Option<String>,
}

impl Observer for Screen<'_, '_> {
    fn on_sample(&mut self, moment: &Moment<'_>) {
        self.live.show(&mut io::stderr(), moment);
        self.background.on_phase(moment.place.0);
        self.watch.on_second(moment.place.0);
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
    /// A context for an execution of `size`. Ctrl-C sets `is_stopped`.
    pub(crate) fn new(
        benchmark: &'a Benchmark,
        size: Size,
        choice: &'a Choice,
        is_stopped: &'a AtomicBool,
    ) -> Context<'a> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        Context {
            benchmark,
            choice,
            size,
            outcome: Outcome::of(benchmark, &size),
            figures: Figures { size, cores, runs: Vec::new() },
            is_stopped,
            server: None,
            directory: None,
        }
    }

    /// Runs `step` with `clients` as the size.
    pub(crate) fn step<T>(
        &mut self,
        clients: usize,
        step: impl FnOnce(&mut Context<'a>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let whole = std::mem::replace(&mut self.size.connections, clients);
        let done = step(self);
        self.size.connections = whole;
        done
    }

    /// Runs `step`, and puts `label`, unless it is empty, before its warnings and failures.
    pub(crate) fn labelled<T>(
        &mut self,
        label: &str,
        step: impl FnOnce(&mut Context<'a>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let before = (self.outcome.warnings.len(), self.outcome.reasons.len());
        let done = step(self);
        if label.is_empty() {
            return done;
        }
        let labelled = |message: &str| format!("{label}: {message}");
        let (warnings, reasons) = (&mut self.outcome.warnings, &mut self.outcome.reasons);
        let new = warnings[before.0..].iter_mut().chain(&mut reasons[before.1..]);
        new.for_each(|message| *message = labelled(message));
        done.map_err(|abort| match abort {
            Abort::Failed(reason) => Abort::Failed(labelled(&reason)),
            Abort::Interrupted => Abort::Interrupted,
        })
    }

    /// A part of the clients, of which the original had `part`.
    pub(crate) fn part(&self, part: usize) -> usize {
        let whole = self.benchmark.size.clients.max(1) as u128;
        let scaled = part as u128 * self.size.connections as u128 / whole;
        (scaled as usize).clamp(1, self.size.connections.max(1))
    }

    /// A number of a run, or of the benchmark; 0 if neither has it.
    pub(crate) fn number(&self, run: &Run, name: &str) -> f64 {
        let number = run.given(name).or(self.benchmark.numbers.get(name).copied());
        number.unwrap_or_default()
    }

    /// Starts the server of a run in a new directory; stops the previous one first.
    pub(crate) fn serve(&mut self, run: &Run) -> Result<(), Abort> {
        self.server = None;
        self.directory = Some(Directory::make(run, &self.choice.server)?);
        self.start(run)
    }

    /// Starts the server of a run in the directory of the previous one.
    pub(crate) fn start(&mut self, run: &Run) -> Result<(), Abort> {
        self.server = None;
        if run.raw {
            let threads = plan::number("max(senders, tables)", self.benchmark, self.size)?;
            let server = Server::start_raw(threads as usize)?;
            self.server = Some(self.announced(server, format!("raw loop, {threads} threads")));
            return Ok(());
        }
        let flags = self.benchmark.flags(run);
        let directory = self.directory.as_ref();
        let settings = directory.map_or(Path::new(NO_SETTINGS).to_owned(), Directory::settings);
        self.server = Some(self.launched(flags, &settings)?);
        Ok(())
    }

    /// Starts a server that stays beside that of the context.
    pub(crate) fn serve_beside(&mut self, flags: &[String]) -> Result<Server, Abort> {
        self.launched(flags, NO_SETTINGS.as_ref())
    }

    fn launched(&mut self, flags: &[String], settings: &Path) -> Result<Server, Abort> {
        let directory = settings.parent().unwrap_or(settings).to_string_lossy().into_owned();
        let number = |text: &str| plan::number(text, self.benchmark, self.size);
        let evaluated = |flag: &String| -> Result<String, String> {
            if let Some(text) = flag.strip_prefix('=') {
                return Ok(number(text)?.to_string());
            }
            let flag = flag.replace("{directory}", &directory);
            match flag.split_once('{').map(|(before, rest)| (before, rest.split_once('}'))) {
                Some((before, Some((text, after)))) => {
                    Ok(format!("{before}{}{after}", number(text)?))
                }
                _ => Ok(flag.clone()),
            }
        };
        let flags = flags.iter().map(evaluated).collect::<Result<Vec<_>, _>>()?;
        let clients = self.size.connections;
        let server = Server::start(&self.choice.server, clients, settings, &flags)?;
        Ok(self.announced(server, flags.join(" ")))
    }

    fn announced(&mut self, server: Server, flags: String) -> Server {
        self.outcome.servers.push(flags);
        eprintln!("a server with {}: process {}", self.size.text(), server.pid());
        server
    }

    pub(crate) fn stop_server(&mut self) {
        self.server = None;
    }

    /// Kills the server, as a crash would.
    pub(crate) fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Settings, keys and data of the server.
    pub(crate) fn directory(&self) -> Result<&Directory, Abort> {
        self.directory.as_ref().ok_or_else(|| Abort::Failed("there is no server".to_owned()))
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

    /// Process id of the server.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Upgrades the server, which runs.
    pub(crate) fn upgrades(&self) -> Option<Upgrades> {
        self.server.as_ref().map(Server::upgrades)
    }

    /// The server as the target of a run's load.
    pub(crate) fn target(&self, run: &Run) -> Target {
        let server = self.server.as_ref();
        let url =
            server.and_then(|server| if run.tls { server.tls_url() } else { Some(server.url()) });
        let mut nodes = server.map(Server::senders).unwrap_or_default().iter().cloned();
        let sender = nodes.next().map(|sender| format!("http://{sender}"));
        Target {
            url: sender.unwrap_or_else(|| url.unwrap_or_default().to_owned()),
            nodes: nodes.collect(),
            processes: self.pid().into_iter().collect(),
            ..Target::default()
        }
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

    /// The plan of a run's load.
    pub(crate) fn plan(&self, run: &Run, target: &Target) -> Result<Plan, Abort> {
        let text = plan::text(self.benchmark, run, self.size, target)?;
        // Files that it names are in the directory of the server.
        let settings = self.directory.as_ref().map(Directory::settings);
        Ok(Plan::from_toml(&settings.unwrap_or_default(), text)?)
    }

    /// Puts the load of a run on the server, and adds its figures to the current run.
    pub(crate) fn load(&mut self, run: &Run) -> Result<Report, Abort> {
        self.load_watched(run, &self.target(run), &mut ())
    }

    /// [`load`](Self::load) on a target, looked at while it runs. Faults fail the benchmark; errors
    /// that leave no report end it.
    pub(crate) fn load_watched(
        &mut self,
        run: &Run,
        target: &Target,
        watch: &mut dyn Watch,
    ) -> Result<Report, Abort> {
        self.check()?;
        let plan = self.plan(run, target)?;
        let names = run.phases();
        let mut background = Background::of(run, &self.url(), self.size.time);
        let own = self.server.as_mut().filter(|server| target.processes.contains(&server.pid()));
        let mut screen = Screen {
            live: Live::on(&io::stderr()),
            is_stopped: self.is_stopped,
            server: own,
            background: &mut background,
            watch,
            ended: None,
        };
        let report = throng_flood::run(plan, &mut screen);
        screen.live.end();
        let ended = screen.ended.take();
        if let Some(figures) = self.figures.runs.last_mut() {
            figures.add(&report, &names);
        }
        let beside = background.end();
        self.give_all(&beside.figures);
        self.outcome.warnings.extend(beside.warnings);
        self.outcome.floods.push(report.clone());
        self.conclude(run, &report, ended, target.may_fail)?;
        beside.faults.into_iter().for_each(|fault| self.outcome.fail(fault));
        Ok(report)
    }

    /// [`load_watched`](Self::load_watched) with `work` on another thread once the phase with this
    /// number has begun. `work` gets the news that the load is over.
    pub(crate) fn load_beside<T: Send>(
        &mut self,
        run: &Run,
        target: &Target,
        phase: usize,
        work: impl FnOnce(&AtomicBool) -> Result<T, String> + Send,
    ) -> Result<T, Abort> {
        let is_over = &AtomicBool::new(false);
        let (begin, begun) = channel::<()>();
        thread::scope(|scope| {
            let working = scope.spawn(move || begun.recv().is_ok().then(|| work(is_over)));
            let mut watch = Begin(phase, Some(begin));
            let report = self.load_watched(run, target, &mut watch);
            drop(watch);
            is_over.store(true, Ordering::Relaxed);
            let panicked = |_| Some(Err("a thread has panicked".to_owned()));
            match (report, working.join().unwrap_or_else(panicked)) {
                (Err(Abort::Interrupted), _) => Err(Abort::Interrupted),
                (_, Some(Err(reason))) => Err(reason.into()),
                (Err(abort), _) => Err(abort),
                (Ok(_), Some(done)) => Ok(done?),
                (Ok(_), None) => Err("the load was too short".to_owned().into()),
            }
        })
    }

    /// Begins a run: what is measured from now on belongs to it.
    pub(crate) fn begin(&mut self, name: &str) {
        self.figures.runs.push(RunFigures::new(name, self.size.connections));
    }

    /// Warns, unless it has been said before.
    pub(crate) fn warn(&mut self, warning: String) {
        if !self.outcome.warnings.contains(&warning) {
            self.outcome.warnings.push(warning);
        }
    }

    /// Adds figures of the current run, measured with all its clients.
    pub(crate) fn give<const N: usize>(&mut self, values: [(&str, Option<f64>); N]) {
        self.give_all(&values);
    }

    fn give_all(&mut self, values: &[(&str, Option<f64>)]) {
        let connections = self.size.connections;
        for (name, value) in values {
            self.give_one(name, Figure::of(*value, connections));
        }
    }

    /// Adds a figure of the current run.
    pub(crate) fn give_one(&mut self, name: &str, figure: Figure) {
        if let Some(run) = self.figures.runs.last_mut() {
            run.give(name, figure);
        }
    }

    /// Records the faults and warnings of a load.
    fn conclude(
        &mut self,
        run: &Run,
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
        for warning in report.warnings.iter().filter(|_| !run.saturates) {
            self.warn(warning.clone());
        }
        let found = if may_fail { losses(&report.total) } else { faults(&report.total) };
        found.into_iter().for_each(|fault| self.outcome.fail(fault));
        Ok(())
    }
}
