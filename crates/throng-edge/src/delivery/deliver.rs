//! Writes a subscriber the messages that it lacks: all between its cursor and the head in one call.
//!
//! A subscription that is not blocked is one that a fan-out pass visits, and its replay buffer
//! drops what the pass has offered it. So when a socket takes no more, or a slice is spent, the
//! subscription is [blocked](throng_core::SubscriptionTable::block) or offered the rest again,
//! before the pass goes on: otherwise the replay buffer would drop messages that were never
//! written.

use std::sync::Arc;

use throng_core::{LagPolicy, Message, MessageId, Reader, SubscriptionId, Waiting, Watermark};
use throng_dialect::dialect::Shown;
use throng_dialect::joined::Joiner;
use throng_dialect::saying::is_notice;
use throng_dialect::{CloseReason, Saying};
use throng_wire::{ErrorCode, chunk};

use crate::connection::{ConnectionId, Flags, Io, Partial, State};
use crate::counters::Counter;
use crate::delivery::Delivery;
use crate::delivery::acks::shown_of;
use crate::delivery::joined::skipped_frame;
use crate::net::Net;
use crate::sockets::Outcome;
use crate::sockets::ticks;

/// Bytes of messages that are written in order in one write, roughly.
const IN_ORDER_BYTES: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compress {
    /// Those that are not compressed yet: others are about to get them, too.
    New,
    /// None. A subscriber that catches up gets what is compressed already compressed, and the rest
    /// as it is: nobody shares it, and asking for a backlog costs a client nothing.
    Never,
}

impl<N: Net> Delivery<N> {
    /// Writes the connection the messages that all of its subscriptions lack, as far as the socket
    /// takes them.
    pub(crate) fn flush_subscriptions(&mut self, id: ConnectionId) {
        // The end of the command flushes them.
        if !self.connections().holds_messages(id) {
            self.flush_each(id, false);
        }
    }

    /// Writes the connection the messages that all of its subscriptions lack, whatever their pace:
    /// it is about to end.
    pub(crate) fn flush_at_last(&mut self, id: ConnectionId) {
        self.flush_each(id, true);
    }

    fn flush_each(&mut self, id: ConnectionId, is_last: bool) {
        let newest = self.newest_subscription(id);
        if newest.is_some_and(|newest| self.is_in_order(id, newest)) {
            return self.flush_in_order(id);
        }
        if self[id].encoding().joins() {
            return self.flush_joined(id, is_last);
        }
        let all = self.in_turn(id);
        let cursor = |delivery: &Self| delivery.subscriptions.cursor(*all.first()?);
        let from = cursor(self);
        for &subscription in &all {
            if !is_last && self.awaits_user(subscription) {
                continue;
            }
            // Once the socket takes no more, this blocks the remaining subscriptions, so that their
            // replay buffers keep what they lack.
            let waits = !is_last && self.subscriptions.wait_for_pace(subscription);
            if is_last {
                self.catch_up_now(id, subscription);
            } else {
                self.catch_up(id, subscription);
            }
            let connection = &self[id];
            if connection.state() != State::Streaming {
                return;
            }
            if !waits
                && !connection.has(Flags::BLOCKED)
                && !connection.has(Flags::DELIVERY_DEFERRED)
            {
                self.subscriptions.unblock(subscription);
            }
        }
        self.note_turn(id, &all, cursor(self) > from);
    }

    /// Writes a subscription that a fan-out pass visits the messages that it lacks, as far as the
    /// socket and the slice allow, with at least one write. Returns whether it lacks more, for
    /// which the pass comes back.
    pub(crate) fn deliver(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        if self[id].encoding().joins() {
            self.hold(id, subscription);
            return false;
        }
        if self.is_in_order(id, subscription) {
            // Other passes may have messages for it that come before.
            self.subscriptions.block(subscription);
            self.defer_delivery(id);
            return false;
        }
        while self.deliver_some(id, subscription, Compress::New) {
            if self.budget().is_slice_spent() && self.takes_more(id) {
                let lacks_more =
                    !matches!(self.subscriptions.waiting(subscription), Waiting::Nothing);
                if lacks_more {
                    self.count(Counter::DeliveriesDeferred);
                    self.subscriptions.offer_rest(subscription);
                }
                return lacks_more;
            }
        }
        false
    }

