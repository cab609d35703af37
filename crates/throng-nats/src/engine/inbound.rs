//! Handles the journal's reports, on the connection's thread.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use throng_core::{
    ChannelId, Content, Epoch, Fetched, MessageId, Notification, PublishError, Published,
    ScanAction, ScanClose, ScanTarget, Ticket, VolatilePublication, WorkerId, clock,
};

use super::collect::Next;
use super::followed::WaitingPart;
use super::link::{LinkState, count};
use super::pending::{PendingRead, ReadFor};
use super::rest::CountGuard;
use super::shared::{NodeShared, fill};
use super::table::TableNews;
use crate::api::NatsLimit;
use crate::api::message::StoredMessage;
use crate::client::{Notice, version};
use crate::journal::{self, JournalReport, Outcome, StateFacts};

/// How long a message waits for room in the queues of workers. The servers keep what comes
/// meanwhile.
const ROOM_WAITS_MAX: usize = 1_000;

/// A table without parts that are read keeps the memory of this many at most.
const READS_KEPT: usize = 1_024;

/// How long until the queues are looked at again.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// The code that tells WebSockets to connect again: the server restarts.
pub(super) const CLOSE_CODE: u16 = 1012;

/// Logs that the node's own subscriptions have no room.
fn is_unheard() {
    tracing::error!(
        "NATS has no room for the subscriptions of the node itself, about eight, so it hears late \
         of other nodes, or not at all (maximum subscriptions exceeded); {}",
        NatsLimit::Subscriptions.remedy()
    );
}

