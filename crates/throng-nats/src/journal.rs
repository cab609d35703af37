//! The journal of one stream, without I/O: it is told what happened, and says what is to be done.
//!
//! One journal has one stream and one connection, so all that it hears has one order: answers,
//! republished messages, and the loss of the connection.
//!
//! # How nothing is lost
//!
//! A stream republishes each message with its sequence and the sequence of its channel's previous
//! message. A republished message is only a hint, which may be lost, late, repeated or out of
//! order: the stream has the message. So a message that continues a channel is taken at once. Any
//! other one only says how far the channel is, and the messages between are read from the stream,
//! in order.
//!
//! A lost *last* message leaves no hole. So all channels are compared with the stream after each
//! event that can lose one: a new connection, a new leader, a new subscription.
//!
//! The [tables](crate::api::table), if there are any, are read before anything else.
//!
//! # Invariants
//!
//! * A channel's messages are reported in the order of their sequences, each once. Where one is
//!   missing, [`JournalReport::Gap`] comes before the next.
//! * [`JournalReport::Opened`] tells the epoch before anything is reported under it.
//! * Each publication gets exactly one [`JournalReport::Published`], and each reading one
//!   [`JournalReport::Read`]; each question to other nodes one [`JournalReport::Asked`].
//! * The publications of an asker to a channel are stored in the order in which they were handed
//!   over. If one has to be sent again and a later one is stored already, its outcome is
//!   [`Outcome::Unknown`] or [`Outcome::Away`], and it is not sent again.

mod about_lists;
mod about_logs;
mod about_readings;
mod about_states;
mod beats;
mod counts;
mod following;
mod logs;
mod names;
mod nodes;
mod nonce;
mod outbox;
mod publishing;
mod queue;
mod reading;
mod renewal;
mod report;
mod stall;
mod states;
mod subscription;
mod table;
mod volatile;
mod volatile_places;
mod watch;

use std::sync::Arc;

use crate::api::table::TableEntry;
use crate::permissions::Verb;
use crate::protocol::decoder::ServerMessage;
use crate::protocol::headers::Headers;
use crate::subject::Subjects;
use beats::Beats;
use counts::Counts;
use following::Following;
use logs::Logs;
use names::Names;
use nodes::Nodes;
use outbox::{Outbox, Question};
use publishing::{Publishing, StoreOutcome};
use reading::{Purpose, Readings};
use renewal::Renewal;
use states::{Scans, States};
use table::JournalTable;
use volatile::VolatileMessages;
use watch::{Watch, WatchResult};

pub use crate::api::link::Link;
pub(crate) use nodes::headers_of;
pub use outbox::JournalAction;
pub use publishing::token_of_receipt;
pub(crate) use publishing::{OUTSTANDING_BYTES_MAX, OUTSTANDING_MAX};
pub use report::{
    Ask, Changed, CountedLog, ErasedMessages, HeldState, JournalEvent, JournalReport,
    JournalSettings, KnownKey, LastOfLog, LogCount, LogEdit, LogFacts, LogOutcome, LogRequest,
    NamedLog, Naming, NodesAnswered, Outcome, PublishRequest, ReadState, Reading, Resume, Standing,
    StateFacts, StoredKeys, TableId,
};
pub use volatile_places::{VolatilePlace, VolatilePlaces};

/// The list of pending actions keeps memory for at most this many.
const ACTIONS_KEPT: usize = 1_024;

/// The journal of one stream.
pub struct StreamJournal {
    subjects: Subjects,
    outbox: Outbox,
    watch: Watch,
    following: Following,
    publishing: Publishing,
    logs: Logs,
    states: States,
    scans: Scans,
    beats: Beats,
    renewal: Renewal,
    volatile: VolatileMessages,
    readings: Readings,
    names: Names,
    counts: Counts,
    nodes: Nodes,
    tables: Vec<JournalTable>,
    /// The last report: see [`JournalReport::Whole`].
    is_whole: bool,
    /// True if so much waits to be written that no publication is sent: see
    /// [`JournalEvent::Clogged`].
    is_clogged: bool,
}

