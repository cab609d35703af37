//! Logs, cursors, channels and users. No I/O, no threads of its own, and the clock is passed in.
//!
//! # One idea
//!
//! A channel is a log, a subscriber is a cursor, delivery is moving cursors forward. The engine,
//! [`Channels`], owns the logs of the whole server. Each worker has a [`SubscriptionTable`]: its
//! subscriptions, and for each channel that they follow a replay buffer with the messages that some
//! of them still lack. The engine notifies a worker through the worker's [`WorkerQueue`].
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`id`] | ids of workers, channels and messages, and positions in several channels |
//! | [`name`] | channel and user names |
//! | [`names`] | the names of many channels, in one buffer |
//! | [`key_text`] | names in the keys of other stores |
//! | [`attributes`] | the facts beside a message's body |
//! | [`message`] | a message, shared by all that still have to get it |
//! | [`glob`] | patterns of names, in which `*` stands for any text |
//! | [`rules`] | retention and lag limits, by channel pattern |
//! | `log` | the retained messages of one channel |
//! | `entry_count` | what a log has, as limits count it |
//! | [`Channels`] | all channels of a server: `memory`, and above it what its journal keeps |
//! | `memory` | the channels as this process has them in memory |
//! | [`journal`] | the interface of a journal, which keeps logs elsewhere |
//! | [`engine`] | what is asked of the channels, and the answers |
//! | `publication` | what a client publishes, and what becomes of it |
//! | [`parts`] | parts of logs that a journal has read, and what is delivered meanwhile |
//! | [`records`] | small state that outlives the process |
//! | `read_marker` | how far users have read their inboxes, and channels |
//! | `bookmarks` | how far users had come on connections that have died |
//! | `channel_markers` | the table of the latter, of channels in memory |
//! | `reading` | what is read of a log, and what keeps it readable |
//! | `history_page` | a page of history as envelopes |
//! | `holder` | whose the room of values and creations is |
//! | `conformance` | the tests that every journal passes (feature `conformance`) |
//! | [`worker_queue`] | notifications from engine and control plane to a worker |
//! | [`subscriptions`] | subscriptions, cursors and fan-out passes of one worker |
//! | `presence` | who is in a channel |
//! | `members` | the members of channels, with what they show of themselves |
//! | `presence_events` | tells subscribers who joins and leaves a channel |
//! | `watched_presence` | the channels whose presence events are followed |
//! | [`receipt`] | what became of one message, for a publisher that asks |
//! | [`events`] | what happens to connections and channels, for the application |
//! | `connection_scan` | finds, lists and closes the connections of a user, a token or a channel |
//! | `pressure` | how near memory is to its limit, and what is given up for that |
//! | `listing` | lists of all channels or users |
//! | [`later`] | answers that may come later |
//! | `histogram` | histograms of durations |
//! | [`frozen`] | state as bytes, for another process to go on with |
//! | [`slab`] | storage with stable indices |
//! | [`stamp`] | one order of all messages of a server |
//! | [`spread`] | delays that spread the returns of closed and refused clients |
//! | [`storm`] | moments for clients that come faster than they can be served |
//! | `prefetch` | loads of memory that begin before they are needed |
//! | `ages` | finds the owner of the oldest message |
//! | [`clock`] | the clock of a running server |
//!
//! # Invariants
//!
//! * Within a channel offsets grow and may skip numbers. Every message carries its predecessor's.
//! * A worker gets the messages of one channel in the order of offsets: the engine posts them under
//!   the same lock that appends to the log.
//! * Following a channel and reading its backlog is one step under that lock, so that a subscriber
//!   misses no message in between. A message that comes both as backlog and as notification is
//!   recognised by its offset.
//! * `unsafe` is allowed in `prefetch` only.

pub mod age_clock;
mod ages;
pub mod attributes;
mod bookmarks;
pub mod change;
mod channel_limits;
mod channel_markers;
mod channels;
pub mod clock;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod connection_name;
mod connection_scan;
pub mod creation;
pub mod engine;
mod entry_count;
pub mod events;
pub mod frozen;
pub mod glob;
mod histogram;
mod history_page;
mod holder;
pub mod id;
mod idempotency_key;
pub mod journal;
pub mod key_text;
pub mod later;
mod listing;
mod log;
mod members;
mod memory;
pub mod message;
pub mod name;
pub mod names;
mod of_apps;
pub mod parts;
mod prefetch;
mod presence;
mod presence_events;
mod pressure;
mod publication;
mod read_marker;
mod reading;
pub mod receipt;
pub mod records;
mod room;
pub mod rules;
pub mod slab;
pub mod spread;
pub mod stamp;
mod state;
pub mod storm;
pub mod subscriptions;
mod watched_presence;
mod watchlists;
pub mod worker_queue;

