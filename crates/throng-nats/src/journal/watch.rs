//! The stream itself: that it is there and as it should be, which epoch it has, who leads it.
//!
//! All of that is asked for in a cycle of requests, first on each new connection and then every two
//! seconds. Sequences mean something within an epoch only. It ends when the stream was created
//! anew, or when its last sequence fell: a server lost messages which it had acknowledged, and
//! gives out their sequences again. Nodes agree on the epoch through an entry in a bucket, which
//! one of them replaces.

use serde_json::Value;

use super::nonce::{self, mix};
use super::outbox::{Outbox, Question};
use super::stall::MAJORITY_MS;
use crate::api::NatsLimit;
use crate::api::ack::{self, Ack};
use crate::api::bucket::{self, EpochRecord};
use crate::api::stream::{StreamAbilities, StreamSize};
use crate::api::{JetStreamError, StreamSettings, stream};
use crate::protocol::headers::{HeaderWriter, Headers};

/// How often the stream is asked for.
const POLL_MS: u64 = 2_000;

/// How often the entry with the epoch is read, and says anew how far the stream is. A fall that no
/// living node has seen is noticed if the stream is not yet again where it was said to be.
const RECORD_MS: u64 = 10_000;

/// After this time without an answer the cycle begins anew.
const ANSWER_MS: u64 = 2_000;

/// After a failure that may pass the cycle begins anew.
const RETRY_MS: u64 = 100;

/// After failures that may pass have gone on for this time, the stream counts as away: servers have
/// not elected a leader, say. It is the sum of what was waited for, so that a node that was stopped
/// itself does not take servers for silent.
pub(super) const PATIENCE_MS: u64 = 5_000;

pub(super) const NO_JETSTREAM: &str = "no server answers requests of JetStream: it is not \
    enabled there (start nats-server with -js); `throng doctor --nats` says more";
pub(super) const NO_LEADER: &str = "no server answers for the stream: it has no leader, because \
    a majority of its servers is away or has just been started, or JetStream is not enabled for \
    the account of this user; `throng doctor --nats` says which";

/// With several servers, one that was cut off may still answer as the leader that it was. So the
/// last sequence has to be too low in this many cycles.
const FALLS_SEEN: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    FindBucket,
    MakeBucket,
    ReadRecord,
    FindStream,
    MakeStream,
    WriteRecord,
}

/// The result of a cycle.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchResult {
    /// Nothing that concerns others.
    Nothing,
    Refused(String, Option<NatsLimit>),
    /// The stream can be used, as of now or under another epoch than before.
    Opened {
        epoch: u64,
        is_new_epoch: bool,
        /// True if messages have come and expired while nothing could be heard of them.
        has_missed: bool,
    },
    NewLeader,
}

/// The stream, as servers describe it.
pub(super) struct Watch {
    settings: StreamSettings,
    wanted_stream: Value,
    wanted_bucket: Value,
    step: Step,
    token: u64,
    asked_ms: u64,
    next_ms: u64,
    is_open: bool,
    knows_bucket: bool,
    record: Option<EpochRecord>,
    revision: u64,
    record_ms: u64,
    has_read: bool,
    /// For how long cycles have failed for a reason that may pass.
    failing_ms: u64,
    candidate: Option<EpochRecord>,
    epoch: Option<u64>,
    created: String,
    first: u64,
    last: u64,
    /// All messages that concern this node were received up to here: the stream's head two cycles
    /// ago. Later ones may have been under way when the connection was lost.
    complete: u64,
    /// The stream's head one cycle ago.
    polled: u64,
    /// The stream's head before the question about it.
    floor: u64,
    leader: String,
    size: StreamSize,
    abilities: StreamAbilities,
    /// The time of the servers, and when they said it.
    server_ms: (u64, u64),
    has_majority: bool,
    falls: u32,
    said: Option<String>,
    random: u64,
    /// True if it is not known yet what has expired before this process was the node.
    is_resumed: bool,
}

impl Watch {
    pub(super) fn new(settings: StreamSettings, nonce: &str) -> Watch {
        let StreamSettings { prefix, replicas, is_in_memory, .. } = &settings;
        Watch {
            wanted_stream: stream::config(&settings),
            wanted_bucket: bucket::config(prefix, *replicas, *is_in_memory),
            step: Step::Idle,
            token: 0,
            asked_ms: 0,
            next_ms: u64::MAX,
            is_open: false,
            knows_bucket: false,
            record: None,
            revision: 0,
            record_ms: 0,
            has_read: false,
            failing_ms: 0,
            candidate: None,
            epoch: None,
            created: String::new(),
            first: 0,
            last: 0,
            complete: 0,
            polled: 0,
            floor: 0,
            leader: String::new(),
            size: StreamSize::default(),
            abilities: StreamAbilities::default(),
            server_ms: (0, 0),
            has_majority: true,
            falls: 0,
            said: None,
            // Nodes have different nonces, and so different epochs.
            random: nonce::number(nonce),
            is_resumed: false,
            settings,
        }
    }