    /// Writes the connection what it lacks in the order of stamps, as far as that is settled, the
    /// socket takes it and the slice allows. A later slice goes on with the rest.
    pub(crate) fn flush_in_order(&mut self, id: ConnectionId) {
        if self.connections().holds_messages(id) {
            return;
        }
        match self[id].state() {
            State::Streaming => {}
            State::LongPolling => self.answer_long_poll(id, false, &[]),
            State::Head | State::Waiting | State::Closing | State::Condemned => return,
        }
        while self.takes_more(id) && !self.budget().is_slice_spent() && self.pass_gaps(id) {
            if !self.write_in_order(id) {
                break;
            }
        }
        let connection = &self[id];
        let is_parked = connection.is_parked();
        let is_blocked = connection.has(Flags::BLOCKED);
        if is_parked && self.block_lacking(id) && !is_blocked {
            if self.engine.is_settling() || self.budget().is_slice_spent() {
                self.defer_delivery(id);
            } else {
                self.defer_unsettled(id);
            }
        }
    }

    /// Writes some messages in order. Returns whether there may be more.
    fn write_in_order(&mut self, id: ConnectionId) -> bool {
        let connection = &self[id];
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        let epoch = self.watermark.epoch;
        let mut out = self.buffers().take_output();
        let (mut count, mut joiner, mut alone) = (0, Joiner::default(), Vec::new());
        let taken = self.take_in_order(id, |message, number, stamp| {
            let position = Watermark { epoch, stamp }.to_string();
            // Nobody acknowledges what comes in order.
            let shown = Shown { position: Some(&position), ..Shown::of(number) };
            if encoding.joins() {
                alone.clear();
                encoding.compose(message, shown, is_chunked, &mut alone);
                joiner.add(&alone, &mut out);
            } else {
                encoding.compose(message, shown, is_chunked, &mut out);
            }
            count += 1;
            out.len() < IN_ORDER_BYTES
        });
        joiner.finish(&mut out);
        if count > 0 {
            self.send_messages(id, &out, count);
            if encoding.joins() {
                self.note_frame(id);
            }
        }
        self.tell_superseded(id);
        self.buffers().return_output(out);
        taken.is_cut
    }

    /// Acts on the gaps of the connection's subscriptions. Returns whether it takes messages.
    fn pass_gaps(&mut self, id: ConnectionId) -> bool {
        let mut next = self.newest_subscription(id);
        while let Some(subscription) = next {
            if self.subscriptions.is_conflated(subscription) {
                // A newer one that is not settled yet would be waited for without end.
                let settled = self.watermark.stamp;
                let has_stamps =
                    self.engine.has_positions_in(self.subscriptions.journal(subscription));
                let is_settled = |it: &Message| !has_stamps || it.stamp <= settled;
                let count = self.pass_older(id, subscription, is_settled);
                self.tell_conflated(id, subscription, count);
            }
            match self.subscriptions.waiting(subscription) {
                Waiting::Gap { missed, resume_at, policy } => {
                    self.gap(id, subscription, missed, resume_at, policy);
                }
                Waiting::StateEnd(end) => self.end_state(id, subscription, end),
                Waiting::Nothing | Waiting::Messages(_) => {}
            }
            if !self.takes_more(id) {
                return false;
            }
            next = self.subscriptions.sibling(subscription);
        }
        true
    }

    fn takes_more(&self, id: ConnectionId) -> bool {
        self[id].takes_messages()
    }

    /// Writes a subscription the messages that it lacks, unless its pace holds them back, as far as
    /// the socket and the slice allow. A later slice goes on with the rest.
    pub(crate) fn catch_up(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        let is_in_order = self.is_in_order(id, subscription);
        let waits = !is_in_order
            && (self.subscriptions.wait_for_pace(subscription)
                || self.subscriptions.is_held_back(subscription));
        if !waits {
            self.catch_up_now(id, subscription);
        }
    }

