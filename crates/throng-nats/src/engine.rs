//! The journal of a node: the logs of channels are in a stream, which all nodes share.
//!
//! The stream says when a message is accepted, and under which id. Followers, the delivery to them,
//! and all logs that are the node's own are the memory engine's. A channel is followed in the
//! stream while it has subscribers here.
//!
//! # Invariants
//!
//! * A message is delivered in the order of its stream, on the thread of the connection, when the
//!   stream has republished it: also to the subscribers of the node that published it.
//! * Nobody waits for a server: what has to be read comes later ([`Journal::fetch`]), and waits in
//!   memory for the subscription or page that it is for ([`throng_core::parts`]).
//! * While the stream is away, publications are refused and subscribers stay. They get what they
//!   missed when it is back.
//! * Ids are sequences of the stream, and so are positions in many channels: both mean the same on
//!   every node.
//! * When the stream has lost messages, nobody goes on as if nothing had been: all subscribers are
//!   told to connect again, and none of their positions is known any more.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `starting` | what a node is made of |
//! | `shared` | what all threads share, and the calls of the server |
//! | `inbound` | what the journal reports |
//! | `followed`, `tail` | the followed channels, and their newest messages |
//! | `asking`, `answering` | what nodes ask each other, in the form of `questions` |
//! | `asks` | questions without their answers |
//! | `bookmarks`, `known_bookmarks`, `bookmark_messages` | where users of others go on |
//! | `lists`, `stored_names` | the channels that are in the stream, for lists |
//! | `cluster` | what this node says of itself, and what it knows of the others |
//! | `table` | the tables that every node has whole |
//! | `markers` | how far users have read their inboxes and channels |
//! | `succession`, `frozen`, `early`, `rest` | another process becomes the node |
//! | `pending` | parts of logs that are read |
//! | `collect`, `collect_state`, `linked` | makes starts and pages of what was read |
//! | `hold` | keeps a channel followed for a subscription that begins |
//! | `ends` | channels that have ended while the node was cut off |
//! | `states`, `state_reads`, `expiring` | the states of channels, and values that expire |
//! | `deferred` | what waits until all that has come at once was taken |
//! | `vacancies` | channels that nobody follows any more |
//! | `under_way` | publications without an answer, and how many there may be |
//! | `logs`, `open_logs` | changes of logs, and erasure |
//! | `keys`, `key_table` | idempotency keys that all nodes know |
//! | `usage` | what clients use of limits, on all nodes |
//! | `members`, `member_messages` | tells other nodes of members, and takes what they tell |
//! | `receipts` | counts the delivery of messages whose publishers are on other nodes |
//! | `lateness` | when clients are told that messages come late |
//! | `link` | the state of the connection, and what was counted |

mod answering;
mod asking;
mod asks;
mod bookmark_messages;
mod bookmarks;
mod cluster;
mod collect;
mod collect_state;
mod deferred;
mod early;
mod ends;
mod expiring;
mod followed;
mod frozen;
mod hold;
mod inbound;
mod key_table;
mod keys;
mod known_bookmarks;
mod lateness;
mod link;
mod linked;
mod lists;
mod logs;
mod markers;
mod member_messages;
mod members;
mod open_logs;
mod pending;
mod questions;
mod receipts;
mod rest;
mod shared;
mod starting;
mod state_reads;
mod states;
mod stored_names;
mod succession;
mod table;
mod tail;
mod under_way;
mod usage;
mod vacancies;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_core::journal::{Cluster, Journal, JournalIds, JournalUsage};
use throng_core::parts::{HeldPart, Limits, Parts};
use throng_core::{
    Answer, BookmarkKeys, ChangeError, ChangeOutcome, ChannelName, Delivered, EngineMetrics, Erase,
    EraseOutcome, ErasedMarkers, Fetched, KeyPage, KeyQuery, Later, ListPart, ListQuery,
    ListedChannel, LogChange, LogState, Mark, Marked, MarkerKey, MarkersOf, MemoryEngine,
    MessageId, NodeTag, OtherNodes, Outcome, Presence, PresenceAsk, PresenceBusy, Publication,
    PublishError, Reading, Retention, Rule, ScanAction, ScanTarget, Scanned, Stamp, Ticket,
    VolatilePublication, WantedTags, Watermark,
};

use crate::api::table::TableEntry;
use crate::client::NatsClientSettings;
pub use crate::journal::{Changed, TableId};
use crate::journal::{JournalEvent, JournalSettings, PublishRequest};
pub use cluster::{ClusterView, NodeFacts, OtherNode};
pub use frozen::NodeThaw;
pub use link::{LinkState, NodeFigures};
pub use questions::question_of_nodes;
pub use starting::{NodeBeginning, NodeStarting};
pub use succession::FreezeError;
pub use table::TableNews;
pub use usage::NodeUse;