    /// True if the stream can be used.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The current epoch, or the last one while the stream cannot be used.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// A sequence that the stream has reached.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The changes that the stream allows.
    pub(super) fn abilities(&self) -> StreamAbilities {
        self.abilities
    }

    /// The time of the servers, about.
    pub(super) fn server_ms(&self, now_ms: u64) -> u64 {
        let (server_ms, asked_ms) = self.server_ms;
        server_ms + now_ms.saturating_sub(asked_ms)
    }

    /// A lower bound of the first sequence.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The server that leads; empty with one server, or before any was found.
    pub(super) fn leader(&self) -> &str {
        self.leader.split_once(' ').map_or(&*self.leader, |(server, _)| server)
    }

    /// How much the stream has, as its server said last.
    pub(super) fn size(&self) -> StreamSize {
        self.size
    }

    /// True if the leader hears from so many servers that it can store messages, as far as it said.
    pub(super) fn has_majority(&self) -> bool {
        self.has_majority
    }

    /// Something is strange: the stream is asked for at once.
    pub(super) fn hurry(&mut self, now_ms: u64) {
        self.next_ms = self.next_ms.min(now_ms);
    }

    /// The stream has a message with this sequence.
    pub(super) fn reached(&mut self, sequence: u64) {
        self.last = self.last.max(sequence);
    }

    /// Up to here all was heard that concerns this node.
    pub(super) fn complete(&self) -> u64 {
        self.complete
    }

    /// Goes on for a node that has heard all up to `complete` under an epoch: the stream is asked
    /// anew whether messages have come and expired since, and counts as opened then. Returns
    /// whether the epoch is still that.
    pub(super) fn resume(
        &mut self,
        now_ms: u64,
        (epoch, complete): (u64, u64),
        outbox: &mut Outbox,
    ) -> bool {
        if *self.epoch.get_or_insert(epoch) != epoch {
            return false;
        }
        (self.complete, self.polled) = (complete, complete);
        self.is_resumed = true;
        if outbox.is_connected() && self.is_open {
            self.begin(now_ms, outbox);
        }
        true
    }

    pub(super) fn connected(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.knows_bucket = false;
        self.begin(now_ms, outbox);
    }

    /// Another server of the same cluster has taken the place of the one before: the stream stays
    /// open while it is asked for anew, and counts as opened then.
    pub(super) fn stays_open(&mut self) {
        (self.is_open, self.is_resumed) = (true, true);
    }

    pub(super) fn disconnected(&mut self) {
        (self.is_open, self.has_majority) = (false, true);
        self.step = Step::Idle;
        self.next_ms = u64::MAX;
        self.said = None;
        self.failing_ms = 0;
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) -> WatchResult {
        let is_late = self.step != Step::Idle && now_ms.saturating_sub(self.asked_ms) >= ANSWER_MS;
        let watched = if is_late { self.fails(ANSWER_MS, NO_LEADER) } else { WatchResult::Nothing };
        if is_late || (self.step == Step::Idle && now_ms >= self.next_ms) {
            self.begin(now_ms, outbox);
        }
        watched
    }

    fn begin(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let is_due = !self.is_open || now_ms.saturating_sub(self.record_ms) >= RECORD_MS;
        let step = match (self.knows_bucket, is_due) {
            (false, _) => Step::FindBucket,
            (true, true) => Step::ReadRecord,
            (true, false) => Step::FindStream,
        };
        self.ask(now_ms, step, outbox);
    }

    fn ask(&mut self, now_ms: u64, step: Step, outbox: &mut Outbox) {
        let StreamSettings { prefix, class, .. } = &self.settings;
        let (name, bucket) = (self.settings.name(), bucket::stream(prefix));
        let key = bucket::subject(prefix, class);
        let mut headers = Vec::new();
        let (subject, payload) = match step {
            Step::Idle => return,
            Step::FindBucket => (format!("$JS.API.STREAM.INFO.{bucket}"), Vec::new()),
            Step::MakeBucket => {
                (format!("$JS.API.STREAM.CREATE.{bucket}"), self.wanted_bucket.to_string().into())
            }
            // The leader answers this one, not any replica.
            Step::ReadRecord => (format!("$JS.API.STREAM.MSG.GET.{bucket}"), bucket::read(&key)),
            Step::FindStream => {
                self.floor = self.last;
                (format!("$JS.API.STREAM.INFO.{name}"), Vec::new())
            }
            Step::MakeStream => (
                format!("$JS.API.STREAM.CREATE.{name}"),
                stream::config(&self.settings).to_string().into(),
            ),
            Step::WriteRecord => {
                headers = HeaderWriter::default()
                    .field("Nats-Expected-Last-Subject-Sequence", self.revision)
                    .finish();
                // Texts and numbers always become JSON.
                (key, serde_json::to_vec(&self.candidate).unwrap_or_default())
            }
        };
        self.step = step;
        self.asked_ms = now_ms;
        self.token = outbox.token();
        outbox.ask_again(self.token, Question::Watch, subject, (headers.into(), payload.into()));
    }

