//! A journal's input and output.

mod logs;

use throng_core::{
    AskerId, ChannelId, ChannelName, Kind, NodeTag, Publication, StateLimits, VolatilePublication,
};

use super::nonce;
use super::volatile_places::VolatilePlace;
use crate::api::NatsLimit;
use crate::api::StreamSettings;
use crate::api::message::StoredMessage;
use crate::api::stream::StreamSize;
use crate::api::table::{StoredEntry, TableEntry, TableSettings};
use crate::permissions::Verb;
use crate::protocol::decoder::ServerMessage;
pub use logs::{LogEdit, LogFacts, LogOutcome, LogRequest, Outcome, ReadState, StateFacts};

/// Input of a journal.
#[derive(Debug)]
pub enum JournalEvent<'a> {
    /// A server has accepted the connection. All subscriptions have to be made again.
    Connected {
        /// The largest message that the server accepts, in bytes, with its headers.
        payload_bytes_max: usize,
    },
    Disconnected,
    /// Another server of the same cluster has accepted a connection, in place of the one before,
    /// which is given up: as if that was lost and this one was there at once. Publications go on.
    Moved {
        /// As in [`JournalEvent::Connected`].
        payload_bytes_max: usize,
    },
    /// The server accepts messages of this size from now on, in bytes, with their headers.
    Payload {
        bytes_max: usize,
    },
    /// So much waits to be written to the server that nothing is sent again for now, or it is
    /// written.
    Clogged(bool),
    Received(ServerMessage<'a>),
    /// The server does not let this user do something, which was asked for on this connection.
    Denied {
        verb: Verb,
        subject: String,
        error: String,
    },
    /// The server is asked whether it is there, after all that was to be done until now.
    Pinged,
    /// It has answered the oldest such question without an answer: whatever it refused of what was
    /// done before, it has said.
    Ponged,
    /// The server has refused a subscription, without saying which, and the connection stays.
    Exceeded,
    /// To publish this. The token comes back with the outcome. The publications of a client to one
    /// channel are stored in the order of these events, or not at all.
    Publish(PublishRequest),
    /// To change or read the log of a channel. The token comes back with the outcome. A change is
    /// stored after the earlier publications to its channel, and before the later ones.
    Log {
        token: u64,
        channel: ChannelName,
        request: LogRequest,
        /// The limits of the channel's state, if it keeps one.
        state: Option<StateLimits>,
    },
    /// To send this to the other nodes that follow its channel. Nothing is known of what becomes of
    /// it.
    Volatile(VolatilePlace, VolatilePublication),
    /// To follow these channels. Following one again reports it again.
    Follow(Vec<(ChannelId, ChannelName)>),
    /// To follow this channel no more.
    Unfollow(ChannelName),
    /// To read a channel. The token comes back with what was read.
    Read {
        /// Comes back with what was read.
        token: u64,
        channel: ChannelName,
        after: u64,
        /// The head that the reader knows of: an answer that ends before it is not yet complete.
        at_least: u64,
        /// True to learn whether the channel has ended.
        wants_end: bool,
    },
    /// To read the state of a channel. The token comes back with it.
    ReadState(ReadState),
    /// To learn which channels of a kind are in the stream. The token comes back with them.
    Name {
        token: u64,
        kind: Kind,
        /// False if the names of earlier answers are still known: then only those that came since
        /// are reported, with their new ends.
        is_anew: bool,
    },
    /// To count the messages of these channels. The token comes back with the counts.
    Count {
        token: u64,
        logs: Vec<CountedLog>,
    },
    /// To ask all other nodes.
    Ask(Ask),
    /// To tell all other nodes something, as a question without an answer. It may get lost.
    Tell(Vec<u8>),
    /// To answer a question of another node.
    Answer {
        /// Where the answer goes to: as in [`JournalReport::Question`].
        reply: String,
        answer: Vec<u8>,
    },
    /// To write an entry of a table. The token comes back with the outcome.
    Change {
        table: TableId,
        /// Comes back with the outcome.
        token: u64,
        entry: TableEntry,
        /// The sequence of the key's last entry, without which it is not written; 0 if there is
        /// none. `None` if that does not matter.
        replaces: Option<u64>,
    },
    /// To read the last entry of a key of a table on demand. The token comes back with it.
    Look {
        table: TableId,
        /// Comes back with the entry.
        token: u64,
        key: String,
    },
    /// To count entries of a table on demand, or to remove them if the flag is set: those whose
    /// keys are like this one, in which `*` is any token. The number comes under the number here.
    Match(TableId, String, (u64, bool)),
    /// To compare a table with what was read of it, at once.
    Compare(TableId),
    /// Other nodes have published with these keys, as far as is known.
    Keys(StoredKeys),
    /// Sets the description of this node that others get once a second.
    Describe(Vec<u8>),
    /// The node ends. Others need not wait for its answers any more.
    Leave,
    /// Another process is the node from now on. This one ends, and others are not told.
    Cede,
    /// Report no message of a followed channel before [`JournalEvent::GoOn`]; then read the
    /// messages that came meanwhile from the stream.
    Hold,
    /// To report messages again.
    GoOn,
    /// To be the node that another process has been, and to go on where it was held.
    Resume(Box<Resume>),
    /// Time has passed. Due about twenty times a second.
    Tick,
}