pub use attributes::{Attribute, Attributes, Erasure, Extras};
pub use bookmarks::{BookmarkKeys, BookmarkMetrics};
pub use change::{
    ChangeError, ChangeOutcome, Changed, Condition, Erase, EraseOutcome, Erased, KeyCondition,
    KnownRecord, LogChange, LogRecord, LogState, RecordChange, RecordVersion,
};
pub use channel_limits::ChannelLimits;
pub use channels::Channels;
pub use connection_name::{ConnectionName, NodeTag};
pub use connection_scan::{
    ConnectionScan, FoundConnection, FoundLag, FoundTransport, ScanAction, ScanClose, ScanTarget,
    Scanned, WantedTags,
};
pub use creation::Creation;
pub use engine::{Audience, EngineMetrics, Follow, Followed, History, OtherNodes};
pub use entry_count::EntryCount;
pub use histogram::{Histogram, Snapshot};
pub use holder::{Charges, RoomHolder};
pub use id::{ChannelId, ConnectionId, Epoch, Listener, LocalId, MessageId, Position, WorkerId};
pub use idempotency_key::{IdempotencyKey, Publisher};
pub use journal::{Cluster, Journal, JournalIds, JournalUsage};
pub use later::{Answer, AskerId, Later, Ticket};
pub use listing::{
    ListPart, ListPlace, ListPosition, ListQuery, ListStep, ListedChannel, NameIndex, NoPosition,
};
pub use log::segment::SharedBytes;
pub use members::exchange::{
    MemberAsk, MemberChange, MemberLink, MemberPart, MemberValue, MemberWant,
};
pub use members::tallies::{Tallies, TallyWant};
pub use members::{MemberMetrics, MemberPage};
pub use memory::{Backlog, MemoryEngine, MemoryThaw, SegmentSink};
pub use message::{Body, BodyError, Content, InFlight, Message, Reader};
pub use name::{ChannelName, Kind};
pub use prefetch::AHEAD;
pub use presence::{Presence, PresenceAsk, PresenceBusy, PresenceCache, PresenceQuery};
pub use presence_events::{PresenceEventSettings, PresenceEvents, PresenceThaw};
pub use pressure::{MemoryDefence, MemoryPressure, MemoryStep, MemoryThresholds, RefusedForMemory};
pub use publication::{
    IDEMPOTENCY_MS, Outcome, Publication, PublishError, Published, Replacement, VolatilePublication,
};
pub use read_marker::{
    ErasedMarkers, MARKED_CHANNELS_MAX, Mark, Marked, MarkerKey, MarkersErased, MarkersOf, Mover,
    ReadMarker, UnreadNotice, too_many_markers,
};
pub use reading::{Fetched, HistoryQuery, Reading, StartAt};
pub use receipt::{Delivered, Fate, Receipt, ReceiptPart, Receipts, ReceiptsBusy};
pub use room::RoomGate;
pub use rules::{
    JournalId, LagPolicy, MembersRule, ResumeRule, Retention, Rule, Rules, Sender, StateLimits,
};
pub use stamp::{Stamp, Watermark};
pub use state::{
    KEYS_LOOKED_AT_MAX, KeyChange, KeyPage, KeyQuery, KeyValue, RENEWED_AFTER, TOMBSTONE_MS,
    TOMBSTONES_MIN, value_bytes,
};
pub use storm::{Admission, AdmissionSettings, QueueLook, QueueWatch};
pub use subscriptions::{
    Lacking, Lag, Member, Piece, Resumable, SubscriptionId, SubscriptionTable,
    Terms as SubscriptionTerms, Waiting, WatchId,
};
pub use watched_presence::{PresenceState, WatchedPresence};
pub use watchlists::Watchlists;
pub use worker_queue::{
    KeptNotice, LateAnswer, Notification, QuestionId, QueueLimits, WorkerQueue, wake_together,
};
