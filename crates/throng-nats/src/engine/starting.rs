//! The parts of a node, before it serves.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use throng_core::events::EventSink;
use throng_core::parts::Parts;
use throng_core::{MemoryEngine, NodeTag};
use tokio::sync::mpsc;

use super::asks::OpenQuestions;
use super::cluster::Cluster;
use super::deferred::DeferredWork;
use super::early::Early;
use super::followed::Followed;
use super::keys::SharedKeys;
use super::link::Link;
use super::receipts::ReceiptsForOthers;
use super::rest::Holding;
use super::shared::NodeShared;
use super::table::SharedTables;
use super::under_way::Publications;
use super::usage::UseExchange;
use super::vacancies::Vacancies;
use super::{NatsJournal, NodeSettings};
use crate::client;
use crate::journal::{JournalEvent, StreamJournal, TableId};

/// A connection, and what the journal above it is made of.
pub(super) struct Starting {
    pub(super) early: Arc<Early>,
    events: mpsc::UnboundedSender<JournalEvent<'static>>,
    thread: JoinHandle<()>,
    /// Names of this process and of the node.
    names: (String, String),
    /// The common start of connection names.
    node: NodeTag,
    now_ms: fn() -> u64,
    from_wall_ms: fn(u64) -> u64,
    workers: usize,
    max_cached_bytes: usize,
    max_read_bytes: usize,
    tables: usize,
    markers: Option<TableId>,
    keys: Option<TableId>,
}

impl Starting {
    /// Starts the connection, on a thread of its own.
    pub(super) fn connect(settings: NodeSettings) -> io::Result<Starting> {
        let NodeSettings {
            client,
            journal,
            markers,
            keys,
            workers,
            max_cached_bytes,
            max_read_bytes,
            from_wall_ms,
        } = settings;
        let (events, receiver) = mpsc::unbounded_channel();
        let (now_ms, tables) = (client.now_ms, journal.tables.len());
        let name = journal.successor_of.clone().unwrap_or_else(|| journal.nonce.clone());
        let (names, node) = ((journal.nonce.clone(), name), journal.node());
        let early = Arc::<Early>::default();
        let told = Arc::clone(&early);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let journal = StreamJournal::new(journal);
        let thread = std::thread::Builder::new().name("nats".into()).spawn(move || {
            runtime.block_on(client::run(client, journal, receiver, |notice| told.take(notice)));
        })?;
        Ok(Starting {
            early,
            events,
            thread,
            names,
            node,
            now_ms,
            from_wall_ms,
            workers,
            max_cached_bytes,
            max_read_bytes,
            tables,
            markers,
            keys,
        })
    }

    /// The journal, which is told nothing before [`Early::begin`].
    pub(super) fn journal(
        self,
        events: Option<Arc<dyn EventSink>>,
        memory: impl FnOnce(Arc<dyn EventSink>) -> MemoryEngine,
    ) -> (NatsJournal, Arc<Early>) {
        let vacancies = Arc::new(Vacancies::new(events));
        let (nonce, name) = self.names;
        // When the journal is gone, its sender of events is, and the thread ends.
        let shared = Arc::new(NodeShared {
            memory: Arc::new(memory(Arc::clone(&vacancies) as _)),
            parts: Arc::new(Parts::new(self.max_read_bytes)),
            link: Link::new((self.now_ms)()),
            vacancies,
            publications: Publications::default(),
            receipts: ReceiptsForOthers::default(),
            volatile: Arc::default(),
            workers: self.workers,
            node: self.node,
            nonce,
            name,
            now_ms: self.now_ms,
            from_wall_ms: self.from_wall_ms,
            followed: Mutex::new(Followed::new(self.max_cached_bytes)),
            reads: Mutex::default(),
            waiting: Arc::default(),
            deferred: DeferredWork::default(),
            holding: Holding::default(),
            asks: OpenQuestions::default(),
            lists: AtomicUsize::new(0),
            usage: UseExchange::default(),
            keys: SharedKeys::new(self.keys),
            cluster: Cluster::default(),
            turns: Arc::default(),
            lateness: Mutex::default(),
            tables: SharedTables::new(self.tables),
            markers: self.markers,
            tags_of_user: OnceLock::new(),
            events: self.events,
            said: Mutex::default(),
            max_cached_bytes: self.max_cached_bytes,
            next_token: AtomicU64::new(1),
        });
        shared.follow_keys();
        (NatsJournal { shared, thread: self.thread }, self.early)
    }
}

impl NatsJournal {
    /// Starts a node, whose connection has a thread of its own. `memory` makes the engine for all
    /// that is not in the stream, with this sink of events; `events` gets them, too.
    ///
    /// # Errors
    ///
    /// An error of the system, if the thread cannot be started.
    pub fn start(
        settings: NodeSettings,
        events: Option<Arc<dyn EventSink>>,
        memory: impl FnOnce(Arc<dyn EventSink>) -> MemoryEngine,
    ) -> io::Result<NatsJournal> {
        let (journal, early) = Starting::connect(settings)?.journal(events, memory);
        early.begin(&journal.shared);
        Ok(journal)
    }
}
