//! The parts of a server's start that differ if it takes over from a running one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use throng_access::AccessControl;
use throng_access::session::Tagger;
use throng_control::Control;
use throng_core::events::EventSink;
use throng_core::{
    Engine, Epoch, MemoryEngine, MemoryPressure, MemoryThaw, PresenceEventSettings, PresenceEvents,
    Rules,
};
use throng_data::directory::Directory;
use throng_edge::{Edge, Plan, Shared, StartError};
use throng_handover::message::Listener;
use tokio::runtime::Runtime;

use super::arrival::Arrival;
use super::parent;
use crate::access::RevocationsFile;
use crate::data::{self, Data};
use crate::load::Loaded;
use crate::presence_events;
use crate::settings::{Settings, SettingsError};

/// What logs and workers are made of.
pub(crate) struct Logs {
    pub(crate) plan: Plan,
    pub(crate) rules: Arc<Rules>,
    pub(crate) max_bytes: usize,
    pub(crate) data: DataSource,
    /// Those of presence events, if any channel has them.
    pub(crate) presence: Option<PresenceEventSettings>,
    /// The file of revocations, which is to be opened.
    pub(crate) revocations: Option<RevocationsFile>,
}

/// Where the data directory comes from.
pub(crate) enum DataSource {
    /// There is none.
    None,
    /// There is none: a node keeps the logs elsewhere.
    Node(Engines),
    /// It is in use here.
    Open(Data),
    /// The running server has it, and closes what is in it before it sends its logs. These are the
    /// settings for it.
    Taken(Directory, Box<Settings>),
}

/// What has been started.
pub(crate) struct Started {
    pub(crate) data: Option<Data>,
    pub(crate) edge: Edge,
    pub(crate) engines: Engines,
    pub(crate) pressure: Arc<MemoryPressure>,
    pub(crate) presence_events: Option<presence_events::Shared>,
    /// What the control plane of the running server has counted, if there is one.
    pub(crate) counted: Option<Vec<Vec<u8>>>,
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
        let Logs { plan, rules, max_bytes, data, presence, revocations } = self;
        let (of_logs, queues) = (Arc::clone(&rules), plan.queues());
        // Before this process has what the running server sends: the threads' tables would keep
        // it open.
        let workers = plan.receive_ahead()?;
        let memory = || -> Result<MemoryEngine> {
            let memory = match arrival.as_mut().zip(workers.as_ref()) {
                None => MemoryEngine::new(Epoch::random(), of_logs, queues, max_bytes),
                Some((arrival, workers)) => {
                    let thaw = MemoryThaw::new(of_logs, queues, max_bytes);
                    arrival.engine(thaw, &access.kept, workers)?
                }
            };
            Ok(memory.with_events(events.clone()))
        };
        let (data, (logs, engine)) = data.engines(memory)?;
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
        let counted = match &mut arrival {
            Some(arrival) => Some(arrival.counted()?),
            None => None,
        };
        let edge = plan.start(&shared, workers)?;
        Ok(Started { data, edge, engines: (logs, engine), pressure, presence_events, counted })
    }
}

impl DataSource {
    /// That of a new process: in use, unless it is that of the running server. `memory` makes the
    /// engine for all that is not in it.
    ///
    /// # Errors
    ///
    /// It cannot be used, or is another one than that of the running server.
    pub(crate) fn new(
        settings: &Settings,
        arrival: Option<&mut Arrival>,
        memory: impl FnOnce() -> MemoryEngine,
    ) -> Result<DataSource> {
        Ok(match arrival {
            None => Data::open(settings, memory)?.map_or(DataSource::None, DataSource::Open),
            Some(arrival) => match data::taken(settings, arrival.take(Listener::Data))? {
                None => DataSource::None,
                Some(directory) => DataSource::Taken(directory, Box::new(settings.clone())),
            },
        })
    }

    /// The engines of a node, if there is one, and no directory.
    pub(crate) fn or(self, node: Option<Engines>) -> DataSource {
        match (self, node) {
            (DataSource::None, Some(engines)) => DataSource::Node(engines),
            (other, _) => other,
        }
    }

