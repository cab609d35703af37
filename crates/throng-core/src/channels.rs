//! The channels of a server: what this process has of them in memory, over the journals that keep
//! the logs of some.
//!
//! Workers and control plane hold [`Channels`]. It is a [`MemoryEngine`] to which every question is
//! put that concerns this process alone; what concerns a log goes to the journal that the channel's
//! rule names, if it names one.
//!
//! **Positions.** Stamps order the messages of all channels in memory and of the journals that take
//! their stamps from it ([`crate::stamp`]). A journal that several processes share has an order of
//! its own. A position is a place in one order, that of the server: messages of channels in another
//! one have ids alone.

mod after_members;
mod bookmarks;
mod exists;
#[cfg(any(test, feature = "conformance"))]
mod observed;
mod read_part;
#[cfg(test)]
mod tests;
mod told;
mod volatile;

use std::ops::Deref;
use std::sync::Arc;

use crate::change::{
    CHANGE_MESSAGES_MAX, ChangeError, ChangeOutcome, Erase, EraseOutcome, LogChange, LogState,
    leave_out_ends, leave_out_erased,
};
use crate::connection_name::NodeTag;
use crate::connection_scan::{ScanAction, ScanTarget, Scanned};
use crate::engine::{EngineMetrics, Follow, Followed, History, OtherNodes};
use crate::id::MessageId;
use crate::journal::{Cluster, Journal};
use crate::later::{Answer, Later};
use crate::listing::{ListPart, ListPlace, ListQuery, ListStep, ListedChannel};
use crate::memory::MemoryEngine;
use crate::name::{ChannelName, Kind};
use crate::parts::Limits;
use crate::presence::{Presence, PresenceAsk, PresenceBusy};
use crate::publication::{Outcome, Publication, PublishError};
use crate::read_marker::{ErasedMarkers, Mark, Marked, MarkerKey, MarkersOf, no_markers};
use crate::reading::{Fetched, HistoryQuery, Reading};
use crate::receipt::Delivered;
use crate::rules::{JournalId, Rule};
use crate::stamp::Watermark;
use crate::state::{KeyPage, KeyQuery};
#[cfg(any(test, feature = "conformance"))]
pub use observed::{Coming, Made, Observer};
use read_part::ReadPart;
use told::Told;

/// The places of the first journal's channels in lists begin here, beyond the memory's. Each
/// journal has as many.
const JOURNAL_PLACES: u64 = 1 << 60;

/// The maximum number of journals. The memory has the first of 16 parts of the places in lists.
const JOURNALS_MAX: usize = 15;

/// All channels, whose rules say where their logs are.
pub struct Channels {
    memory: Arc<MemoryEngine>,
    /// By [`JournalId`].
    journals: Vec<Arc<dyn Journal>>,
    /// The journal in whose order positions are; `None`: the memory's.
    order: Option<JournalId>,
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
        Channels::new(Arc::new(memory), Vec::new())
    }
}

impl Channels {
    /// The channels of `memory`, to which each of the `journals` delivers. Rules name them by their
    /// places. Positions are in the order of the first one that has an order of its own.
    pub fn new(memory: Arc<MemoryEngine>, journals: Vec<Arc<dyn Journal>>) -> Channels {
        debug_assert!(journals.len() <= JOURNALS_MAX);
        let order = journals.iter().position(|journal| journal.has_order());
        Channels {
            memory,
            journals,
            order: order.map(|place| JournalId(place as u8)),
            #[cfg(any(test, feature = "conformance"))]
            observer: None,
        }
    }

    /// The same channels, with positions in the order of the memory.
    #[must_use]
    pub fn with_order_of_memory(mut self) -> Channels {
        self.order = None;
        self
    }

    /// The channels' followers and heads in this process, and the logs without a journal.
    pub fn memory(&self) -> &Arc<MemoryEngine> {
        &self.memory
    }

    /// A journal by its number; `None` stands for the memory.
    fn journal(&self, id: Option<JournalId>) -> Option<&Arc<dyn Journal>> {
        self.journals.get(usize::from(id?.0))
    }

    /// The journal that keeps a channel's log, and the channel's rule; `None` if the log is in
    /// memory.
    fn journal_of(&self, channel: &ChannelName) -> Option<(&Arc<dyn Journal>, &Rule)> {
        if self.journals.is_empty() {
            return None;
        }
        let rule = self.memory.rule(channel);
        Some((self.journal(rule.journal)?, rule))
    }

