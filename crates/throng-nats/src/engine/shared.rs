//! State shared by the server's threads and the connection's thread.
//!
//! Locks are taken in this order: the followed channels, a shard of the memory engine, the open
//! parts. Nothing that may drop a [`ChannelHold`] is dropped under the first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use throng_core::parts::{HeldPart, Limits, Parts, Reserved};
use throng_core::{
    Answer, ChannelId, ChannelName, Content, Epoch, Fetched, HistoryQuery, Later, ListPart,
    ListQuery, MemoryEngine, NodeTag, Reading, ScanAction, ScanTarget, StartAt, Ticket, WantedTags,
};
use tokio::sync::mpsc::UnboundedSender;

use super::asks::OpenQuestions;
use super::cluster::{Cluster, ClusterView, NodeFacts};
use super::collect::{Collect, Source};
use super::deferred::DeferredWork;
use super::followed::{Followed, FollowedEntry, WaitingPart};
use super::hold::{ChannelHold, HoldOwner};
use super::keys::SharedKeys;
use super::known_bookmarks::BookmarksElsewhere;
use super::lateness::Lateness;
use super::link::{Link, count};
use super::open_logs::OpenLogs;
use super::pending::{PendingRead, ReadFor};
use super::receipts::ReceiptsForOthers;
use super::rest::{CountGuard, Holding};
use super::state_reads::NodeStates;
use super::stored_names::StoredNames;
use super::table::SharedTables;
use super::under_way::Publications;
use super::usage::UseExchange;
use super::vacancies::Vacancies;
use crate::journal::{JournalEvent, TableId, VolatilePlaces};

/// Channels that a tick ceases to follow, at most.
const VACATED_PER_TICK: usize = 4_096;

/// While memory is short, this share of the limit of all tails is left.
const SHORT_SHARE: usize = 8;

/// The tags of the tokens of a user.
pub(super) type TagsOfUser = Box<dyn Fn(&str) -> WantedTags + Send + Sync>;

/// Selects this node's part of a page.
pub(super) type SelectPart = Box<dyn Fn(&ListQuery) -> ListPart + Send + Sync>;

pub(super) struct NodeShared {
    pub(super) memory: Arc<MemoryEngine>,
    pub(super) parts: Arc<Parts>,
    pub(super) link: Link,
    pub(super) vacancies: Arc<Vacancies>,
    pub(super) publications: Publications,
    pub(super) receipts: ReceiptsForOthers,
    /// Volatile messages that wait to be sent to the other nodes.
    pub(super) volatile: Arc<VolatilePlaces>,
    pub(super) workers: usize,
    /// Names this process to itself.
    pub(super) nonce: String,
    /// The common start of connection names.
    pub(super) node: NodeTag,
    /// Names the node to others.
    pub(super) name: String,
    pub(super) now_ms: fn() -> u64,
    pub(super) from_wall_ms: fn(u64) -> u64,
    pub(super) followed: Mutex<Followed>,
    pub(super) reads: Mutex<HashMap<u64, PendingRead>>,
    /// Subscriptions that wait until their channels are followed, and what is being answered.
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) holding: Holding,
    pub(super) deferred: DeferredWork,
    pub(super) asks: OpenQuestions,
    pub(super) logs: OpenLogs,
    pub(super) states: NodeStates,
    pub(super) stored: StoredNames,
    /// Selects this node's part of a page of a list. Not known before the server knows its
    /// channels.
    pub(super) list_part: OnceLock<SelectPart>,
    /// Parts of lists that are being selected for other nodes.
    pub(super) lists: AtomicUsize,
    pub(super) usage: UseExchange,
    pub(super) bookmarks: BookmarksElsewhere,
    pub(super) keys: SharedKeys,
    pub(super) cluster: Cluster,
    /// Turns of the thread of the connection.
    pub(super) turns: Arc<AtomicU64>,
    pub(super) lateness: Mutex<Lateness>,
    pub(super) tables: SharedTables,
    /// The table of read markers; `None` if the node keeps none.
    pub(super) markers: Option<TableId>,
    /// Not known before the server knows its keys.
    pub(super) tags_of_user: OnceLock<TagsOfUser>,
    pub(super) events: UnboundedSender<JournalEvent<'static>>,
    /// The trouble that was logged last.
    pub(super) said: Mutex<Option<String>>,
    pub(super) max_cached_bytes: usize,
    pub(super) next_token: AtomicU64,
}