    /// As [`Delivery::catch_up`], whatever the pace.
    pub(super) fn catch_up_now(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        if self.is_in_order(id, subscription) {
            return self.flush_in_order(id);
        }
        if self[id].encoding().joins() {
            return self.catch_up_joined(id, subscription);
        }
        while !matches!(self.subscriptions.waiting(subscription), Waiting::Nothing) {
            if self.budget().is_slice_spent() && self.takes_more(id) {
                // Blocked, so that the replay buffer keeps what it lacks until its turn.
                self.subscriptions.block(subscription);
                return self.defer_delivery(id);
            }
            if !self.deliver_some(id, subscription, Compress::Never) {
                return;
            }
        }
    }

    /// Writes a subscription some of the messages that it lacks. Returns whether to go on.
    fn deliver_some(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        compress: Compress,
    ) -> bool {
        let connection = &self[id];
        if connection.is_parked() && connection.has(Flags::BLOCKED) {
            // A pass offers it nothing more until its socket is writable.
            self.subscriptions.block_slow(subscription);
            return false;
        }
        match connection.state() {
            State::Streaming => {}
            State::LongPolling => {
                self.answer_long_poll(id, false, &[]);
                return false;
            }
            State::Head | State::Waiting | State::Closing | State::Condemned => return false,
        }
        // Such an event names the position in all channels, so that no two connections share its
        // bytes.
        let is_composed = connection.has(Flags::MULTIPLE) && connection.encoding().has_own_ids();
        let is_late = compress == Compress::Never || self.subscriptions.is_paced(subscription);
        if is_late && self.conflate(id, subscription) {
            return true;
        }
        match self.subscriptions.waiting(subscription) {
            Waiting::Nothing => return false,
            Waiting::Gap { missed, resume_at, policy } => {
                self.gap(id, subscription, missed, resume_at, policy);
            }
            Waiting::Messages(mut messages) if is_composed => {
                let message = messages.next().cloned();
                debug_assert!(message.is_some(), "`Messages` has at least one");
                let Some(message) = message else { return false };
                self.deliver_composed(id, subscription, &message);
            }
            Waiting::StateEnd(end) => self.end_state(id, subscription, end),
            Waiting::Messages(_) => {
                if compress == Compress::New || !self.deliver_piece(id, subscription) {
                    self.deliver_shared(id, subscription, compress);
                }
            }
        }
        true
    }

