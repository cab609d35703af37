//! State of channels for which a server allows no subscription: `polling` acts on it.

use std::collections::VecDeque;

use crate::journal::subscription::Subscription;

/// State of a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// The stream's head when the round began.
    pub(super) floor: u64,
    /// PINGs that were sent before.
    pub(super) pings: u64,
}

#[derive(Debug, Default)]
pub(super) struct Polled {
    pub(super) count: usize,
    /// The same channels, and some that are no more.
    pub(super) queue: VecDeque<Subscription>,
    /// How many channels the server had subscriptions for when it refused one.
    pub(super) room: Option<usize>,
    /// Subscriptions since the last PING, and those before each PING without a PONG.
    pub(super) unconfirmed: Vec<Subscription>,
    pub(super) pinged: VecDeque<Vec<Subscription>>,
    pub(super) pings: u64,
    pub(super) pongs: u64,
    /// Refusals since the last PONG.
    pub(super) refusals: usize,
    /// How many are tried next, when, and whether some are.
    pub(super) tries: usize,
    pub(super) try_ms: u64,
    pub(super) is_trying: bool,
    pub(super) next_round_ms: u64,
    pub(super) round: Option<Round>,
    pub(super) before: Option<Round>,
    /// The last reported number.
    pub(super) reported: usize,
}

impl Polled {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// A channel that was polled is followed no more.
    pub(super) fn forget(&mut self) {
        self.count -= 1;
    }

    /// A subscription has ended: there may be room for another one.
    pub(super) fn has_room(&mut self) {
        self.try_ms = 0;
    }

    /// Forgets a connection's limits, except the number of subscriptions that it had room for.
    pub(super) fn forget_connection(&mut self) {
        let Polled { room, reported, .. } = *self;
        *self = Polled { room, reported, ..Polled::default() };
    }
}