/// Fills a part with what was collected for it. Returns false if there is no room.
pub(super) fn fill(part: &HeldPart, collect: Collect) -> bool {
    loop {
        match part.reserve(part.limits()) {
            Reserved::Yes => break,
            Reserved::No => return false,
            // Another thread is about to fill one.
            Reserved::Later => std::thread::yield_now(),
        }
    }
    if collect.lacks_state(part.limits()) {
        part.give_back();
        return false;
    }
    part.fill(collect.finish(part.limits()));
    true
}

/// No answer will come: what was asked for is not there now.
pub(super) fn unanswered<T>(later: Later<'_, T>) -> Answer<T> {
    let (ticket, answer) = later.ticket();
    drop(ticket);
    answer
}

impl NodeShared {
    pub(super) fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reads(&self) -> MutexGuard<'_, HashMap<u64, PendingRead>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token that is not in use.
    pub(super) fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// The epoch of the stream, or one of a stream that was never open: an id of it names nothing.
    pub(super) fn epoch(&self) -> Epoch {
        self.link.epoch().unwrap_or_else(|| self.memory.watermark().epoch)
    }

    /// Tells the journal. Nobody listens only when the server ends.
    pub(super) fn tell(&self, event: JournalEvent<'static>) {
        let _ = self.events.send(event);
    }

    /// Opens and fills a part of a channel's log, as [`throng_core::Journal::fetch`] has to.
    pub(super) fn fetch(
        self: &Arc<NodeShared>,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        // Before anything is read: see `throng_core::parts`.
        let part = self.parts.open(channel, reading, limits, later.asker());
        match reading {
            Reading::Start(_) => self.fetch_start(now_ms, channel, part, later),
            Reading::Page(..) => self.fetch_page(now_ms, channel, part, later),
        }
    }

    fn fetch_start(
        self: &Arc<NodeShared>,
        now_ms: u64,
        channel: &ChannelName,
        part: HeldPart,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let reading = part.reading();
        let mut followed = self.followed();
        let id = self.follow(&mut followed, channel);
        let Some(entry) = followed.entry(id) else { return unanswered(later) };
        if entry.is_stale {
            // Subscribers from before the stream lost messages are on their way out.
            entry.is_stale = self.memory.followed_head(channel).is_some();
            if entry.is_stale {
                drop(followed);
                return unanswered(later);
            }
        }
        entry.holds += 1;
        let hold = ChannelHold { part, id, owner: Arc::clone(self) as _ };
        if !entry.is_live {
            if !self.link.is_open_soon() {
                drop(followed);
                return unanswered(later);
            }
            let (ticket, answer) = later.ticket();
            let counted = CountGuard::new(&self.waiting);
            entry.wait(WaitingPart { hold, ticket, now_ms, _counted: counted });
            return answer;
        }
        let begun = self.begin(entry, channel, (reading, now_ms));
        drop(followed);
        match begun {
            None => unanswered(later),
            Some((collect, true)) => {
                if !fill(&hold.part, collect) {
                    return unanswered(later);
                }
                Fetched::held_by(hold).into()
            }
            Some((collect, false)) => {
                let (ticket, answer) = later.ticket();
                self.read(collect, ReadFor::Start(hold, ticket));
                answer
            }
        }
    }

    /// Has the journal follow a channel, unless it does already.
    pub(super) fn follow(&self, followed: &mut Followed, channel: &ChannelName) -> ChannelId {
        let (id, _, is_new) = followed.add(channel);
        if is_new {
            // Under the lock, so that following and ceasing to follow come in their order.
            self.tell(JournalEvent::Follow(vec![(id, channel.clone())]));
        }
        id
    }

