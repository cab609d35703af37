//! The channels of a server: what this process has of them in memory, over the journal that keeps
//! the logs of some.

use std::sync::Arc;

use crate::connection_name::NodeTag;
use crate::connection_scan::{ScanAction, ScanTarget, Scanned};
use crate::engine::{Audience, Engine, EngineMetrics, Follow, Followed, History, OtherNodes};
use crate::id::{ChannelId, LocalId, MessageId, WorkerId};
use crate::journal::{Cluster, Journal, JournalIds};
use crate::later::{Answer, Later};
use crate::listing::{ListPlace, ListStep};
use crate::memory::{Backlog, MemoryEngine};
use crate::message::Message;
use crate::name::{ChannelName, Kind};
use crate::parts::{HeldPart, Limits, OpenPart, Page, Part};
use crate::presence::{Presence, PresenceBusy, PresenceCache};
use crate::publication::{Outcome, Publication, PublishError, VolatilePublication};
use crate::read_marker::{Mark, Marked};
use crate::reading::{Fetched, HistoryQuery, Reading};
use crate::rules::Rule;
use crate::stamp::Watermark;
use crate::worker_queue::Notification;

/// The places of a journal's channels in lists begin here, beyond the memory's.
const JOURNAL_PLACES: u64 = 1 << 63;

/// A part of a log that a journal has read.
enum ReadPart {
    Fetched(Arc<OpenPart>),
    Now(Option<HeldPart>),
}

impl ReadPart {
    fn of(
        journal: &dyn Journal,
        now_ms: u64,
        channel: &ChannelName,
        rule: &Rule,
        reading: Reading,
    ) -> ReadPart {
        let fetched = journal.parts().find(channel, reading).map(ReadPart::Fetched);
        fetched.unwrap_or_else(|| {
            ReadPart::Now(journal.read_now(now_ms, channel, reading, Limits::of_lag(rule)))
        })
    }

    fn open(&self) -> Option<&OpenPart> {
        match self {
            ReadPart::Fetched(open) => Some(open),
            ReadPart::Now(held) => held.as_ref().map(|held| &**held.open()),
        }
    }
}

/// All channels, whose rules say where their logs are.
pub struct Channels {
    memory: Arc<MemoryEngine>,
    journal: Option<Arc<dyn Journal>>,
}

impl From<MemoryEngine> for Channels {
    /// Channels whose logs are all in memory.
    fn from(memory: MemoryEngine) -> Channels {
        Channels::new(Arc::new(memory), None)
    }
}

impl Channels {
    /// The channels of `memory`. The logs of durable ones are in `journal`, which delivers to
    /// `memory`.
    pub fn new(memory: Arc<MemoryEngine>, journal: Option<Arc<dyn Journal>>) -> Channels {
        Channels { memory, journal }
    }

    /// What this process has of the channels in memory.
    pub fn memory(&self) -> &Arc<MemoryEngine> {
        &self.memory
    }

    /// The journal that keeps a channel's log, and the channel's rule; `None` if the log is in
    /// memory.
    fn journal_of(&self, channel: &ChannelName) -> Option<(&dyn Journal, &Rule)> {
        let journal = self.journal.as_deref()?;
        let rule = self.memory.rule(channel);
        rule.is_durable.then_some((journal, rule))
    }

    /// The other processes that serve a channel.
    fn cluster_of(&self, channel: &ChannelName) -> Option<&dyn Cluster> {
        self.journal_of(channel)?.0.cluster()
    }

    /// The other processes that serve any channel.
    fn cluster(&self) -> Option<&dyn Cluster> {
        self.journal.as_deref()?.cluster()
    }
}