impl StreamJournal {
    /// A journal that is not connected.
    pub fn new(settings: JournalSettings) -> StreamJournal {
        let tables = settings.tables.iter().enumerate();
        let tables =
            tables.map(|(index, table)| JournalTable::new(&settings.stream, table, TableId(index)));
        let (tables, volatile) = (tables.collect(), VolatileMessages::new(settings.node()));
        let JournalSettings { stream, nonce, successor_of, publish_ms, .. } = settings;
        let subjects = Subjects::new(&stream.prefix, &stream.class);
        StreamJournal {
            nodes: Nodes::new((&*nonce, successor_of), [subjects.nodes(), subjects.ask()]),
            subjects,
            outbox: Outbox::new(stream.name(), &nonce),
            following: Following::new(stream.replicas > 1),
            readings: Readings::new(&stream),
            names: Names::new(&stream, &nonce),
            counts: Counts::default(),
            publishing: Publishing::new(&stream, &nonce, publish_ms),
            logs: Logs::new(stream.name(), &nonce, publish_ms),
            states: States::new(&stream, &nonce, publish_ms),
            scans: Scans::default(),
            beats: Beats::new(&stream),
            renewal: Renewal::new(&stream),
            volatile,
            watch: Watch::new(stream, &nonce),
            tables,
            is_whole: false,
            is_clogged: false,
        }
    }

    /// Takes an event. Appends the resulting actions to `actions`.
    pub fn step(&mut self, now_ms: u64, event: JournalEvent<'_>, actions: &mut Vec<JournalAction>) {
        self.take(now_ms, event);
        self.go_on(now_ms);
        let is_whole = self.watch.is_open() && self.following.is_whole();
        if std::mem::replace(&mut self.is_whole, is_whole) != is_whole {
            self.outbox.report(JournalReport::Whole(is_whole));
        }
        actions.append(&mut self.outbox.actions);
        // A new connection has one for each channel.
        self.outbox.actions.shrink_to(ACTIONS_KEPT);
    }

    fn take(&mut self, now_ms: u64, event: JournalEvent<'_>) {
        match event {
            JournalEvent::Connected { payload_bytes_max } => {
                self.connected(now_ms, payload_bytes_max)
            }
            JournalEvent::Disconnected => {
                self.disconnected();
                self.outbox.report(JournalReport::Away);
            }
            JournalEvent::Moved { payload_bytes_max } => self.moved(now_ms, payload_bytes_max),
            JournalEvent::Payload { bytes_max } => self.outbox.payload_bytes_max = bytes_max,
            JournalEvent::Clogged(is_clogged) => self.is_clogged = is_clogged,
            JournalEvent::Received(delivery) => self.received(now_ms, delivery),
            JournalEvent::Denied { verb, subject, error } => {
                if verb == Verb::Publish {
                    self.denied(now_ms, &subject, &error);
                }
            }
            JournalEvent::Pinged => self.following.pinged(),
            JournalEvent::Ponged => self.following.ponged(now_ms, &self.subjects, &mut self.outbox),
            JournalEvent::Exceeded => self.following.refused(),
            JournalEvent::Publish(request) => self.publish(now_ms, request),
            JournalEvent::Log { token, channel, request, state } => {
                self.take_log(now_ms, token, &channel, (request, state));
            }
            JournalEvent::ReadState(read) => self.read_state(now_ms, read),
            JournalEvent::Volatile(_place, publication) => {
                self.volatile.send(&publication, &self.subjects, &mut self.outbox);
            }
            JournalEvent::Follow(channels) => {
                self.following.follow(
                    &self.subjects,
                    channels,
                    self.watch.last(),
                    &mut self.outbox,
                );
            }
            JournalEvent::Unfollow(channel) => self.following.unfollow(&channel, &mut self.outbox),
            JournalEvent::Read { token, channel, after, at_least, wants_end } => {
                self.read(now_ms, token, &channel, (after, at_least, wants_end));
            }
            JournalEvent::Name { token, kind, is_anew } => self.name(now_ms, token, kind, is_anew),
            JournalEvent::Count { token, logs } => self.count(now_ms, (token, logs)),
            JournalEvent::Ask(ask) => self.nodes.ask(now_ms, ask, &mut self.outbox),
            JournalEvent::Tell(what) => self.nodes.tell(what, &mut self.outbox),
            JournalEvent::Answer { reply, answer } => {
                self.nodes.answer(reply, answer, &mut self.outbox);
            }
            JournalEvent::Change { table, token, entry, replaces } => {
                self.change(now_ms, (table, token), (entry, replaces));
            }
            JournalEvent::Look { table, token, key } => self.look(now_ms, table, token, &key),
            JournalEvent::Match(table, keys, asked) => {
                self.match_keys(now_ms, table, &keys, asked);
            }
            JournalEvent::Compare(table) => {
                if let Some(table) = self.tables.get_mut(table.0) {
                    table.compare(now_ms, &mut self.outbox);
                }
            }
            JournalEvent::Keys(keys) => self.publishing.hear(&keys),
            JournalEvent::Describe(description) => {
                self.nodes.describe(now_ms, description, &mut self.outbox);
            }
            JournalEvent::Leave => self.nodes.leave(now_ms, &mut self.outbox),
            JournalEvent::Cede => {}
            JournalEvent::Hold => self.hold(now_ms),
            JournalEvent::GoOn => self.following.go_on(now_ms),
            JournalEvent::Resume(resume) => self.resume(now_ms, *resume),
            JournalEvent::Tick => self.tick(now_ms),
        }
    }

