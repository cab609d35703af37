//! The node in use.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use throng_control::{Ailment, ClusterStatus, Control, MetricSource, OtherMetric};
use throng_core::{Channels, JournalId, ListPart, MemoryEngine, clock};
use throng_handover::channel::Channel;
use throng_handover::message::DescriptorKind;
use throng_handover::records::RecordStream;
use throng_nats::client::NatsClientSettings;
use throng_nats::engine::{NatsJournal, NodeSettings, NodeStarting, NodeThaw};
use throng_nats::journal::JournalSettings;

use super::access::NatsAccess;
use super::stream::{nonce, stream};
use super::tables::{self, tables};
use super::{facts, kept, limits, metrics, revocations, status};
use crate::journals::interface::{JournalSetup, Opened, Prepared, Preparing, ServerJournal};
use crate::settings::LogPlace;
use crate::watch::Turns;

/// How long a publication is tried, in milliseconds: those who wait for it are told after five
/// seconds that its outcome is unknown.
const PUBLISH_MS: u64 = 4_000;

/// How long NATS may take to answer before the process gives up that is to take over.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);

/// The longest name of a node.
const NAME_BYTES_MAX: u64 = 64;

/// A node that is connected, and does not serve yet.
struct PreparedNode {
    id: JournalId,
    starting: NodeStarting,
    /// The state of the process that is the node now.
    thaw: Option<NodeThaw>,
}

/// Connects, as the successor of the node whose name is in the pipe, if there is one.
pub(super) fn prepare(setup: &JournalSetup<'_>, id: JournalId, name: Option<OwnedFd>) -> Preparing {
    let read = |name| {
        let mut text = String::new();
        File::from(name).take(NAME_BYTES_MAX).read_to_string(&mut text).context("its name")?;
        anyhow::Ok(text)
    };
    let name = name.map(read).transpose()?;
    let thaw = name.as_ref().map(|_| NodeThaw::default());
    let starting = NodeStarting::connect(settings(setup, name), setup.events.sink.clone())
        .context("cannot start the thread of the connection to NATS")?;
    Ok(Box::new(PreparedNode { id, starting, thaw }))
}

impl Prepared for PreparedNode {
    fn wait(&self) -> Result<()> {
        match self.starting.wait_until_open(OPEN_PATIENCE) {
            Ok(()) => Ok(()),
            Err(reason) => bail!("NATS cannot be used: {reason}"),
        }
    }

    fn has_records(&self) -> bool {
        true
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.thaw.as_mut().map_or(Ok(()), |thaw| thaw.record(record)).context("the node")
    }

    fn beneath(&mut self, memory: MemoryEngine, setup: &JournalSetup<'_>) -> Result<MemoryEngine> {
        Ok(self.starting.beneath(memory, self.id).with_tallies(setup.events.tallies.clone()))
    }

    fn open(self: Box<Self>, memory: &Arc<MemoryEngine>, _: &JournalSetup<'_>) -> Result<Opened> {
        let PreparedNode { starting, thaw, .. } = *self;
        let is_successor = thaw.is_some();
        let beginning = starting.journal(Arc::clone(memory), thaw).context("the node")?;
        let node = Arc::clone(beginning.journal());
        let (journal, server) = (Arc::clone(&node) as _, Arc::new(Node(Arc::clone(&node))));
        let finish = move |channels: &Arc<Channels>, setup: &JournalSetup<'_>| {
            // Before anything is told: what other nodes ask is about users, too.
            share(&node, channels, setup)?;
            let is_open = beginning.begin();
            ensure!(is_open || !is_successor, "NATS can no longer be used");
            Ok(())
        };
        Ok(Opened { journal, server, finish: Box::new(finish) })
    }
}

