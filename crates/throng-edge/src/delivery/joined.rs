//! Joins what is due to a connection, of all its channels, in frames with several messages.
//!
//! A fan-out that visits such a connection does not write at once. The subscription is
//! [held](throng_core::SubscriptionTable::hold) and listed, and when the fan-outs end or the slice
//! in which they have lasted a millisecond, each connection is written what all of its listed
//! subscriptions lack, in one call. A connection that
//! has had a frame within the present interval waits for the end of that. So the first message
//! after silence goes out at once, and a busy connection is written about once in an interval,
//! however many channels it follows.
//!
//! # Invariants
//!
//! * There is one interval for all connections, and it runs only while one of them has had a frame
//!   within it. A connection has a flag, and no timer or buffer.
//! * A held subscription is listed, and is written once even if its id is listed twice. Once
//!   something has been due for a millisecond, no fan-out goes on before it is written: so an
//!   interval's messages are bounded, and each channel has moments without held subscriptions.

use std::time::Duration;

use throng_core::{ChannelId, SubscriptionId, Waiting};
use throng_dialect::joined::{FRAME_BYTES, Joiner};
use throng_wire::websocket::{Opcode, write_frame};

use super::Delivery;
use super::acks::{Owed, owed_to, shown_of};
use crate::connection::{ConnectionId, Flags, State};
use crate::net::Net;
use crate::sockets::{BYTES_PER_WRITE, Due, MESSAGES_PER_WRITE, Outcome, Sent};

/// Connections that are written one message each in one call.
const TOGETHER_MAX: usize = 96;

/// Subscriptions whose newest messages fill a frame, if these are short.
const PER_FRAME: usize = 64;

/// How far a connection was written what it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It lacks nothing.
    Whole,
    /// It takes no more for now, or ends.
    Blocked,
    /// The slice is spent.
    Spent,
}

/// The messages of one subscription in a write.
struct Run {
    subscription: SubscriptionId,
    /// The end of its messages among all of the write.
    end: usize,
    /// The offset of the last message that was taken or passed over.
    passed: Option<u64>,
}

/// Messages that a subscription has passed over for a newer one, and its client has to be told of.
#[derive(Debug, Clone, Copy)]
struct Skipped {
    subscription: SubscriptionId,
    /// Zero once the client has been told.
    count: u64,
}

/// What a subscription has skipped, of all in the order of their ids.
fn skipped_of(skipped: &mut [Skipped], subscription: SubscriptionId) -> Option<&mut Skipped> {
    let at = skipped.binary_search_by_key(&subscription, |skipped| skipped.subscription).ok()?;
    Some(&mut skipped[at]).filter(|skipped| skipped.count > 0)
}

/// Leaves each subscription once in a list of held ones: one that ended while it was held stays
/// listed, and the one that has its id now may be held, too.
fn list_once(own: &mut Vec<SubscriptionId>) {
    if own.len() < 2 {
        return;
    }
    let mut sorted = own.clone();
    sorted.sort_unstable();
    sorted.dedup();
    // The order of the visits stays otherwise.
    if sorted.len() < own.len() {
        *own = sorted;
    }
}

impl<N: Net> Delivery<N> {
    /// True if a fan-out is under way, or held subscriptions are due.
    pub fn is_fanning_out(&self) -> bool {
        self.subscriptions.is_fanning_out() || self.held.are_due()
    }

    /// True if what is due waits for the fan-outs under way, which may add to its frames.
    pub(crate) fn gathers(&self) -> bool {
        self.subscriptions.is_fanning_out() && self.held.may_gather(self.clock().unix_ms())
    }

