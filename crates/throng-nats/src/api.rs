//! The requests and answers of JetStream, as JSON and headers. No I/O.

pub mod ack;
pub(crate) mod beside;
pub mod bucket;
pub(crate) mod consumer;
pub mod get;
mod limit;
pub(crate) mod link;
pub mod message;
pub(crate) mod state;
pub mod stream;
pub mod table;

use serde::Deserialize;
use throng_core::Retention;

pub use limit::NatsLimit;

/// A stream keeps messages longer than a channel's history by this share, so that what has expired
/// for a client is still there to tell whether it missed it.
const AGE_PERCENT: u64 = 125;

/// The key in the metadata of a stream under which [`FORMAT`] is. Builds from before version 0.1.0
/// used another one, or none.
const FORMAT_KEY: &str = "throng.version";

/// The format of all that the nodes of an installation store and say to each other. Nodes of
/// different formats use no stream together, so they never meet.
pub(crate) const FORMAT: &str = "1";

/// An error of JetStream.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, thiserror::Error)]
#[error("{description} (error {err_code})")]
pub struct JetStreamError {
    /// The class of error, as HTTP has it.
    #[serde(default)]
    pub code: u16,
    /// The very error.
    #[serde(default)]
    pub err_code: u32,
    #[serde(default)]
    pub description: String,
}

impl JetStreamError {
    /// The cluster has no leader, or has lost its majority.
    pub(crate) const NO_LEADER: u32 = 10008;
    /// Another stream has the subject.
    pub(crate) const OTHER_STREAM: u32 = 10060;
    /// The subject has no message.
    pub(crate) const NO_MESSAGE: u32 = 10037;
    /// There is no such stream.
    pub(crate) const STREAM_NOT_FOUND: u32 = 10059;
    /// The subject's last sequence is not the expected one. Servers have two numbers for it.
    pub(crate) const WRONG_LAST_SEQUENCE: [u32; 2] = [10071, 10164];
    /// The first publication with this id is not stored yet.
    pub(crate) const DUPLICATE_IN_PROCESS: u32 = 10158;
    /// The subject has no message, as the answer to its erasure says it.
    pub(crate) const NO_MESSAGE_TO_ERASE: u32 = 10057;
    /// A leader has not got all messages of a batch, because another one was before, or has too
    /// many batches. None is stored.
    pub(crate) const BATCH_NOT_STORED: [u32; 2] = [10176, 10210];
    /// The stream has too many publications that wait. This one was not stored.
    pub(crate) const TOO_MANY_REQUESTS: u32 = 10167;

    /// The refusal of a message for `stream` that `other` has stored instead.
    pub(crate) fn of_other_stream(stream: &str, other: &str) -> JetStreamError {
        let description = format!("the stream {other} has subjects of the stream {stream}");
        JetStreamError { code: 400, err_code: Self::OTHER_STREAM, description }
    }

    /// True if there is no such stream.
    pub fn is_no_stream(&self) -> bool {
        self.err_code == Self::STREAM_NOT_FOUND
    }

    /// True if the servers have not elected a leader, for which a majority of them is needed.
    pub fn is_leaderless(&self) -> bool {
        self.err_code == Self::NO_LEADER
    }

    /// The error, and what to do about the limit that it names, if it names one.
    pub fn advised(&self) -> String {
        match NatsLimit::of(self) {
            Some(limit) => format!("{self}; {}", limit.remedy()),
            None => self.to_string(),
        }
    }

    /// True if the last entry of the key is not the one that was expected.
    pub(crate) fn is_conflict(&self) -> bool {
        Self::WRONG_LAST_SEQUENCE.contains(&self.err_code)
    }

    /// The sequence of the key's last entry after a conflict, if the server says it.
    pub(crate) fn last_sequence(&self) -> Option<u64> {
        self.description.rsplit_once(": ")?.1.parse().ok()
    }

    /// True if the same request may succeed a moment later: servers elect a leader, say.
    pub fn is_passing(&self) -> bool {
        let passes = matches!(self.code, 408 | 503) && NatsLimit::of(self).is_none();
        passes || self.err_code == Self::DUPLICATE_IN_PROCESS
    }
}

/// Contents, storage and age limits of a stream. A missing stream is created with them; an existing
/// one that differs is refused and never changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSettings {
    /// Starts the names of streams and subjects, so that several installations share servers.
    pub prefix: String,
    /// The class of channels that share the stream, and a retention.
    pub class: String,
    /// How many servers have a copy: 1, 3 or 5.
    pub replicas: u8,
    /// True if the stream is in the servers' memory only.
    pub is_in_memory: bool,
    /// Retention of a channel: messages and their age.
    pub retention: Retention,
    /// Size limit of the stream on each server in bytes. Beyond it the oldest messages go.
    pub bytes_max: u64,
    /// The largest message, in bytes, with its headers.
    pub message_bytes_max: u32,
    /// For how long a publication is recognised when it comes again, in milliseconds. Each takes
    /// about 250 bytes of the servers' memory for that time.
    pub duplicate_window_ms: u64,
}

impl StreamSettings {
    /// The name of the stream.
    pub fn name(&self) -> String {
        format!("{}-{}", self.prefix, self.class)
    }

    /// For how long the stream keeps messages, in milliseconds.
    pub fn max_age_ms(&self) -> u64 {
        self.retention.max_age_ms.saturating_mul(AGE_PERCENT) / 100
    }

    /// The messages of a channel that the stream keeps: one more than the channel's history, so
    /// that one that was dropped by their number shows.
    pub fn per_channel(&self) -> u64 {
        self.retention.max_messages as u64 + 1
    }
}