/// A publication that a journal takes.
#[derive(Debug)]
pub struct PublishRequest {
    pub token: u64,
    pub publication: Publication,
    pub asker: AskerId,
    /// True if the channel may have ended, so that the stream has to look at that.
    pub may_end: bool,
    /// The limits of the channel's state, if it keeps one.
    pub state: Option<StateLimits>,
}

/// A log in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLog {
    pub channel: ChannelName,
    /// The sequence of its last message, or of what is beside them.
    pub sequence: u64,
    pub last: LastOfLog,
}

/// The last entry of one of a log's subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastOfLog {
    Message,
    /// A record of the log or its state, which may say that there is none any more.
    Beside,
}

/// How the answer to [`JournalEvent::Name`] goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Naming {
    /// There are more to come.
    More,
    /// These were all.
    End {
        /// What is before this sequence is gone from the stream.
        first: u64,
    },
    /// They cannot be read now, and all have to be read the next time. The reason is a sentence, if
    /// there is one that does not pass.
    Failed(Option<String>),
}

/// A log whose messages are to be counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedLog {
    pub channel: ChannelName,
    /// Older messages do not count.
    pub max_age_ms: u64,
    /// False if it is known to have neither a record nor a state.
    pub may_be_kept: bool,
}

/// The messages that a log has, as far as that matters to a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCount {
    pub messages: u64,
    /// True if the log has a record, or a state with values; also false if it has messages.
    pub is_kept: bool,
    /// The newest message, if the state knows it.
    pub head: u64,
}

/// Messages of a channel that nobody may be shown any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasedMessages {
    pub channel: ChannelName,
    /// The sequences of the first one and the last one.
    pub first: u64,
    pub last: u64,
}

/// The identity of a node, and the point at which it was held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The epoch of the heads.
    pub epoch: u64,
    pub held: HeldState,
    /// The channels that it follows: all messages up to their heads were reported.
    pub channels: Vec<(ChannelId, ChannelName, u64)>,
}

/// State of a journal at the point at which it is held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldState {
    /// All messages of followed channels up to this sequence were heard, or are known to lack.
    pub complete: u64,
    /// The other nodes, and for how long each was silent, in milliseconds.
    pub nodes: Vec<(Box<str>, u64)>,
}

/// A question to all other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Comes back with the answers.
    pub token: u64,
    pub question: Vec<u8>,
    /// How long answers are waited for, in milliseconds.
    pub wait_ms: u64,
    /// True if it is asked until each node has answered, also one that is silent just now.
    pub must_reach_all: bool,
    /// The only node that answers, if it is not all of them.
    pub only: Option<Box<str>>,
}

/// Answers of other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodesAnswered {
    /// The token of [`Ask`].
    pub token: u64,
    /// One answer of each node that has answered.
    pub answers: Vec<Vec<u8>>,
    /// True if no answer is missing.
    pub is_complete: bool,
}

