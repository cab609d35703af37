//! A request or command that waits for answers.
//!
//! The client's bytes are kept as they came, and acted upon again from the beginning with the
//! answers at hand. So nothing is half done while a connection waits, and its cost is known: the
//! bytes.

use std::sync::Arc;

use throng_access::{Answers, Identity};
use throng_core::{Body, Fetched, Watermark};

/// A client's request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Names the answers that it waits for; answers to earlier questions are not for it.
    pub(crate) question: u32,
    pub(crate) asked: Asked,
    /// The answers so far, and those to come.
    pub(crate) stage: Stage,
    /// The client's identity, if the application has named it. A token is verified again.
    pub(crate) told: Option<Arc<Identity>>,
}

#[derive(Debug)]
pub(crate) enum Asked {
    /// The head of a request that subscribes.
    Head(Box<[u8]>),
    /// The text of a command of `throng.v1`.
    Command(Box<str>),
    /// A message to the channel of a plain WebSocket.
    Message(Body),
    /// Such a message, which the engine has: only its outcome is awaited.
    Outcome,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// That the access policy allows all of it.
    Access {
        /// Decisions that are still to come, at least one.
        left: u32,
        /// The earliest end of what was allowed so far, in milliseconds since 1970.
        until_ms: Option<u64>,
    },
    /// The keys that may verify its token.
    Keys(Box<Answers>),
    /// That the application says who the client is.
    Client,
    /// The followers of a channel.
    Presence,
    /// The outcome of its publication. The engine has it, so it must not be asked again.
    Publish,
    /// That the engine can read what the request reads, all of which is allowed.
    Fetch {
        /// Parts still to come, at least one.
        left: u32,
        fetched: FetchedParts,
    },
    /// How far a user has read.
    Marker,
}

/// Parts of logs that the engine has fetched for a request that is allowed.
#[derive(Debug, Default)]
pub(crate) struct FetchedParts {
    /// The earliest end of what is allowed, in milliseconds since 1970.
    pub(crate) until_ms: Option<u64>,
    /// Keeps the parts of logs readable.
    pub(crate) held: Vec<Fetched>,
    /// Where the connection starts in the channels that the server keeps for its user.
    pub(crate) position: Option<Watermark>,
    /// How many messages the user has not read.
    pub(crate) unread: Option<u64>,
    /// True if the message is among the parts that tells the position.
    pub(crate) has_position: bool,
    /// True if all that the subscriptions start with is among the parts.
    pub(crate) is_complete: bool,
    /// Shows the engine that the connection waits for the rest.
    pub(crate) asker: Option<Arc<()>>,
}

impl FetchedParts {
    /// Nothing yet, of what is allowed until this time.
    pub(crate) fn until(until_ms: Option<u64>) -> FetchedParts {
        FetchedParts { until_ms, ..FetchedParts::default() }
    }
}

impl Pending {
    /// Memory that no other connection shares.
    pub(super) fn bytes(&self) -> usize {
        match &self.asked {
            Asked::Head(head) => head.len(),
            Asked::Command(text) => text.len(),
            Asked::Message(body) => body.bytes().len(),
            Asked::Outcome => 0,
        }
    }
}