    /// The servers do not let this node publish to a subject.
    fn denied(&mut self, now_ms: u64, subject: &str, error: &str) {
        for table in &mut self.tables {
            table.denied(now_ms, subject, error, &mut self.outbox);
        }
        self.logs.denied(subject, error, &mut self.outbox);
        self.states.denied(subject, error, &mut self.outbox);
        self.scans.denied(subject, &mut self.outbox);
        self.publishing.denied(now_ms, subject, error, &mut self.outbox);
        self.names.denied(subject, error, &mut self.outbox);
        let done = self.readings.denied(subject, &mut self.outbox);
        self.batches_done(now_ms, done);
    }

    fn change(
        &mut self,
        now_ms: u64,
        (table, token): (TableId, u64),
        entry: (TableEntry, Option<u64>),
    ) {
        match self.tables.get_mut(table.0) {
            Some(table) => table.change(now_ms, token, entry, &mut self.outbox),
            None => self.outbox.report(JournalReport::Changed { token, outcome: Changed::Away }),
        }
    }

    fn look(&mut self, now_ms: u64, table: TableId, token: u64, key: &str) {
        match self.tables.get_mut(table.0) {
            Some(table) => table.look(now_ms, token, key, &mut self.outbox),
            None => self.outbox.report(JournalReport::Looked { token, found: None }),
        }
    }

    fn match_keys(&mut self, now_ms: u64, table: TableId, keys: &str, asked: (u64, bool)) {
        match self.tables.get_mut(table.0) {
            Some(table) => table.match_keys(now_ms, keys, asked, &mut self.outbox),
            None => self.outbox.report(JournalReport::Matched(asked.0, None)),
        }
    }

    /// Reports nothing more for now, and how far it is.
    fn hold(&mut self, now_ms: u64) {
        self.following.hold();
        // Messages that a channel is known to lack may expire before another process reads them.
        let lacking = self.following.lowest_lacking().unwrap_or(u64::MAX);
        let complete = self.watch.complete().min(lacking);
        let nodes = self.nodes.known(now_ms);
        self.outbox.report(JournalReport::Held(HeldState { complete, nodes }));
    }

    /// The number of channels that are followed.
    pub fn followed(&self) -> usize {
        self.following.len()
    }

    /// Publications whose outcome is not known yet.
    pub fn outstanding(&self) -> usize {
        self.publishing.outstanding() + self.logs.outstanding() + self.states.outstanding()
    }

