//! `throng serve`: starts the server, runs it, and shuts it down.
//!
//! # Order of start
//!
//! 1. SIGHUP is caught, because it must never end the server.
//! 2. The tokio runtime starts. It must exist before the workers: each worker copies the descriptor
//!    table, and needs the descriptor that wakes the runtime, because workers answer its queries.
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

use std::io::{self, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use throng_access::SharedPages;
use throng_certificates::ServerTls;
use throng_control::{AdminListener, Control, Redirect};
use throng_core::{Engine, Epoch, MemoryEngine, MemoryPressure, Rules, WorkerQueue, clock};
use throng_edge::Counter;
use throng_edge::{Edge, Metrics, Plan, SendMethod, StartError};
use throng_host::limits::MemoryMeter;
use throng_host::preflight::{self, Demand, Preflight, Tables};
use throng_outbound::{Callouts, KeySetTask, RunningCallouts};
use throng_units::Count;
use throng_units::format::count;
use throng_units::paint::Paint;
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::access::{AccessSettings, ConfiguredKeys, ServerAccess};
use crate::acme::{self, AcmeMetrics};
use crate::activation;
use crate::banner::{Banner, Keys};
use crate::cli::ServeArguments;
use crate::control_socket::ControlSocket;
use crate::data::Data;
use crate::data_metrics::DataMetrics;
use crate::departure::{Departure, DepartureSettings, Stage};
use crate::load::{Loaded, load, reader};
use crate::log_level::{self, LogLevelHandle};
use crate::log_writer::LogWriter;
use crate::memory;
use crate::operator::Operator;
use crate::outbound::{self, OutboundMetrics};
use crate::plane_settings::{control_settings, has_demo, shared_edge_settings};
use crate::planes::{Handover, Workers};
use crate::presence_events;
use crate::reload::{self, Reloader, Replaceable};
use crate::service::{EarlyHangups, Hangups, Signals, notify};
use crate::settings::{self, Settings};
use crate::start_line::StartLine;
use crate::tls::{self, TlsMetrics};
use crate::watch::{self, Turns};

/// Interval of `Engine::tick`. Each call expires a part of the old messages.
const TICK: Duration = Duration::from_millis(100);

/// Time between the stop of accepting and the first rejected publication. Requests that arrived
/// before the signal are still served.
const ACCEPT_GRACE: Duration = Duration::from_millis(100);

/// Time for the last events to reach the application, after all connections have ended.
const EVENTS_GRACE: Duration = Duration::from_secs(2);

/// When the logs have shrunk by this many bytes and by half, free memory of the allocator is
/// returned to the kernel.
const RELEASE_BYTES: u64 = 64 << 20;

/// Runs the server until a signal ends it.
pub(crate) fn serve(arguments: ServeArguments, early_hangups: &EarlyHangups) -> Result<()> {
    let runtime = Runtime::new().context("cannot start the control plane")?;
    let outcome = run(&runtime, arguments, early_hangups);
    // A thread that waits for a file which somebody has to write must not hold up the end.
    runtime.shutdown_background();
    outcome
}

fn run(runtime: &Runtime, arguments: ServeArguments, early_hangups: &EarlyHangups) -> Result<()> {
    let _entered = runtime.enter();
    let hangups = Hangups::catch(early_hangups).context("cannot wait for signals")?;
    let loaded = load(&arguments)?;
    let settings = &loaded.settings;
    let access = AccessSettings::load(settings)?;
    let log = start_log(settings)?;
    let tls = tls::load(settings)?;
    warn(settings, &access, tls.as_deref());
    let trust = outbound::trust(settings)?;
    let clients = Arc::new(settings::clients(settings));
    let mut callouts = outbound::callouts(settings, &trust, &clients)?;
    let events = callouts.events();
    let (meter, memory) = memory_plan(settings);
    let pages = reload::allowed_pages(settings).shared();
    let plan = plan(settings, tls.as_deref(), memory, &pages)?;
    let address = plan.address();
    let control_socket = ControlSocket::take(&settings.control, address)?;
    let rules = Arc::new(settings::rules(settings));
    let engine = engine(settings, &rules, &plan, memory);
    let engine: Arc<dyn Engine> = Arc::new(engine.with_events(events.clone()));
    let data = Data::open(settings, &rules)?;
    let ServerAccess { control: access, rules: access_rules, token_keys, key_sets } =
        ServerAccess::new(access, settings, clients, &mut callouts, &trust)?;
    data.iter().try_for_each(|data| data.load_kept(&access.kept))?;
    let outbound_metrics = outbound_metrics(settings, &callouts, key_sets.as_ref());
    keep_up_to_date(runtime, key_sets, token_keys.as_ref(), tls.as_ref());
    let renewer = acme::start(runtime, settings, tls.as_ref(), tls::look)?;
    let callouts = callouts.start();
    let admin = admin_listener(settings)?;
    redirect_http(runtime, settings, &plan)?;
    let control_settings = control_settings(settings, &plan, memory, &pages);
    let signals = Signals::new().context("cannot wait for signals")?;
    let banner = banner(&loaded, &plan, admin.as_ref())?;
    let start_line = start_line(settings, &plan, admin.as_ref(), meter.as_ref(), memory)?;
    let pressure = Arc::<MemoryPressure>::default();
    let queues = plan.queues();
    let edge = plan.start(&engine, &access, &rules, events, &pressure)?;
    announce(&log.writer, &banner, &start_line, &edge.send_method);

    let workers = workers(&edge, queues);
    let replaceable = Replaceable {
        rules: access_rules,
        pages,
        token_keys,
        tls: tls.clone(),
        log_level: log.level.clone(),
    };
    memory::watch(meter, &pressure, &engine, &workers)
        .context("cannot start the thread that watches the memory")?;
    let file = settings::file_in_use(arguments.sources.config.as_deref());
    let reloader =
        Reloader::new(reader(arguments), settings.clone(), replaceable, &access, &workers);
    let edge_of_control = Arc::clone(&workers) as _;
    let control = Control::new(Arc::clone(&engine), access, edge_of_control, control_settings)
        .with_metrics(Arc::new(outbound_metrics))
        .with_metrics(Arc::new(log.writer.clone()))
        .with_metrics(Arc::new(TlsMetrics { tls: tls.clone(), renewer: renewer.clone() }))
        .with_metrics(Arc::new(AcmeMetrics(renewer.clone())))
        .with_metrics(Arc::new(DataMetrics::of(data.as_ref())))
        .with_records(data.as_ref().map(|data| Arc::clone(&data.records)))
        .with_pressure(pressure);
    let departure = Departure::new(departure_settings(settings), workers, control.health().clone());
    Operator::new(reloader, renewer, Arc::clone(&departure))
        .serve(hangups, control_socket.as_ref(), address, file)
        .context("cannot watch the control socket")?;
    let leaving = Leaving::new((signals, departure), settings, &engine, log.writer.clone());
    let tls = tls.filter(|_| settings.admin_tls.0).map(|tls| tls.acceptor());
    let admin = admin.map(|listener| AdminListener { listener, tls });
    let edge = runtime.block_on(control_plane(Arc::new(control), engine, edge, admin, leaving))?;
    finish(runtime, edge, callouts);
    Ok(())
}

/// Says that the server runs. What the settings gave reason to say comes first.
fn announce(log: &LogWriter, banner: &str, start_line: &StartLine<'_>, send_method: &SendMethod) {
    log.flush();
    print(banner);
    start_line.log();
    log_send_method(send_method);
}

/// Waits for the workers and for the last events, and says what was done.
fn finish(runtime: &Runtime, edge: Edge, callouts: RunningCallouts) {
    let metrics = edge.metrics.clone();
    edge.join();
    runtime.block_on(callouts.finish(EVENTS_GRACE));
    log_outcome(&metrics);
}

/// The workers, as the control plane reaches them.
fn workers(edge: &Edge, queues: Vec<Arc<WorkerQueue>>) -> Arc<Workers> {
    let (handoffs, metrics) = (edge.to_workers.clone(), edge.metrics.clone());
    Arc::new(Workers { handoffs, queues, metrics })
}

/// The engine, without a channel.
fn engine(
    settings: &Settings,
    rules: &Arc<Rules>,
    plan: &Plan,
    memory: memory::Plan,
) -> MemoryEngine {
    let max_log_bytes = settings.history.total_bytes.0.min(memory.logs);
    MemoryEngine::new(Epoch::random(), Arc::clone(rules), plan.queues(), max_log_bytes)
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

fn departure_settings(settings: &Settings) -> DepartureSettings {
    DepartureSettings {
        delay: settings.drain_delay.0,
        patience: settings.drain_timeout.0,
        has_tls: settings.tls_listen.0.is_some(),
    }
}

/// When the server shuts down.
struct Leaving {
    signals: Signals,
    /// The drain that an operator may ask for.
    departure: Arc<Departure>,
    /// The time from the signal to the drain, in which the server is not ready and serves.
    delay: Duration,
    /// They end before the connections do: nobody is told that everybody leaves.
    presence_events: Option<AbortHandle>,
    log: LogWriter,
}

impl Leaving {
    /// Starts the presence events, which end with the drain. Requires the runtime.
    fn new(
        (signals, departure): (Signals, Arc<Departure>),
        settings: &Settings,
        engine: &Arc<dyn Engine>,
        log: LogWriter,
    ) -> Leaving {
        let presence_events = presence_events::spawn(settings, engine);
        Leaving { signals, departure, delay: settings.drain_delay.0, presence_events, log }
    }
}

/// Runs the control plane until a signal has arrived and the shutdown is complete. Returns the data
/// plane, whose workers are ending.
async fn control_plane(
    control: Arc<Control>,
    engine: Arc<dyn Engine>,
    edge: Edge,
    admin: Option<AdminListener>,
    leaving: Leaving,
) -> Result<Edge> {
    let edge = Arc::new(edge);
    let handover = Handover::new(Arc::clone(&edge)).context("cannot wait for connections")?;
    let turns = Turns::default();
    let ticks = spawn_ticks(engine, Arc::clone(&turns));
    let health = Arc::clone(control.health());
    watch::start(edge.metrics.clone(), turns, Arc::clone(&health))
        .context("cannot start the thread that watches the event loops")?;
    notify("READY=1");
    let accepting = Arc::clone(&edge);
    let Leaving { mut signals, departure, delay, presence_events, log } = leaving;
    let drain = async move {
        let name = tokio::select! {
            name = signals.next() => name,
            () = departure.ended() => "throng drain",
        };
        // First, so that balancers know before anything is refused.
        let was_serving = departure.end() == Stage::Serving;
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
        presence_events.iter().for_each(AbortHandle::abort);
        accepting.stop_accepting();
        tokio::time::sleep(ACCEPT_GRACE).await;
    };
    let draining = Arc::clone(&edge);
    throng_control::serve(control, handover, admin, drain, move || draining.drain()).await;
    ticks.abort();
    Arc::into_inner(edge).context("the control plane still uses the data plane")
}

/// Logs what should be changed, although it works.
fn warn(settings: &Settings, access: &AccessSettings, tls: Option<&ServerTls>) {
    let of_tls = tls.map(|tls| tls::warnings(settings, tls)).unwrap_or_default();
    let all = [&access.warnings, &outbound::warnings(settings), &of_tls];
    for warning in all.into_iter().flatten() {
        tracing::warn!("{warning}");
    }
}

fn admin_listener(settings: &Settings) -> Result<Option<TcpListener>, StartError> {
    let listen = |address| throng_edge::listen_admin(address, settings.heartbeat.0);
    settings.admin_listen.0.map(listen).transpose()
}

/// Lets the engine expire messages, and counts the turns of the runtime.
fn spawn_ticks(engine: Arc<dyn Engine>, turns: Turns) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut most_bytes = 0;
        loop {
            ticks.tick().await;
            clock::follow(clock::machine_ms);
            engine.tick(clock::now_ms());
            // Behind the engine: a lock that is never released stops them, too.
            turns.fetch_add(1, Ordering::Relaxed);
            let bytes = engine.log_bytes();
            most_bytes = bytes.max(most_bytes);
            if most_bytes - bytes >= RELEASE_BYTES.max(most_bytes / 2) {
                most_bytes = bytes;
                tokio::task::spawn_blocking(throng_edge::release_unused_memory);
            }
        }
    })
}