/// Output of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalReport {
    /// Messages can be published and read, under this epoch. With another epoch than before, all
    /// earlier sequences mean nothing any more: each followed channel is reported again.
    Opened {
        /// The stream's last sequence when it was found.
        last: u64,
        epoch: u64,
    },
    /// The server cannot be reached. Publications are refused, followed channels stay followed.
    Away,
    /// The stream cannot be used, and why. It is tried again every few seconds.
    Refused {
        reason: String,
        /// The limit that is in the way, if one is.
        limit: Option<NatsLimit>,
    },
    /// Whether the stream stores nothing, although it says how it is. Publications are
    /// refused meanwhile, but for one now and then.
    Stalled(bool),
    /// A channel is followed: all messages after `head` are reported from now on.
    Followed {
        channel: ChannelId,
        /// The sequence of its last message, or a later one that belongs to no message of it.
        head: u64,
    },
    /// The server allows no more subscriptions than the ones of `subscribed` channels: so many
    /// other ones are polled, and their messages come late.
    Polled {
        /// How many channels are polled; 0 if there is room for all again.
        channels: usize,
        /// How many have subscriptions.
        subscribed: usize,
    },
    /// The server has no room for all of the node's own subscriptions, without which it does not
    /// hear of other nodes, or late.
    Unheard,
    /// All messages of followed channels up to this sequence were reported, although
    /// [`JournalReport::Whole`] says that some may be missing: messages of polled channels, after
    /// it.
    Settled {
        /// The last one.
        up_to: u64,
    },
    /// The next message of a followed channel.
    Message {
        channel: ChannelId,
        message: StoredMessage,
    },
    /// A volatile message of another node, in a followed channel.
    Volatile(VolatilePublication),
    /// A volatile message was not sent to other nodes: servers do not accept one of this size, or
    /// cannot be reached.
    VolatileLost,
    /// Messages of a followed channel are gone from the stream, before it could be read.
    Gap {
        channel: ChannelId,
    },
    /// Messages were published with these keys.
    Keys(Vec<KnownKey>),
    /// The outcome of a publication.
    Published {
        token: u64,
        outcome: Outcome,
    },
    /// The outcome of a [`LogRequest`].
    Log {
        token: u64,
        outcome: LogOutcome,
    },
    /// Messages were erased, here or by another node.
    Erased(ErasedMessages),
    /// Other nodes may have erased messages while nothing was heard of them.
    ErasedUnheard,
    Read {
        token: u64,
        /// The messages; `None` if the stream is away.
        reading: Option<Reading>,
    },
    /// The state of a channel.
    StateRead {
        token: u64,
        /// `None` if it cannot be read now.
        state: Option<StateFacts>,
    },
    /// A channel goes at some time, as its record says.
    Mortal(ChannelName),
    /// The value of a key of some channel, which was set long ago.
    OldValue {
        channel: ChannelName,
        message: StoredMessage,
    },
    /// Logs in the stream, with their last messages or records.
    Named {
        token: u64,
        logs: Vec<NamedLog>,
        naming: Naming,
    },
    /// The counts of the logs, in their order; `None` if they cannot be read.
    Counted {
        token: u64,
        counts: Option<Vec<LogCount>>,
    },
    /// As many other nodes are there now; none while nothing can be heard of them.
    Nodes(usize),
    /// Another node is there, as it says about once a second.
    Heard {
        /// The name that it has had since it started.
        node: Box<str>,
        /// Its description of itself, as in [`JournalEvent::Describe`]; empty if it has none now.
        description: Vec<u8>,
    },
    /// Another node has ended, or was silent for so long that it counts as gone.
    Gone {
        /// The name that it has had since it started.
        node: Box<str>,
        /// True if it has said so itself.
        is_in_order: bool,
    },
    /// How the journal stands, about once a second while there is a connection.
    Standing(Standing),
    /// No message of a followed channel is reported from now on.
    Held(HeldState),
    Asked(NodesAnswered),
    /// Another node asks. [`JournalEvent::Answer`] answers.
    Question {
        reply: String,
        question: Vec<u8>,
    },
    /// Whether all followed channels have all messages that this node knows of, if that has
    /// changed. It is not so before the first of these, nor while the stream is away.
    Whole(bool),
    /// Entries of a table, in the order in which they were written: all that there are, or those
    /// that came since.
    Entries(TableId, Vec<StoredEntry>),
    /// All entries that were there at this time were reported.
    Current {
        table: TableId,
        /// When the servers were asked, by the clock of the events.
        as_of_ms: u64,
    },
    /// The table has lost entries. Those that are there are reported again.
    TableLost(TableId),
    /// A table cannot be used, and why. It is tried again every few seconds.
    TableRefused {
        reason: String,
        /// As in [`JournalReport::Refused`].
        limit: Option<NatsLimit>,
    },
    /// The entry of a table's key.
    Looked {
        token: u64,
        /// Its last entry, if there is one; `None` if that cannot be read.
        found: Option<Option<StoredEntry>>,
    },
    /// The number of entries that matched, under the token; `None` if it is not known.
    Matched(u64, Option<u64>),
    /// The outcome of a change to a table.
    Changed {
        token: u64,
        outcome: Changed,
    },
}

