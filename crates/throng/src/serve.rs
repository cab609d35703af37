//! The server's life, from checked settings to the exit.
//!
//! # Order
//!
//! SIGHUP is caught first, as it must not end the server at any time. The plan binds, so that a
//! port that is taken ends it before anything else starts. The signals to stop are caught before
//! anybody can be told that the server runs, and it is told once it listens. The runtime is there
//! before the workers: each takes a copy of the descriptor table as it then is, and the descriptor
//! that wakes the runtime must be in it, because workers wake it with their answers. On stop the
//! workers close their doors; then the control plane accepts no more, and when its last publication
//! is made, which is still to be delivered, the workers send everybody home. Until they have, the
//! control plane answers whatever they hand over.

use std::io::{self, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use throng_control::Control;
use throng_core::{Access, Allow, ClientsRead, Counter, Engine, Epoch, MemoryEngine, clock};
use throng_edge::{Edge, Figures, Limits, Plan, Sends, StartError};
use throng_host::preflight::{self, Preflight, Tables, Wanted};
use throng_units::Count;
use throng_units::format::count;
use throng_units::paint::Paint;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::banner::Banner;
use crate::planes::{Handover, Workers};
use crate::service::{Hangups, Signals, notify};
use crate::settings::{Settings, SettingsError, channels};

/// The engine forgets what is too old a part at each call.
const TICK: Duration = Duration::from_millis(100);

/// The workers get so long to take in who has connected already, before publications are refused:
/// whoever came in time is answered.
const CLOSING_DOORS: Duration = Duration::from_millis(100);

/// When the logs have shrunk by so many bytes and by half, what the allocator keeps of it goes back
/// to the system.
const RELEASE_BYTES: u64 = 64 << 20;

/// Runs the server until a signal ends it, with the settings that `load` returns.
pub fn serve(load: impl FnOnce() -> Result<Settings, SettingsError>) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the control plane")?;
    let hangups = {
        let _entered = runtime.enter();
        Hangups::catch().context("cannot wait for signals")?
    };
    let settings = &load()?;
    start_log(settings);
    runtime.spawn(hangups.log());
    let plan = Plan::new(edge_settings(settings)).map_err(with_next_step)?;
    let rules = Arc::new(channels::rules(settings));
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(
        Epoch::random(),
        Arc::clone(&rules),
        plan.queues(),
        settings.history.total_bytes.0,
    ));
    let access: Arc<dyn Access> = match settings.clients_publish.0 {
        true => Arc::new(Allow),
        false => Arc::new(ClientsRead),
    };
    let admin = admin_listener(settings)?;
    let control_settings = control_settings(settings, &plan);
    let signals = {
        let _entered = runtime.enter();
        Signals::new().context("cannot wait for signals")?
    };
    let banner = banner(settings, &plan, admin.as_ref())?;
    let edge = plan.start(&engine, &access, &rules)?;
    print(&banner);
    log_sends(&edge.sends);

    let workers = Workers { inlets: edge.inlets.clone(), figures: edge.figures.clone() };
    let control = Control::new(Arc::clone(&engine), access, Arc::new(workers), control_settings);
    let edge = runtime.block_on(control_plane(Arc::new(control), engine, edge, admin, signals))?;

    let figures = edge.figures.clone();
    edge.join();
    log_outcome(&figures);
    Ok(())
}

/// Serves requests until a signal comes, the last one is answered and the workers have nobody left.
/// Gives the data plane back, which is ending.
async fn control_plane(
    control: Arc<Control>,
    engine: Arc<dyn Engine>,
    edge: Edge,
    admin: Option<TcpListener>,
    mut signals: Signals,
) -> Result<Edge> {
    let edge = Arc::new(edge);
    let handover = Handover::new(Arc::clone(&edge)).context("cannot wait for connections")?;
    let ticking = keep_ticking(engine);
    notify("READY=1");
    let doors = Arc::clone(&edge);
    let drain = async move {
        let name = signals.next().await;
        doors.stop_accepting();
        notify("STOPPING=1");
        tracing::info!("{name}: stopping; once more to stop at once");
        tokio::spawn(async move {
            let name = signals.next().await;
            tracing::warn!("{name} again: stopped at once");
            std::process::exit(1);
        });
        tokio::time::sleep(CLOSING_DOORS).await;
    };
    let parting = Arc::clone(&edge);
    throng_control::serve(control, handover, admin, drain, move || parting.drain()).await;
    ticking.abort();
    Arc::into_inner(edge).context("the control plane still holds the data plane")
}

fn admin_listener(settings: &Settings) -> Result<Option<TcpListener>, StartError> {
    let listen = |address| throng_edge::listen_admin(address, settings.heartbeat.0);
    settings.admin_listen.0.map(listen).transpose()
}

fn keep_ticking(engine: Arc<dyn Engine>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut most_bytes = 0;
        loop {
            ticks.tick().await;
            clock::follow(clock::machine_ms);
            engine.tick(clock::now_ms());
            let bytes = engine.log_bytes();
            most_bytes = bytes.max(most_bytes);
            if most_bytes - bytes >= RELEASE_BYTES.max(most_bytes / 2) {
                most_bytes = bytes;
                tokio::task::spawn_blocking(throng_edge::release_unused);
            }
        }
    })
}

