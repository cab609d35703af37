//! Records of logs, and the states of channels, outlive the age limit of their stream: those that
//! have reached half of it are written anew.
//!
//! All nodes look at the oldest ones, with each beat. One is renewed under the condition that it is
//! still there, so by one of them, and it keeps its version, or the message that it is a copy of.
//! Messages that never expire would be of no use: nats-server 2.15 drops them at its next start,
//! and until then its first message would not show any more what has expired.
//!
//! With the same beat a node reads the records that are new to it, and reports the channels that go
//! at some time: so each is looked after when the node that has created it is gone.

use throng_core::LogRecord;

use super::logs;
use super::outbox::{Outbox, Question};
use super::report::JournalReport;
use crate::api::beside::{EXPECTED, Found};
use crate::api::get::{self, Part};
use crate::api::state::{KnownState, StateCopy};
use crate::api::{StreamSettings, message};
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};

/// Entries that are read at a time. If all of them had to be renewed, the next ones are read.
const RECORDS: usize = 100;

/// What is renewed: records of logs, and states.
const KINDS: [fn(&Subjects) -> String; 2] = [Subjects::all_records, Subjects::all_keys];

/// The oldest entries of a kind.
#[derive(Debug, Default, Clone, Copy)]
struct Oldest {
    /// The question for them.
    token: u64,
    /// How many of its answers were old, and the last of them.
    renewed: usize,
    last: u64,
}

pub(super) struct Renewal {
    stream: String,
    half_age_ms: u64,
    oldest: [Oldest; KINDS.len()],
    /// The records that are new: how many of the last question's there were, and the last of all.
    newest: Oldest,
}

impl Renewal {
    pub(super) fn new(settings: &StreamSettings) -> Renewal {
        let (stream, half_age_ms) = (settings.name(), settings.max_age_ms() / 2);
        Renewal { stream, half_age_ms, oldest: Default::default(), newest: Oldest::default() }
    }

    /// The stream is another one: all of its records are new.
    pub(super) fn begin_epoch(&mut self) {
        self.newest.last = 0;
    }

    /// Reads the oldest entries.
    pub(super) fn begin(&mut self, subjects: &Subjects, outbox: &mut Outbox) {
        for kind in 0..KINDS.len() {
            self.oldest[kind].last = 0;
            self.ask(kind, subjects, outbox);
        }
        self.ask_newest(subjects, outbox);
    }

    fn ask_newest(&mut self, subjects: &Subjects, outbox: &mut Outbox) {
        let newest = &mut self.newest;
        outbox.answered(newest.token);
        let request = get::some(&subjects.all_records(), newest.last + 1, RECORDS);
        (newest.token, newest.renewed) = (outbox.read(Question::Records, request), 0);
    }

    /// Takes a record that is new, or the end of them.
    fn take_new(
        &mut self,
        part: Part,
        answer: (Headers<'_>, &[u8]),
        about: (&Subjects, &mut Outbox),
    ) {
        let ((headers, payload), (subjects, outbox)) = (answer, about);
        match part {
            Part::Message { sequence, .. } => {
                (self.newest.renewed, self.newest.last) = (self.newest.renewed + 1, sequence);
                let is_mortal = LogRecord::read(payload).is_ok_and(|record| record.is_of_mortal());
                let subject = headers.get("Nats-Subject").filter(|_| is_mortal);
                let channel = subject.and_then(|subject| subjects.channel_of_record(subject));
                channel.into_iter().for_each(|it| outbox.report(JournalReport::Mortal(it)));
            }
            Part::End { .. } if self.newest.renewed == RECORDS => self.ask_newest(subjects, outbox),
            Part::End { .. } | Part::Failed => outbox.answered(self.newest.token),
        }
    }

    fn ask(&mut self, kind: usize, subjects: &Subjects, outbox: &mut Outbox) {
        let oldest = &mut self.oldest[kind];
        outbox.answered(oldest.token);
        let request = get::some(&KINDS[kind](subjects), oldest.last + 1, RECORDS);
        (oldest.token, oldest.renewed) = (outbox.read(Question::Records, request), 0);
    }

    /// Takes one of the oldest entries, or the end of them, when it is `server_ms` there.
    pub(super) fn answered(
        &mut self,
        token: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        server_ms: u64,
        (subjects, outbox): (&Subjects, &mut Outbox),
    ) {
        if token == self.newest.token {
            return self.take_new(get::part(headers), (headers, payload), (subjects, outbox));
        }
        let Some(kind) = self.oldest.iter().position(|oldest| oldest.token == token) else {
            return outbox.answered(token);
        };
        match get::part(headers) {
            Part::Message { sequence, .. } => {
                let stored = headers.get("Nats-Subject").zip(headers.get("Nats-Time-Stamp"));
                let Some((subject, time)) = stored else { return };
                let stored_ms = message::wall_ms(time).unwrap_or(u64::MAX);
                if stored_ms.saturating_add(self.half_age_ms) > server_ms {
                    return;
                }
                let oldest = &mut self.oldest[kind];
                (oldest.renewed, oldest.last) = (oldest.renewed + 1, sequence);
                if kind == 0 {
                    self.renew_record((sequence, subject), headers, payload, outbox);
                } else {
                    self.renew_state((sequence, subject), headers, payload, (subjects, outbox));
                }
            }
            Part::End { .. } if self.oldest[kind].renewed == RECORDS => {
                self.ask(kind, subjects, outbox);
            }
            Part::End { .. } | Part::Failed => outbox.answered(token),
        }
    }

    fn renew_record(
        &self,
        (sequence, subject): (u64, &str),
        headers: Headers<'_>,
        payload: &[u8],
        outbox: &mut Outbox,
    ) {
        // An empty one says that there is none any more.
        if payload.is_empty() {
            return;
        }
        let record = Found::of(sequence, subject, headers);
        let headers = record.renewed(logs::only_last(&self.stream));
        outbox.publish_with(subject, headers.finish(), payload);
    }

    /// Renews the record of a state, or the copy of a value. Tombstones go with their age.
    fn renew_state(
        &self,
        (sequence, subject): (u64, &str),
        headers: Headers<'_>,
        payload: &[u8],
        (subjects, outbox): (&Subjects, &mut Outbox),
    ) {
        let own = || logs::only_last(&self.stream).field(EXPECTED, sequence);
        match subjects.channel_of_key(subject) {
            Some((_, true)) => {
                let known = KnownState::read(sequence, payload);
                let renewed = known.map(|known| known.renewed());
                renewed.inspect(|block| outbox.publish_with(subject, own().finish(), block));
            }
            Some((suffix, false)) => {
                let copy = StateCopy::read(headers, payload).filter(|copy| !copy.is_tombstone());
                let Some(copy) = copy else { return };
                outbox.publish_with(subject, copy.renewed(own(), headers), payload);
                if let Some(channel) = subject::channel(suffix) {
                    outbox.report(JournalReport::OldValue { channel, message: copy.message });
                }
            }
            None => {}
        }
    }
}
