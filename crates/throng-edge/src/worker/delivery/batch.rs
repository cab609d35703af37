//! The visits of one slice of a fan-out, and memory for what they write together.

use throng_core::SubscriptionId;

use super::answer::SharedAnswer;
use super::outcome::Outcome;
use crate::connection::ConnectionId;
use crate::net::Transfer;

/// Lists that each slice uses anew.
#[derive(Debug, Default)]
pub(in crate::worker) struct Batch {
    /// Subscriptions that lack something, and their connections.
    pub(super) visits: Vec<(SubscriptionId, ConnectionId)>,
    /// The visits that write one message together.
    pub(super) together: Vec<(SubscriptionId, ConnectionId)>,
    /// The long-polls that share answers, each with the number of its answer.
    pub(super) polls: Vec<(ConnectionId, usize)>,
    pub(super) answers: Vec<SharedAnswer>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) outcomes: Vec<Outcome>,
}

impl Batch {
    /// True if all lists are empty, as between two slices.
    pub(in crate::worker) fn is_empty(&self) -> bool {
        let Batch { visits, together, polls, answers, transfers, outcomes } = self;
        visits.is_empty()
            && together.is_empty()
            && polls.is_empty()
            && answers.is_empty()
            && transfers.is_empty()
            && outcomes.is_empty()
    }
}
