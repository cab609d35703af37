//! The visits of one slice of a fan-out, and memory for what they write together.

use throng_core::SubscriptionId;

use super::answer::SharedAnswer;
use super::deliver::Outcome;
use crate::connection::ConnectionId;
use crate::net::Transfer;

/// Memory that each slice uses anew.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Subscriptions that lack something, and the indices of their connections.
    pub(super) visits: Vec<(SubscriptionId, u32)>,
    /// The visits that write one message together.
    pub(super) together: Vec<(SubscriptionId, ConnectionId)>,
    /// The long-polls that share answers, each with the number of its answer.
    pub(super) polls: Vec<(ConnectionId, usize)>,
    pub(super) answers: Vec<SharedAnswer>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) outcomes: Vec<Outcome>,
}
