//! `throng serve`: starts the server, runs it, and shuts it down.
//!
//! # Order of start
//!
//! 1. SIGHUP is caught, because it must never end the server.
//! 2. The thread starts that signals reach, before all others, and the tokio runtime. That must
//!    exist before the workers: each worker copies the descriptor table, and needs the descriptor
//!    that wakes the runtime, because workers answer its queries.
//! 3. The settings are loaded and checked, and the addresses bound. An error ends the process
//!    before anything else starts.
//! 4. SIGTERM and SIGINT are caught before the banner and systemd say that the server runs.
//! 5. The workers start, then the control plane.
//!
//! # Order of shutdown
//!
//! 1. The server is not ready any more, and after `drain-delay` the workers stop accepting
//!    connections and subscriptions.
//! 2. The control plane rejects new publications, and finishes those in progress.
//! 3. The workers deliver all messages, tell their clients to reconnect, and end. Until they have
//!    ended, the control plane answers the connections that they hand off.

mod announcement;
mod reserves;
mod runtime;
mod warnings;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use arc_swap::ArcSwap;
use throng_access::{AccessControl, AccessRules, SharedPages};
use throng_acme::{Renewal, Renewer};
use throng_certificates::ServerTls;
use throng_control::{AdminListener, Control, Health, Site};
use throng_core::events::EventSink;
use throng_core::{Channels, Epoch, MemoryEngine, Rules, WorkerQueue, clock};
use throng_edge::{Counter, Edge, EdgePlan, Metrics, StartError};
use throng_handover::message::DescriptorKind;
use throng_host::limits::MemoryMeter;
use throng_nats::engine::NatsEngine;
use throng_outbound::{Callouts, KeySetTask, RunningCallouts};
use throng_units::Count;
use throng_units::format::count;
use throng_units::paint::Paint;
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::access::{AccessSettings, ConfiguredKeys, RevocationsFile, ServerAccess};
use crate::acme::{self, AcmeMetrics};
use crate::activation;
use crate::beside::Beside;
use crate::cli::ServeArguments;
use crate::control_socket::ControlSocket;
use crate::data::{Data, DataMetrics};
use crate::departure::{Departure, DepartureSettings, DrainStage};
use crate::dev::{DevKeys, DevSecrets};
use crate::docs;
use crate::free_memory::FreeMemory;
use crate::load::{Loaded, load, reader};
use crate::log_level::{self, LogLevelHandle};
use crate::log_writer::LogWriter;
use crate::memory;
use crate::nats::{self, NatsMetrics};
use crate::operator::Operator;
use crate::outbound::{self, OutboundMetrics};
use crate::plane_settings::{allowed_pages, control_settings, memory_plan, shared_edge_settings};
use crate::planes::{Handover, Workers};
use crate::presence_events;
use crate::redirect::{self, RedirectListener};
use crate::reload::{Reloader, Replaceable};
use crate::service::{
    EarlyHangups, Hangups, Signals, UpgradeSignals, notify, survive_file_size_limit,
};
use crate::settings::{self, Settings};
use crate::signal_thread::SignalThread;
use crate::tls::{self, TlsMetrics};
use crate::upgrade::start::{DataSource, Logs, Started};
use crate::upgrade::{self, Arrival, Ending, Reloads, Running, SuccessorBinary, Upgrader};
use crate::watch::Turns;
use announcement::{banner, log_send_method, print, start_line};
use reserves::Reserves;
use warnings::warn;

/// Interval of `Channels::tick`. Each call expires a part of the old messages.
const TICK: Duration = Duration::from_millis(100);

/// Time between the stop of accepting and the first rejected publication. Requests that arrived
/// before the signal are still served.
const ACCEPT_GRACE: Duration = Duration::from_millis(100);

