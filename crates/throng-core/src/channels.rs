//! The channels of a server: what this process has of them in memory, over the journal that keeps
//! the logs of some.
//!
//! Workers and control plane hold [`Channels`]. It is a [`MemoryEngine`] to which every question is
//! put that concerns this process alone; what concerns a log goes to the channel's journal, if its
//! rule says that it has one.

#[cfg(any(test, feature = "conformance"))]
mod observed;

use std::ops::Deref;
use std::sync::Arc;

use crate::connection_name::NodeTag;
use crate::connection_scan::{ScanAction, ScanTarget, Scanned};
use crate::engine::{EngineMetrics, Follow, Followed, History, OtherNodes};
use crate::id::MessageId;
use crate::journal::{Cluster, Journal, JournalIds};
use crate::later::{Answer, Later};
use crate::listing::{ListPart, ListPlace, ListQuery, ListStep};
use crate::memory::{Backlog, MemoryEngine};
use crate::message::Message;
use crate::name::{ChannelName, Kind};
use crate::parts::{HeldPart, Limits, OpenPart, Page, Part};
use crate::presence::{Presence, PresenceBusy};
use crate::publication::{Outcome, Publication, PublishError, VolatilePublication};
use crate::read_marker::{Mark, Marked};
use crate::reading::{Fetched, HistoryQuery, Reading};
use crate::receipt::Delivered;
use crate::rules::Rule;
use crate::stamp::Watermark;
#[cfg(any(test, feature = "conformance"))]
pub use observed::{Coming, Made, Observer};

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

    /// The backlog of a subscription that starts with this part. Call it under the lock of the
    /// channel's shard.
    fn backlog(&self, JournalIds { epoch, are_consecutive }: JournalIds) -> Backlog {
        match self.open().map(|open| (open, open.part())) {
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
    }

    /// The part as a page of history.
    fn history(&self, JournalIds { epoch, .. }: JournalIds) -> History {
        let Some(Part::Page(page)) = self.open().and_then(OpenPart::part) else {
            let head = MessageId { epoch, offset: 0 };
            let messages = Vec::new();
            return History { head, messages, has_more: false, is_recovered: Some(false) };
        };
        let Page { head, messages, has_more, is_recovered } = page;
        let message = |content: &Arc<_>| Arc::new(Message::from(Arc::clone(content)));
        let messages = messages.iter().map(message).collect();
        History { head: *head, messages, has_more: *has_more, is_recovered: *is_recovered }
    }
}

/// All channels, whose rules say where their logs are.
pub struct Channels {
    memory: Arc<MemoryEngine>,
    journal: Option<Arc<dyn Journal>>,
    #[cfg(any(test, feature = "conformance"))]
    observer: Option<Arc<dyn Observer>>,
}

impl Deref for Channels {
    type Target = MemoryEngine;