    /// Begins to collect what a subscription of a followed channel starts with, and whether it is
    /// complete; `None` without an epoch.
    pub(super) fn begin(
        &self,
        entry: &FollowedEntry,
        channel: &ChannelName,
        (reading, now_ms): (Reading, u64),
    ) -> Option<(Collect, bool)> {
        // A subscriber that came from another node may be ahead of what was delivered here. Its
        // worker takes no messages up to there any more: others read them from the stream.
        let furthest = self.memory.followed_head(channel).unwrap_or(0);
        let head = entry.head.max(furthest);
        let source = Source {
            channel: channel.clone(),
            epoch: self.link.epoch()?,
            retention: self.memory.rule(channel).retention,
            head,
            reached: head,
            newest: entry.newest,
            lag: Limits::of_lag(self.memory.rule(channel)),
        };
        let keeps_state = source.lag.state.max_keys > 0;
        let mut collect = Collect::new(source, reading, now_ms);
        let is_known = match (reading, collect.position()) {
            _ if !entry.is_open() && self.memory.rules().may_end(channel) => false,
            (Reading::Start(StartAt::Live | StartAt::Last(0)), _) => true,
            (Reading::Start(StartAt::State), _) if !keeps_state => true,
            (Reading::Page(HistoryQuery::Newest, 0), _) => true,
            _ if head > entry.head => false,
            (_, Some(position)) => entry.has_after(position),
            _ if keeps_state => false,
            (Reading::Start(StartAt::Last(wanted)), None) => {
                let is_readable =
                    |content: &&Arc<Content>| !content.is_expired(now_ms) && !content.is_notice();
                let readable = entry.cached().filter(is_readable);
                readable.take(wanted).count() == wanted
            }
            _ => false,
        };
        if !is_known {
            return Some((collect, false));
        }
        collect.take_known(entry.cached());
        if collect.lacks_state(collect.source().lag) {
            let source = collect.source().clone();
            return Some((Collect::new(source, reading, now_ms), false));
        }
        Some((collect, true))
    }

    fn fetch_page(
        self: &Arc<NodeShared>,
        now_ms: u64,
        channel: &ChannelName,
        part: HeldPart,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let Some(epoch) = self.link.epoch() else { return unanswered(later) };
        let reading = part.reading();
        let begun = {
            let followed = self.followed();
            let entry = followed.get(channel).filter(|entry| entry.is_live && !entry.is_stale);
            entry.and_then(|entry| self.begin(entry, channel, (reading, now_ms)))
        };
        let (collect, is_known) = begun.unwrap_or_else(|| {
            let source = Source {
                channel: channel.clone(),
                epoch,
                retention: self.memory.rule(channel).retention,
                head: 0,
                reached: self.link.last(),
                newest: 0,
                lag: Limits::of_lag(self.memory.rule(channel)),
            };
            (Collect::new(source, reading, now_ms), false)
        });
        if is_known {
            if !fill(&part, collect) {
                return unanswered(later);
            }
            return Fetched::held_by(part).into();
        }
        let (ticket, answer) = later.ticket();
        self.read(collect, ReadFor::Page(part, ticket));
        answer
    }

    /// Reads a part from the stream.
    pub(super) fn read(&self, collect: Collect, to: ReadFor) {
        let (token, (after, _)) = (self.token(), collect.begin());
        count(&self.link.counts.read);
        self.read_on(token, after, PendingRead { collect, to });
    }

    /// Reads the next part, after a sequence.
    pub(super) fn read_on(&self, token: u64, after: u64, read: PendingRead) {
        let (_, at_least) = read.collect.begin();
        let channel = read.collect.source().channel.clone();
        let wants_end = self.memory.rules().may_end(&channel);
        self.reads().insert(token, read);
        self.tell(JournalEvent::Read { token, channel, after, at_least, wants_end });
    }