/// The settings of a node. It may be the one that another process is, by its name.
fn settings(setup: &JournalSetup<'_>, successor_of: Option<String>) -> NodeSettings {
    let JournalSetup { settings, plan, queues, rules, .. } = setup;
    let access = NatsAccess::of(settings);
    let stream = stream(settings, rules);
    NodeSettings {
        client: NatsClientSettings {
            servers: settings.nats.addresses(),
            login: access.login(),
            tls: access.tls(),
            name: format!("throng {}", settings.listen),
            now_ms: clock::now_ms,
        },
        journal: JournalSettings {
            tables: tables(settings, &stream),
            stream,
            nonce: nonce(),
            successor_of,
            publish_ms: PUBLISH_MS,
        },
        markers: Some(tables::MARKERS),
        keys: Some(tables::KEYS),
        workers: queues.len(),
        max_cached_bytes: setup.max_bytes(),
        max_read_bytes: plan.parts,
        from_wall_ms: |wall_ms| clock::from_wall_ms(wall_ms).min(clock::now_ms()),
    }
}

/// Shares what users follow and what is revoked with the other nodes, if that is in NATS, and has
/// the connections of a user found here.
///
/// # Errors
///
/// An error of the system, if a thread cannot be started.
fn share(
    node: &Arc<NatsJournal>,
    channels: &Arc<Channels>,
    setup: &JournalSetup<'_>,
) -> Result<()> {
    let access = &setup.access.control;
    let tagger = access.tagger.clone();
    node.set_tags(move |user| tagger.of_user(user));
    // The channels have the node.
    let listed = Arc::downgrade(channels);
    node.set_list_part(move |query| match listed.upgrade() {
        Some(channels) => channels.list_part(clock::now_ms(), query),
        None => ListPart::default(),
    });
    limits::share(node, &access.clients);
    if !setup.has_records(LogPlace::Nats) {
        // Other nodes' subscriptions do not concern this one.
        node.set_table_owner(tables::SUBSCRIPTIONS, drop);
        return Ok(());
    }
    if let Some(revocations) = setup.access.revocations.clone() {
        let shared = revocations::share(node, access, |table| revocations.shared(table));
        let is_first = access.shared_revocations.set(shared).is_ok();
        debug_assert!(is_first);
    }
    kept::share(node, channels, access)
}

/// A node in use.
struct Node(Arc<NatsJournal>);

impl MetricSource for Node {
    fn metrics(&self) -> Vec<OtherMetric> {
        metrics::metrics(&self.0)
    }

    fn cluster(&self) -> Option<ClusterStatus> {
        Some(status::cluster(&self.0, self.0.cluster()?))
    }

    fn ailments(&self) -> Vec<Ailment> {
        status::ailments(&self.0)
    }
}

impl ServerJournal for Node {
    fn turns(&self) -> Option<(&'static str, Turns)> {
        Some(("nats", self.0.turns()))
    }

    fn describe(&self, control: &Arc<Control>, port: u16) {
        facts::describe(&self.0, control, port);
    }

    fn end(&self) {
        self.0.leave();
    }

    fn obstacle(&self) -> Option<String> {
        let trouble = self.0.trouble()?;
        Some(format!("this node cannot use NATS now, so no process can take over: {trouble}"))
    }

    fn pass(&self) -> Result<(DescriptorKind, OwnedFd)> {
        let name = pass_name(&self.0).context("cannot pass the name of the node")?;
        Ok((DescriptorKind::Node, name))
    }

    fn hold(&self) -> Result<()> {
        ensure!(self.0.hold(), "publications to NATS do not finish; try again");
        Ok(())
    }

    fn go_on(&self) {
        self.0.go_on();
    }

    fn send(&self, channel: &Channel) -> Result<()> {
        let mut records = RecordStream::new(channel);
        self.0.freeze(|record| records.push(&record))?;
        Ok(records.finish()?)
    }

    fn cede(&self) {
        self.0.cede();
    }
}

/// A pipe with the name of the node, for a process that takes over.
fn pass_name(node: &NatsJournal) -> io::Result<OwnedFd> {
    let (near, far) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // So few bytes have room in it.
    File::from(far).write_all(node.name().as_bytes())?;
    Ok(near)
}