/// Runs the server until a signal ends it.
pub(crate) fn serve(arguments: ServeArguments, early_hangups: &EarlyHangups) -> Result<()> {
    // Before anything is written.
    survive_file_size_limit().context("cannot catch SIGXFSZ")?;
    // Before all other threads.
    let thread = SignalThread::start().context("cannot start the thread for signals")?;
    let runtime = runtime::start().context("cannot start the control plane")?;
    // Before anything else: the file of the binary may be replaced from now on.
    let successor = SuccessorBinary::of_this_process();
    let mut arrival = Arrival::begin()?;
    let outcome = run(&runtime, arguments, (early_hangups, thread), (successor, &mut arrival));
    if let (Err(error), Some(arrival)) = (&outcome, &mut arrival) {
        arrival.refuse(error);
    }
    // A thread that waits for a file which somebody has to write must not hold up the end.
    runtime.shutdown_background();
    outcome
}

fn run(
    runtime: &Runtime,
    arguments: ServeArguments,
    (early_hangups, thread): (&EarlyHangups, SignalThread),
    (successor, arrival): (SuccessorBinary, &mut Option<Arrival>),
) -> Result<()> {
    let _entered = runtime.enter();
    let hangups = Hangups::catch(early_hangups).context("cannot wait for signals")?;
    let upgrades = UpgradeSignals::catch().context("cannot wait for signals")?;
    let upgrades = upgrade::Requests::new(upgrades, thread);
    let dev = arrival.as_mut().and_then(|arrival| arrival.take(DescriptorKind::DevKeys));
    let dev = dev.map(DevSecrets::receive).transpose().context("the keys of --dev")?;
    let prepared = Prepared::new(runtime, load(&arguments, dev)?, arrival.as_mut())?;
    prepared.run(arguments, (hangups, upgrades), (successor, arrival))
}

/// A server that has its settings and its addresses, and no workers yet.
struct Prepared<'r> {
    runtime: &'r Runtime,
    loaded: Loaded,
    log: LogUntilEnd,
    tls: Option<Arc<ServerTls>>,
    meter: Option<MemoryMeter>,
    memory: memory::MemoryPlan,
    pages: SharedPages,
    plan: EdgePlan,
    control_socket: Option<ControlSocket>,
    access: Arc<AccessControl>,
    revocations: Option<RevocationsFile>,
    access_rules: Arc<ArcSwap<AccessRules>>,
    token_keys: Option<ConfiguredKeys>,
    outbound_metrics: OutboundMetrics,
    renewal: Option<Renewal>,
    events: Option<Arc<dyn EventSink>>,
    callouts: RunningCallouts,
    admin: Option<TcpListener>,
    redirect: Option<RedirectListener>,
    rules: Arc<Rules>,
    data: DataSource,
    site: Option<Site>,
}