    /// How late messages from NATS are, in milliseconds; 0 while none come.
    pub(super) fn lag_ms(&self, now_ms: u64) -> u64 {
        let since_ms = self.link.since_ms();
        if self.link.is_open() { self.cluster.standing(now_ms, since_ms).1 } else { 0 }
    }

    /// This node's description of itself; `None` before the rest of the server has given one.
    pub(super) fn facts(&self, now_ms: u64) -> Option<NodeFacts> {
        let own = self.cluster.own()?;
        let link = &self.link;
        let (is_open, opened_ms) = (link.is_open(), link.since_ms());
        let (standing, _) = self.cluster.standing(now_ms, opened_ms);
        let since = |at_ms: u64| now_ms.saturating_sub(at_ms);
        Some(NodeFacts {
            followed: self.followed().len() as u64,
            behind: standing.behind as u64,
            lag_ms: self.lag_ms(now_ms),
            under_way: self.publications.len() as u64,
            is_open,
            since_ms: since(opened_ms),
            epoch: link.epoch().map_or_else(String::new, |epoch| epoch.to_string()),
            leader: standing.leader,
            ..own
        })
    }

    /// This node and the others; `None` before the rest of the server has said what this one is.
    pub(super) fn view(&self) -> Option<ClusterView> {
        let now_ms = (self.now_ms)();
        let (id, others) = (self.name.clone(), self.cluster.others(now_ms));
        self.facts(now_ms).map(|facts| ClusterView { id, facts, others })
    }

    /// Says what the other nodes are told of this one.
    fn describe(&self, now_ms: u64) {
        if self.cluster.is_due(now_ms)
            && let Some(facts) = self.facts(now_ms)
        {
            // Texts and numbers always become JSON.
            self.tell(JournalEvent::Describe(serde_json::to_vec(&facts).unwrap_or_default()));
        }
    }

    /// Tells the clients when messages begin to come late, and when they do not any more.
    fn tell_lateness(&self, now_ms: u64) {
        let lag_ms = self.link.is_open().then(|| self.lag_ms(now_ms));
        let mut lateness = self.lateness.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(is_late) = lateness.step(now_ms, lag_ms) {
            self.scan(ScanTarget::All, ScanAction::TellLate(is_late), Ticket::new(drop));
        }
    }

    /// Tells the other nodes once a second how this one is, and ceases to follow channels that have
    /// been without subscribers for some time. While memory is short, most of what is kept in
    /// memory goes.
    pub(super) fn tick(self: &Arc<NodeShared>, now_ms: u64, is_memory_short: bool) {
        if is_memory_short {
            self.followed().limit(self.max_cached_bytes / SHORT_SHARE);
        }
        self.describe(now_ms);
        self.tell_lateness(now_ms);
        self.tell_due_receipts(now_ms);
        self.tell_use(now_ms);
        self.bookmarks.expire(now_ms);
        self.write_keys(now_ms);
        self.stored.tick(now_ms);
        self.remove_expired(now_ms);
        for _ in 0..VACATED_PER_TICK {
            let Some(name) = self.vacancies.due(now_ms) else { return };
            let mut followed = self.followed();
            // A subscription that is about to begin has a hold, until it is counted here.
            let is_vacant = self.memory.followed_head(&name).is_none();
            let gone = if is_vacant { followed.remove(&name) } else { None };
            if gone.is_some() {
                self.tell(JournalEvent::Unfollow(name));
            }
            drop(followed);
            // Without holds nothing waits in it.
            drop(gone);
        }
    }
}

impl HoldOwner for NodeShared {
    fn release(&self, id: ChannelId, channel: &ChannelName) {
        let mut followed = self.followed();
        let Some(entry) = followed.entry(id) else { return };
        entry.holds -= 1;
        if entry.holds == 0 && self.memory.followed_head(channel).is_none() {
            self.vacancies.add((self.now_ms)(), channel);
        }
    }
}