    fn connected(&mut self, now_ms: u64, payload_bytes_max: usize) {
        self.is_clogged = false;
        self.outbox.connected(payload_bytes_max);
        self.nodes.connected(now_ms, &mut self.outbox);
        self.outbox.subscribe_hint(self.subjects.hint());
        self.tables.iter().for_each(|table| table.subscribe(&mut self.outbox));
        // Last: channels for whose subscriptions there is no room can be polled.
        self.following.connected(&self.subjects, &mut self.outbox);
        for table in &mut self.tables {
            table.connected(now_ms, &mut self.outbox);
        }
        if self.tables.iter().all(JournalTable::is_known) {
            self.watch.connected(now_ms, &mut self.outbox);
        }
    }

    fn disconnected(&mut self) {
        self.outbox.disconnected();
        self.watch.disconnected();
        self.following.disconnected();
        self.publishing.disconnected();
        self.logs.disconnected(&mut self.outbox);
        self.states.disconnected(&mut self.outbox);
        self.cancel_readings();
        self.nodes.disconnected(&mut self.outbox);
        for table in &mut self.tables {
            table.disconnected(&mut self.outbox);
        }
    }

    /// Another connection takes the place of the one before. Whoever publishes does not notice.
    fn moved(&mut self, now_ms: u64, payload_bytes_max: usize) {
        let was_open = self.watch.is_open();
        self.disconnected();
        self.connected(now_ms, payload_bytes_max);
        if was_open {
            self.watch.stays_open();
            self.following.suspect_twice(now_ms);
        }
    }

    fn received(&mut self, now_ms: u64, delivery: ServerMessage<'_>) {
        if delivery.sid == outbox::INBOX_SID {
            self.answered(now_ms, delivery);
        } else if delivery.sid == outbox::NODES_SID {
            self.nodes.heard(now_ms, &delivery, &mut self.outbox);
        } else if delivery.sid == outbox::ASK_SID {
            if let Some(reply) = self.nodes.asked(&delivery) {
                let question = delivery.payload.to_vec();
                self.outbox.report(JournalReport::Question { reply, question });
            }
        } else if delivery.sid == outbox::HINT_SID {
            self.hinted(now_ms, delivery.payload);
        } else if let Some(table) = self.tables.iter_mut().find(|table| table.hears(delivery.sid)) {
            table.hint(now_ms, &delivery, &mut self.outbox);
        } else if self.volatile.is_volatile(&delivery) {
            let channel = self.following.receiver(delivery.sid);
            channel.inspect(|name| self.volatile.heard(&delivery, name, &mut self.outbox));
        } else {
            let (is_open, outbox) = (self.watch.is_open(), &mut self.outbox);
            if let Some(sequence) = self.following.live(now_ms, delivery, is_open, outbox) {
                self.watch.reached(sequence);
            }
        }
    }

    /// Another node knows of a message. One that comes late may mean a stream that is gone, which
    /// had more messages than this one.
    fn hinted(&mut self, now_ms: u64, hint: &[u8]) {
        let hint = std::str::from_utf8(hint).unwrap_or_default();
        if self.heard_erased(now_ms, hint) {
            return;
        }
        let mut fields = hint.splitn(3, ' ');
        let mut number = || fields.next()?.parse::<u64>().ok();
        if let (Some(epoch), Some(sequence)) = (number(), number())
            && let Some(suffix) = fields.next()
            && self.watch.epoch() == Some(epoch)
        {
            self.following.hint(now_ms, suffix, sequence);
        }
    }