    /// Takes the answer to a question of the cycle.
    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        token: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) -> WatchResult {
        if token != self.token || self.step == Step::Idle {
            return WatchResult::Nothing;
        }
        let step = std::mem::replace(&mut self.step, Step::Idle);
        self.next_ms = now_ms + self.pause_ms();
        if headers.status().is_some() {
            return self.fails(self.pause_ms(), NO_JETSTREAM);
        }
        match step {
            Step::Idle => WatchResult::Nothing,
            Step::FindBucket | Step::MakeBucket => {
                match stream::parse(payload, &self.wanted_bucket) {
                    Ok(info) if info.differences.is_empty() => {
                        self.knows_bucket = true;
                        self.ask(now_ms, Step::ReadRecord, outbox);
                        WatchResult::Nothing
                    }
                    Ok(info) => self.differs(&bucket::stream(&self.settings.prefix), &info),
                    Err(error) if error.err_code == JetStreamError::STREAM_NOT_FOUND => {
                        self.ask(now_ms, Step::MakeBucket, outbox);
                        WatchResult::Nothing
                    }
                    Err(error) => self.failed(step, &error),
                }
            }
            Step::ReadRecord => match bucket::parse(payload) {
                Ok((record, revision)) => {
                    (self.record, self.revision, self.record_ms) = (record, revision, now_ms);
                    self.has_read = true;
                    self.ask(now_ms, Step::FindStream, outbox);
                    WatchResult::Nothing
                }
                Err(error) => {
                    // The bucket may be gone.
                    self.knows_bucket = false;
                    self.failed(step, &error)
                }
            },
            Step::FindStream | Step::MakeStream => {
                match stream::parse(payload, &self.wanted_stream) {
                    Ok(info) if info.differences.is_empty() => self.found(now_ms, info, outbox),
                    Ok(info) => self.differs(&self.settings.name(), &info),
                    Err(error) if error.err_code == JetStreamError::STREAM_NOT_FOUND => {
                        self.ask(now_ms, Step::MakeStream, outbox);
                        WatchResult::Nothing
                    }
                    Err(error) => self.failed(step, &error),
                }
            }
            Step::WriteRecord => {
                let bucket = bucket::stream(&self.settings.prefix);
                self.written(now_ms, ack::parse(&bucket, headers, payload), outbox)
            }
        }
    }

    fn differs(&mut self, name: &str, info: &stream::StreamInfo) -> WatchResult {
        self.next_ms += POLL_MS;
        let list = info.differences.join("; ");
        let reason = format!(
            "the stream {name} differs from the settings, and is never changed: {list}. Change the \
             settings, or edit the stream with the tools of NATS"
        );
        self.refuse(reason, None)
    }

    /// When the next cycle begins after this one.
    fn pause_ms(&self) -> u64 {
        if self.is_open { POLL_MS } else { RETRY_MS }
    }

    /// The cycle ends without a result.
    fn failed(&mut self, step: Step, error: &JetStreamError) -> WatchResult {
        if error.is_passing() {
            return self.fails(self.pause_ms(), NO_LEADER);
        }
        self.next_ms += POLL_MS;
        let doing = match step {
            Step::MakeStream | Step::MakeBucket => "create",
            _ => "read",
        };
        let name = self.settings.name();
        let said = error.advised();
        let reason = format!("NATS does not let this node {doing} the stream {name}: {said}");
        self.refuse(reason, NatsLimit::of(error))
    }

    /// The cycle has failed for a reason that may pass, which is reported after a while.
    fn fails(&mut self, for_ms: u64, reason: &str) -> WatchResult {
        self.failing_ms += for_ms;
        if self.failing_ms < PATIENCE_MS {
            return WatchResult::Nothing;
        }
        self.refuse(reason.into(), None)
    }

    fn refuse(&mut self, reason: String, limit: Option<NatsLimit>) -> WatchResult {
        self.is_open = false;
        if self.said.as_ref() == Some(&reason) {
            return WatchResult::Nothing;
        }
        self.said = Some(reason.clone());
        WatchResult::Refused(reason, limit)
    }

    /// The stream is there and as it should be.
    fn found(&mut self, now_ms: u64, info: stream::StreamInfo, outbox: &mut Outbox) -> WatchResult {
        self.has_majority = info.majority_silent_ms < MAJORITY_MS;
        let is_other = |record: &EpochRecord| record.created != info.created;
        let known = self.record.as_ref().filter(|record| !is_other(record));
        let reached = known.map_or(0, |record| {
            let is_mine = self.epoch == Some(record.epoch) && self.created == record.created;
            if is_mine { record.last.max(self.floor) } else { record.last }
        });
        let has_fallen = info.last < reached;
        self.falls = if has_fallen { self.falls + 1 } else { 0 };
        if has_fallen && self.settings.replicas > 1 && self.falls < FALLS_SEEN {
            self.next_ms = now_ms + POLL_MS;
            return WatchResult::Nothing;
        }
        match known.cloned() {
            Some(record) if !has_fallen => {
                let is_stale = std::mem::take(&mut self.has_read) && info.last > record.last;
                let watched = self.settle(record.clone(), info);
                if is_stale {
                    // For nodes that start when no other lives.
                    self.candidate = Some(EpochRecord { last: self.last, ..record });
                    self.ask(now_ms, Step::WriteRecord, outbox);
                }
                watched
            }
            _ => {
                self.random = mix(self.random ^ now_ms);
                let epoch = self.random & EPOCH_MASK;
                let (created, last) = (info.created, info.last);
                self.candidate = Some(EpochRecord { epoch, created, last });
                self.ask(now_ms, Step::WriteRecord, outbox);
                WatchResult::Nothing
            }
        }
    }

    /// Takes the epoch of the entry, and what the server said.
    fn settle(&mut self, record: EpochRecord, info: stream::StreamInfo) -> WatchResult {
        let is_new_epoch = self.epoch != Some(record.epoch);
        let has_new_leader = !is_new_epoch && self.leader != info.leader;
        let is_resumed = std::mem::take(&mut self.is_resumed);
        let was_open = std::mem::replace(&mut self.is_open, true) && !is_resumed;
        let has_missed = !is_new_epoch && !was_open && info.first > self.complete + 1;
        if is_new_epoch {
            (self.last, self.first) = (info.last, info.first);
            self.complete = info.first.saturating_sub(1);
            self.polled = self.complete;
        } else if was_open {
            (self.complete, self.polled) = (self.polled, self.last.max(info.last));
        } else {
            self.complete = self.complete.max(info.first.saturating_sub(1));
            self.polled = self.complete;
        }
        self.last = self.last.max(info.last);
        self.first = self.first.max(info.first);
        (self.abilities, self.size) = (info.abilities, info.size);
        self.server_ms = (info.server_ms, self.asked_ms);
        (self.epoch, self.created, self.leader) = (Some(record.epoch), record.created, info.leader);
        self.said = None;
        (self.falls, self.failing_ms) = (0, 0);
        self.next_ms = self.asked_ms + POLL_MS;
        if !was_open || is_new_epoch {
            WatchResult::Opened { epoch: record.epoch, is_new_epoch, has_missed }
        } else if has_new_leader {
            WatchResult::NewLeader
        } else {
            WatchResult::Nothing
        }
    }

    fn written(&mut self, now_ms: u64, ack: Ack, outbox: &mut Outbox) -> WatchResult {
        match ack {
            Ack::Stored { sequence, .. } => {
                let Some(record) = self.candidate.take() else { return WatchResult::Nothing };
                let is_mine = self.is_open && self.epoch == Some(record.epoch);
                (self.record, self.revision) = (Some(record), sequence);
                if !is_mine {
                    // Settled by what the server says now.
                    self.ask(now_ms, Step::FindStream, outbox);
                }
                WatchResult::Nothing
            }
            Ack::Refused(error) if error.is_conflict() => {
                // Another node was faster: what it wrote holds.
                self.candidate = None;
                if !self.is_open {
                    self.ask(now_ms, Step::ReadRecord, outbox);
                } else {
                    self.record_ms = 0;
                }
                WatchResult::Nothing
            }
            Ack::Refused(error) => {
                self.candidate = None;
                self.failed(Step::WriteRecord, &error)
            }
            Ack::Nobody | Ack::Unreadable => WatchResult::Nothing,
        }
    }
}

/// Epochs have 46 bits in an id.
const EPOCH_MASK: u64 = (1 << 46) - 1;
