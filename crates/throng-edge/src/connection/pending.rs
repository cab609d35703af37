//! A request or command that waits for answers.
//!
//! What the client sent is kept as it came, and done again from the beginning with the answers at
//! hand. So nothing is half done while a connection waits, and what it costs is known: the bytes.

use std::sync::Arc;

use throng_access::Identity;
use throng_core::{Body, Fetched};

/// What a client has asked and is not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Names the answers that it waits for; those of earlier questions are not for it.
    pub(crate) question: u32,
    /// What the client sent.
    pub(crate) asked: Asked,
    /// What is known, and what for it waits.
    pub(crate) stage: Stage,
    /// Who the client is, if the application has said so. A token says it again.
    pub(crate) told: Option<Arc<Identity>>,
}

/// What a client sent.
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

/// What a request waits for.
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
    Keys,
    /// That the application says who the client is.
    Client,
    /// The followers of a channel.
    Presence,
    /// What becomes of its publication. The engine has it, so that it must not be asked again.
    Publish,
    /// That the engine can read what the request reads, all of which is allowed.
    Fetch {
        /// Parts of logs that are still to come, at least one.
        left: u32,
        /// The earliest end of what is allowed, in milliseconds since 1970.
        until_ms: Option<u64>,
        /// Keeps those that have come.
        held: Vec<Fetched>,
    },
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
