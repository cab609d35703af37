//! The server's life, from checked settings to the exit.
//!
//! # Order
//!
//! The plan binds, so that a port that is taken ends it before anything else. Signals are caught
//! before anybody can be told that the server runs, and it is told once it listens. The runtime is
//! there before the workers: each takes a copy of the descriptor table as it then is, and the
//! descriptor that wakes the runtime must be in it, because workers wake it with their answers. On
//! stop the workers close their doors; then the control plane accepts no more, and when its last
//! publication is made, which is still to be delivered, the workers send everybody home. Until they
//! have, the control plane answers whatever they hand over.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use throng_control::Control;
use throng_core::{Access, Allow, Counter, Engine, Epoch, MemoryEngine, clock};
use throng_edge::{Edge, Figures, Plan, Sends, StartError};
use throng_machine::preflight::{self, Preflight, Tables, Wanted};
use throng_text::figures::count;
use throng_text::paint::Paint;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::banner::Banner;
use crate::planes::{Handover, Workers};
use crate::service::{Signals, notify};
use crate::settings::{Settings, channels};

/// The engine forgets what is too old a part at each call.
const TICK: Duration = Duration::from_millis(100);

/// The workers get so long to take in who has connected already, before publications are refused:
/// whoever came in time is answered.
const CLOSING_DOORS: Duration = Duration::from_millis(100);

/// When the logs have shrunk by so many bytes and by half, what the allocator keeps of it goes back
/// to the system.
const RELEASE_BYTES: u64 = 64 << 20;

/// Runs the server until a signal ends it.
pub fn serve(settings: &Settings) -> Result<()> {
    start_log(settings);
    let plan = Plan::new(edge_settings(settings)).map_err(with_next_step)?;
    let rules = Arc::new(channels::rules(settings));
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(
        Epoch::starting_at(clock::now_ms()),
        Arc::clone(&rules),
        plan.mailboxes(),
        settings.history.total_bytes.0,
    ));
    let access: Arc<dyn Access> = Arc::new(Allow);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the control plane")?;
    let control_settings = control_settings(settings, &plan);
    let signals = {
        let _entered = runtime.enter();
        Signals::new().context("cannot wait for signals")?
    };
    let banner = banner(settings, &plan);
    let edge = plan.start(&engine, &access, &rules)?;
    print(&banner);
    log_sends(&edge.sends);

    let workers = Workers { inlets: edge.inlets.clone(), figures: edge.figures.clone() };
    let control = Control::new(Arc::clone(&engine), access, Arc::new(workers), control_settings);
    let edge = runtime.block_on(control_plane(Arc::new(control), engine, edge, signals))?;

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
    mut signals: Signals,
) -> Result<Edge> {
    let edge = Arc::new(edge);
    let handover = Handover::new(Arc::clone(&edge)).context("cannot wait for connections")?;
    let ticking = keep_ticking(engine);
    notify("READY=1");
    let doors = Arc::clone(&edge);
    let drain = async move {
        let name = signals.next().await;
        doors.close_doors();
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
    throng_control::serve(control, handover, drain, move || parting.drain()).await;
    ticking.abort();
    Arc::into_inner(edge).context("the control plane still holds the data plane")
}

fn keep_ticking(engine: Arc<dyn Engine>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut most_bytes = 0;
        loop {
            ticks.tick().await;
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

/// What the machine says to so many connections, as the settings ask for them.
fn preflight(settings: &Settings, plan: &Plan) -> Preflight {
    let mut wanted = Wanted::server(plan.connections_max() as u64);
    if let Some(server) = &mut wanted.server {
        server.tables = Some(Tables { threads_least: plan.workers() as u64, ..Tables::server() });
        // Which port there will be next time is not known if the kernel chooses it.
        server.port = Some(settings.listen.0.port()).filter(|&port| port > 0);
    }
    preflight::check(&wanted)
}

fn banner(settings: &Settings, plan: &Plan) -> String {
    let banner = Banner {
        address: plan.address(),
        workers: plan.workers(),
        descriptors_max: plan.descriptors_max(),
        connections_max: plan.connections_max(),
        preflight: &preflight(settings, plan),
    };
    banner.text(Paint::on(&io::stdout()))
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A server is not stopped because nobody looks.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn log_sends(sends: &Sends) {
    match sends {
        Sends::Together => tracing::debug!("fan-outs go through io_uring"),
        Sends::Single => tracing::debug!("fan-outs take a call for each subscriber"),
        Sends::SingleBecause(reason) => tracing::info!(
            "fan-outs take a call for each subscriber, as io_uring is not to be had: {reason}"
        ),
    }
}

/// One line about what was done.
fn log_outcome(figures: &Figures) {
    let sum = |counter| {
        let counts = figures.workers().iter().map(|worker| worker.counters.get(counter));
        count(counts.sum())
    };
    tracing::info!(
        "stopped: {} connections accepted, {} messages delivered, {} connections sent home",
        sum(Counter::Accepted),
        sum(Counter::Deliveries),
        sum(Counter::ClosedDraining),
    );
}

fn edge_settings(settings: &Settings) -> throng_edge::Settings {
    throng_edge::Settings {
        listen: settings.listen.0,
        workers: settings.workers.count().unwrap_or(0),
        connections_max: settings.max_connections.count().unwrap_or(0),
        io_uring: settings.io_uring.0,
        allowed_origins: settings.allowed_origins.0.clone(),
        heartbeat: settings.heartbeat.0,
        welcome: settings.welcome.0,
        head_timeout: settings.head_timeout.0,
        idle_timeout: settings.idle_timeout.0,
        drain_window: settings.drain_window.0,
        drain_timeout: settings.drain_timeout.0,
        head_bytes_max: settings.max_head_bytes.0,
        message_bytes_max: settings.max_message_bytes.0,
        channels_max: settings.max_channels_per_connection.0,
    }
}

fn control_settings(settings: &Settings, plan: &Plan) -> throng_control::Settings {
    throng_control::Settings {
        listen: plan.address().ip(),
        allowed_origins: settings.allowed_origins.0.clone(),
        head_bytes_max: settings.max_head_bytes.0,
        message_bytes_max: settings.max_message_bytes.0,
        batch_bytes_max: settings.max_batch_bytes.0,
        channels_max: settings.max_channels_per_connection.0,
        connections_max: plan.connections_max(),
        // The workers' tables are copies of the process's own, which has the same room.
        own_connections_max: plan.worker_connections_max(),
        head_timeout: settings.head_timeout.0,
        idle_timeout: settings.idle_timeout.0,
        drain_timeout: settings.drain_timeout.0,
        ..throng_control::Settings::default()
    }
}
