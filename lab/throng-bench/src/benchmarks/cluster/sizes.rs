//! How large each part is.

/// The size of the benchmark that the other numbers belong to.
pub(super) const WHOLE: usize = 15_000;

/// The largest chat of the original with long-polls.
pub(super) const CHAT_CLIENTS: usize = 2_000;

/// Channels that get a message a second, and have a client each.
pub(super) const CHANNELS: usize = 10_000;

/// Channels that a node follows which joins.
pub(super) const INBOXES: usize = 100_000;

/// Clients while a nats-server is killed.
pub(super) const OUTAGE_CLIENTS: usize = 1_500;

/// The nats-servers of a cluster of them.
pub(super) const BROKERS: usize = 3;