impl<'r> Prepared<'r> {
    fn new(
        runtime: &'r Runtime,
        loaded: Loaded,
        mut arrival: Option<&mut Arrival>,
    ) -> Result<Prepared<'r>> {
        let settings = &loaded.settings;
        let access = AccessSettings::load(settings)?;
        let log = start_log(settings)?;
        let tls = tls::load(settings)?;
        warn(settings, &access, tls.as_deref());
        let site = docs::site(settings)?;
        let trust = outbound::trust(settings)?;
        let tagger = upgrade::start::tagger(arrival.as_deref())?;
        let clients = Arc::new(settings::clients(settings, &tagger));
        let mut callouts = outbound::callouts(settings, &trust, &clients)?;
        let events = callouts.events();
        let (meter, memory) = memory_plan(settings);
        let pages = allowed_pages(settings).shared();
        let plan = plan(settings, tls.as_deref(), memory, (&pages, arrival.as_deref_mut()))?;
        let control_socket = match arrival {
            None => ControlSocket::take(&settings.control, plan.address())?,
            // The running server has it.
            Some(_) => None,
        };
        let rules = Arc::new(settings::rules(settings));
        // Before the access: its file of revocations may lie there.
        let max_bytes = settings.history.total_bytes.0.min(memory.logs);
        let logs = |events| {
            let logs =
                MemoryEngine::new(Epoch::random(), Arc::clone(&rules), plan.queues(), max_bytes);
            logs.with_events(events)
        };
        let data = DataSource::new(settings, arrival.as_deref_mut(), || logs(events.clone()))?;
        let room = (plan.queues().len(), max_bytes);
        let node = (settings, &access.policy);
        let mut data = data.or_node(node, room, (events.clone(), arrival.as_deref_mut()), logs)?;
        let ServerAccess {
            control: access,
            rules: access_rules,
            token_keys,
            key_sets,
            revocations,
        } = ServerAccess::new(access, settings, clients, &mut callouts, (&trust, tagger))?;
        data.open().map_or(Ok(()), |data| data.load_kept(&access.kept))?;
        let revocations = data.join(&access, revocations)?;
        let outbound_metrics = outbound_metrics(settings, &callouts, key_sets.as_ref());
        keep_up_to_date(runtime, key_sets, token_keys.as_ref(), tls.as_ref());
        let renewal = acme::prepare(settings, tls.as_ref(), tls::look)?;
        let callouts = callouts.start();
        let admin = admin_listener(settings, arrival.as_deref_mut())?;
        let redirect = redirect::prepare(settings, &plan, arrival)?;
        Ok(Prepared {
            runtime,
            log,
            tls,
            meter,
            memory,
            pages,
            plan,
            control_socket,
            access,
            revocations,
            access_rules,
            token_keys,
            outbound_metrics,
            renewal,
            events,
            callouts,
            admin,
            redirect,
            rules,
            data,
            site,
            loaded,
        })
    }

    /// Starts the workers and the control plane, and serves until a signal ends that.
    fn run(
        self,
        arguments: ServeArguments,
        (hangups, upgrades): (Hangups, upgrade::Requests),
        (successor, arrival): (SuccessorBinary, &mut Option<Arrival>),
    ) -> Result<()> {
        let Prepared { runtime, log, tls, meter, memory, pages, plan, access, .. } = self;
        let Prepared { access_rules, token_keys, outbound_metrics, renewal, events, .. } = self;
        let Prepared { callouts, admin, redirect, rules, data, loaded, revocations, .. } = self;
        let (settings, address) = (&loaded.settings, plan.address());
        let control_settings = control_settings(settings, &plan, memory, &pages);
        let signals = Signals::new().context("cannot wait for signals")?;
        let banner = banner(&loaded, &plan, admin.as_ref())?;
        let limit = meter.as_ref().map(|meter| meter.limit().clone());
        let start_line = start_line(settings, &plan, admin.as_ref(), limit.as_ref(), memory)?;
        let (renewer, queues) = (renewal.as_ref().map(Renewal::renewer), plan.queues());
        let max_bytes = settings.history.total_bytes.0.min(memory.logs);
        let presence = presence_events::settings(settings);
        let logs = Logs { plan, max_bytes, rules, data, presence, revocations };
        let started = logs.start(&access, events, arrival.as_mut())?;
        let Started { data, edge, engines: (logs, engine), node, .. } = started;
        let Started { pressure, presence_events, counted, .. } = started;
        let listeners = upgrade::start::copies(admin.as_ref(), redirect.as_ref(), data.as_ref())?;
        let workers = workers(&edge, queues);
        let (of_control, of_access) = (Arc::clone(&workers) as _, Arc::clone(&access));
        let control = Control::new(Arc::clone(&engine), of_access, of_control, control_settings)
            .with_pressure(Arc::clone(&pressure))
            .with_metrics(redirect.as_ref().map(RedirectListener::counts).unwrap_or_default());
        let of_tls = (tls.clone(), renewer.clone());
        let others = (outbound_metrics, of_tls, (&node, address.port()), self.site, counted);
        let control = with_others(control, others, &log.writer, data.as_ref());
        memory::watch(meter, &pressure, &engine, &workers)?;
        let reserves = Reserves::make(runtime, (&edge, node.as_deref()), control.health())?;
        // From here on this process serves: what may fail comes before.
        upgrade::start::take_over(arrival.as_mut(), &edge, data.as_ref())?;
        let beside = Beside::start(runtime, callouts, redirect, renewal);
        // Messages about the settings come first.
        log.writer.flush();
        let control_socket = match arrival {
            None => printed(&banner, self.control_socket),
            Some(_) => ControlSocket::take_after(&settings.control, address),
        };
        start_line.log();
        log_send_method(&edge.send_method);
        let (certificates, log_level) = (tls.clone(), log.level.clone());
        let replaceable =
            Replaceable { rules: access_rules, pages, token_keys, tls: certificates, log_level };
        let file = settings::file_in_use(arguments.sources.config.as_deref());
        let (reloads, obstacle) = (Arc::<Reloads>::default(), upgrade::start::obstacle());
        let started = (settings.clone(), obstacle.is_none());
        let reloader = Reloader::new(reader(arguments), started, replaceable, &access, &workers);
        let departure = departure(settings, workers, control.health());
        let reloader = (reloader, Arc::clone(&reloads));
        let backups = data.as_ref().map(|data| (data.backups(), Arc::clone(&control)));
        let operator = Operator::new(reloader, renewer, (&departure, upgrades.asking()), backups);
        operator.serve(hangups, control_socket.as_ref(), address, file);
        let ending_events = presence_events::spawn(presence_events.as_ref(), &engine, &control);
        let running = Running {
            engine: logs,
            node: node.clone(),
            access,
            tls: tls.clone(),
            presence_events,
            data: data.as_ref().map(Data::tenancy),
            listeners,
            reloads,
            rest: reserves.rest.clone(),
            dev: loaded.dev_keys.as_ref().map(DevKeys::secrets),
            obstacle,
        };
        upgrade::start::receive_rest(runtime, arrival.take(), &control);
        let (delay, log) = (settings.drain_delay.0, log.writer.clone());
        let upgrade = (upgrades, running, successor, control_socket);
        let leaving = Leaving { signals, departure, delay, log, upgrade, beside, ending_events };
        let admin = with_tls(admin, tls.as_deref(), settings);
        let planes = (control, engine, edge, reserves);
        finish(runtime, runtime.block_on(control_plane(planes, admin, leaving))?, node.as_deref());
        Ok(())
    }
}

