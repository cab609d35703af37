//! The interface of a journal, which keeps the logs of channels outside this process's memory.
//!
//! [`Channels`](crate::Channels) has the followers, their queues, and what is delivered. A journal
//! says when a message is accepted and under which id, and what is still known after a loss. It
//! delivers accepted messages through [`MemoryEngine::deliver`](crate::MemoryEngine::deliver).
//!
//! # Contract
//!
//! * No call blocks. An answer that takes time comes through its ticket ([`crate::later`]).
//! * An asker's publications to a channel get their offsets in the order of the calls, also while
//!   earlier ones are not answered. Nothing that was accepted depends on the asker: it may be gone
//!   when the answer comes.
//! * Offsets grow within a channel and may skip numbers. Each message carries its predecessor's.
//! * If acknowledged messages may be gone and their offsets used again, a new epoch begins before
//!   anything is answered under it.
//! * Each journal passes the tests of the module `conformance`.

use crate::bookmarks::BookmarkKeys;
use crate::change::{ChangeError, ChangeOutcome, Erase, EraseOutcome, LogChange, LogState};
use crate::connection_name::NodeTag;
use crate::connection_scan::{ScanAction, ScanTarget, Scanned};
use crate::engine::{EngineMetrics, OtherNodes};
use crate::id::{Epoch, MessageId};
use crate::later::{Answer, Later};
use crate::listing::{ListPart, ListQuery, ListStep, ListedChannel};
use crate::name::{ChannelName, Kind};
use crate::parts::{HeldPart, Limits, Parts};
use crate::presence::{Presence, PresenceAsk, PresenceBusy};
use crate::publication::{Outcome, Publication, PublishError, VolatilePublication};
use crate::read_marker::{ErasedMarkers, Mark, Marked, MarkerKey, MarkersOf};
use crate::reading::{Fetched, Reading};
use crate::receipt::Delivered;
use crate::rules::{Retention, Rule};
use crate::stamp::Watermark;
use crate::state::{KeyPage, KeyQuery};

/// The ids that a journal gives to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalIds {
    /// The epoch of now.
    pub epoch: Epoch,
    /// True if each offset of a channel is its predecessor's plus one.
    pub are_consecutive: bool,
}

/// Memory used by a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalUsage {
    /// Bytes of messages that are kept in memory.
    pub log_bytes: u64,
    /// How many things were held for a short time so far, whose memory is free now.
    pub held_shortly: u64,
}