/// Adds the command that says how to allow as many connections.
fn with_next_step(error: StartError) -> anyhow::Error {
    match &error {
        StartError::TooMany { connections, .. } => {
            let connections = Count(*connections).short();
            anyhow!(
                "{error}; run `throng doctor --connections {connections}` to see what to change"
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

/// Checks whether the machine allows the planned number of connections.
fn preflight(settings: &Settings, plan: &Plan) -> Preflight {
    let mut demand = Demand::server(plan.max_connections() as u64);
    if let Some(server) = &mut demand.server {
        server.tables = Some(Tables { threads_least: plan.workers() as u64, ..Tables::server() });
        // Port 0 lets the kernel choose, so the port of the next start is unknown.
        server.port = Some(settings.listen.0.port()).filter(|&port| port > 0);
    }
    preflight::check(&demand)
}

fn banner(loaded: &Loaded, plan: &Plan, admin: Option<&TcpListener>) -> io::Result<String> {
    let Loaded { settings, dev_keys, dev_certificate } = loaded;
    let banner = Banner {
        address: plan.address(),
        admin: admin.map(TcpListener::local_addr).transpose()?,
        is_admin_tls: settings.admin_tls.0,
        tls: plan.tls_address(),
        demands_certificates: settings.demands_client_certificates(),
        has_demo: has_demo(settings),
        do_clients_publish: settings.clients_publish.0,
        workers: plan.workers(),
        descriptors_max: plan.descriptors_max(),
        max_connections: plan.max_connections(),
        preflight: &preflight(settings, plan),
        requested: settings.max_connections.0,
        allows_anyone: settings.allow_anyone.0,
        keys: Keys::of(settings),
        dev_keys: dev_keys.as_ref(),
        dev_certificate: dev_certificate.as_deref(),
    };
    Ok(banner.text(Paint::on(&io::stdout())))
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A closed standard output is no reason to stop the server.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn log_send_method(method: &SendMethod) {
    let how = match method {
        SendMethod::IoUring => "fan-outs go through io_uring",
        SendMethod::LinuxAio { .. } => "fan-outs go through Linux AIO",
        SendMethod::Single { .. } => "fan-outs take a call for each subscriber",
    };
    tracing::debug!("{how}");
    if let SendMethod::LinuxAio { without_io_uring: Some(reason) }
    | SendMethod::Single { without_io_uring: Some(reason), .. } = method
    {
        tracing::info!("io_uring cannot be used: {reason}; {how}");
    }
    if let SendMethod::Single { without_aio, .. } = method {
        tracing::info!("Linux AIO cannot be used: {without_aio}; {how}");
    }
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

/// What the first line of the log says.
fn start_line<'a>(
    settings: &'a Settings,
    plan: &Plan,
    admin: Option<&TcpListener>,
    meter: Option<&'a MemoryMeter>,
    memory: memory::Plan,
) -> io::Result<StartLine<'a>> {
    Ok(StartLine {
        settings,
        listen: plan.address(),
        tls_listen: plan.tls_address(),
        admin_listen: admin.map(TcpListener::local_addr).transpose()?,
        max_connections: plan.max_connections(),
        memory: meter.map(MemoryMeter::limit),
        plan: memory,
    })
}

/// Takes the ports, of which the service manager may have passed one.
fn plan(
    settings: &Settings,
    tls: Option<&ServerTls>,
    memory: memory::Plan,
    pages: &SharedPages,
) -> Result<Plan> {
    let passed = activation::listener(settings.listen.0)?;
    let with_tls = shared_edge_settings(settings, tls, memory, pages);
    Plan::new(with_tls, passed).map_err(with_next_step)
}

/// The meter of what is used of the memory, and what each part may take of it.
fn memory_plan(settings: &Settings) -> (Option<MemoryMeter>, memory::Plan) {
    let meter = MemoryMeter::new(settings.max_memory.0.map(|size| size.0 as u64));
    let plan = meter.as_ref().map(|meter| memory::Plan::new(meter.limit().bytes));
    (meter, plan.unwrap_or_else(memory::Plan::unlimited))
}

/// Starts the listener that sends clients from http to https, if there is one.
fn redirect_http(runtime: &Runtime, settings: &Settings, plan: &Plan) -> Result<()> {
    let Some((address, tls)) = settings.redirect_http.0.zip(plan.tls_address()) else {
        return Ok(());
    };
    let failed = || format!("cannot listen on {address} (redirect-http)");
    let listener = TcpListener::bind(address).with_context(failed)?;
    listener.set_nonblocking(true).with_context(failed)?;
    let redirect = Redirect {
        // Checked to be a port.
        port: settings.redirect_port.0.map_or(tls.port(), |port| port as u16),
        max_head_bytes: settings.max_head_bytes.0,
        timeout: settings.head_timeout.0,
    };
    tracing::info!("redirecting to https from http://{}", listener.local_addr()?);
    runtime.spawn(redirect.serve(listener));
    Ok(())
}