use link::count;
use shared::NodeShared;

/// Why a channel cannot end: each of its publications would have to be compared with the record.
const ENDS_NOT: &str = "a channel of several nodes can end only if its [[channels]] table has \
    may-end = true, on every node";

/// How long the end of a server waits until others are told of it.
const LEAVE: Duration = Duration::from_millis(500);

/// Settings of a node.
pub struct NodeSettings {
    /// The servers, and who this node is there.
    pub client: NatsClientSettings,
    /// The stream, and how long publications are tried.
    pub journal: JournalSettings,
    /// The journal's table of read markers.
    pub markers: Option<TableId>,
    /// The journal's table of idempotency keys.
    pub keys: Option<TableId>,
    /// The workers of the data plane.
    pub workers: usize,
    /// Messages that are kept in memory for clients that come back, in bytes.
    pub max_cached_bytes: usize,
    /// Bytes of what was read of logs and waits for clients, at most.
    pub max_read_bytes: usize,
    /// Converts a time of the servers, in milliseconds since 1970, to one of the node's clock.
    pub from_wall_ms: fn(u64) -> u64,
}

/// See the module.
pub struct NatsJournal {
    shared: Arc<NodeShared>,
    thread: JoinHandle<()>,
}

impl NatsJournal {
    /// The engine of all that is not in the stream.
    pub fn memory(&self) -> &Arc<MemoryEngine> {
        &self.shared.memory
    }

    /// Sets how the tags of a user's tokens are found here, by which other nodes have the user's
    /// connections listed and closed. Call it once, before there are connections.
    pub fn set_tags(&self, tags_of_user: impl Fn(&str) -> WantedTags + Send + Sync + 'static) {
        let is_first = self.shared.tags_of_user.set(Box::new(tags_of_user)).is_ok();
        debug_assert!(is_first);
    }

    /// Sets how this node's part of a page of a list is selected, which other nodes ask for. Call
    /// it once, before there are channels.
    pub fn set_list_part(&self, select: impl Fn(&ListQuery) -> ListPart + Send + Sync + 'static) {
        let is_first = self.shared.list_part.set(Box::new(select)).is_ok();
        debug_assert!(is_first);
    }

    /// Sets what the rest of the server knows of this node: its name, version, connections and
    /// health. Asked for once a second, and whenever another node asks. Call it once.
    pub fn set_facts(&self, facts: impl Fn() -> NodeFacts + Send + Sync + 'static) {
        self.shared.cluster.set_own(Box::new(facts));
    }

    /// Has nodes tell each other what their clients use of limits. Call it once.
    pub fn share_use(&self, own: Box<dyn NodeUse>) {
        self.shared.usage.set(own);
    }

    /// This node and the others; `None` before [`NatsJournal::set_facts`].
    pub fn cluster(&self) -> Option<ClusterView> {
        self.shared.view()
    }

    /// How late messages from NATS are, in milliseconds; 0 while none come.
    pub fn lag_ms(&self) -> u64 {
        self.shared.lag_ms((self.shared.now_ms)())
    }