    fn answered(&mut self, now_ms: u64, delivery: ServerMessage<'_>) {
        let Some((token, question)) = self.outbox.question(delivery.subject) else {
            return self.given(now_ms, &delivery);
        };
        let ServerMessage { headers, payload, .. } = delivery;
        match question {
            Question::Watch => {
                self.outbox.answered(token);
                let watched =
                    self.watch.answered(now_ms, token, (headers, payload), &mut self.outbox);
                self.publishing.stall.majority_is(self.watch.has_majority());
                self.watched(now_ms, watched);
            }
            Question::Bounds | Question::Erasures | Question::End | Question::Batch => {
                self.reading_answered((now_ms, token), &question, (headers, payload));
            }
            Question::Records => {
                let server_ms = self.watch.server_ms(now_ms);
                let answer = (headers, payload);
                self.renewal.answered(token, answer, server_ms, (&self.subjects, &mut self.outbox));
            }
            Question::State(suffix) => {
                self.state_answered(now_ms, (token, &suffix), (headers, payload));
            }
            Question::Scan => self.scan_answered(now_ms, token, (headers, payload)),
            Question::Log(suffix) => {
                self.log_answered(now_ms, (token, &suffix), (headers, payload));
            }
            Question::Ack(suffix, number) => {
                self.outbox.answered(token);
                self.acknowledged(now_ms, (number, &suffix), (headers, payload));
            }
            Question::Gate(suffix) => {
                self.outbox.answered(token);
                self.publishing.record_is((now_ms, token), &suffix, payload, &mut self.outbox);
            }
            Question::Nodes => {
                self.nodes.answered(now_ms, token, (headers, payload), &mut self.outbox);
            }
            Question::Table(table) => self.table_answered(now_ms, table, token, delivery),
            Question::Change(table) => {
                if let Some(table) = self.tables.get_mut(table.0) {
                    table.change_answered(now_ms, token, (headers, payload), &mut self.outbox);
                }
            }
            Question::Entry(table) => {
                if let Some(table) = self.tables.get_mut(table.0) {
                    table.looked(token, (headers, payload), &mut self.outbox);
                }
            }
            Question::Heads => self.heads_answered(now_ms, token, headers),
            Question::Names => self.names_answered(now_ms, token, (headers, payload)),
            Question::Counts => self.counts_answered(now_ms, token, (headers, payload)),
        }
    }

    fn heads_answered(&mut self, now_ms: u64, token: u64, headers: Headers<'_>) {
        let subject = headers.get("Nats-Subject");
        let suffix = subject.and_then(|subject| self.subjects.suffix_of(subject));
        let answer = (token, headers);
        if self.following.heads_answered(now_ms, answer, suffix, &mut self.outbox) {
            self.outbox.answered(token);
        }
    }

