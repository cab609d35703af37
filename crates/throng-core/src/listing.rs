//! Lists of all channels or users, for server keys that may read them.
//!
//! A server may have millions of channels, so an engine never visits all of them at once: a list is
//! read in [`ListStep`]s, each of which visits a few channels. Between two steps others get the
//! locks. The order is the order of the engine's storage: it needs no sorting and stays the same
//! while channels come and go, so a list names each channel that exists throughout exactly once. It
//! names some of the others.

use crate::id::MessageId;
use crate::name::ChannelName;

/// Channels that one step of a list looks at, at most. An engine holds a lock meanwhile, for some
/// ten microseconds.
pub(crate) const STEP_CHANNELS_MAX: usize = 128;

/// A place in the storage of an engine. It means nothing to another engine, or to the same one
/// after it was thawed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace(pub u64);

/// A channel or user of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedChannel {
    /// Where it is stored.
    pub place: ListPlace,
    /// The name of the channel or user.
    pub name: ChannelName,
    pub subscribers: u64,
    /// The id of the newest message.
    pub head: MessageId,
    /// The number of messages that the log keeps.
    pub messages: usize,
}

/// The result of one step of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListStep {
    /// The channels or users in the order of their places, a hundred or so.
    pub channels: Vec<ListedChannel>,
    /// The place after which the next step begins; `None` at the end of the list.
    pub next: Option<ListPlace>,
}
