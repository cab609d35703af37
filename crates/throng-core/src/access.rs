//! The one place that is asked "may this connection do this?".

use crate::name::ChannelName;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// Follow a channel or a user's inbox.
    Subscribe(&'a ChannelName),
    /// Publish to a channel or a user.
    Publish(&'a ChannelName),
    /// Read what a log keeps.
    ReadHistory(&'a ChannelName),
    /// See who is there.
    ReadPresence(&'a ChannelName),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Yes,
    /// No, and the sentence that the client is told.
    No(String),
}

/// Decides. Both planes ask it before they do anything for a client.
pub trait Access: Send + Sync {
    /// Whether a client may do this.
    fn may(&self, action: Action<'_>) -> Verdict;
}

/// Everybody may do everything: for trying out on loopback.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allow;

impl Access for Allow {
    fn may(&self, _: Action<'_>) -> Verdict {
        Verdict::Yes
    }
}
