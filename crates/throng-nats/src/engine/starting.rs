//! The parts of a node, before it serves.
//!
//! A node is connected first, then put over the memory, and begins when the rest of the server is
//! there: news that comes meanwhile waits. One that is to be the node which another process is
//! waits until the stream can be used, and goes on from the other's state.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_core::events::EventSink;
use throng_core::frozen::ThawError;
use throng_core::parts::Parts;
use throng_core::{JournalId, MemoryEngine, NodeTag};
use tokio::sync::mpsc;

use super::asks::OpenQuestions;
use super::cluster::Cluster;
use super::deferred::DeferredWork;
use super::early::{Early, reason};
use super::followed::Followed;
use super::frozen::NodeThaw;
use super::keys::SharedKeys;
use super::known_bookmarks::BookmarksElsewhere;
use super::link::{Link, LinkState};
use super::members::NodeLink;
use super::open_logs::OpenLogs;
use super::receipts::ReceiptsForOthers;
use super::rest::Holding;
use super::shared::NodeShared;
use super::state_reads::NodeStates;
use super::stored_names::StoredNames;
use super::table::SharedTables;
use super::under_way::Publications;
use super::usage::UseExchange;
use super::vacancies::Vacancies;
use super::{NatsJournal, NodeSettings};
use crate::client;
use crate::journal::{JournalEvent, StreamJournal, TableId};

/// A node that is connected, and does not serve.
pub struct NodeStarting {
    early: Arc<Early>,
    vacancies: Arc<Vacancies>,
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

impl NodeStarting {
    /// Starts the connection, on a thread of its own. `events` hears of channels that get their
    /// first subscriber here or lose their last one.
    ///
    /// # Errors
    ///
    /// An error of the system, if the thread cannot be started.
    pub fn connect(
        settings: NodeSettings,
        events: Option<Arc<dyn EventSink>>,
    ) -> io::Result<NodeStarting> {
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
        let vacancies = Arc::new(Vacancies::new(events));
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
        Ok(NodeStarting {
            early,
            vacancies,
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

    /// Waits until the stream can be used.
    ///
    /// # Errors
    ///
    /// Why it cannot, for a sentence.
    pub fn wait_until_open(&self, patience: Duration) -> Result<(), String> {
        let waited = self.early.wait_until_open(patience);
        waited.map_err(|trouble| reason(LinkState::Away { trouble }))
    }

    /// The memory as the node needs it: with its events, and with its channels in lists. Rules name
    /// the node by `id`.
    #[must_use]
    pub fn beneath(&self, memory: MemoryEngine, id: JournalId) -> MemoryEngine {
        memory.with_events(Some(Arc::clone(&self.vacancies) as _)).with_all_listed(id)
    }

    /// The journal, which delivers to this [memory](NodeStarting::beneath). If another process has
    /// been the node, it goes on from its state, which was frozen beside the memory. Nothing is
    /// delivered before [`NodeBeginning::begin`].
    ///
    /// # Errors
    ///
    /// The records are not a whole node.
    pub fn journal(
        self,
        memory: Arc<MemoryEngine>,
        thaw: Option<NodeThaw>,
    ) -> Result<NodeBeginning, ThawError> {
        let (nonce, name) = self.names;
        // When the journal is gone, its sender of events is, and the thread ends.
        let shared = Arc::new(NodeShared {
            memory,
            parts: Arc::new(Parts::new(self.max_read_bytes)),
            link: Link::new((self.now_ms)()),
            vacancies: self.vacancies,
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
            logs: OpenLogs::default(),
            states: NodeStates::default(),
            stored: StoredNames::default(),
            list_part: OnceLock::new(),
            lists: AtomicUsize::new(0),
            usage: UseExchange::default(),
            bookmarks: BookmarksElsewhere::default(),
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
        shared.memory.share_members(Box::new(NodeLink(Arc::downgrade(&shared))));
        let begin = thaw.map_or(Ok(Vec::new()), |thaw| shared.thaw(thaw))?;
        let journal = Arc::new(NatsJournal { shared, thread: self.thread });
        Ok(NodeBeginning { journal, early: self.early, begin })
    }
}

/// A node over its memory that has not begun.
pub struct NodeBeginning {
    journal: Arc<NatsJournal>,
    early: Arc<Early>,
    begin: Vec<JournalEvent<'static>>,
}

impl NodeBeginning {
    /// The journal. News from the rest of the server comes before [`NodeBeginning::begin`].
    pub fn journal(&self) -> &Arc<NatsJournal> {
        &self.journal
    }

    /// Begins, with the channels that another process has followed. Returns whether the stream can
    /// be used: if not, a process that was the node should go on.
    pub fn begin(self) -> bool {
        let is_open = self.early.is_open();
        self.early.begin(&self.journal.shared);
        self.begin.into_iter().for_each(|event| self.journal.shared.tell(event));
        is_open
    }
}
