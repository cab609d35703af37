//! Users go on after a connection has died: what their clients have confirmed, and what is left of
//! a dead connection.
//!
//! Where nothing may be lost, a client is asked behind messages, and its answer confirms what was
//! written before. It owes one answer at most, and is asked once a second at most. Who never
//! answers gets all of it again.
//!
//! # Invariants
//!
//! * A connection of which something is not confirmed is in the queue, or has been asked.
//! * A subscription that awaits its user is blocked, and nothing but the end of that unblocks it.

use throng_core::{ChannelName, MessageId, Resumable, StartAt, SubscriptionId};
use throng_dialect::CloseReason;

use super::Delivery;
use crate::connection::{Connection, ConnectionId, Flags};
use crate::counters::Counter;
use crate::net::Net;
use crate::sockets::TICKS_PER_S;

/// The time between a message and the question behind it, in ticks. What comes meanwhile is
/// confirmed by the same answer.
const QUESTION_TICKS: u32 = TICKS_PER_S;

/// How long the messages of a subscription wait for its user, in ticks: for the application's
/// signature, which the client asks for once it is connected.
const USER_TICKS: u32 = 5 * TICKS_PER_S;

/// Connections that are asked in one tick, beside a tenth of all.
const ASKED_PER_TICK: u32 = 1_024;

impl<N: Net> Delivery<N> {
    /// A subscription was written messages, which its client may have to confirm.
    pub(super) fn note_unconfirmed(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        if self.subscriptions.is_unconfirmed(subscription) {
            let due = self.clock().tick() + QUESTION_TICKS;
            self.unconfirmed.list(id, due);
        }
    }

    /// Asks clients what they have had, and ends waits for users. Call it once in each tick.
    pub(crate) fn ask_clients(&mut self) {
        let tick = self.clock().tick();
        while let Some(token) = self.unconfirmed.take_wait(tick) {
            // It may have gone.
            if let Some(id) = self.connections().find(token) {
                self.end_waits(id);
            }
        }
        for _ in 0..ASKED_PER_TICK + self.connections().extent() / TICKS_PER_S {
            let Some(id) = self.unconfirmed.take_due(tick) else { break };
            if !self.connections().get(id).is_some_and(Connection::takes_messages) {
                self.unconfirmed.list(id, tick + QUESTION_TICKS);
                continue;
            }
            let mut has_some = false;
            self.each_subscription(id, |all, one| has_some |= all.ask(one));
            let question = self[id].encoding().dialect().question();
            if let Some(question) = question.filter(|_| has_some) {
                self.unconfirmed.note_asked(id);
                self.count(Counter::Pings);
                self.send(id, question);
            }
        }
    }

    /// A client says that it has had all that was written before it was asked. If it was not, that
    /// means nothing.
    pub(crate) fn confirmed(&mut self, id: ConnectionId) {
        if !self.unconfirmed.take_asked(id) {
            return;
        }
        self.each_subscription(id, |all, one| all.confirm(one));
        self.list_unconfirmed(id);
    }

    fn list_unconfirmed(&mut self, id: ConnectionId) {
        if self.subscriptions(id).any(|one| self.subscriptions.is_unconfirmed(one)) {
            let due = self.clock().tick() + QUESTION_TICKS;
            self.unconfirmed.list(id, due);
        }
    }

    /// A connection ends for a reason: its users go on elsewhere, unless the end is meant.
    pub(super) fn leave_bookmarks(&mut self, id: ConnectionId, reason: CloseReason) {
        if !self.subscriptions.rules().have_any_resume() {
            return;
        }
        self.unconfirmed.forget(id);
        if self[id].has(Flags::PEER_CLOSED) || !is_accident(reason) {
            return;
        }
        let left = self.subscriptions(id).filter_map(|subscription| {
            let (user, place) = self.subscriptions.resumable(subscription)?;
            let (channel, _) = self.subscriptions.channel(subscription)?;
            let name = self.engine.name(channel).filter(|_| !user.is_empty())?;
            Some((user, name, place))
        });
        let left: Vec<_> = left.collect();
        self.engine.leave_bookmarks(self.clock().unix_ms(), &left);
    }