    /// A publication to the channel with this suffix was answered.
    fn acknowledged(
        &mut self,
        now_ms: u64,
        (number, suffix): (u64, &Arc<str>),
        answer: (Headers<'_>, &[u8]),
    ) {
        match self.publishing.answered(now_ms, (number, suffix), answer, &mut self.outbox) {
            None => {}
            Some(StoreOutcome::Fallen) => self.watch.hurry(now_ms),
            Some(StoreOutcome::At { sequence, needs_hint }) => {
                self.watch.reached(sequence);
                self.following.stored(now_ms, suffix, sequence);
                if needs_hint {
                    // The copy is a duplicate, so it was not republished, and whether the first one
                    // was is not known.
                    self.hint(now_ms, suffix, sequence);
                }
            }
        }
    }

    /// Tells everybody of a message that may not have been republished.
    fn hint(&mut self, now_ms: u64, suffix: &str, sequence: u64) {
        let Some(epoch) = self.watch.epoch() else { return };
        let hint = format!("{epoch} {sequence} {suffix}");
        self.outbox.publish(self.subjects.hint(), hint.into_bytes());
        self.following.hint(now_ms, suffix, sequence);
    }

    fn table_answered(
        &mut self,
        now_ms: u64,
        at: TableId,
        token: u64,
        delivery: ServerMessage<'_>,
    ) {
        let Some(table) = self.tables.get_mut(at.0) else { return };
        let answer = (delivery.headers, delivery.payload);
        let becomes_known = table.answered(now_ms, token, answer, &mut self.outbox);
        if becomes_known && self.tables.iter().all(JournalTable::is_known) {
            self.watch.connected(now_ms, &mut self.outbox);
        }
    }

    fn watched(&mut self, now_ms: u64, watched: WatchResult) {
        match watched {
            WatchResult::Nothing => {}
            WatchResult::Refused(reason, limit) => {
                self.cancel_readings();
                self.outbox.report(JournalReport::Refused { reason, limit });
            }
            WatchResult::Opened { epoch, is_new_epoch, has_missed } => {
                let abilities = self.watch.abilities();
                (self.logs.abilities, self.beats.is_on) = (abilities, abilities.can_erase);
                self.states.is_atomic = abilities.is_atomic;
                self.readings.opened(abilities.can_erase);
                // Before any message that could be erased.
                self.upkeep(now_ms);
                self.publishing.stall.begin_anew();
                self.outbox.report(JournalReport::Opened { epoch, last: self.watch.last() });
                if abilities.can_erase && !is_new_epoch {
                    self.outbox.report(JournalReport::ErasedUnheard);
                }
                if is_new_epoch {
                    self.logs.begin_epoch(&mut self.outbox);
                    self.states.begin_epoch(&mut self.outbox);
                    self.publishing.begin_epoch(epoch);
                    self.renewal.begin_epoch();
                    self.cancel_readings();
                    self.following.rejoin(now_ms, self.watch.last(), &mut self.outbox);
                } else {
                    if has_missed {
                        self.following.has_missed(self.watch.first(), &mut self.outbox);
                    }
                    self.following.suspect_twice(now_ms);
                }
            }
            WatchResult::NewLeader => {
                self.publishing.stall.begin_anew();
                self.following.suspect_twice(now_ms);
            }
        }
    }

    /// Goes on as the node that another process has been. To the servers it is as if that had been
    /// cut off and were back.
    fn resume(&mut self, now_ms: u64, resume: Resume) {
        let Resume { epoch, held: HeldState { complete, nodes }, channels } = resume;
        let outbox = &mut self.outbox;
        self.nodes.resume(now_ms, nodes, outbox);
        if self.watch.resume(now_ms, (epoch, complete), outbox) {
            self.following.resume(now_ms, &self.subjects, channels, outbox);
        } else {
            // The heads mean nothing any more.
            let channels = channels.into_iter().map(|(key, name, _)| (key, name)).collect();
            self.following.follow(&self.subjects, channels, self.watch.last(), outbox);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.publishing.tick(now_ms, self.watch.is_open(), &mut self.outbox);
        self.logs.tick(now_ms, &mut self.outbox);
        self.states.tick(now_ms, &mut self.outbox);
        self.scans.tick(now_ms, &mut self.outbox);
        self.following.tick(now_ms, &mut self.outbox);
        if self.watch.is_open() {
            self.upkeep(now_ms);
            let stream = (self.watch.last(), &self.subjects);
            self.following.tick_polled(now_ms, stream, &mut self.outbox);
        }
        self.readings.tick(now_ms, &mut self.outbox);
        self.tick_lists(now_ms);
        let watched = self.watch.tick(now_ms, &mut self.outbox);
        self.watched(now_ms, watched);
        if self.nodes.tick(now_ms, &mut self.outbox) {
            let (behind, behind_ms) = self.following.behind(now_ms);
            let (leader, size) = (self.watch.leader().to_owned(), self.watch.size());
            let standing = Standing { behind, behind_ms, leader, size };
            self.outbox.report(JournalReport::Standing(standing));
        }
        for table in &mut self.tables {
            table.tick(now_ms, &mut self.outbox);
        }
    }

    /// Sends what waits and may go now.
    fn go_on(&mut self, now_ms: u64) {
        if !self.watch.is_open() {
            return;
        }
        self.following.ask_heads(now_ms, &self.subjects, &mut self.outbox);
        while !self.following.is_held()
            && self.readings.has_room()
            && let Some((channel, suffix, after, target)) = self.following.next_fill()
        {
            let subject = self.subjects.ingest(&suffix);
            self.readings.ask(now_ms, Purpose::Fill(channel), subject, (after, target, None));
        }
        self.readings.send(now_ms, &mut self.outbox);
        self.go_on_with_lists(now_ms);
        if self.is_clogged {
            self.publishing.pause();
        } else {
            let last = self.watch.last();
            self.go_on_with_states(now_ms);
            self.go_on_with_logs(now_ms);
            self.publishing.send(now_ms, last, &self.subjects, &mut self.outbox);
        }
        self.readings.ask_bounds(now_ms, &self.subjects, &mut self.outbox);
    }
}