    /// Turns of the connection's thread: they grow as long as it runs, with or without a
    /// connection.
    pub fn turns(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.turns)
    }

    /// Sets who is told what a table has. Called once; what has come before is told at once.
    pub fn set_table_owner(
        &self,
        table: TableId,
        owner: impl Fn(TableNews) + Send + Sync + 'static,
    ) {
        self.shared.tables.set_owner(table, Box::new(owner));
    }

    /// Writes an entry of a table, with `replaces` only if its key's last entry has this sequence.
    /// It is answered after the owner was told of the entry, or of the one that is in its way.
    pub fn change_table(
        &self,
        table: TableId,
        (entry, replaces): (TableEntry, Option<u64>),
        done: Ticket<Changed>,
    ) {
        let token = self.shared.token();
        self.shared.tables.begin(token, done);
        self.shared.tell(JournalEvent::Change { table, token, entry, replaces });
    }

    /// Compares a table with what its owner was told. It is answered once the owner was told all
    /// that there is now, and not at all if the servers cannot be reached.
    pub fn compare_table(&self, table: TableId, done: Ticket<()>) {
        let shared = &self.shared;
        if shared.link.is_open() && shared.tables.wait(table, (shared.now_ms)(), done) {
            shared.tell(JournalEvent::Compare(table));
        }
    }

    /// How many tables there are.
    pub fn tables(&self) -> usize {
        self.shared.tables.len()
    }

    /// How old what the owner of a table was told may be, in milliseconds: since when nothing was
    /// heard of it, or the node runs.
    pub fn table_age_ms(&self, table: TableId) -> u64 {
        let shared = &self.shared;
        let as_of_ms = shared.tables.as_of_ms(table).unwrap_or_else(|| shared.link.since_ms());
        (shared.now_ms)().saturating_sub(as_of_ms)
    }

    /// Makes the workers of this node pass their connections.
    pub fn scan_own(&self, target: ScanTarget, action: ScanAction) {
        self.shared.scan(target, action, Ticket::new(drop));
    }

    /// Tells the other nodes that this one ends, so that they do not wait for its answers. Takes
    /// the time of a write, half a second at most.
    pub fn leave(&self) {
        self.shared.tell(JournalEvent::Leave);
        let until = std::time::Instant::now() + LEAVE;
        while !self.thread.is_finished() && std::time::Instant::now() < until {
            std::thread::sleep(LEAVE / 100);
        }
    }

    /// How the node stands to the stream.
    pub fn state(&self) -> LinkState {
        self.shared.link.state()
    }

    /// True if the stream stores nothing, although it can be used otherwise.
    pub fn is_stalled(&self) -> bool {
        self.shared.link.is_stalled()
    }

    /// The node's counters.
    pub fn figures(&self) -> NodeFigures {
        let link = &self.shared.link;
        let counts = &link.counts;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeFigures {
            nodes: link.nodes(),
            is_open: link.is_open(),
            is_stalled: link.is_stalled(),
            since_ms: link.since_ms(),
            under_way: self.shared.publications.len() as u64,
            followed: self.shared.followed().len() as u64,
            accepted: of(&counts.accepted),
            refused: of(&counts.refused),
            busy: of(&counts.busy),
            polled: link.polled(),
            was_open: link.epoch().is_some(),
            delivered: of(&counts.delivered),
            gaps: of(&counts.gaps),
            losses: of(&counts.losses),
            epochs: of(&counts.epochs),
            read: of(&counts.read),
            volatile_lost: of(&counts.volatile_lost),
            receipts_refused: self.shared.receipts.refused(),
            keys_lost: of(&counts.keys_lost),
            limits: counts.limits(),
            size: self.shared.cluster.standing((self.shared.now_ms)(), link.since_ms()).0.size,
            publish: throng_core::Snapshot::of(std::iter::once(&link.publish)),
        }
    }
}

impl Journal for NatsJournal {
    fn append(
        &self,
        _: u64,
        publication: Publication,
        _: Retention,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        let shared = &self.shared;
        let state = shared.state_limits(&publication.channel);
        let refused = if state.is_none() && publication.key().is_some() {
            Some(PublishError::NoState)
        } else if !shared.link.is_open() {
            Some(PublishError::Away)
        } else if !shared.publications.take_place(&publication) {
            count(&shared.link.counts.busy);
            Some(PublishError::Busy)
        } else {
            None
        };
        if let Some(error) = refused {
            count(&shared.link.counts.refused);
            return Err(error).into();
        }
        let (token, asker) = (shared.token(), later.asker());
        let (ticket, answer) = later.ticket();
        shared.publications.begin(token, &publication, ticket);
        let may_end = shared.memory.rules().may_end(&publication.channel);
        let request = PublishRequest { token, publication, asker, may_end, state };
        shared.tell(JournalEvent::Publish(request));
        answer
    }

