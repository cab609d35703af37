//! The visits of one slice of a fan-out, and memory for what they write together.

use throng_core::SubscriptionId;

use super::answer::SharedAnswer;
use super::deliver::Outcome;
use crate::connection::ConnectionId;
use crate::net::Transfer;

/// Memory that each slice uses anew.
#[derive(Debug, Default)]
pub(in crate::worker) struct Batch {
    /// Subscriptions that lack something, and the indices of their connections.
    pub(in crate::worker) visits: Vec<(SubscriptionId, u32)>,
    /// The visits that write one message together.
    pub(in crate::worker) together: Vec<(SubscriptionId, ConnectionId)>,
    /// The long-polls that share answers, each with the number of its answer.
    pub(in crate::worker) polls: Vec<(ConnectionId, usize)>,
    pub(in crate::worker) answers: Vec<SharedAnswer>,
    pub(in crate::worker) transfers: Vec<Transfer>,
    pub(in crate::worker) outcomes: Vec<Outcome>,
}
