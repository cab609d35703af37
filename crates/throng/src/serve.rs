//! `throng serve`: starts the server, runs it, and shuts it down.
//!
//! # Order of start
//!
//! 1. SIGHUP is caught, because it must never end the server.
//! 2. The thread starts that signals reach, before all others, and the tokio runtime. That must
//!    exist before the workers: each worker copies the descriptor table, and needs the descriptor
//!    that wakes the runtime, because workers answer its queries.
//! 3. The settings are loaded and checked, then access and TLS. The addresses are bound. An error
//!    ends the process before anything else starts.
//! 4. SIGTERM and SIGINT are caught before the banner and systemd say that the server runs.
//! 5. The journals are opened or taken over, and the channels over them. The workers start, then
//!    the control plane.
//!
//! # Order of shutdown
//!
//! 1. The server is not ready any more, and after `drain-delay` the workers stop accepting
//!    connections and subscriptions.
//! 2. The control plane rejects new publications, and finishes those in progress.
//! 3. The workers deliver all messages, tell their clients to reconnect, and end. Until they have
//!    ended, the control plane answers the connections that they hand off.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `base` | the settings, and what they say of the process as a whole |
//! | `security` | access control and TLS |
//! | `ports` | everything that listens |
//! | `data_plane` | journals, channels and workers |
//! | `leaving` | the server until its end |
//! | `announcement` | what is said at the start |
//! | `reserves`, `runtime` | threads and descriptors |

mod announcement;
mod base;
mod data_plane;
mod leaving;
mod ports;
mod reserves;
mod runtime;
mod security;

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use throng_control::Health;
use tokio::runtime::Runtime;

use crate::beside::Beside;
use crate::cli::ServeArguments;
use crate::control_socket::ControlSocket;
use crate::departure::{Departure, DepartureSettings};
use crate::dev::DevKeys;
use crate::journals::JournalSetup;
use crate::load::reader;
use crate::operator::Operator;
use crate::plane_settings::control_settings;
use crate::planes::Workers;
use crate::reload::{Reloader, Replaceable};
use crate::service::{EarlyHangups, Hangups, Signals, survive_file_size_limit};
use crate::settings::{self, Settings};
use crate::signal_thread::SignalThread;
use crate::subscription_counts::spawn_events;
use crate::upgrade::{self, Arrival, Reloads, Running, SuccessorBinary};
use announcement::Announcement;
use base::Base;
use data_plane::{DataPlane, StartState};
use leaving::{Leaving, Serving};
use ports::Ports;
use reserves::Reserves;
use security::Security;

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
    let process = Process { early_hangups, thread, successor };
    let outcome = run(&runtime, arguments, process, &mut arrival);
    if let (Err(error), Some(arrival)) = (&outcome, &mut arrival) {
        arrival.refuse(error);
    }
    // A thread that waits for a file which somebody has to write must not hold up the end.
    runtime.shutdown_background();
    outcome
}

/// The signals and the binary of this process.
struct Process<'a> {
    early_hangups: &'a EarlyHangups,
    thread: SignalThread,
    successor: SuccessorBinary,
}