    /// The directory that is in use here.
    pub(crate) fn open(&self) -> Option<&Data> {
        match self {
            DataSource::Open(data) => Some(data),
            DataSource::None | DataSource::Node(_) | DataSource::Taken(..) => None,
        }
    }

    fn engines(
        self,
        memory: impl FnOnce() -> Result<MemoryEngine>,
    ) -> Result<(Option<Data>, Engines)> {
        let data = match self {
            DataSource::None => {
                let logs = Arc::new(memory()?);
                return Ok((None, (Arc::clone(&logs), logs)));
            }
            DataSource::Node(engines) => return Ok((None, engines)),
            DataSource::Open(data) => data,
            DataSource::Taken(directory, settings) => {
                Data::take_over(&settings, directory, memory()?)?
            }
        };
        let engines = data.engines();
        Ok((Some(data), engines))
    }
}

/// Lets the workers of the running server act here, and the data directory be written to. When this
/// returns, that one acts no more; if it fails before, that one goes on.
pub(crate) fn take_over(
    arrival: Option<&mut Arrival>,
    edge: &Edge,
    data: Option<&Data>,
) -> Result<()> {
    let Some(arrival) = arrival else { return Ok(()) };
    arrival.finish()?;
    data.iter().for_each(|data| data.tenancy().begin());
    edge.take_over();
    Ok(())
}

/// Receives the connections that the control plane of the running server still has.
pub(crate) fn receive_rest(runtime: &Runtime, arrival: Option<Arrival>, control: &Arc<Control>) {
    let Some(arrival) = arrival else { return };
    let control = Arc::clone(control);
    runtime.spawn_blocking(move || arrival.receive_rest(&control));
}

/// What makes tags of sessions, keys of limits and logins: that of the running server, if there is
/// one.
pub(crate) fn tagger(arrival: Option<&Arrival>) -> Result<Tagger> {
    match arrival {
        Some(arrival) => Ok(arrival.tagger()),
        None => Tagger::random().context("the system has no random bytes"),
    }
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

/// Copies of the listeners that no worker has, and of the lock of the data directory, for a process
/// that takes over.
pub(crate) fn copies(
    admin: Option<&impl AsFd>,
    redirect: Option<&impl AsFd>,
    data: Option<&Data>,
) -> Result<Vec<(Listener, OwnedFd)>> {
    let admin = admin.map(|own| (Listener::Admin, own.as_fd()));
    let redirect = redirect.map(|own| (Listener::Redirect, own.as_fd()));
    let copy = |(listener, own): (Listener, BorrowedFd<'_>)| -> io::Result<_> {
        Ok((listener, own.try_clone_to_owned()?))
    };
    let copies = admin.into_iter().chain(redirect).map(copy);
    let lock = data.map(|data| Ok((Listener::Data, data.pass()?)));
    let copies: io::Result<_> = copies.chain(lock).collect();
    copies.context("cannot keep the listeners for an upgrade")
}

/// Checks that a server with these settings can take over, if it is to.
pub(crate) fn check(settings: &Settings, takes_over: bool) -> Result<(), SettingsError> {
    if takes_over && settings.engine.0 {
        let message = "a server with engine = nats cannot take over from a running one; restart";
        return Err(SettingsError(message.into()));
    }
    Ok(())
}

/// Why this server cannot be upgraded.
pub(crate) fn obstacle(loaded: &Loaded) -> Option<String> {
    // The keys of `--dev` are passed, and the certificate of `--dev-tls` is on the disk, where the
    // new process finds it.
    let Loaded { settings, dev_keys: _, dev_certificate: _ } = loaded;
    if parent::is_needed() && !parent::is_possible() {
        return Some(
            "this process has to stay, for the service would end with it, and cannot: /proc is not \
             mounted; drain it instead"
                .to_owned(),
        );
    }
    settings.engine.0.then(|| {
        "with engine = nats no process takes over; drain it, its clients go to other nodes"
            .to_owned()
    })
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
