//! The parts of a server's start that differ if it takes over from a running one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use throng_access::session::Tagger;
use throng_access::{AccessControl, Policy};
use throng_control::Control;
use throng_core::events::EventSink;
use throng_core::{
    Channels, Epoch, MemoryEngine, MemoryPressure, MemoryThaw, PresenceEventSettings,
    PresenceEvents, Rules,
};
use throng_data::directory::Directory;
use throng_edge::{Edge, EdgeContext, EdgePlan, StartError};
use throng_handover::message::DescriptorKind;
use throng_nats::engine::{NatsEngine, NodeThaw};
use tokio::runtime::Runtime;

use super::arrival::Arrival;
use super::parent;
use crate::access::{RevocationSettings, RevocationsFile};
use crate::data::{self, Data};
use crate::nats::{self, Joining};
use crate::presence_events;
use crate::settings::Settings;

/// The parts of logs and workers.
pub(crate) struct Logs {
    pub(crate) plan: EdgePlan,
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
    None,
    /// There is none: a node keeps the logs elsewhere.
    Node(Arc<NatsEngine>, Arc<Channels>),
    /// There is none: this process is to be the node that the running server is.
    Joining(Box<Joining>),
    Open(Data),
    /// The running server has it, and closes what is in it before it sends its logs. These are the
    /// settings for it.
    Taken(Directory, Box<Settings>),
}

pub(crate) struct Started {
    pub(crate) data: Option<Data>,
    pub(crate) edge: Edge,
    pub(crate) engines: Engines,
    pub(crate) node: Option<Arc<NatsEngine>>,
    pub(crate) pressure: Arc<MemoryPressure>,
    pub(crate) presence_events: Option<presence_events::PresenceShared>,
    /// The counters of the running server's control plane, if there is one.
    pub(crate) counted: Option<Vec<Vec<u8>>>,
}

/// The logs in memory, and the engine above them.
pub(crate) type Engines = (Arc<MemoryEngine>, Arc<Channels>);

impl Logs {
    /// Makes the logs and starts the workers, empty or with the state of the running server, and
    /// with the subscriptions that it keeps for users. Taken-over workers act after [`take_over`];
    /// if this fails, the running server goes on.
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
        if let DataSource::Joining(joining) = &data {
            // While the running server goes on, whatever comes of it.
            joining.wait()?;
        }
        let mut of_node = matches!(data, DataSource::Joining(_)).then(NodeThaw::default);
        let memory = || -> Result<MemoryEngine> {
            let memory = match arrival.as_mut().zip(workers.as_ref()) {
                None => MemoryEngine::new(Epoch::random(), of_logs, queues, max_bytes),
                Some((arrival, workers)) => {
                    let thaw = MemoryThaw::new(of_logs, queues, max_bytes);
                    arrival.engine((thaw, of_node.as_mut()), &access.kept, workers)?
                }
            };
            Ok(memory.with_events(events.clone()))
        };
        let (data, node, (logs, engine)) = match data {
            DataSource::Joining(joining) => {
                let memory = memory()?;
                let of_node = of_node.unwrap_or_default();
                let (node, channels) = joining.take_over(of_node, memory, access)?;
                (None, Some(node), (Arc::clone(channels.memory()), channels as _))
            }
            other => other.engines(memory)?,
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
        let shared = EdgeContext {
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
        let engines = (logs, engine);
        Ok(Started { data, edge, engines, node, pressure, presence_events, counted })
    }
}

impl DataSource {
    /// The source of a new process: in use, unless it is the running server's. `memory` makes the
    /// engine for everything outside of it.
    ///
    /// # Errors
    ///
    /// It cannot be used, or differs from the running server's.
    pub(crate) fn new(
        settings: &Settings,
        arrival: Option<&mut Arrival>,
        memory: impl FnOnce() -> MemoryEngine,
    ) -> Result<DataSource> {
        Ok(match arrival {
            None => Data::open(settings, memory)?.map_or(DataSource::None, DataSource::Open),
            Some(arrival) => match data::taken(settings, arrival.take(DescriptorKind::Data))? {
                None => DataSource::None,
                Some(directory) => DataSource::Taken(directory, Box::new(settings.clone())),
            },
        })
    }