impl NodeShared {
    /// Takes what the journal reports, or what happened to the connection.
    pub(super) fn take(self: &Arc<NodeShared>, notice: Notice) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        match notice {
            Notice::Rest => self.deferred.act(&self.memory),
            Notice::Trouble { server, error } => self.trouble(&format!("{server}: {error}")),
            Notice::Limit(limit) => self.link.counts.refused_by(limit),
            Notice::Old { server, version } => self.is_old(&server, version),
            Notice::Turn => {}
            Notice::Lag { ms } => self.cluster.lags(ms),
            Notice::CaughtUp => self.link.caught_up(),
            Notice::Report(report) => self.reported(report),
        }
    }

    fn reported(self: &Arc<NodeShared>, report: JournalReport) {
        match report {
            JournalReport::Opened { epoch, last } => self.opened(epoch, last),
            JournalReport::Whole(is_whole) => self.becomes_whole(is_whole),
            JournalReport::Settled { up_to } => {
                self.link.settle(up_to);
                self.tell_settled();
            }
            JournalReport::Polled { channels, subscribed } => {
                self.polls(channels, subscribed);
            }
            JournalReport::Away => {
                if self.link.is_open() {
                    count(&self.link.counts.losses);
                }
                self.link.set((self.now_ms)(), LinkState::Away { trouble: None });
                self.cluster.is_away();
                self.memory.members_connected((self.now_ms)(), false);
                self.tables.is_away();
                self.refuse_waiting();
            }
            JournalReport::Refused { reason, limit } => {
                self.refused(reason, limit);
                self.refuse_waiting();
            }
            JournalReport::Stalled(is_stalled) => self.stalls(is_stalled),
            JournalReport::TableRefused { reason, limit } if self.link.is_open() => {
                // The stream stays open, and the table says how old it is.
                tracing::error!("{reason}");
                limit.into_iter().for_each(|limit| self.link.counts.refused_by(limit));
            }
            JournalReport::TableRefused { reason, limit } => self.refused(reason, limit),
            JournalReport::Unheard => is_unheard(),
            JournalReport::Entries(table, entries) => {
                // Tables are read before the stream is open.
                self.link.comes_near();
                self.tables.tell(table, TableNews::Entries(entries));
            }
            JournalReport::Current { table, as_of_ms } => self.tables.is_current(table, as_of_ms),
            JournalReport::Keys(keys) => self.published_with(keys),
            JournalReport::TableLost(table) => self.tables.tell(table, TableNews::Lost),
            JournalReport::Looked { token, found } => self.tables.looked(token, found),
            JournalReport::Matched(token, count) => self.tables.matched(token, count),
            JournalReport::Changed { token, outcome } => self.tables.changed(token, outcome),
            JournalReport::Followed { channel, head } => self.joined(channel, head),
            JournalReport::Message { channel, message } => self.message(channel, message),
            JournalReport::Volatile(publication) => self.volatile_message(publication),
            JournalReport::VolatileLost => count(&self.link.counts.volatile_lost),
            JournalReport::Gap { channel } => self.has_gap(channel),
            JournalReport::Log { token, outcome } => self.log_answered(token, outcome),
            JournalReport::Erased(erased) => self.followed().erase(Some(&erased)),
            JournalReport::ErasedUnheard => self.was_unheard(),
            JournalReport::Published { token, outcome } => self.published(token, outcome),
            JournalReport::Read { token, reading } => self.was_read(token, reading),
            JournalReport::StateRead { token, state } => self.state_was_read(token, state),
            JournalReport::Mortal(channel) => self.memory.note_mortal(&channel),
            JournalReport::OldValue { channel, message } => self.value_is_old(&channel, &message),
            JournalReport::Named { token, logs, naming } => self.were_named(token, logs, naming),
            JournalReport::Counted { token, counts } => self.were_counted(token, counts),
            JournalReport::Asked(asked) => self.were_asked(asked),
            JournalReport::Question { reply, question } => self.question(reply, &question),
            JournalReport::Nodes(nodes) => self.link.nodes_are(nodes),
            JournalReport::Heard { node, description } => {
                self.memory.member_node_heard((self.now_ms)(), &node);
                self.cluster.heard((self.now_ms)(), node, &description);
            }
            JournalReport::Held(held) => self.holding.is(self.link.epoch(), held),
            JournalReport::Gone { node, is_in_order } => self.gone(&node, is_in_order),
            JournalReport::Standing(standing) => {
                self.cluster.stands((self.now_ms)(), standing);
                self.memory.part_with_silent_nodes((self.now_ms)());
            }
        }
    }

    /// The stream cannot be used.
    fn refused(&self, reason: String, limit: Option<NatsLimit>) {
        tracing::error!("{reason}");
        limit.into_iter().for_each(|limit| self.link.counts.refused_by(limit));
        self.memory.members_connected((self.now_ms)(), false);
        self.link.set((self.now_ms)(), LinkState::Refused { reason, limit });
    }

    /// Logs a trouble, once until there is another one or the stream is opened.
    pub(super) fn trouble(&self, trouble: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.as_deref() != Some(trouble) {
            tracing::warn!("NATS: {trouble}");
            *said = Some(trouble.to_owned());
        }
        if matches!(self.link.state(), LinkState::Away { .. }) {
            let trouble = Some(trouble.to_owned());
            self.link.set((self.now_ms)(), LinkState::Away { trouble });
        }
    }

    /// All followed channels have all messages, or do no more.
    fn becomes_whole(&self, is_whole: bool) {
        self.link.becomes_whole(is_whole);
        if is_whole {
            self.tell_settled();
        }
    }

    fn tell_settled(&self) {
        for worker in 0..self.workers {
            let worker = WorkerId(u16::try_from(worker).unwrap_or(u16::MAX));
            self.memory.post(worker, Notification::Settled);
        }
    }

    /// So many channels are polled now, beside those that have subscriptions.
    fn polls(&self, channels: usize, subscribed: usize) {
        let before = self.link.polled_are(channels);
        if before == 0 && channels > 0 {
            tracing::warn!(
                "NATS allows this node no more subscriptions than those of {subscribed} channels \
                 and a few of its own (maximum subscriptions exceeded): further channels are \
                 polled, so that their messages come late; raise max_subscriptions of the servers, \
                 or the limit of the account, or spread the channels over more nodes"
            );
        } else if before > 0 && channels == 0 {
            tracing::info!("NATS allows subscriptions for all followed channels: none is polled");
        }
    }

    fn stalls(&self, is_stalled: bool) {
        if is_stalled {
            tracing::warn!("NATS answers, and stores no messages: publications are refused");
        } else {
            tracing::info!("messages can be stored again, or tried to be");
        }
        self.link.stalls(is_stalled);
    }

    fn is_old(&self, server: &str, version: String) {
        let state = LinkState::Old { version };
        if self.link.state() == state {
            return;
        }
        if let LinkState::Old { version } = &state {
            tracing::error!("NATS: {server}: {}", version::sentence(version));
        }
        self.link.set((self.now_ms)(), state);
    }

    fn opened(&self, epoch: u64, last: u64) {
        let epoch = Epoch::numbered(epoch);
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.link.opened((self.now_ms)(), epoch, last) {
            tracing::error!(
                "the stream in NATS has lost messages: older ids are invalid, and all subscribers \
                 are disconnected to resume"
            );
            self.begin_anew();
        } else {
            tracing::info!("the stream in NATS is open");
        }
        self.memory.members_connected((self.now_ms)(), true);
        self.expect_expiries();
    }

    /// All ids from before mean nothing: subscribers have to begin anew, and are told that they may
    /// have missed messages.
    fn begin_anew(&self) {
        self.receipts.forget();
        self.stored.forget();
        let mut followed = self.followed();
        followed.forget_tails();
        let Ok(()) = followed.each(|channel, entry| -> Result<(), Infallible> {
            (entry.head, entry.newest, entry.is_live) = (0, 0, false);
            entry.is_stale = self.memory.followed_head(channel).is_some();
            Ok(())
        });
        let waiting: Vec<WaitingPart> = followed.take_waiting().collect();
        drop(followed);
        drop(waiting);
        let close = ScanClose {
            code: CLOSE_CODE,
            reason: "messages were lost; connect again".into(),
            may_return: true,
        };
        self.scan(ScanTarget::All, ScanAction::Close(close), Ticket::new(drop));
    }

    /// Nobody who waits for a channel to be followed gets an answer.
    fn refuse_waiting(&self) {
        let mut followed = self.followed();
        let waiting: Vec<WaitingPart> = followed.take_waiting().collect();
        drop(followed);
        drop(waiting);
    }

    fn joined(self: &Arc<NodeShared>, channel: ChannelId, head: u64) {
        self.link.reached(head);
        let mut followed = self.followed();
        let waiting: Vec<_> = followed.joined(channel, head).collect();
        let name = followed.name(channel);
        drop(followed);
        name.inspect(|name| self.expects_expiry(name));
        for WaitingPart { hold, ticket, now_ms, .. } in waiting {
            let mut followed = self.followed();
            let (name, reading) = (hold.part.channel(), hold.part.reading());
            let begun = followed
                .entry(channel)
                .and_then(|entry| self.begin(entry, name, (reading, now_ms)));
            drop(followed);
            let Some((collect, is_known)) = begun else { continue };
            let to = ReadFor::Start(hold, ticket);
            if is_known {
                self.finish(PendingRead { collect, to });
            } else {
                self.read(collect, to);
            }
        }
    }

    fn message(self: &Arc<NodeShared>, channel: ChannelId, mut message: StoredMessage) {
        let Some(epoch) = self.link.epoch() else { return };
        self.link.reached(message.sequence);
        let (sequence, wanted) = (message.sequence, message.receipt.take());
        let token = wanted.as_deref().and_then(|it| journal::token_of_receipt(&self.nonce, it));
        let own = token.and_then(|token| self.publications.receipt(token));
        let time_ms = (self.from_wall_ms)(message.wall_ms);
        let retention = |name: &_| self.memory.rule(name).retention;
        let content = self.followed().append(channel, (epoch, message, time_ms), retention);
        let Some(content) = content else { return };
        self.states.note(&content);
        self.wait_for_room(&content);
        count(&self.link.counts.delivered);
        let of_other = wanted.filter(|_| token.is_none());
        let receipt = own.or_else(|| self.begin_receipt((sequence, &content.channel), &of_other?));
        let begin = || self.parts.append(&content);
        let (_, workers) = self.memory.deliver_asleep(&content, receipt.as_ref(), begin);
        self.deferred.wake(&self.memory, workers);
        self.link.delivered(content.id.offset);
    }

    fn volatile_message(&self, publication: VolatilePublication) {
        let now_ms = (self.now_ms)();
        let (_, workers) = self.memory.deliver_volatile_asleep(now_ms, publication);
        self.deferred.wake(&self.memory, workers);
    }

    /// Messages of other nodes are not refused when a worker does not keep up. So they wait.
    fn wait_for_room(&self, content: &Content) {
        for _ in 0..ROOM_WAITS_MAX {
            if self.memory.has_room(&content.channel) {
                return;
            }
            // A worker may not know yet what fills its queue.
            self.deferred.act(&self.memory);
            sleep(ROOM_WAIT);
        }
    }

    /// Another node is gone, with its clients.
    fn gone(&self, node: &str, is_in_order: bool) {
        if is_in_order {
            self.memory.member_node_left((self.now_ms)(), node);
        }
        self.cluster.gone(node);
        self.usage.left(node);
    }

    fn published(&self, token: u64, outcome: Outcome) {
        let answering = CountGuard::new(&self.waiting);
        let Some(under_way) = self.publications.end(token) else { return };
        self.link.publish.record(clock::now_us().saturating_sub(under_way.began_us));
        let counts = &self.link.counts;
        let outcome = match outcome {
            Outcome::Stored { sequence, is_duplicate } => {
                self.link.reached(sequence);
                count(if is_duplicate { &counts.duplicates } else { &counts.accepted });
                if let Some((key, for_ms)) = under_way.expires.as_deref() {
                    self.sets_key(&under_way.channel, key, (sequence, *for_ms));
                }
                let subscribers = self.memory.audience(&under_way.channel).subscribers;
                if subscribers == 0
                    && !is_duplicate
                    && let Some(receipt) = self.publications.receipt(token)
                {
                    receipt.begin(0);
                }
                match self.link.epoch() {
                    Some(epoch) => {
                        let id = MessageId { epoch, offset: sequence };
                        let subscribers = if is_duplicate { 0 } else { subscribers };
                        Ok(Published { id, subscribers, is_duplicate })
                    }
                    None => Err(self.not_stored(Outcome::Unknown)),
                }
            }
            failed => Err(self.not_stored(failed)),
        };
        self.deferred.answer(&self.memory, (under_way.ticket, outcome), answering);
    }

    /// The error of a publication that is not stored, or of which nothing is known.
    pub(super) fn not_stored(&self, outcome: Outcome) -> PublishError {
        let counts = &self.link.counts;
        count(&counts.refused);
        match outcome {
            Outcome::Busy => {
                count(&counts.busy);
                PublishError::Busy
            }
            Outcome::Away => PublishError::Away,
            Outcome::Ended => PublishError::Ended,
            Outcome::State(error) => error,
            Outcome::Unknown | Outcome::Stored { .. } => PublishError::Unknown,
            Outcome::TooLarge { bytes_max } => {
                counts.refused_by(NatsLimit::Payload);
                self.trouble(&format!(
                    "a message is larger with its headers than the {bytes_max} bytes that are \
                     accepted; {}",
                    NatsLimit::Payload.remedy()
                ));
                PublishError::TooLarge
            }
            Outcome::Refused { reason, limit } => {
                self.trouble(&format!("the stream does not accept a message: {reason}"));
                limit.into_iter().for_each(|limit| counts.refused_by(limit));
                match limit {
                    Some(NatsLimit::Storage) => PublishError::OverQuota,
                    Some(NatsLimit::Payload) => PublishError::TooLarge,
                    _ => PublishError::Refused,
                }
            }
        }
    }

    fn was_read(&self, token: u64, reading: Option<journal::Reading>) {
        let _answering = CountGuard::new(&self.waiting);
        let Some(mut read) = self.take_read(token) else { return };
        // Dropped, the ticket says that there is no answer.
        let Some(reading) = reading else { return };
        if self.link.epoch() != Some(read.collect.source().epoch) {
            return;
        }
        let next = read.collect.take(reading, self.from_wall_ms);
        self.go_on((token, read), next);
    }

    /// The state of a channel was read, for a part of its log.
    pub(super) fn part_has_state(&self, mut read: PendingRead, state: StateFacts) {
        if self.link.epoch() == Some(read.collect.source().epoch) {
            let next = read.collect.take_state(state, self.from_wall_ms);
            self.go_on((self.token(), read), next);
        }
    }

    fn go_on(&self, (token, read): (u64, PendingRead), next: Next) {
        match next {
            Next::Read(after) => self.read_on(token, after, read),
            Next::ReadState { at_least, wants_bounds } => {
                self.read_state(read, (at_least, wants_bounds));
            }
            Next::Finish => self.finish(read),
        }
    }

    fn take_read(&self, token: u64) -> Option<PendingRead> {
        let mut reads = self.reads();
        let read = reads.remove(&token);
        if reads.is_empty() {
            reads.shrink_to(READS_KEPT);
        }
        read
    }

    /// Answers whoever waits for a part that is complete.
    fn finish(&self, read: PendingRead) {
        count(&self.link.counts.fetched);
        let PendingRead { collect, to } = read;
        match to {
            // Dropped, a ticket says that there is no answer.
            ReadFor::Start(hold, ticket) => {
                let channel = hold.part.channel();
                if self.memory.rules().may_end(channel) && !collect.has_ended() {
                    self.followed().is_open(channel);
                }
                if fill(&hold.part, collect) {
                    ticket.answer(Fetched::held_by(hold));
                }
            }
            ReadFor::Page(part, ticket) => {
                if fill(&part, collect) {
                    ticket.answer(Fetched::held_by(part));
                }
            }
            ReadFor::Check => self.is_checked(&collect),
        }
    }
}