/// Starts the server, and serves until a signal ends that. `arrival` has the server that this
/// process takes over from, if there is one.
fn run(
    runtime: &Runtime,
    arguments: ServeArguments,
    process: Process<'_>,
    arrival: &mut Option<Arrival>,
) -> Result<()> {
    let _entered = runtime.enter();
    let hangups = Hangups::catch(process.early_hangups).context("cannot wait for signals")?;
    let upgrades = upgrade::Requests::catch(process.thread).context("cannot wait for signals")?;

    let mut base = Base::load(&arguments, arrival.as_mut())?;
    let settings = &base.loaded.settings;
    let security = Security::new(runtime, settings, arrival.as_ref())?;
    let ports = Ports::bind(&base, security.tls.as_deref(), arrival.as_mut())?;
    let announcement = Announcement::new(&base.loaded, &ports, base.meter.as_ref(), base.memory)?;
    let control_settings = control_settings(settings, &ports.plan, base.memory, &base.pages);
    let Ports { plan, admin, redirect, control_socket } = ports;
    let address = plan.address();

    let setup = JournalSetup {
        settings,
        plan: base.memory,
        access: &security.access,
        events: security.events.clone(),
        rules: Arc::new(settings::rules(settings)),
        queues: plan.queues(),
    };
    let state = StartState::new(&plan, &setup, arrival.as_mut())?;
    let signals = Signals::new().context("cannot wait for signals")?;
    let planes = DataPlane::start(plan, &setup, state)?;

    let metrics = security.metrics(redirect.as_ref(), &base.log);
    let access = Arc::clone(&security.access.control);
    let control = planes.control(&access, control_settings, metrics, base.site.take());
    let journals = Arc::clone(&planes.state.journals);
    journals.iter().for_each(|journal| journal.describe(&control, address.port()));
    let listeners = upgrade::start::copies(admin.as_ref(), redirect.as_ref())?;
    let reserves = Reserves::make(runtime, &planes, base.meter.take(), control.health())?;
    // From here on this process serves: what may fail comes before.
    upgrade::start::take_over(arrival.as_mut(), &planes.edge, &planes.state.channels, &journals)?;

    let renewer = security.renewer();
    let beside = Beside::start(runtime, security.callouts, redirect, security.renewal);
    // Messages about the settings come first.
    base.log.writer.flush();
    let after = |_| ControlSocket::take_after(&settings.control, address);
    let control_socket = arrival.as_ref().map_or(control_socket, after);
    announcement.make(arrival.is_none(), &planes.edge.send_method);

    let (reloads, obstacle) = (Arc::<Reloads>::default(), upgrade::start::obstacle());
    let file = settings::file_in_use(arguments.sources.config.as_deref());
    let (pages, log_level) = (base.pages, base.log.level.clone());
    let replaceable =
        Replaceable { access: security.access, pages, tls: security.tls.clone(), log_level };
    let (read, workers) = (reader(arguments), Arc::clone(&planes.workers));
    let reloader = Reloader::new(read, settings.clone(), obstacle.is_none(), replaceable, workers);
    let departure = departure(settings, Arc::clone(&planes.workers), control.health());
    let backups = journals.iter().find_map(|own| Some((own.backups()?, Arc::clone(&control))));
    let reloader = (reloader, Arc::clone(&reloads));
    let operator = Operator::new(reloader, renewer, (&departure, upgrades.asking()), backups);
    operator.serve(hangups, control_socket.as_ref(), address, file);
    let DataPlane { state: StartState { channels, presence_events, .. }, edge, .. } = planes;
    let ending_events = spawn_events(security.counts, &presence_events, &channels, &control);
    let running = Running {
        channels,
        journals,
        access,
        tls: security.tls.clone(),
        presence_events,
        listeners,
        reloads,
        rest: reserves.rest.clone(),
        dev: base.loaded.dev_keys.as_ref().map(DevKeys::secrets),
        obstacle,
        successor: process.successor,
        control_socket: Mutex::new(control_socket),
    };
    upgrade::start::receive_rest(runtime, arrival.take(), &control);
    let (delay, log) = (settings.drain_delay.0, base.log.writer.clone());
    let leaving =
        Leaving { signals, departure, delay, ending_events, log, upgrades, running, beside };
    let admin = ports::with_tls(admin, security.tls.as_deref(), settings);
    Serving { control, edge, reserves, admin }.run(runtime, leaving)
}

fn departure(settings: &Settings, workers: Arc<Workers>, health: &Arc<Health>) -> Arc<Departure> {
    let settings = DepartureSettings {
        delay: settings.drain_delay.0,
        patience: settings.drain_timeout.0,
        has_tls: settings.tls_listen.0.is_some(),
    };
    Departure::new(settings, workers, Arc::clone(health))
}