/// Keeps the logs of the channels whose rule says so. See the module for the contract.
pub trait Journal: Send + Sync {
    /// Appends a message to its channel's log, of which it keeps `retention`. The queues of the
    /// channel's followers have room. Answers when the message is stored and delivered.
    fn append(
        &self,
        now_ms: u64,
        publication: Publication,
        retention: Retention,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome>;

    /// Makes a change of a log, of which it keeps `retention`: all of it, or nothing. The queues of
    /// the channel's followers have room. Answers when it is stored, and its messages delivered.
    fn change(
        &self,
        now_ms: u64,
        change: LogChange,
        retention: Retention,
        later: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome>;

    /// The state of a log: its head, and its record.
    fn state(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        later: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>>;

    /// True if logs keep the newest message of each key.
    fn keeps_states(&self) -> bool {
        false
    }

    /// Why channels with a rule cannot end, if they cannot. If they can, a log whose record says
    /// that it has ended refuses messages.
    fn refuses_ends(&self, rule: &Rule) -> Option<&'static str> {
        let _ = rule;
        None
    }

    /// A page of a log's state: the newest messages of its keys.
    fn keys(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: KeyQuery,
        later: Later<'_, Result<KeyPage, ChangeError>>,
    ) -> Answer<Result<KeyPage, ChangeError>> {
        let _ = (now_ms, channel, query, later);
        Err(ChangeError::Refused(PublishError::NoState)).into()
    }

    /// Erases messages of a log. Answers when this process does not show them any more. Their bytes
    /// may stay in the journal's files until it compacts them.
    fn erase(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        what: Erase,
        later: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome>;

    /// The parts of logs that were read and wait for their readers.
    fn parts(&self) -> &Parts;

    /// The ids of messages in a channel.
    fn ids(&self, channel: &ChannelName) -> JournalIds;

    /// Opens a part of a channel's log among [`Journal::parts`] and fills it, as far as `limits`
    /// allow for a subscription. It stays open until the answer is dropped.
    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched>;

    /// Reads a part that is needed at once and was not fetched, if that is possible here. It may
    /// hold up the thread.
    fn read_now(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
    ) -> Option<HeldPart> {
        let _ = (now_ms, channel, reading, limits);
        None
    }

    /// How far a user has read the inbox or a channel, after `mark` if that is given. Answers when
    /// the marker is stored, or that it is not; not at all if it cannot be read.
    fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked>;

    /// Erases markers of users in channels. Answers how many there were.
    fn erase_markers(
        &self,
        of: MarkersOf<'_>,
        later: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers>;

    /// A step through the channels that have messages, after the place `after` of this journal.
    /// Ends at once if the journal has no list.
    fn list(&self, kind: Kind, after: u64) -> ListStep {
        let _ = (kind, after);
        ListStep::default()
    }

    /// The part of a page of the list of several processes that only this process can name: the
    /// channels whose logs it alone has, and that have messages. Their subscribers are not counted
    /// in it. Called on a thread that may wait.
    fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        let _ = (now_ms, query);
        ListPart::default()
    }

    /// Corrects the message count of a channel that is listed because it is followed.
    fn complete_list(&self, now_ms: u64, listed: &mut ListedChannel) {
        let _ = (now_ms, listed);
    }

    /// True if the stamps of messages are in an order of the journal's own; if not, they are the
    /// memory's.
    fn has_order(&self) -> bool {
        false
    }

    /// The position of a client that has all messages which are settled, if the journal has an
    /// order and knows it.
    fn watermark(&self) -> Option<Watermark> {
        None
    }

    /// True if delivered messages are settled at once. If not, workers are told
    /// ([`Notification::Settled`](crate::Notification::Settled)) when they are.
    fn is_settling(&self) -> bool {
        true
    }

    /// True if every request has been answered. Only meaningful once no more requests are made.
    fn is_at_rest(&self) -> bool;

    /// Called about ten times a second.
    fn tick(&self, now_ms: u64, is_memory_short: bool) {
        let _ = (now_ms, is_memory_short);
    }

    /// Memory used now. Cheap.
    fn usage(&self) -> JournalUsage {
        JournalUsage::default()
    }

    /// The counters of all channels, from those of the memory and of other journals.
    fn metrics(&self, of_others: EngineMetrics) -> EngineMetrics {
        of_others
    }

    /// The other processes that serve the same channels, if this is a journal of several.
    fn cluster(&self) -> Option<&dyn Cluster> {
        None
    }
}

/// The other processes that serve the channels of a journal.
pub trait Cluster: Send + Sync {
    /// The tag that all connection names of this process share, and no other process that serves
    /// the same channels. It never changes: peers remember names.
    fn node(&self) -> NodeTag;

    /// Passes a volatile message on to the others.
    ///
    /// # Errors
    ///
    /// They cannot be reached.
    fn pass_on(&self, publication: &VolatilePublication) -> Result<(), PublishError>;

    /// Queries who is in a channel, in all processes.
    fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        ask: PresenceAsk,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy>;

    /// Tells the others that bookmarks with these keys were left here, each for so many
    /// milliseconds.
    fn tell_bookmarks(&self, left: &[(BookmarkKeys, u64)]) {
        let _ = left;
    }

    /// Has the others [part with](crate::MemoryEngine::part_with_user) a user, as far as they can
    /// be reached.
    fn part_with_user(&self, user: &str, before_ms: u64) {
        let _ = (user, before_ms);
    }

    /// True if one of the others has said that users may go on in the channel with this key.
    fn has_bookmarks_in(&self, now_ms: u64, channel: u64) -> bool {
        let _ = (now_ms, channel);
        false
    }

    /// Brings here what the others have of a user's place in a channel, if they have said so.
    fn bookmark_elsewhere(
        &self,
        now_ms: u64,
        of: (&str, &ChannelName),
        later: Later<'_, ()>,
    ) -> Answer<()> {
        let _ = (now_ms, of, later);
        ().into()
    }

    /// How many subscriptions a channel has in the others.
    fn subscribers_elsewhere(
        &self,
        channel: &ChannelName,
        later: Later<'_, OtherNodes<u64>>,
    ) -> Answer<OtherNodes<u64>>;

    /// The delivery of a message in the others, once it is complete there or `wait_ms` are over.
    /// Its publisher here has a receipt.
    fn delivered_elsewhere(
        &self,
        message: (&ChannelName, MessageId),
        wait_ms: u64,
        later: Later<'_, OtherNodes<Delivered>>,
    ) -> Answer<OtherNodes<Delivered>>;

    /// Has the others pass their connections.
    fn scan_elsewhere(
        &self,
        target: &ScanTarget,
        action: &ScanAction,
        later: Later<'_, OtherNodes<Scanned>>,
    ) -> Answer<OtherNodes<Scanned>>;

    /// The part of a page of a list with the channels that have messages in the log that all
    /// processes share. Their subscribers are not counted in it. No answer if it cannot be read.
    fn list_stored(&self, query: &ListQuery, later: Later<'_, ListPart>) -> Answer<ListPart>;

    /// The parts of a page of a list that the others have.
    fn list_elsewhere(
        &self,
        query: &ListQuery,
        later: Later<'_, OtherNodes<Vec<ListPart>>>,
    ) -> Answer<OtherNodes<Vec<ListPart>>>;
}