/// Prints what a server says that has just started, and returns its socket of commands.
fn printed(banner: &str, socket: Option<ControlSocket>) -> Option<ControlSocket> {
    print(banner);
    socket
}

/// Waits for the workers and for the last events, says what was done, and tells the other nodes.
fn finish(runtime: &Runtime, (edge, beside): (Edge, Beside), node: Option<&NatsEngine>) {
    let metrics = edge.metrics.clone();
    edge.join();
    runtime.block_on(beside.finish());
    log_outcome(&metrics);
    node.iter().for_each(|node| node.leave());
}

/// The workers, as the control plane reaches them.
fn workers(edge: &Edge, queues: Vec<Arc<WorkerQueue>>) -> Arc<Workers> {
    let (handoffs, metrics) = (edge.to_workers.clone(), edge.metrics.clone());
    Arc::new(Workers { handoffs, queues, metrics, admission: Arc::clone(&edge.admission) })
}

/// Facts about the rest for the control plane, and the counters of another process.
type Others<'a> = (
    OutboundMetrics,
    (Option<Arc<ServerTls>>, Option<Renewer>),
    (&'a Option<Arc<NatsEngine>>, u16),
    Option<Site>,
    Option<Vec<Vec<u8>>>,
);

/// Adds the metrics of everything beside the two planes, the tables of the data directory, and the
/// documentation. Goes on with what was counted.
fn with_others(
    control: Control,
    (outbound, (tls, renewer), (node, port), site, counted): Others<'_>,
    log: &LogWriter,
    data: Option<&Data>,
) -> Arc<Control> {
    let acme = AcmeMetrics(renewer.clone());
    let control = control
        .with_metrics(Arc::new(outbound))
        .with_metrics(Arc::new(log.clone()))
        .with_metrics(Arc::new(TlsMetrics { tls, renewer }))
        .with_metrics(Arc::new(acme))
        .with_metrics(Arc::new(DataMetrics::of(data)))
        .with_metrics(Arc::new(Data::journal_metrics(data)))
        .with_metrics(Arc::new(NatsMetrics(node.clone())))
        .with_records(data.map(|data| Arc::clone(&data.records)))
        .with_site(site);
    counted.iter().for_each(|records| control.resume(records));
    let control = Arc::new(control);
    nats::describe(node.as_ref(), &control, port);
    control
}