    /// True if connections that take messages lack some: a fan-out is under way, or messages are
    /// held back.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.is_fanning_out() || self.held.wait()
    }

    /// The time until held subscriptions are due, or a clock lets out what it holds back; `None`
    /// without either.
    pub fn until_due(&self) -> Option<Duration> {
        let paced = self.subscriptions.until_due_ms().map(Duration::from_millis);
        let held = self.held.until_due(self.clock().unix_ms());
        paced.into_iter().chain(held).min()
    }

    /// Ends the interval if its time is over: what waits for that is due.
    pub(crate) fn end_interval(&mut self) {
        let now_ms = self.clock().unix_ms();
        let Delivery { sockets, subscriptions, held, .. } = self;
        let Some(ended) = held.end_interval(now_ms) else { return };
        for &id in &ended.0 {
            // It has ended, or its place has another one, which is written at once then.
            if sockets.connections().get(id).is_some() {
                sockets[id].flags.set(Flags::HAD_FRAME, false);
            }
        }
        for &subscription in &ended.1 {
            if let Some(id) = subscriptions.held_connection(subscription) {
                held.add((id, subscription), now_ms);
            }
        }
        held.reuse(ended);
    }

    /// Notes that a connection has had a frame with messages.
    pub(super) fn note_frame(&mut self, id: ConnectionId) {
        let now_ms = self.clock().unix_ms();
        let connection = &mut self.sockets[id];
        if !connection.has(Flags::HAD_FRAME) {
            connection.flags.set(Flags::HAD_FRAME, true);
            self.held.note_written(id, now_ms);
        }
    }

    /// Holds a subscription that a fan-out visits, until what it lacks is due.
    pub(super) fn hold(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        let connection = &self[id];
        match connection.state() {
            State::Streaming => {}
            _ => return,
        }
        if connection.has(Flags::BLOCKED) {
            // A pass offers it nothing more until its socket is writable.
            return self.subscriptions.block(subscription);
        }
        if self.hold_for_acks(id, subscription) {
            return;
        }
        let is_later = self[id].has(Flags::HAD_FRAME);
        if !is_later && self.is_in_order(id, subscription) {
            // Other passes may have messages for it that come before.
            self.subscriptions.block(subscription);
            return self.defer_delivery(id);
        }
        self.subscriptions.hold(subscription);
        if is_later {
            self.held.add_later(subscription);
        } else {
            let now_ms = self.clock().unix_ms();
            self.held.add((id, subscription), now_ms);
        }
    }

    /// True if a message that only this subscription of the connection lacks can be written at
    /// once: nothing else can be due to it.
    pub(super) fn is_written_alone(&self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        !self[id].has(Flags::HAD_FRAME) && self.subscriptions.sibling(subscription).is_none() && {
            self.newest_subscription(id) == Some(subscription)
        }
    }

    /// Writes what is due now, as far as the slice allows. Returns whether that was all.
    pub(crate) fn write_due(&mut self) -> bool {
        let mut due = self.held.take_due();
        let mut together = Vec::new();
        while !self.budget().is_slice_spent()
            && let Some(&(id, _)) = due.last()
        {
            let from = due.iter().rposition(|&(other, _)| other != id).map_or(0, |at| at + 1);
            let own = due.drain(from..).map(|(_, subscription)| subscription);
            // The place of one that has ended may have another one.
            let is_held =
                |own: &SubscriptionId| self.subscriptions.held_connection(*own) == Some(id);
            let mut own: Vec<_> = own.filter(is_held).collect();
            list_once(&mut own);
            match own[..] {
                [] => {}
                [only] if self.lacks_just_one(id, only).is_some() => together.push((only, id)),
                _ => {
                    if self.write_group(id, &own) == Progress::Spent {
                        due.extend(own.into_iter().map(|subscription| (id, subscription)));
                    }
                }
            }
            if together.len() == TOGETHER_MAX {
                self.write_one_each(&mut together);
            }
        }
        self.write_one_each(&mut together);
        self.held.put_back(due);
        !self.held.are_due()
    }

    /// Writes a connection what held subscriptions lack, and releases them unless the slice is
    /// spent.
    fn write_group(&mut self, id: ConnectionId, own: &[SubscriptionId]) -> Progress {
        if self.is_in_order(id, own[0]) {
            own.iter().for_each(|&held| self.subscriptions.block(held));
            own.iter().for_each(|&held| self.subscriptions.release(held));
            self.flush_in_order(id);
            return Progress::Whole;
        }
        let progress = self.write_lacking(id, own, false);
        self.note_first_turn(id, own);
        if progress != Progress::Spent {
            for &held in own {
                self.end_hold(id, held);
            }
        }
        progress
    }

    /// Releases a subscription, or blocks it if its connection takes no more.
    fn end_hold(&mut self, id: ConnectionId, held: SubscriptionId) {
        let lacks_some = !matches!(self.subscriptions.waiting(held), Waiting::Nothing);
        if lacks_some && !self.hold_for_acks(id, held) && !self[id].takes_messages() {
            self.subscriptions.block(held);
        }
        self.subscriptions.release(held);
    }

    /// Writes the messages of subscriptions that lack just one each, to one connection each.
    fn write_one_each(&mut self, together: &mut Vec<(SubscriptionId, ConnectionId)>) {
        let Delivery { sockets, subscriptions, batch, .. } = self;
        let (mut encoded, mut transfers) =
            (std::mem::take(&mut batch.encoded), std::mem::take(&mut batch.transfers));
        let message_of = |subscription| match subscriptions.waiting(subscription) {
            Waiting::Messages(mut messages) => messages.next(),
            _ => None,
        };
        // Each has been seen to lack one.
        together.retain(|&(subscription, _)| message_of(subscription).is_some());
        let id_of = |&(_, id): &(SubscriptionId, ConnectionId)| id;
        sockets.write_each(together, id_of, &mut transfers, |&(subscription, _), connection, _| {
            let own = connection.encoding();
            let shown = shown_of(subscriptions, subscription);
            let message = message_of(subscription);
            let bytes = message.map_or(&[][..], |message| own.encode(message, shown, false));
            encoded.push((own, bytes.len()));
            bytes
        });
        let written = together.drain(..).zip(encoded.drain(..)).zip(transfers.drain(..));
        for (((subscription, id), (encoding, length)), transfer) in written {
            let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
                continue;
            };
            let Some(message) = messages.next().cloned() else { continue };
            let outcome = Outcome::of_message(&message, encoding, length, transfer);
            let asks = shown_of(&self.subscriptions, subscription).asks;
            let is_begun = outcome.advanced_to.is_some();
            self.conclude(id, subscription, outcome);
            self.note_frame(id);
            self.note_asked(id, usize::from(asks && is_begun));
            self.end_hold(id, subscription);
        }
        (self.batch.encoded, self.batch.transfers) = (encoded, transfers);
    }

    /// Writes the connection what all of its subscriptions lack, as far as the socket and the slice
    /// allow. A later slice goes on with the rest.
    pub(super) fn flush_joined(&mut self, id: ConnectionId, is_last: bool) {
        let mut all = self.in_turn(id);
        let subscriptions = &mut self.subscriptions;
        if !is_last {
            all.retain(|&it| !subscriptions.wait_for_pace(it) && !subscriptions.is_held_back(it));
        }
        all.retain(|&it| !matches!(subscriptions.waiting(it), Waiting::Nothing));
        let cursor = |delivery: &Self| delivery.subscriptions.cursor(*all.first()?);
        let from = cursor(self);
        let progress = self.write_lacking(id, &all, is_last);
        if self[id].state() != State::Streaming {
            return;
        }
        self.note_turn(id, &all, cursor(self) > from);
        self.block_lacking(id);
        self.each_subscription(id, |subscriptions, subscription| {
            // A pass comes to it when its channel's clock is due.
            if subscriptions.is_held_back(subscription) {
                subscriptions.unblock(subscription);
            }
        });
        if progress == Progress::Spent {
            self.defer_delivery(id);
        }
    }

    /// The same with one subscription.
    pub(super) fn catch_up_joined(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        match self.write_lacking(id, &[subscription], false) {
            Progress::Whole => {}
            Progress::Blocked if self[id].state() == State::Streaming => {
                self.subscriptions.block(subscription);
            }
            Progress::Blocked => {}
            Progress::Spent => {
                // Blocked, so that the replay buffer keeps what it lacks until its turn.
                self.subscriptions.block(subscription);
                self.defer_delivery(id);
            }
        }
    }

    /// Writes the connection what these subscriptions lack, with at least one write. Those that
    /// wait for acknowledgements are held, unless the connection `is_last` written to.
    fn write_lacking(
        &mut self,
        id: ConnectionId,
        own: &[SubscriptionId],
        is_last: bool,
    ) -> Progress {
        // What is not written to a slow client is not conflated yet, nor told.
        let owes = self[id].unacknowledged().is_some();
        let is_slow = owes || self.connections().behind_since(id).is_some();
        let part = if is_slow { PER_FRAME } else { MESSAGES_PER_WRITE };
        let mut is_first = true;
        for own in own.chunks(part) {
            if !std::mem::take(&mut is_first) && self.budget().is_slice_spent() {
                return Progress::Spent;
            }
            let mut skipped = self.conflate_each(id, own, is_last);
            let progress = self.write_rest(id, own, is_last, &mut skipped);
            self.tell_skipped(id, &skipped);
            if progress != Progress::Whole {
                return progress;
            }
        }
        Progress::Whole
    }

    fn write_rest(
        &mut self,
        id: ConnectionId,
        own: &[SubscriptionId],
        is_last: bool,
        skipped: &mut [Skipped],
    ) -> Progress {
        let (mut rest, mut is_first) = (own, true);
        while let Some((&next, others)) = rest.split_first() {
            let lacks_some = !matches!(self.subscriptions.waiting(next), Waiting::Nothing);
            if !lacks_some || (!is_last && self.hold_for_acks(id, next)) {
                rest = others;
                continue;
            }
            if !self[id].takes_messages() {
                return Progress::Blocked;
            }
            if !std::mem::take(&mut is_first) && self.budget().is_slice_spent() {
                return Progress::Spent;
            }
            match self.subscriptions.waiting(next) {
                Waiting::Nothing => {}
                Waiting::Gap { missed, resume_at, policy } => {
                    self.gap(id, next, missed, resume_at, policy);
                }
                Waiting::StateEnd(end) => self.end_state(id, next, end),
                Waiting::Messages(_) => self.write_some(id, rest, is_last, skipped),
            }
        }
        Progress::Whole
    }

    /// Passes over all but the newest messages of these subscriptions, where their channels want
    /// that. Returns those whose clients are to be told, in the order of their ids.
    fn conflate_each(
        &mut self,
        id: ConnectionId,
        own: &[SubscriptionId],
        is_last: bool,
    ) -> Vec<Skipped> {
        let mut skipped = Vec::new();
        for &subscription in own {
            if !self[id].takes_messages() {
                break;
            }
            let waits = !is_last && self.awaits_acks(id, subscription);
            if waits || !self.subscriptions.is_conflated(subscription) {
                continue;
            }
            let count = self.pass_older(id, subscription, |_| true);
            match count {
                Some(0) => {}
                // A frame that is not copied has the message alone.
                Some(count) if !self.is_next_large(id, subscription) => {
                    skipped.push(Skipped { subscription, count });
                }
                count => self.tell_conflated(id, subscription, count),
            }
        }
        skipped.sort_unstable_by_key(|skipped| skipped.subscription);
        skipped
    }

    /// True if the next message of a subscription fills a frame.
    fn is_next_large(&self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
            return false;
        };
        let shown = shown_of(&self.subscriptions, subscription);
        let encoding = self[id].encoding();
        messages.next().is_some_and(|it| encoding.encode(it, shown, false).len() > FRAME_BYTES)
    }

    /// Tells the client what was skipped for messages that were not written.
    fn tell_skipped(&mut self, id: ConnectionId, skipped: &[Skipped]) {
        if self[id].state() != State::Streaming || skipped.iter().all(|it| it.count == 0) {
            return;
        }
        let (mut joiner, mut frames) = (Joiner::default(), Vec::new());
        for &Skipped { subscription, count } in skipped.iter().filter(|it| it.count > 0) {
            let number = self.subscriptions.number(subscription);
            joiner.add(&skipped_frame(number, count), &mut frames);
        }
        joiner.finish(&mut frames);
        self.flush_replies(id);
        self.send(id, &frames);
    }

    /// Writes the connection some of the messages that these subscriptions lack, in one call.
    fn write_some(
        &mut self,
        id: ConnectionId,
        own: &[SubscriptionId],
        is_last: bool,
        skipped: &mut [Skipped],
    ) {
        let room = if is_last { usize::MAX } else { self.ask_room(id) };
        let Delivery { sockets, subscriptions, .. } = self;
        let connection = &sockets[id];
        let encoding = connection.encoding();
        let now_ms = sockets.clock().unix_ms();
        let reader = sockets.connections().reader_of(id, connection);
        let (mut due, mut runs, mut bytes) = (Vec::new(), Vec::new(), 0);
        'all: for &subscription in own {
            let owed = owed_to(connection, subscriptions, subscription, now_ms);
            if !is_last && owed != Owed::Little {
                continue;
            }
            let messages = match subscriptions.waiting(subscription) {
                Waiting::Nothing => continue,
                // It is told before what comes behind it.
                Waiting::Gap { .. } | Waiting::StateEnd(_) => break,
                Waiting::Messages(messages) => messages,
            };
            let shown = shown_of(subscriptions, subscription);
            let (mut passed, mut is_first) = (None, true);
            for message in messages {
                if message.is_for(reader, now_ms) {
                    if due.len() == MESSAGES_PER_WRITE || bytes >= BYTES_PER_WRITE {
                        runs.push(Run { subscription, end: due.len(), passed });
                        break 'all;
                    }
                    let frame = encoding.encode(message, shown, false);
                    bytes += frame.len();
                    let told = if is_first { skipped_of(skipped, subscription) } else { None };
                    let told = told.map(|it| skipped_frame(shown.number, it.count));
                    is_first = false;
                    due.push(Due { message, encoding, frame, skipped: told });
                }
                passed = Some(message.id.offset);
            }
            runs.push(Run { subscription, end: due.len(), passed });
        }
        let offsets: Vec<_> = due.iter().map(|due| due.message.id.offset).collect();
        let sent = if due.is_empty() { None } else { Some(sockets.write_joined(id, &due, room)) };
        let begun = sent.as_ref().map_or(0, |sent| sent.begun);
        self.conclude_runs(id, &runs, &offsets, sent);
        // They were told with the first message of each.
        let mut start = 0;
        for &Run { subscription, end, .. } in &runs {
            if start < end.min(begun) {
                skipped_of(skipped, subscription).iter_mut().for_each(|it| it.count = 0);
            }
            start = end;
        }
    }

    /// Moves the cursors over the messages that were written, counts them, and keeps the rest of a
    /// frame that is partly written. `offsets` are those of all messages.
    fn conclude_runs(
        &mut self,
        id: ConnectionId,
        runs: &[Run],
        offsets: &[u64],
        sent: Option<Sent>,
    ) {
        let (begun, whole) = sent
            .as_ref()
            .map_or((0, 0), |sent| (sent.begun, if sent.is_held() { 0 } else { sent.whole }));
        let mut start = 0;
        for &Run { subscription, end, passed } in runs {
            // Messages that are passed over behind the last one that was written are looked at
            // again.
            let up_to = |count: usize| match count.clamp(start, end) {
                all if all == end => passed,
                none if none == start => None,
                some => Some(offsets[some - 1]),
            };
            if let Some(offset) = up_to(begun) {
                let from = self.subscriptions.cursor(subscription).unwrap_or_default();
                let written_to = up_to(whole).unwrap_or_default();
                if written_to < offset {
                    let held = self.subscriptions.pass(subscription, offset, written_to);
                    self.hold_receipts(id, held);
                } else {
                    self.subscriptions.advance(subscription, offset);
                }
                // The replay buffer may keep these messages for long, and does not count encodings.
                self.subscriptions.drop_encodings(subscription, from);
            }
            start = end;
        }
        if let Some(sent) = sent {
            let asked = sent.asked;
            self.conclude_joined(id, sent);
            self.note_frame(id);
            self.note_asked(id, asked);
        }
        self.tell_superseded(id);
    }
}

/// A frame which says that a channel's messages were skipped for a newer one.
pub(super) fn skipped_frame(ChannelId(number): ChannelId, count: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(&mut frame, Opcode::Text, format!("[0,[{number},-{count}]]").as_bytes());
    frame
}