/// The doctor says how far descriptors must be raised, and what else is short.
fn with_next_step(error: StartError) -> anyhow::Error {
    match &error {
        StartError::TooMany { connections, .. } => {
            let connections = Count(*connections).short();
            anyhow!("{error}; ask `throng doctor --connections {connections}`")
        }
        _ => error.into(),
    }
}

fn start_log(settings: &Settings) {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(settings.log.0)
        .with_ansi(Paint::on(&io::stderr()).is_coloured())
        .with_target(false)
        .init();
}

/// What the machine says to that many connections, as the settings ask for them.
fn preflight(settings: &Settings, plan: &Plan) -> Preflight {
    let mut wanted = Wanted::server(plan.connections_max() as u64);
    if let Some(server) = &mut wanted.server {
        server.tables = Some(Tables { threads_least: plan.workers() as u64, ..Tables::server() });
        // Which port there will be next time is not known if the kernel chooses it.
        server.port = Some(settings.listen.0.port()).filter(|&port| port > 0);
    }
    preflight::check(&wanted)
}

fn banner(settings: &Settings, plan: &Plan, admin: Option<&TcpListener>) -> io::Result<String> {
    let banner = Banner {
        address: plan.address(),
        admin: admin.map(TcpListener::local_addr).transpose()?,
        has_demo: has_demo(settings),
        do_clients_publish: settings.clients_publish.0,
        workers: plan.workers(),
        descriptors_max: plan.descriptors_max(),
        max_connections: plan.connections_max(),
        preflight: &preflight(settings, plan),
        requested: settings.max_connections.0,
        allows_anyone: settings.allow_anyone.0,
    };
    Ok(banner.text(Paint::on(&io::stdout())))
}

/// Whether the demo is served: unless told otherwise, where only this machine can reach it and
/// where it works, which takes clients that may publish.
fn has_demo(settings: &Settings) -> bool {
    let is_local = settings.listen.0.ip().to_canonical().is_loopback();
    settings.demo.0.unwrap_or(is_local && settings.clients_publish.0)
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A server is not stopped because nobody looks.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn log_sends(sends: &Sends) {
    let how = match sends {
        Sends::Ring => "fan-outs go through io_uring",
        Sends::Aio { .. } => "fan-outs go through Linux AIO",
        Sends::Single { .. } => "fan-outs take a call for each subscriber",
    };
    tracing::debug!("{how}");
    if let Sends::Aio { without_ring: Some(reason) }
    | Sends::Single { without_ring: Some(reason), .. } = sends
    {
        tracing::info!("io_uring cannot be used: {reason}; {how}");
    }
    if let Sends::Single { without_aio, .. } = sends {
        tracing::info!("Linux AIO cannot be used: {without_aio}; {how}");
    }
}

/// One line about what was done.
fn log_outcome(figures: &Figures) {
    let sum = |counter| {
        let counts = figures.workers().iter().map(|worker| worker.counters.get(counter));
        count(counts.sum())
    };
    tracing::info!(
        "stopped: {} connections accepted, {} messages delivered, {} clients told to reconnect",
        sum(Counter::Accepted),
        sum(Counter::Deliveries),
        sum(Counter::ClosedDraining),
    );
}

pub(crate) fn edge_settings(settings: &Settings) -> throng_edge::Settings {
    throng_edge::Settings {
        listen: settings.listen.0,
        has_admin_listener: settings.admin_listen.0.is_some(),
        workers: settings.workers.0.unwrap_or(0),
        max_connections: settings.max_connections.0.unwrap_or(0),
        io_uring: settings.io_uring.0,
        allowed_origins: settings.allowed_origins.0.clone(),
        allowed_hosts: settings.allowed_hosts.0.clone(),
        heartbeat: settings.heartbeat.0,
        ping_interval: settings.ping_interval.0,
        welcome: settings.welcome.0,
        head_timeout: settings.head_timeout.0,
        idle_timeout: settings.idle_timeout.0,
        drain_window: settings.drain_window.0,
        drain_timeout: settings.drain_timeout.0,
        max_head_bytes: settings.max_head_bytes.0,
        max_message_bytes: settings.max_message_bytes.0,
        max_channels_per_connection: settings.max_channels_per_connection.0,
        limits: Limits { max_buffered_bytes: settings.max_buffered_bytes.0, ..Limits::default() },
    }
}

fn control_settings(settings: &Settings, plan: &Plan) -> throng_control::Settings {
    throng_control::Settings {
        listen: plan.address().ip(),
        has_admin_listener: settings.admin_listen.0.is_some(),
        // Any name is too many for a listener that browsers must not be led to.
        admin_hosts: settings.allowed_hosts.0.iter().filter(|it| *it != "*").cloned().collect(),
        has_demo: has_demo(settings),
        allowed_origins: settings.allowed_origins.0.clone(),
        allowed_hosts: settings.allowed_hosts.0.clone(),
        max_head_bytes: settings.max_head_bytes.0,
        max_message_bytes: settings.max_message_bytes.0,
        max_batch_bytes: settings.max_batch_bytes.0,
        max_channels_per_connection: settings.max_channels_per_connection.0,
        max_connections: plan.connections_max(),
        // The workers' tables are copies of the process's own, which has the same room.
        own_connections_max: plan.worker_connections_max(),
        head_timeout: settings.head_timeout.0,
        idle_timeout: settings.idle_timeout.0,
        drain_window: settings.drain_window.0,
        drain_timeout: settings.drain_timeout.0,
        limits: throng_control::Limits::default(),
    }
}
