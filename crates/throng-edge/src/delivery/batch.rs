//! The visits of one slice of a fan-out, and memory for what they write together.

use throng_core::SubscriptionId;
use throng_dialect::Encoding;

use super::answer::SharedAnswer;
use crate::connection::ConnectionId;
use crate::net::Transfer;

/// Lists that each slice uses anew.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Visits that the slice may still make.
    pub(super) left: u32,
    /// Subscriptions that lack something, and their connections.
    pub(super) visits: Vec<(SubscriptionId, ConnectionId)>,
    /// The visits that write one message together.
    pub(super) together: Vec<(SubscriptionId, ConnectionId)>,
    /// The long-polls that share answers, each with the number of its answer.
    pub(super) polls: Vec<(ConnectionId, usize)>,
    pub(super) answers: Vec<SharedAnswer>,
    pub(super) transfers: Vec<Transfer>,
    /// The encoding and length of what each of `together` is written.
    pub(super) encoded: Vec<(Encoding, usize)>,
}

impl Batch {
    /// True if all lists are empty, as between two slices.
    pub(crate) fn is_empty(&self) -> bool {
        let Batch { visits, together, polls, answers, transfers, encoded, .. } = self;
        visits.is_empty()
            && together.is_empty()
            && polls.is_empty()
            && answers.is_empty()
            && transfers.is_empty()
            && encoded.is_empty()
    }
}