    fn deref(&self) -> &MemoryEngine {
        &self.memory
    }
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
        Channels {
            memory,
            journal,
            #[cfg(any(test, feature = "conformance"))]
            observer: None,
        }
    }

    /// The channels' followers and heads in this process, and the logs without a journal.
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

    /// Appends a message to its channel's log and notifies the workers that follow the channel: all
    /// of them, in the order of offsets, or none if the publication is refused.
    ///
    /// Answers when the message is where the channel's journal keeps it: at once if that is this
    /// process's memory, later if it is a disk or another machine. An asker's publications to a
    /// channel get their offsets in the order of the calls, also while earlier ones are not
    /// answered. Nothing that was accepted depends on the asker: it may be gone when the answer
    /// comes.
    pub fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        #[cfg(any(test, feature = "conformance"))]
        let now_ms = self.before(now_ms, Coming::Publication(&publication));
        let answer = match self.journal_of(&publication.channel) {
            None => self.memory.publish(now_ms, publication).into(),
            Some((journal, rule)) => match self.memory.check_room(&publication.channel) {
                Ok(()) => journal.append(now_ms, publication, rule.retention, later),
                Err(busy) => Err(busy).into(),
            },
        };
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::Published(now_ms, &answer));
        answer
    }

    /// Posts a volatile message to the workers that follow its channel, in the order of the calls
    /// and of its other messages. It is in no log, so nothing that is kept changes, and no
    /// journal hears of it. Workers whose queues fill do not get it, and count that.
    ///
    /// Returns the number of subscriptions that it is posted for.
    ///
    /// # Errors
    ///
    /// Why it was not posted at all.
    pub fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        if let Some(cluster) = self.cluster_of(&publication.channel) {
            cluster.pass_on(&publication)?;
        }
        #[cfg(any(test, feature = "conformance"))]
        self.before(now_ms, Coming::Volatile(&publication));
        let subscribers = self.memory.publish_volatile(now_ms, publication);
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::PostedVolatile(subscribers));
        Ok(subscribers)
    }

    /// True if other processes serve the same channels. Then [`Channels::watermark`] may be behind
    /// their publications, so no subscription may begin there.
    pub fn is_shared(&self) -> bool {
        self.cluster().is_some()
    }

    /// The tag that all connection names of this process share, and no other process that serves
    /// the same channels. It never changes: peers remember names.
    pub fn node(&self) -> NodeTag {
        self.cluster().map_or(NodeTag::ALONE, Cluster::node)
    }

    /// The position of a client that has all messages which are settled: each of them is in its
    /// channel's log, and in the queues of the workers that follow the channel.
    pub fn watermark(&self) -> Watermark {
        let of_journal = self.journal.as_ref().and_then(|journal| journal.watermark());
        of_journal.unwrap_or_else(|| self.memory.watermark())
    }

    /// True if what is posted to workers is settled at once. If not, workers are told
    /// ([`Notification::Settled`](crate::Notification::Settled)) when it is.
    pub fn is_settling(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.is_settling())
    }

    /// True if parts of some logs have to be [fetched](Channels::fetch). If not, callers skip the
    /// question for each channel.
    pub fn fetches(&self) -> bool {
        self.journal.is_some()
    }

    /// Makes a part of a channel's log readable at once, for [`Channels::follow`] or
    /// [`Channels::history`]. Answers later if the part has to be fetched from elsewhere. It stays
    /// readable until what is returned is dropped.
    pub fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        #[cfg(any(test, feature = "conformance"))]
        if let Some(observer) = &self.observer {
            return observer.fetch(channel, reading, later);
        }
        match self.journal_of(channel) {
            None => Fetched::in_memory().into(),
            Some((journal, rule)) => {
                journal.fetch(now_ms, channel, reading, Limits::of_lag(rule), later)
            }
        }
    }

    /// Adds a subscription of a worker. Its start is [fetched](Channels::fetch) before, so that
    /// following and reading the backlog is one step: each message is before the cursor, in the
    /// backlog, or comes as a notification. A notification may repeat a part of the backlog.
    pub fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let followed = match self.journal_of(follow.channel) {
            None => self.memory.follow(now_ms, follow),
            Some((journal, rule)) => {
                let (ids, reading) = (journal.ids(follow.channel), Reading::Start(follow.start));
                let part = ReadPart::of(journal, now_ms, follow.channel, rule, reading);
                self.memory.follow_elsewhere(now_ms, &follow, || part.backlog(ids))
            }
        };
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::Followed(now_ms, &follow, &followed));
        followed
    }

    /// A page of a channel's history, of at most `limit` messages. It is [fetched](Channels::fetch)
    /// before.
    pub fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let history = match self.journal_of(channel) {
            None => self.memory.history(now_ms, channel, query, limit),
            Some((journal, rule)) => {
                let reading = Reading::Page(query, limit);
                let part = ReadPart::of(journal, now_ms, channel, rule, reading);
                part.history(journal.ids(channel))
            }
        };
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::Paged(now_ms, channel, (query, limit), &history));
        history
    }

    /// How far a user has read the inbox, after `mark` if that is given. Markers go forward only,
    /// unless the mark says otherwise. Answers when the marker is where the inbox's journal keeps
    /// it, or that the journal does not take it; not at all if it cannot be read.
    pub fn read_marker(
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

    /// A step through all channels or users that have messages or subscribers: those at the next
    /// places after `after`, or at the first ones. First come those that are in memory, then those
    /// of the journal.
    pub fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
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

    /// This process's part of a page of the list that all processes have which serve the same
    /// channels. Call it on a thread that may wait.
    pub fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        let mut part = self.memory.list_part(now_ms, query, false);
        if let Some(journal) = &self.journal {
            journal.complete_list(now_ms, &mut part.channels);
        }
        part
    }

    /// The parts of a page of a list that other processes have.
    pub fn list_elsewhere(
        &self,
        query: &ListQuery,
        later: Later<'_, OtherNodes<Vec<ListPart>>>,
    ) -> Answer<OtherNodes<Vec<ListPart>>> {
        match self.cluster() {
            None => OtherNodes::default().into(),
            Some(cluster) => cluster.list_elsewhere(query, later),
        }
    }

    /// True if every request has been answered. Only meaningful once no more requests are made.
    pub fn is_at_rest(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.is_at_rest())
    }

    /// Expires messages and keys of a part of the channels. Call about ten times a second.
    pub fn tick(&self, now_ms: u64) {
        self.memory.tick(now_ms);
        if let Some(journal) = &self.journal {
            journal.tick(now_ms, self.memory.is_memory_short());
        }
    }

    /// Bytes in all logs. Cheaper than [`Channels::metrics`].
    pub fn log_bytes(&self) -> u64 {
        let of_journal = self.journal.as_ref().map_or(0, |journal| journal.usage().log_bytes);
        self.memory.log_bytes() + of_journal
    }

    /// How many things were held for a short time so far, whose memory is free now: parts of logs
    /// that were fetched, messages that waited to be written to files.
    pub fn held_shortly(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.usage().held_shortly)
    }

    /// Counters of all channels.
    pub fn metrics(&self) -> EngineMetrics {
        let of_memory = self.memory.metrics();
        self.journal.as_ref().map_or(of_memory, |journal| journal.metrics(of_memory))
    }

    /// Queries who is in a channel. Answers later if workers have to be asked, on the thread of one
    /// of them.
    pub fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        #[cfg(any(test, feature = "conformance"))]
        self.before(now_ms, Coming::Other);
        match self.cluster_of(channel) {
            None => self.memory.presence(now_ms, channel, max_users, later),
            Some(cluster) => cluster.presence(now_ms, channel, max_users, later),
        }
    }

    /// How many subscriptions a channel has in other processes that serve it.
    pub fn subscribers_elsewhere(
        &self,
        channel: &ChannelName,
        later: Later<'_, OtherNodes<u64>>,
    ) -> Answer<OtherNodes<u64>> {
        match self.cluster_of(channel) {
            None => OtherNodes::default().into(),
            Some(cluster) => cluster.subscribers_elsewhere(channel, later),
        }
    }

    /// The delivery of a message with a receipt in other processes, once it is complete there or
    /// `wait_ms` are over.
    pub fn delivered_elsewhere(
        &self,
        (channel, id): (&ChannelName, MessageId),
        wait_ms: u64,
        later: Later<'_, OtherNodes<Delivered>>,
    ) -> Answer<OtherNodes<Delivered>> {
        match self.cluster_of(channel) {
            None => OtherNodes::default().into(),
            Some(cluster) => cluster.delivered_elsewhere((channel, id), wait_ms, later),
        }
    }

    /// Has other processes that serve the same channels pass their connections. Only what users and
    /// channels and names are about concerns them.
    pub fn scan_elsewhere(
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