fn outbound_metrics(
    settings: &Settings,
    callouts: &Callouts,
    key_sets: Option<&KeySetTask>,
) -> OutboundMetrics {
    OutboundMetrics {
        callouts: (!settings.callouts.is_empty()).then(|| callouts.metrics()),
        key_sets: key_sets.map(KeySetTask::metrics),
    }
}

/// Fetches key sets and looks at the files of certificates, until the runtime ends.
fn keep_up_to_date(
    runtime: &Runtime,
    key_sets: Option<KeySetTask>,
    token_keys: Option<&ConfiguredKeys>,
    tls: Option<&Arc<ServerTls>>,
) {
    if let (Some(task), Some(keys)) = (key_sets, token_keys) {
        runtime.spawn(task.run(keys.authenticator()));
    }
    if let Some(tls) = tls {
        runtime.spawn(tls::watch(Arc::clone(tls)));
    }
}

fn departure(settings: &Settings, workers: Arc<Workers>, health: &Arc<Health>) -> Arc<Departure> {
    let settings = DepartureSettings {
        delay: settings.drain_delay.0,
        patience: settings.drain_timeout.0,
        has_tls: settings.tls_listen.0.is_some(),
    };
    Departure::new(settings, workers, Arc::clone(health))
}

/// When the server shuts down.
struct Leaving {
    signals: Signals,
    /// The drain that an operator may ask for.
    departure: Arc<Departure>,
    /// The time from the signal to the drain, in which the server is not ready and serves.
    delay: Duration,
    /// They end before the connections do: nobody is told that everybody leaves.
    ending_events: Option<AbortHandle>,
    log: LogWriter,
    /// Requests for a new process that takes over; its state and its identity, and the socket of
    /// commands, which it takes.
    upgrade: (upgrade::Requests, Running, SuccessorBinary, Option<ControlSocket>),
    beside: Beside,
}

/// Runs the control plane until a signal has arrived and the shutdown is complete. Returns the data
/// plane, whose workers are ending.
async fn control_plane(
    (control, engine, edge, reserves): (Arc<Control>, Arc<Channels>, Edge, Reserves),
    admin: Option<AdminListener>,
    leaving: Leaving,
) -> Result<(Edge, Beside)> {
    let edge = Arc::new(edge);
    let Reserves { turns, watch, rest: _, events } = reserves;
    let handover = Handover::new(Arc::clone(&edge), events);
    let ticks = spawn_ticks(engine, edge.metrics.clone(), turns);
    watch.begin();
    notify("READY=1");
    let accepting = Arc::clone(&edge);
    let Leaving { mut signals, departure, delay, log, upgrade, beside, ending_events } = leaving;
    let (mut upgrades, running, successor, control_socket) = upgrade;
    let upgrade = (running, successor, control_socket);
    let upgrader = Arc::new(Upgrader::new(upgrade, Arc::clone(&control), Arc::clone(&edge)));
    let ending = Ending { control: Arc::clone(&control), beside, log: log.clone() };
    let (kept, keeps) = tokio::sync::oneshot::channel();
    let drain = async move {
        let (name, beside) = upgrades.serve(upgrader, (&mut signals, &departure), ending).await;
        // Its receiver waits until the server has drained.
        let _ = kept.send(beside);
        // First, so that balancers know before anything is refused.
        let was_serving = departure.end() == DrainStage::Serving;
        notify("STOPPING=1");
        tracing::info!("{name}: stopping; a second signal ends the server at once");
        tokio::spawn(async move {
            let name = signals.next().await;
            tracing::warn!("{name} again: ending at once");
            log.flush();
            std::process::exit(1);
        });
        if was_serving {
            tokio::time::sleep(delay).await;
        }
        ending_events.iter().for_each(AbortHandle::abort);
        accepting.stop_accepting();
        tokio::time::sleep(ACCEPT_GRACE).await;
    };
    let draining = Arc::clone(&edge);
    throng_control::serve(control, handover, admin, drain, move || draining.drain()).await;
    ticks.abort();
    let edge = Arc::into_inner(edge).context("the control plane still uses the data plane")?;
    Ok((edge, keeps.await.context("a thread beside the planes is lost")?))
}