/// A key that a message was published with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownKey {
    /// Identifies the key, with its channel and its publisher.
    pub id: [u8; 16],
    /// The message.
    pub sequence: u64,
}

/// Keys that a node has published with at about the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKeys {
    /// The epoch of their sequences.
    pub epoch: u64,
    /// The time, by the clock of the events.
    pub stored_ms: u64,
    pub keys: Vec<KnownKey>,
}

/// How a journal stands to its stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Followed channels that lack messages, or may lack some: they are compared with the stream.
    pub behind: usize,
    /// Since when the first of them has been, in milliseconds.
    pub behind_ms: u64,
    /// The server that leads the stream; empty with one server.
    pub leader: String,
    /// How much the stream has, as its server said last.
    pub size: StreamSize,
}

/// Which of the [tables](Settings::tables) of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableId(pub usize);

/// The outcome of a change to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// It is stored, and its entry was reported here.
    Stored,
    /// It is not stored: the key's last entry is another one than it replaces.
    Conflict {
        /// The sequence of that entry, which was reported here; 0 if servers do not say it, because
        /// they are about to store it.
        last: u64,
    },
    /// It is not stored: too many are under way.
    Busy,
    /// It is not stored: NATS cannot be reached.
    Away,
    /// It may be stored, or not.
    Unknown,
    /// It is not stored, and would not be a moment later.
    Refused(String),
}

/// The settings of a journal.
#[derive(Debug, Clone)]
pub struct JournalSettings {
    /// The stream and its retention.
    pub stream: StreamSettings,
    /// Differs for each start of each node: names inboxes and publications. Only letters and
    /// digits.
    pub nonce: String,
    /// The name of the node that this process is to be, once it is told [`JournalEvent::Resume`].
    /// Before that it only listens. Without one, it is a node of its own, named by the nonce.
    pub successor_of: Option<String>,
    /// How long a publication is sent again until its outcome is unknown, in milliseconds.
    pub publish_ms: u64,
    /// Tables that the node has whole before it uses the stream.
    pub tables: Vec<TableSettings>,
}

impl JournalSettings {
    /// The common start of the names of the node's connections.
    pub fn node(&self) -> NodeTag {
        // That of the process before: clients keep the names of their connections.
        let name = self.successor_of.as_ref().unwrap_or(&self.nonce);
        NodeTag::numbered(nonce::number(name))
    }
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub messages: Vec<StoredMessage>,
    /// Later messages that were left out, because there are too many for one batch. The next
    /// reading starts after the last message.
    pub left: u64,
    /// True if no message is missing between the position and what was read.
    pub is_whole: bool,
    /// The channel's last message when it had ended; 0 if it had none. `None` if it had not, or if
    /// nobody has asked, or `left` is not 0.
    pub ended_at: Option<u64>,
}
