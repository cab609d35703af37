//! The journal's view of the server.

use std::sync::Arc;

use throng_core::{ChannelName, Content, Receipt, Retention, Rule, Stamp, StateLimits};

/// Tells publishers what became of their messages.
pub type Answering = Box<dyn FnOnce() + Send>;

/// The threads' view of the server.
pub trait JournalServer: Send + Sync {
    /// The clock, in milliseconds as `throng_core::clock` has it.
    fn now_ms(&self) -> u64;

    /// The retention of a channel, if it is durable.
    fn retention_of(&self, channel: &ChannelName) -> Option<Retention>;

    /// The limits of a channel's state.
    fn state_limits(&self, channel: &ChannelName) -> StateLimits {
        let _ = channel;
        Rule::default().state
    }

    /// A text that stands for all retentions of [`JournalServer::retention_of`]: it differs if any
    /// of them does.
    fn retention(&self) -> String;

    /// Begins to give out stamps that are settled when the group ends. Groups before it may be
    /// under way, too: they end in their order.
    fn begin_group(&self);

    /// The place of the next message of the group in the order of all messages.
    fn next_stamp(&self) -> Stamp;

    /// Delivers a message of the group, which is safe now. Returns the subscriptions it is for.
    fn deliver(&self, content: &Arc<Content>, receipt: Option<&Arc<Receipt>>) -> u64;

    /// Ends the oldest group: its messages were delivered, or get other stamps.
    fn end_group(&self);

    /// The highest stamp that was given out.
    fn newest_stamp(&self) -> Stamp;

    /// The offset up to which the followers of a channel have its messages, if it is followed.
    fn followed_head(&self, channel: &ChannelName) -> Option<u64> {
        let _ = channel;
        None
    }

    /// A channel may go at some time, as the record of its log says.
    fn note_mortal(&self, channel: &ChannelName) {
        let _ = channel;
    }

    /// Hears that entries could not be read, and of which channel or why: once a minute at most.
    fn unreadable(&self, what: &str) {
        let _ = what;
    }

    /// Calls `answers`, which tell many publishers what became of their messages, once and soon: on
    /// a thread that wakes those at little cost. Dropped without a call, it tells them that nothing
    /// is known.
    fn answer(&self, answers: Answering) {
        answers();
    }
}
