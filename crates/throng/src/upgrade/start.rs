//! The parts of a server's start that differ if it takes over from a running one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use throng_access::AccessControl;
use throng_control::Control;
use throng_core::events::EventSink;
use throng_core::{
    Engine, Epoch, MemoryEngine, MemoryPressure, MemoryThaw, PresenceEventSettings, PresenceEvents,
    Rules,
};
use throng_edge::{Edge, Plan, Shared, StartError};
use throng_handover::message::Listener;
use tokio::runtime::Runtime;

use super::arrival::Arrival;
use crate::access::RevocationsFile;
use crate::load::Loaded;
use crate::presence_events;
use crate::settings::{Settings, SettingsError};

/// What logs and workers are made of.
pub(crate) struct Logs {
    pub(crate) plan: Plan,
    pub(crate) rules: Arc<Rules>,
    pub(crate) max_bytes: usize,
    /// Those of a data directory, which no process takes over.
    pub(crate) kept: Option<Engines>,
    /// Those of presence events, if any channel has them.
    pub(crate) presence: Option<PresenceEventSettings>,
    /// The file of revocations, which is to be opened.
    pub(crate) revocations: Option<RevocationsFile>,
}

/// What has been started.
pub(crate) struct Started {
    pub(crate) edge: Edge,
    pub(crate) engines: Engines,
    pub(crate) pressure: Arc<MemoryPressure>,
    pub(crate) presence_events: Option<presence_events::Shared>,
}

/// The logs in memory, and the engine above them.
pub(crate) type Engines = (Arc<MemoryEngine>, Arc<dyn Engine>);

impl Logs {
    /// Makes the logs and starts the workers, empty ones or those of the running server, with what
    /// it keeps for users. Those act after [`take_over`]; if this fails, the running server goes
    /// on.
    pub(crate) fn start(
        self,
        access: &Arc<AccessControl>,
        events: Option<Arc<dyn EventSink>>,
        mut arrival: Option<&mut Arrival>,
    ) -> Result<Started> {
        let Logs { plan, rules, max_bytes, kept, presence, revocations } = self;
        let (of_logs, queues) = (Arc::clone(&rules), plan.queues());
        let in_memory = |logs: MemoryEngine| -> Engines {
            let logs = Arc::new(logs.with_events(events.clone()));
            (Arc::clone(&logs), logs)
        };
        let (logs, engine) = match (&mut arrival, kept) {
            (_, Some(kept)) => kept,
            (None, None) => {
                in_memory(MemoryEngine::new(Epoch::random(), of_logs, queues, max_bytes))
            }
            (Some(arrival), None) => {
                let thaw = MemoryThaw::new(of_logs, queues, max_bytes);
                in_memory(arrival.engine(thaw, &access.kept)?)
            }
        };
        // In the order in which the running server sends them.
        let (presence_events, passed) = match &mut arrival {
            None => (presence.map(PresenceEvents::new), None),
            Some(arrival) => {
                let watched = &logs.presence_cache().watched;
                (arrival.presence_events(presence, watched)?, arrival.revocations()?)
            }
        };
        if let Some(file) = revocations {
            file.open(passed, access)?;
        }
        let presence_events = presence_events.map(|events| Arc::new(Mutex::new(events)));
        let pressure = Arc::<MemoryPressure>::default();
        let shared = Shared {
            engine: Arc::clone(&engine),
            access: Arc::clone(access),
            rules,
            events,
            pressure: Arc::clone(&pressure),
        };
        let edge = match arrival {
            None => plan.start(&shared, None)?,
            Some(arrival) => plan.start(&shared, Some(&mut || arrival.worker_channel()))?,
        };
        Ok(Started { edge, engines: (logs, engine), pressure, presence_events })
    }
}

/// Lets the workers of the running server act here. When this returns, that one acts no more; if it
/// fails before, that one goes on.
pub(crate) fn take_over(arrival: Option<&mut Arrival>, edge: &mut Edge) -> Result<()> {
    let Some(arrival) = arrival else { return Ok(()) };
    arrival.finish()?;
    edge.take_over().context("cannot start the acceptor")
}

/// Receives the connections that the control plane of the running server still has.
pub(crate) fn receive_rest(runtime: &Runtime, arrival: Option<Arrival>, control: &Arc<Control>) {
    let Some(arrival) = arrival else { return };
    let control = Arc::clone(control);
    runtime.spawn_blocking(move || arrival.receive_rest(&control));
}

/// The listener of the running server at this address, or a new one.
pub(crate) fn listener(
    address: SocketAddr,
    passed: Option<OwnedFd>,
    open: impl FnOnce(SocketAddr) -> Result<TcpListener, StartError>,
) -> Result<TcpListener, StartError> {
    let passed = passed.map(TcpListener::from);
    let is_it = |listener: &TcpListener| {
        listener.local_addr().is_ok_and(|its| its.ip() == address.ip())
            && (address.port() == 0
                || listener.local_addr().is_ok_and(|its| its.port() == address.port()))
    };
    match passed.filter(is_it) {
        Some(listener) => Ok(listener),
        None => open(address),
    }
}

/// Copies of the listeners that no worker has, for a process that takes over.
pub(crate) fn copies(
    admin: Option<&impl AsFd>,
    redirect: Option<&impl AsFd>,
) -> Result<Vec<(Listener, OwnedFd)>> {
    let admin = admin.map(|own| (Listener::Admin, own.as_fd()));
    let redirect = redirect.map(|own| (Listener::Redirect, own.as_fd()));
    let copy = |(listener, own): (Listener, BorrowedFd<'_>)| -> io::Result<_> {
        Ok((listener, own.try_clone_to_owned()?))
    };
    let copies: io::Result<_> = admin.into_iter().chain(redirect).map(copy).collect();
    copies.context("cannot keep the listeners for an upgrade")
}

/// Checks that a server with these settings can take over, if it is to.
pub(crate) fn check(settings: &Settings, takes_over: bool) -> Result<(), SettingsError> {
    match &settings.data.0 {
        _ if takes_over && settings.engine.0 => Err(SettingsError(
            "a server with engine = nats cannot take over from a running one; restart".into(),
        )),
        Some(path) if takes_over => Err(SettingsError(format!(
            "a server with a data directory ({}) cannot take over from a running one; restart",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Why this server cannot be upgraded.
pub(crate) fn obstacle(loaded: &Loaded) -> Option<String> {
    let Loaded { settings, dev_keys, dev_certificate } = loaded;
    if std::process::id() == 1 {
        return Some(
            "this is process 1, with which the container ends; drain it instead".to_owned(),
        );
    }
    if dev_keys.is_some() || dev_certificate.is_some() {
        return Some("--dev and --dev-tls are for one run".to_owned());
    }
    if settings.engine.0 {
        return Some(
            "with engine = nats no process takes over; drain it, its clients go to other nodes"
                .to_owned(),
        );
    }
    let path = settings.data.0.as_ref()?.display();
    Some(format!("data {path} can belong to one process only; restart instead"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_taken_over_only_at_its_address() {
        let open = |address| Ok(TcpListener::bind(address).unwrap());
        let running = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = running.local_addr().unwrap();
        let same = listener(address, Some(running.into()), open).unwrap();
        assert_eq!(same.local_addr().unwrap(), address);
        let other: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let new = listener(other, Some(same.into()), open).unwrap();
        assert_eq!(new.local_addr().unwrap().ip(), other.ip());
    }
}