    /// A node, or one that this process is to be, if the settings say so, and there is no
    /// directory. `memory` makes the engine of a node for all that is not in the stream.
    ///
    /// # Errors
    ///
    /// Files for it cannot be used, or the running server is a node and this one is not, or the
    /// reverse.
    pub(crate) fn or_node(
        self,
        node: (&Settings, &Policy),
        room: (usize, usize),
        (events, arrival): (Option<Arc<dyn EventSink>>, Option<&mut Arrival>),
        memory: impl FnOnce(Option<Arc<dyn EventSink>>) -> MemoryEngine,
    ) -> Result<DataSource> {
        let found = match arrival {
            None => nats::start(node, room, events, memory)?
                .map(|(node, channels)| DataSource::Node(node, channels)),
            Some(arrival) => Joining::new(node, room, events, arrival.take(DescriptorKind::Node))?
                .map(|joining| DataSource::Joining(Box::new(joining))),
        };
        Ok(match (self, found) {
            (DataSource::None, Some(found)) => found,
            (other, _) => other,
        })
    }

    /// Has the node, if there is one, share the revocations: at once, or once it is the node.
    /// Returns the file of revocations of a server that is alone, if it has one.
    pub(crate) fn join(
        &mut self,
        access: &AccessControl,
        revocations: Option<RevocationSettings>,
    ) -> Result<Option<RevocationsFile>> {
        match self {
            DataSource::Joining(joining) => {
                joining.revocations = revocations;
                Ok(None)
            }
            DataSource::Node(node, channels) => {
                nats::join(Some((&*node, &*channels)), access, revocations)
            }
            _ => nats::join(None, access, revocations),
        }
    }

    /// The directory that is in use here.
    pub(crate) fn open(&self) -> Option<&Data> {
        match self {
            DataSource::Open(data) => Some(data),
            DataSource::None
            | DataSource::Node(..)
            | DataSource::Joining(_)
            | DataSource::Taken(..) => None,
        }
    }

    fn engines(
        self,
        memory: impl FnOnce() -> Result<MemoryEngine>,
    ) -> Result<(Option<Data>, Option<Arc<NatsEngine>>, Engines)> {
        let data = match self {
            // One that is joined has its own way.
            DataSource::None | DataSource::Joining(_) => {
                let channels = Channels::from(memory()?);
                let engines = (Arc::clone(channels.memory()), Arc::new(channels) as _);
                return Ok((None, None, engines));
            }
            DataSource::Node(node, channels) => {
                let engines = (Arc::clone(channels.memory()), channels as _);
                return Ok((None, Some(node), engines));
            }
            DataSource::Open(data) => data,
            DataSource::Taken(directory, settings) => {
                Data::take_over(&settings, directory, memory()?)?
            }
        };
        let engines = data.engines();
        Ok((Some(data), None, engines))
    }
}

/// Lets the workers of the running server act here, and the data directory be written to. When this
/// returns, they act, and that one does no more; if it fails, that one goes on.
pub(crate) fn take_over(
    arrival: Option<&mut Arrival>,
    edge: &Edge,
    data: Option<&Data>,
) -> Result<()> {
    let Some(arrival) = arrival else { return Ok(()) };
    arrival.finish(|| {
        data.iter().for_each(|data| data.tenancy().begin());
        edge.take_over();
    })
}

/// Receives the connections that the control plane of the running server still has.
pub(crate) fn receive_rest(runtime: &Runtime, arrival: Option<Arrival>, control: &Arc<Control>) {
    let Some(arrival) = arrival else { return };
    let control = Arc::clone(control);
    runtime.spawn_blocking(move || arrival.receive_rest(&control));
}

/// Makes tags of sessions, keys of limits and logins: the running server's, if there is one.
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
) -> Result<Vec<(DescriptorKind, OwnedFd)>> {
    let admin = admin.map(|own| (DescriptorKind::Admin, own.as_fd()));
    let redirect = redirect.map(|own| (DescriptorKind::Redirect, own.as_fd()));
    let copy = |(listener, own): (DescriptorKind, BorrowedFd<'_>)| -> io::Result<_> {
        Ok((listener, own.try_clone_to_owned()?))
    };
    let copies = admin.into_iter().chain(redirect).map(copy);
    let lock = data.map(|data| Ok((DescriptorKind::Data, data.pass()?)));
    let copies: io::Result<_> = copies.chain(lock).collect();
    copies.context("cannot keep the listeners for an upgrade")
}

/// Why this server cannot be upgraded.
pub(crate) fn obstacle() -> Option<String> {
    if parent::is_needed() && !parent::is_possible() {
        return Some(
            "this process has to stay, for the service would end with it, and cannot: /proc is not \
             mounted; drain it instead"
                .to_owned(),
        );
    }
    None
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
