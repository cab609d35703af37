//! Parts of logs that are read, and who waits for them.

use throng_core::parts::HeldPart;
use throng_core::{Fetched, Ticket};

use super::collect::Collect;
use super::hold::ChannelHold;

/// The waiting party of a part that is read.
pub(super) enum ReadFor {
    /// A subscription that asks for its start.
    Start(ChannelHold, Ticket<Fetched>),
    /// A page of history.
    Page(HeldPart, Ticket<Fetched>),
    /// Subscribers that may not have heard of the end of their channel.
    Check,
}

pub(super) struct PendingRead {
    pub(super) collect: Collect,
    pub(super) to: ReadFor,
}