impl Engine for Channels {
    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        let Some((journal, rule)) = self.journal_of(&publication.channel) else {
            return self.memory.publish(now_ms, publication).into();
        };
        match self.memory.check_room(&publication.channel) {
            Ok(()) => journal.append(now_ms, publication, rule.retention, later),
            Err(busy) => Err(busy).into(),
        }
    }

    fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        if let Some(cluster) = self.cluster_of(&publication.channel) {
            cluster.pass_on(&publication)?;
        }
        Ok(self.memory.publish_volatile(now_ms, publication))
    }

    fn is_shared(&self) -> bool {
        self.cluster().is_some()
    }

    fn node(&self) -> NodeTag {
        self.cluster().map_or(NodeTag::ALONE, Cluster::node)
    }

    fn watermark(&self) -> Watermark {
        let of_journal = self.journal.as_ref().and_then(|journal| journal.watermark());
        of_journal.unwrap_or_else(|| self.memory.watermark())
    }

    fn is_settling(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.is_settling())
    }

    fn fetches(&self) -> bool {
        self.journal.is_some()
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        match self.journal_of(channel) {
            None => Fetched::in_memory().into(),
            Some((journal, rule)) => {
                journal.fetch(now_ms, channel, reading, Limits::of_lag(rule), later)
            }
        }
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let Some((journal, rule)) = self.journal_of(follow.channel) else {
            return self.memory.follow(now_ms, follow);
        };
        let reading = Reading::Start(follow.start);
        let JournalIds { epoch, are_consecutive } = journal.ids();
        let part = ReadPart::of(journal, now_ms, follow.channel, rule, reading);
        self.memory.follow_elsewhere(now_ms, &follow, || {
            match part.open().map(|open| (open, open.part())) {
                // Not of an epoch that has ended meanwhile.
                Some((open, Some(Part::Start(start)))) if start.head.epoch == epoch => {
                    open.backlog(start, are_consecutive)
                }
                // It cannot be read: messages that come show the hole before them.
                _ => Backlog {
                    head: MessageId { epoch, offset: 0 },
                    cursor: 0,
                    are_offsets_consecutive: are_consecutive,
                    is_recovered: Some(false),
                    messages: Vec::new(),
                },
            }
        })
    }

    fn look_ahead(
        &self,
        channels: &[ChannelName],
        worker: WorkerId,
        each: &mut dyn FnMut(LocalId),
    ) {
        self.memory.look_ahead(channels, worker, each);
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.memory.unfollow(now_ms, channel, worker);
    }

    fn unfollow_all(&self, now_ms: u64, channels: &[ChannelId], worker: WorkerId) {
        self.memory.unfollow_all(now_ms, channels, worker);
    }

    fn set_subscribers(&self, now_ms: u64, channel: ChannelId, worker: WorkerId, subscribers: u32) {
        self.memory.set_subscribers(now_ms, channel, worker, subscribers);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let Some((journal, rule)) = self.journal_of(channel) else {
            return self.memory.history(now_ms, channel, query, limit);
        };
        let part = ReadPart::of(journal, now_ms, channel, rule, Reading::Page(query, limit));
        let Some(Part::Page(page)) = part.open().and_then(OpenPart::part) else {
            let head = MessageId { epoch: journal.ids().epoch, offset: 0 };
            let messages = Vec::new();
            return History { head, messages, has_more: false, is_recovered: Some(false) };
        };
        let Page { head, messages, has_more, is_recovered } = page;
        let message = |content: &Arc<_>| Arc::new(Message::from(Arc::clone(content)));
        let messages = messages.iter().map(message).collect();
        History { head: *head, messages, has_more: *has_more, is_recovered: *is_recovered }
    }

    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        match self.journal_of(inbox) {
            None => Ok(self.memory.read_marker(now_ms, inbox, mark)).into(),
            Some((journal, _)) => journal.read_marker(now_ms, inbox, mark, later),
        }
    }

    fn audience(&self, channel: &ChannelName) -> Audience {
        self.memory.audience(channel)
    }

    fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        self.memory.name(channel)
    }

    fn is_named(&self, channel: ChannelId, name: &ChannelName) -> bool {
        self.memory.is_named(channel, name)
    }

    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        self.memory.names(channels, each);
    }

    /// First the channels that the memory has, then those of the journal.
    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        let journal = self.journal.as_deref().filter(|_| kind != Kind::Internal);
        let Some(journal) = journal else { return self.memory.list(now_ms, kind, after) };
        if let Some(ListPlace(place)) = after
            && place >= JOURNAL_PLACES
        {
            let mut step = journal.list(kind, place - JOURNAL_PLACES);
            let places = step.channels.iter_mut().map(|listed| &mut listed.place);
            places.chain(&mut step.next).for_each(|ListPlace(place)| *place += JOURNAL_PLACES);
            return step;
        }
        let mut step = self.memory.list(now_ms, kind, after);
        journal.complete_list(now_ms, &mut step.channels);
        step.next.get_or_insert(ListPlace(JOURNAL_PLACES));
        step
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
        self.memory.post(worker, notification);
    }

    fn is_at_rest(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.is_at_rest())
    }

    fn tick(&self, now_ms: u64) {
        self.memory.tick(now_ms);
        if let Some(journal) = &self.journal {
            journal.tick(now_ms, self.memory.is_memory_short());
        }
    }

    fn set_memory_short(&self, is_short: bool) {
        self.memory.set_memory_short(is_short);
    }

    fn log_bytes(&self) -> u64 {
        let of_journal = self.journal.as_ref().map_or(0, |journal| journal.usage().log_bytes);
        self.memory.log_bytes() + of_journal
    }

    fn held_shortly(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.usage().held_shortly)
    }

    fn metrics(&self) -> EngineMetrics {
        let of_memory = self.memory.metrics();
        self.journal.as_ref().map_or(of_memory, |journal| journal.metrics(of_memory))
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        self.memory.presence_cache()
    }

    fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        match self.cluster_of(channel) {
            None => self.memory.presence(now_ms, channel, max_users, later),
            Some(cluster) => cluster.presence(now_ms, channel, max_users, later),
        }
    }

    fn subscribers_elsewhere(
        &self,
        channel: &ChannelName,
        later: Later<'_, OtherNodes<u64>>,
    ) -> Answer<OtherNodes<u64>> {
        match self.cluster_of(channel) {
            None => OtherNodes::default().into(),
            Some(cluster) => cluster.subscribers_elsewhere(channel, later),
        }
    }

    fn scan_elsewhere(
        &self,
        target: &ScanTarget,
        action: &ScanAction,
        later: Later<'_, OtherNodes<Scanned>>,
    ) -> Answer<OtherNodes<Scanned>> {
        match self.cluster() {
            None => OtherNodes::default().into(),
            Some(cluster) => cluster.scan_elsewhere(target, action, later),
        }
    }
}