fn admin_listener(
    settings: &Settings,
    arrival: Option<&mut Arrival>,
) -> Result<Option<TcpListener>, StartError> {
    let passed = arrival.and_then(|arrival| arrival.take(DescriptorKind::Admin));
    let open = |address| throng_edge::listen_alone("admin-listen", address, settings.heartbeat.0);
    let listen = |address| upgrade::start::listener(address, passed, open);
    settings.admin_listen.0.map(listen).transpose()
}

/// The admin listener, with TLS if the settings say so.
fn with_tls(
    admin: Option<TcpListener>,
    tls: Option<&ServerTls>,
    settings: &Settings,
) -> Option<AdminListener> {
    let tls = tls.filter(|_| settings.admin_tls.0).map(ServerTls::acceptor);
    admin.map(|listener| AdminListener { listener, tls })
}

/// Lets the engine expire messages, and counts the turns of the runtime.
fn spawn_ticks(engine: Arc<Channels>, workers: Metrics, turns: Turns) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut memory = FreeMemory::default();
        loop {
            ticks.tick().await;
            clock::follow(clock::machine_ms);
            engine.tick(clock::now_ms());
            // Behind the engine: a lock that is never released stops them, too.
            turns.fetch_add(1, Ordering::Relaxed);
            memory.look(&engine, &workers);
        }
    })
}

/// Adds the command that says how to allow as many connections.
fn with_next_step(error: StartError) -> anyhow::Error {
    match &error {
        StartError::TooMany { connections, .. } => {
            let connections = Count(*connections).short();
            anyhow!(
                "{error}; run `throng doctor --connections {connections}` for the necessary changes"
            )
        }
        _ => error.into(),
    }
}

/// Writes what is logged before the process ends.
struct LogUntilEnd {
    writer: LogWriter,
    level: LogLevelHandle,
}

impl Drop for LogUntilEnd {
    fn drop(&mut self) {
        self.writer.flush();
    }
}

fn start_log(settings: &Settings) -> Result<LogUntilEnd> {
    let is_json = settings.log_format.0;
    let writer = LogWriter::start().context("cannot start the thread that writes the log")?;
    let lines = writer.clone();
    let (filter, level) = log_level::filter(settings.log.0);
    let log = tracing_subscriber::fmt::layer()
        .with_writer(move || lines.line())
        .with_ansi(!is_json && Paint::on(&io::stderr()).is_coloured())
        .with_target(false)
        // By default, errors are printed to standard error, which would block.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    if is_json {
        let log = log.json().flatten_event(true).with_current_span(false).with_span_list(false);
        registry.with(log).init();
    } else {
        registry.with(log).init();
    }
    Ok(LogUntilEnd { writer, level })
}

/// One line about what was done.
fn log_outcome(metrics: &Metrics) {
    let sum = |counter| count(metrics.sum(counter));
    tracing::info!(
        "stopped: {} connections accepted, {} messages delivered, {} clients told to reconnect",
        sum(Counter::Accepted),
        sum(Counter::Deliveries),
        sum(Counter::ClosedDraining),
    );
}

/// Takes the ports, of which the service manager may have passed one.
fn plan(
    settings: &Settings,
    tls: Option<&ServerTls>,
    memory: memory::MemoryPlan,
    (pages, arrival): (&SharedPages, Option<&mut Arrival>),
) -> Result<EdgePlan> {
    let with_tls = shared_edge_settings(settings, tls, memory, pages);
    if let Some(arrival) = arrival {
        if let Some(tls) = tls {
            tls.take_over_ticket_keys(arrival.ticket_keys());
        }
        return EdgePlan::take_over(with_tls, arrival.ports()).map_err(with_next_step);
    }
    let passed = activation::listener(settings.listen.0)?;
    EdgePlan::new(with_tls, passed).map_err(with_next_step)
}