    /// The other processes that serve a channel.
    fn cluster_of(&self, channel: &ChannelName) -> Option<&dyn Cluster> {
        self.journal_of(channel)?.0.cluster()
    }

    /// The other processes that serve any channel.
    fn cluster(&self) -> Option<&dyn Cluster> {
        self.journals.iter().find_map(|journal| journal.cluster())
    }

    /// True if the messages of a channel are in the order of positions.
    pub fn has_positions(&self, channel: &ChannelName) -> bool {
        // Mostly there is one order.
        self.journals.is_empty() || self.has_positions_in(self.memory.rule(channel).journal)
    }

    /// The same of all logs that a journal keeps, or the memory.
    pub fn has_positions_in(&self, journal: Option<JournalId>) -> bool {
        let has_order = |id: &JournalId| self.journal(Some(*id)).is_some_and(|own| own.has_order());
        journal.filter(has_order) == self.order
    }

    /// True if other processes serve channels of this server, but not this one.
    pub fn is_local(&self, channel: &ChannelName) -> bool {
        self.is_shared() && self.cluster_of(channel).is_none()
    }

    /// True if other processes serve a channel, too.
    pub(crate) fn is_of_several(&self, channel: &ChannelName) -> bool {
        self.cluster_of(channel).is_some()
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
            Some((journal, _)) if publication.key().is_some() && !journal.keeps_states() => {
                Err(PublishError::NoState).into()
            }
            Some((journal, rule)) => match self.memory.check_room(&publication.channel) {
                Ok(()) => {
                    let needs_creation = rule.must_exist;
                    let publication = Publication { needs_creation, ..publication };
                    journal.append(now_ms, publication, rule.retention, later)
                }
                Err(busy) => Err(busy).into(),
            },
        };
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::Published(now_ms, &answer));
        answer
    }

    /// Makes a change of a log: all of it, or nothing. The channel's followers get its messages
    /// like published ones.
    pub fn change(
        &self,
        now_ms: u64,
        mut change: LogChange,
        later: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome> {
        if change.messages.len() > CHANGE_MESSAGES_MAX {
            return Err(ChangeError::Refused(PublishError::TooLarge)).into();
        }
        if change.is_of_mortal() {
            self.memory.note_mortal(&change.channel);
        }
        match self.journal_of(&change.channel) {
            None => self.memory.change(now_ms, change).into(),
            Some((journal, _)) if change.has_keys() && !journal.keeps_states() => {
                Err(PublishError::NoState.into()).into()
            }
            Some((journal, rule)) => {
                let depends = change.is_of_end() || change.is_of_creation();
                if let Some(reason) = depends.then(|| journal.refuses_ends(rule)).flatten() {
                    return Err(ChangeError::Unsupported(reason)).into();
                }
                let messages = change.messages.iter_mut();
                messages.for_each(|message| message.needs_creation = rule.must_exist);
                match self.memory.check_room(&change.channel) {
                    Ok(()) => journal.change(now_ms, change, rule.retention, later),
                    Err(busy) => Err(busy.into()).into(),
                }
            }
        }
    }

    /// The state of a log: its head, and its record.
    pub fn state(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        later: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>> {
        match self.journal_of(channel) {
            None => Ok(self.memory.state(channel)).into(),
            Some((journal, _)) => journal.state(now_ms, channel, later),
        }
    }

    /// A page of a channel's state: the newest messages of its keys.
    pub fn keys(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: KeyQuery,
        later: Later<'_, Result<KeyPage, ChangeError>>,
    ) -> Answer<Result<KeyPage, ChangeError>> {
        match self.journal_of(channel) {
            None => Ok(self.memory.keys(now_ms, channel, &query)).into(),
            Some((journal, _)) => journal.keys(now_ms, channel, query, later),
        }
    }

    /// Erases messages of a log, and answers once no reader of the log gets them any more.
    /// Subscribers are not told: to tell them, publish a [notice](LogChange::notice), before this
    /// call if it must survive a crash.
    pub fn erase(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        what: Erase,
        later: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome> {
        match self.journal_of(channel) {
            None => Ok(self.memory.erase(now_ms, channel, what)).into(),
            Some((journal, _)) => journal.erase(now_ms, channel, what, later),
        }
    }

    /// True if other processes serve the same channels.
    pub fn is_shared(&self) -> bool {
        self.cluster().is_some()
    }

    /// True if positions are in the order of a log that other processes write, too. Then
    /// [`Channels::watermark`] may be behind their publications, so no subscription may begin
    /// there.
    pub fn shares_positions(&self) -> bool {
        self.journal(self.order).is_some_and(|own| own.cluster().is_some())
    }

    /// The tag that all connection names of this process share, and no other process that serves
    /// the same channels. It never changes: peers remember names.
    pub fn node(&self) -> NodeTag {
        self.cluster().map_or(NodeTag::ALONE, Cluster::node)
    }

    /// The position of a client that has all messages which are settled: each of them is in its
    /// channel's log, and in the queues of the workers that follow the channel.
    pub fn watermark(&self) -> Watermark {
        let of_journal = self.journal(self.order).and_then(|own| own.watermark());
        of_journal.unwrap_or_else(|| self.memory.watermark())
    }

    /// True if what is posted to workers is settled at once. If not, workers are told
    /// ([`Notification::Settled`](crate::Notification::Settled)) when it is.
    pub fn is_settling(&self) -> bool {
        self.journal(self.order).is_none_or(|own| own.is_settling())
    }

    /// True if parts of some logs have to be [fetched](Channels::fetch). If not, callers skip the
    /// question for each channel.
    pub fn fetches(&self) -> bool {
        !self.journals.is_empty()
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
                let is_start = matches!(reading, Reading::Start(_));
                let limits = Limits::of_lag(rule);
                if is_start && self.memory.rules().members(channel).is_some() {
                    self.fetch_after_members(now_ms, channel, (journal, reading, limits), later)
                } else {
                    journal.fetch(now_ms, channel, reading, limits, later)
                }
            }
        }
    }

    /// Adds a subscription of a worker. Its start is [fetched](Channels::fetch) before, so that
    /// following and reading the backlog is one step: each message is before the cursor, in the
    /// backlog, or comes as a notification. A notification may repeat a part of the backlog.
    pub fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let mut followed = match self.journal_of(follow.channel) {
            None => self.memory.follow(now_ms, follow),
            Some((journal, rule)) => {
                let (ids, reading) = (journal.ids(follow.channel), Reading::Start(follow.start));
                let part = ReadPart::of(&**journal, now_ms, follow.channel, rule, reading);
                self.memory.follow_elsewhere(now_ms, &follow, || part.backlog(ids))
            }
        };
        leave_out_erased(&mut followed.backlog);
        if !followed.is_ended {
            leave_out_ends(&mut followed.backlog);
        }
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
        let mut history = match self.journal_of(channel) {
            None => self.memory.history(now_ms, channel, query, limit),
            Some((journal, rule)) => {
                let reading = Reading::Page(query, limit);
                let part = ReadPart::of(&**journal, now_ms, channel, rule, reading);
                part.history(journal.ids(channel))
            }
        };
        leave_out_erased(&mut history.messages);
        history.messages.retain(|message| !message.is_without_body());
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::Paged(now_ms, channel, (query, limit), &history));
        history
    }

    /// How far a user has read the inbox or a channel, after `mark` if that is given. Markers go
    /// forward only, unless the mark says otherwise. Answers when the marker is where the log's
    /// journal keeps it, or that the journal does not take it; not at all if it cannot be read.
    pub fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let rule = self.memory.rule(of.log());
        if of.reader().is_some() && !rule.read_markers {
            return Err(no_markers()).into();
        }
        match (self.journal(rule.journal), mark) {
            (None, mark) => self.move_marker(now_ms, of, mark).into(),
            (Some(journal), None) => journal.read_marker(now_ms, of, None, later),
            (Some(journal), Some(mark)) => {
                let told = Told::of(&self.memory, journal, (now_ms, of, mark.mover));
                told.after(later, |later| journal.read_marker(now_ms, of, Some(mark), later))
            }
        }
    }

    /// The places that have markers of users in channels: the memory, and each journal.
    pub fn marker_places(&self) -> impl Iterator<Item = Option<JournalId>> + use<> {
        std::iter::once(None).chain((0..self.journals.len() as u8).map(|at| Some(JournalId(at))))
    }

    /// Erases markers in channels that the memory or a journal has. Answers how many there were;
    /// not at all if that is not known in time.
    pub fn erase_markers(
        &self,
        place: Option<JournalId>,
        of: MarkersOf<'_>,
        later: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers> {
        match self.journal(place) {
            None => Ok(self.memory.erase_markers(of)).into(),
            Some(journal) => journal.erase_markers(of, later),
        }
    }

    #[cfg(not(any(test, feature = "conformance")))]
    fn move_marker(&self, now_ms: u64, of: &MarkerKey, mark: Option<Mark>) -> Marked {
        self.memory.read_marker(now_ms, of, mark)
    }

    /// A step through all channels or users that have messages or subscribers: those at the next
    /// places after `after`, or at the first ones. First come those that are in memory, then those
    /// of each journal.
    pub fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        let part = after.map_or(0, |ListPlace(place)| (place / JOURNAL_PLACES) as usize);
        let mut step = match part.checked_sub(1) {
            None => {
                let mut step = self.memory.list(now_ms, kind, after);
                self.complete_list(now_ms, &mut step.channels);
                step
            }
            Some(place) => {
                let Some(journal) = self.journals.get(place) else { return ListStep::default() };
                let after = after.map_or(0, |ListPlace(place)| place % JOURNAL_PLACES);
                let mut step = journal.list(kind, after);
                let places = step.channels.iter_mut().map(|listed| &mut listed.place);
                let places = places.chain(&mut step.next);
                places.for_each(|ListPlace(place)| *place += part as u64 * JOURNAL_PLACES);
                step
            }
        };
        if part < self.journals.len() && kind != Kind::Internal {
            step.next.get_or_insert(ListPlace((part as u64 + 1) * JOURNAL_PLACES));
        }
        step
    }

    /// This process's part of a page of the list that all processes have which serve the same
    /// channels. Call it on a thread that may wait.
    pub fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        let mut of_memory = self.memory.list_part(now_ms, query);
        self.complete_list(now_ms, &mut of_memory.channels);
        let of_journals = self.journals.iter().map(|journal| journal.list_part(now_ms, query));
        let parts = std::iter::once(of_memory).chain(of_journals).collect();
        ListPart::merge(parts, query.limit, |_| true)
    }

    /// The part of the same page with the channels that have messages in the log which these
    /// processes share. No answer if that cannot be read.
    pub fn list_stored(&self, query: &ListQuery, later: Later<'_, ListPart>) -> Answer<ListPart> {
        match self.cluster() {
            None => ListPart::default().into(),
            Some(cluster) => cluster.list_stored(query, later),
        }
    }

    /// Has the journal of each channel that is listed correct its entry. The memory knows the
    /// offset of a journal's head, and not its epoch.
    fn complete_list(&self, now_ms: u64, listed: &mut [ListedChannel]) {
        for listed in listed {
            if let Some((journal, _)) = self.journal_of(&listed.name) {
                listed.head.epoch = journal.ids(&listed.name).epoch;
                journal.complete_list(now_ms, listed);
            }
        }
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
        self.journals.iter().all(|journal| journal.is_at_rest())
    }

    /// Expires messages and keys of a part of the channels. Call about ten times a second.
    pub fn tick(&self, now_ms: u64) {
        self.memory.tick(now_ms);
        let is_short = self.memory.is_memory_short();
        self.journals.iter().for_each(|journal| journal.tick(now_ms, is_short));
    }

    /// Bytes in all logs. Cheaper than [`Channels::metrics`].
    pub fn log_bytes(&self) -> u64 {
        let of_journals = self.journals.iter().map(|journal| journal.usage().log_bytes);
        self.memory.log_bytes() + of_journals.sum::<u64>()
    }

    /// How many things were held for a short time so far, whose memory is free now: parts of logs
    /// that were fetched, messages that waited to be written to files.
    pub fn held_shortly(&self) -> u64 {
        self.journals.iter().map(|journal| journal.usage().held_shortly).sum()
    }

    /// Counters of all channels.
    pub fn metrics(&self) -> EngineMetrics {
        let of_memory = self.memory.metrics();
        self.journals.iter().fold(of_memory, |counted, journal| journal.metrics(counted))
    }

    /// Queries who is in a channel. Answers later if workers have to be asked, on the thread of one
    /// of them.
    pub fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        ask: impl Into<PresenceAsk>,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        #[cfg(any(test, feature = "conformance"))]
        self.before(now_ms, Coming::Other);
        match self.cluster_of(channel) {
            None => self.memory.presence(now_ms, channel, ask, later),
            Some(cluster) => cluster.presence(now_ms, channel, ask.into(), later),
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
    /// channels and names are about concerns them, and no channel that only this process serves.
    pub fn scan_elsewhere(
        &self,
        target: &ScanTarget,
        action: &ScanAction,
        later: Later<'_, OtherNodes<Scanned>>,
    ) -> Answer<OtherNodes<Scanned>> {
        let cluster = match target {
            ScanTarget::Channel(channel) => self.cluster_of(channel),
            _ => self.cluster(),
        };
        match cluster {
            None => OtherNodes::default().into(),
            Some(cluster) => cluster.scan_elsewhere(target, action, later),
        }
    }
}