    fn change(
        &self,
        _: u64,
        change: LogChange,
        _: Retention,
        later: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome> {
        self.shared.change(change, later)
    }

    fn state(
        &self,
        _: u64,
        channel: &ChannelName,
        later: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>> {
        self.shared.ask_state(channel, later)
    }

    fn erase(
        &self,
        _: u64,
        channel: &ChannelName,
        what: Erase,
        later: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome> {
        self.shared.erase(channel, what, later)
    }

    fn keeps_states(&self) -> bool {
        true
    }

    fn keys(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: KeyQuery,
        later: Later<'_, Result<KeyPage, ChangeError>>,
    ) -> Answer<Result<KeyPage, ChangeError>> {
        self.shared.keys_of(now_ms, channel, query, later)
    }

    fn refuses_ends(&self, rule: &Rule) -> Option<&'static str> {
        (!rule.may_end).then_some(ENDS_NOT)
    }

    fn parts(&self) -> &Parts {
        &self.shared.parts
    }

    fn ids(&self, _: &ChannelName) -> JournalIds {
        JournalIds { epoch: self.shared.epoch(), are_consecutive: false }
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        self.shared.fetch(now_ms, channel, reading, limits, later)
    }

    /// Nothing is read, but the stream has the channel followed.
    fn read_now(
        &self,
        _: u64,
        channel: &ChannelName,
        reading: Reading,
        _: Limits,
    ) -> Option<HeldPart> {
        if matches!(reading, Reading::Start(_)) {
            self.shared.follow(&mut self.shared.followed(), channel);
        }
        None
    }

    fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        self.shared.read_marker(now_ms, of, mark, later)
    }

    fn erase_markers(
        &self,
        of: MarkersOf<'_>,
        later: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers> {
        self.shared.erase_markers(of, later)
    }

    fn complete_list(&self, now_ms: u64, listed: &mut ListedChannel) {
        self.shared.complete_list(now_ms, listed);
    }

    fn has_order(&self) -> bool {
        true
    }

    fn watermark(&self) -> Option<Watermark> {
        let link = &self.shared.link;
        link.epoch().map(|epoch| Watermark { epoch, stamp: Stamp(link.settled()) })
    }

    fn is_settling(&self) -> bool {
        self.shared.link.is_whole()
    }

    fn is_at_rest(&self) -> bool {
        self.shared.is_at_rest()
    }

    fn tick(&self, now_ms: u64, is_memory_short: bool) {
        self.shared.tick(now_ms, is_memory_short);
    }

    fn usage(&self) -> JournalUsage {
        let counts = &self.shared.link.counts;
        JournalUsage {
            log_bytes: self.shared.followed().cached().1 as u64,
            held_shortly: counts.fetched.load(Ordering::Relaxed) + self.shared.stored.forgotten(),
        }
    }

    fn metrics(&self, of_others: EngineMetrics) -> EngineMetrics {
        let (messages, bytes) = self.shared.followed().cached();
        let counts = &self.shared.link.counts;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineMetrics {
            messages: of_others.messages + messages,
            bytes: of_others.bytes + bytes as u64,
            published: of_others.published + of(&counts.accepted),
            busy: of_others.busy + of(&counts.busy),
            duplicates: of_others.duplicates + of(&counts.duplicates),
            ..of_others
        }
    }

    fn cluster(&self) -> Option<&dyn Cluster> {
        Some(self)
    }
}

impl Cluster for NatsJournal {
    fn node(&self) -> NodeTag {
        self.shared.node
    }

    fn pass_on(&self, publication: &VolatilePublication) -> Result<(), PublishError> {
        let shared = &self.shared;
        if !shared.link.is_open() {
            count(&shared.link.counts.refused);
            return Err(PublishError::Away);
        }
        match shared.volatile.take(publication.body.bytes().len()) {
            Some(place) => shared.tell(JournalEvent::Volatile(place, publication.clone())),
            None => count(&shared.link.counts.volatile_lost),
        }
        Ok(())
    }

    fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        ask: PresenceAsk,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        self.shared.presence(now_ms, channel, ask, later)
    }

    fn tell_bookmarks(&self, left: &[(BookmarkKeys, u64)]) {
        self.shared.tell_bookmarks(left);
    }

    fn part_with_user(&self, user: &str, before_ms: u64) {
        self.shared.part_elsewhere(user, before_ms);
    }

    fn has_bookmarks_in(&self, now_ms: u64, channel: u64) -> bool {
        self.shared.has_bookmarks_in(now_ms, channel)
    }

    fn bookmark_elsewhere(
        &self,
        now_ms: u64,
        of: (&str, &ChannelName),
        later: Later<'_, ()>,
    ) -> Answer<()> {
        self.shared.bookmark_elsewhere(now_ms, of, later)
    }

    fn subscribers_elsewhere(
        &self,
        channel: &ChannelName,
        later: Later<'_, OtherNodes<u64>>,
    ) -> Answer<OtherNodes<u64>> {
        self.shared.subscribers_elsewhere(channel, later)
    }

    fn delivered_elsewhere(
        &self,
        (channel, id): (&ChannelName, MessageId),
        wait_ms: u64,
        later: Later<'_, OtherNodes<Delivered>>,
    ) -> Answer<OtherNodes<Delivered>> {
        self.shared.delivered_elsewhere((channel, id), wait_ms, later)
    }

    fn scan_elsewhere(
        &self,
        target: &ScanTarget,
        action: &ScanAction,
        later: Later<'_, OtherNodes<Scanned>>,
    ) -> Answer<OtherNodes<Scanned>> {
        self.shared.scan_elsewhere((target, action), later)
    }

    fn list_stored(&self, query: &ListQuery, later: Later<'_, ListPart>) -> Answer<ListPart> {
        self.shared.list_stored(query, later)
    }

    fn list_elsewhere(
        &self,
        query: &ListQuery,
        later: Later<'_, OtherNodes<Vec<ListPart>>>,
    ) -> Answer<OtherNodes<Vec<ListPart>>> {
        self.shared.list_elsewhere(query, later)
    }
}
