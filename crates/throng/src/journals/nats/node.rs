//! The node in use.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use throng_control::{Ailment, ClusterStatus, Control, MetricSource, OtherMetric};
use throng_core::{Channels, clock};
use throng_handover::channel::Channel;
use throng_handover::message::DescriptorKind;
use throng_handover::records::RecordStream;
use throng_nats::client::NatsClientSettings;
use throng_nats::engine::{NatsJournal, NodeSettings};
use throng_nats::journal::JournalSettings;

use super::access::NatsAccess;
use super::stream::{nonce, stream};
use super::tables::{self, tables};
use super::{facts, kept, limits, metrics, revocations, status};
use crate::journals::interface::{JournalSetup, Opened, ServerJournal};
use crate::watch::Turns;

/// How long a publication is tried, in milliseconds: those who wait for it are told after five
/// seconds that its outcome is unknown.
const PUBLISH_MS: u64 = 4_000;

/// Without a thread there is no node.
pub(super) const NO_THREAD: &str = "cannot start the thread of the connection to NATS";

/// Starts the node, if the settings have one.
pub(super) fn open(setup: &JournalSetup<'_>) -> Result<Option<Opened>> {
    if !setup.settings.engine.0 {
        return Ok(None);
    }
    let memory = |events| setup.memory(Some(events)).with_all_listed();
    let node = NatsJournal::start(settings(setup, None), setup.events.clone(), memory);
    opened(&Arc::new(node.context(NO_THREAD)?), setup).map(Some)
}

/// The settings of a node. It may be the one that another process is, by its name.
pub(super) fn settings(setup: &JournalSetup<'_>, successor_of: Option<String>) -> NodeSettings {
    let JournalSetup { settings, plan, queues, .. } = setup;
    let access = NatsAccess::of(settings);
    let stream = stream(settings, &setup.rules);
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

/// The channels of a node, which shares what users follow and what is revoked with the others, and
/// knows how the connections of a user are found here.
///
/// # Errors
///
/// An error of the system, if a thread cannot be started.
pub(super) fn opened(node: &Arc<NatsJournal>, setup: &JournalSetup<'_>) -> Result<Opened> {
    let channels = Channels::new(Arc::clone(node.memory()), Some(Arc::clone(node) as _));
    let opened = Opened::new(channels, Node(Arc::clone(node)));
    let access = &setup.access.control;
    let tagger = access.tagger.clone();
    node.set_tags(move |user| tagger.of_user(user));
    if let Some(revocations) = setup.access.revocations.clone() {
        let shared = revocations::share(node, access, |table| revocations.shared(table));
        let is_first = access.shared_revocations.set(shared).is_ok();
        debug_assert!(is_first);
    }
    kept::share(node, &opened.channels, access)?;
    limits::share(node, &access.clients);
    Ok(opened)
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

    fn pass(&self) -> Result<Option<(DescriptorKind, OwnedFd)>> {
        let name = pass_name(&self.0).context("cannot pass the name of the node")?;
        Ok(Some((DescriptorKind::Node, name)))
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