    /// Writes messages that many catch up with, in one piece. Returns whether there is one.
    fn deliver_piece(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        let Delivery { sockets, subscriptions, .. } = self;
        let connection = &sockets[id];
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        if encoding.is_compressed() {
            return false;
        }
        let shown = shown_of(subscriptions, subscription);
        let mut append = |message: &Message, bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(encoding.encode(message, shown, is_chunked));
        };
        let form = (encoding.slot(), is_chunked);
        let Some(piece) = subscriptions.piece(subscription, form, &mut append) else {
            return false;
        };
        let (mut outcome, cut) = sockets.write_piece(id, piece);
        if let Some((offset, from)) = cut {
            let message = subscriptions.lacking_at(subscription, offset);
            // Its client would take what comes next for the rest.
            outcome.is_gone = message.is_none();
            outcome.partial = message.map(|message| {
                encoding.encode(&message, shown, is_chunked);
                Partial { message, encoding, from }
            });
        }
        self.conclude(id, subscription, outcome);
        true
    }

    /// Writes messages in encodings that all subscribers share.
    fn deliver_shared(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        compress: Compress,
    ) {
        let Delivery { sockets, subscriptions, compression, .. } = self;
        let shown = shown_of(subscriptions, subscription);
        let Waiting::Messages(messages) = subscriptions.waiting(subscription) else {
            return debug_assert!(false, "the caller has seen messages");
        };
        let mut is_first = true;
        let outcome = sockets.write_messages(id, messages, |message, connection, costs| {
            let encoding = connection.encoding();
            if encoding.is_compressed() && compress == Compress::New {
                // At least one message is written, and no slice has much more to compress.
                if costs.is_slice_spent() && !std::mem::replace(&mut is_first, false) {
                    return None;
                }
                costs.compressed(compression.prepare(message, encoding));
                is_first = false;
            }
            let own = encoding.of(message);
            Some((own, own.encode(message, shown, connection.has(Flags::CHUNKED))))
        });
        let from = self.subscriptions.cursor(subscription).unwrap_or_default();
        self.conclude(id, subscription, outcome);
        // The replay buffer may keep these messages for long, and does not count encodings.
        self.subscriptions.drop_encodings(subscription, from);
    }

    /// Moves the cursor over the messages that were written, counts them, and keeps the rest of a
    /// partly written one.
    pub(crate) fn conclude(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        outcome: Outcome,
    ) {
        let is_written = outcome.advanced_to.is_some();
        match outcome.advanced_to {
            Some(offset) if outcome.is_held || outcome.partial.is_some() => {
                // Only the last one is written in part, if none waits below.
                let written_to = if outcome.is_held { 0 } else { offset - 1 };
                let held = self.subscriptions.pass(subscription, offset, written_to);
                self.hold_receipts(id, held);
            }
            Some(offset) => self.subscriptions.advance(subscription, offset),
            None => {}
        }
        if is_written {
            self.note_unconfirmed(id, subscription);
        }
        self.conclude_write(id, outcome);
        self.tell_superseded(id);
    }

    /// Writes one event whose id belongs to this connection: its position in all of its channels.
    fn deliver_composed(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        message: &Arc<Message>,
    ) {
        // First, because the event's id includes this message.
        let held = self.subscriptions.pass(subscription, message.id.offset, 0);
        self.hold_receipts(id, held);
        let connection = &self[id];
        let reader = self.connections().reader_of(id, connection);
        if !message.is_for(reader, self.clock().unix_ms()) {
            return;
        }
        let shown = shown_of(&self.subscriptions, subscription);
        if is_notice(message) {
            let is_chunked = connection.has(Flags::CHUNKED);
            let event = connection.encoding().encode(message, shown, is_chunked).to_vec();
            return self.send_messages(id, &event, 1);
        }
        let shared = connection.encoding().encode(message, shown, false);
        let own_id = shared.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut event = format!("id: {}\n", self.position(id)).into_bytes();
        event.extend_from_slice(&shared[own_id..]);
        if connection.has(Flags::CHUNKED) {
            let mut framed = Vec::with_capacity(event.len() + 16);
            chunk::write_chunk(&mut framed, &event);
            event = framed;
        }
        self.send_messages(id, &event, 1);
    }

    /// Acts on a subscriber that lacks messages which are dropped already, as the lag policy says.
    pub(super) fn gap(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        missed: Option<u64>,
        resume_at: MessageId,
        policy: LagPolicy,
    ) {
        match policy {
            LagPolicy::Close => {
                self.close_lagging(id, CloseReason::Lagging);
            }
            LagPolicy::Latest => {
                let count = self.pass_older(id, subscription, |_| true);
                self.tell_conflated(id, subscription, count);
            }
            // The next event has all that those would have told.
            LagPolicy::Skip if self.subscriptions.is_of_presence_events(subscription) => {
                self.subscriptions.skip(subscription, resume_at.offset);
            }
            LagPolicy::Skip => {
                self.subscriptions.skip(subscription, resume_at.offset);
                self.count(Counter::Gaps);
                self.metrics().add(Counter::MessagesSkipped, missed.unwrap_or(0));
                let target = self.target_of(subscription);
                debug_assert!(target.is_some(), "a channel with subscribers has a name");
                let Some(target) = target else { return };
                let message_id = resume_at.to_string();
                self.say(id, &Saying::Gap { target: &target, missed, id: &message_id });
            }
        }
    }

    /// Passes over the messages before the newest that a subscription lacks, if its channel wants
    /// that, and tells the client how many these are. Returns whether there were any.
    pub(super) fn conflate(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        if !self.subscriptions.is_conflated(subscription) {
            return false;
        }
        let count = self.pass_older(id, subscription, |_| true);
        self.tell_conflated(id, subscription, count);
        count != Some(0)
    }

    /// Passes over the messages that a subscription lacks before the newest that `may_go`. Returns
    /// how many; `None` if that is not known.
    pub(super) fn pass_older(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        may_go: impl Fn(&Message) -> bool,
    ) -> Option<u64> {
        // A notice is no newer state: it comes behind the message that is.
        let reader = Reader { name: self.connections().name(id), has_notices: false };
        let now_ms = self.clock().unix_ms();
        let is_wanted = |message: &Message| message.is_for(reader, now_ms) && may_go(message);
        let count = self.subscriptions.conflate(subscription, is_wanted);
        // It is more than none.
        self.metrics().add(Counter::MessagesConflated, count.unwrap_or(1));
        count
    }

    /// Tells the client that it has skipped messages for a newer one.
    pub(super) fn tell_conflated(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        count: Option<u64>,
    ) {
        if count == Some(0) {
            return;
        }
        if let Some(count) = count.filter(|_| self[id].encoding().joins()) {
            let number = self.subscriptions.number(subscription);
            self.flush_replies(id);
            return self.send(id, &skipped_frame(number, count));
        }
        let target = self.target_of(subscription);
        debug_assert!(target.is_some(), "a channel with subscribers has a name");
        let Some(target) = target else { return };
        self.say(id, &Saying::Conflated { target: &target, count });
    }

    /// Closes a connection that lags too far behind, or has for too long, instead of waiting for
    /// its socket or its client.
    pub(crate) fn check_blocked(&mut self, id: ConnectionId) {
        let has_gap = |subscription| {
            let waiting = self.subscriptions.waiting(subscription);
            matches!(waiting, Waiting::Gap { policy: LagPolicy::Close, .. })
        };
        if self.subscriptions(id).any(has_gap) {
            return self.close_lagging(id, CloseReason::Lagging);
        }
        let Some(since) = self.connections().behind_since(id) else { return };
        let is_late = |subscription| {
            let timeout = self.subscriptions.slow_timeout(subscription);
            timeout.is_some_and(|time| since.saturating_add(ticks(time)) <= self.clock().tick())
        };
        if self.subscriptions(id).any(is_late) {
            self.close_lagging(id, CloseReason::Slow);
        }
    }

    /// Ends the time that a connection is behind, unless it still lacks something.
    pub(crate) fn note_caught_up(&mut self, id: ConnectionId) {
        let connection = &self[id];
        let waits = connection.has(Flags::BLOCKED) || connection.has(Flags::DELIVERY_DEFERRED);
        if !waits && !connection.holds_for_acks() {
            self.connections_mut().catch_up(id);
        }
    }

    /// Checks a streaming connection with unfinished input or output: a half-read message has a
    /// deadline, and a connection that lags is closed without waiting for its socket.
    pub(crate) fn check_busy(&mut self, id: ConnectionId) {
        if self[id].holds_for_acks() {
            self.note_late(id);
        }
        if self[id].has(Flags::BLOCKED) || self[id].holds_for_acks() {
            self.check_blocked(id);
        }
        // If it lags, it ends now.
        let connection = &self[id];
        if connection.state() != State::Streaming {
            return;
        }
        let timeout = self.settings.limits.message_timeout;
        let (ticks, now) = (ticks(timeout), self.clock().tick());
        let is_late =
            |io: &Io| !io.reader.is_idle() && io.message_since.saturating_add(ticks) <= now;
        if connection.io.as_deref().is_some_and(is_late) {
            let message = format!("a message must arrive within {} s", timeout.as_secs());
            let reason = CloseReason::Refused(ErrorCode::TooSlow);
            self.close_with(id, reason, &message);
        }
    }
}