    /// True if the messages of a subscription wait for its user.
    pub(crate) fn awaits_user(&self, subscription: SubscriptionId) -> bool {
        self.subscriptions.awaits_user(subscription)
    }

    /// Lets the messages of a subscription that has just begun wait for its user, if they have to.
    /// Returns whether they have.
    pub(crate) fn await_user(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        let waits = self.awaits_user(subscription);
        if waits {
            self.subscriptions.await_user(subscription);
            let due = self.clock().tick() + USER_TICKS;
            let token = self[id].token(id);
            self.unconfirmed.wait(token, due);
        }
        waits
    }

    /// The user of a subscription is known, whose next one goes on from it.
    pub(crate) fn set_resumable(&mut self, subscription: SubscriptionId, user: &str) {
        self.subscriptions.set_resumable(subscription, Some(Resumable::new(user.into())));
    }

    /// Ends waits for users that would have clients lag. Call it once a channel has a message more.
    pub(super) fn end_overdue_waits(&mut self) {
        for subscription in self.subscriptions.take_overdue() {
            if let Some(id) = self.subscriptions.connection(subscription) {
                self.subscriptions.set_resumable(subscription, None);
                self.flush_subscriptions(id);
            }
        }
    }

    /// The subscriptions of a connection wait no longer for a user.
    fn end_waits(&mut self, id: ConnectionId) {
        let waits: Vec<_> = self.subscriptions(id).filter(|one| self.awaits_user(*one)).collect();
        for &subscription in &waits {
            self.subscriptions.set_resumable(subscription, None);
        }
        if !waits.is_empty() {
            self.flush_subscriptions(id);
        }
    }

    /// True if a subscription begins behind the message that follows `place`.
    pub(crate) fn lies_before(&self, place: MessageId, subscription: SubscriptionId) -> bool {
        let begin = self.subscriptions.position(subscription);
        begin.is_some_and(|it| it.epoch == place.epoch && it.offset > place.offset)
    }

    /// Begins a subscription again, which counts as one more already.
    pub(crate) fn begin_again(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        (name, start): (&ChannelName, StartAt),
    ) {
        let mut terms = self.subscriptions.terms(subscription).cloned().unwrap_or_default();
        terms.resumable.iter_mut().for_each(|it| it.confirmed = None);
        let followed = self.follow(id, name, start);
        if followed.is_recovered == Some(false) {
            self.count(Counter::Gaps);
        }
        if let Some(newest) = self.newest_subscription(id) {
            self.set_terms(id, newest, terms);
            // First, because what ends would take what the new one lacks with it.
            self.catch_up(id, newest);
            self.unfollow(id, &mut [subscription]);
            self.trim_replay_buffer(newest);
        }
    }

    /// The subscriptions of a connection were thawed.
    pub(super) fn go_on_asking(&mut self, id: ConnectionId) {
        if !self.subscriptions.rules().have_any_resume() {
            return;
        }
        if self.subscriptions(id).any(|one| self.subscriptions.is_asked(one)) {
            self.unconfirmed.note_asked(id);
        }
        self.list_unconfirmed(id);
        let all: Vec<_> = self.subscriptions(id).collect();
        for subscription in all {
            self.await_user(id, subscription);
        }
    }
}

/// True if a connection that ends for this reason was to go on.
fn is_accident(reason: CloseReason) -> bool {
    match reason {
        // Without a close frame.
        CloseReason::Peer
        | CloseReason::SocketError
        | CloseReason::TlsFailed
        | CloseReason::PingTimeout
        | CloseReason::Lagging
        | CloseReason::Slow
        | CloseReason::Memory
        | CloseReason::Draining
        | CloseReason::Overload
        | CloseReason::Unanswered => true,
        CloseReason::Complete
        | CloseReason::Idle
        | CloseReason::Ended
        | CloseReason::Expired
        | CloseReason::TokenExpired
        | CloseReason::Unidentified
        | CloseReason::Revoked
        | CloseReason::Disconnected(_)
        | CloseReason::Evicted
        | CloseReason::ProxyHeader
        | CloseReason::Limited
        | CloseReason::Pipelining
        | CloseReason::Violation(_)
        | CloseReason::BadAck
        | CloseReason::BinaryCommand
        | CloseReason::Refused(_) => false,
    }
}
