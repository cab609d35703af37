//! Records of logs outlive the age limit of their stream: those that have reached half of it are
//! written anew.
//!
//! All nodes look at the oldest ones, with each beat. A record is renewed under the condition that
//! it is still there, so by one of them, and it keeps its version. Messages that never expire would
//! be of no use: nats-server 2.15 drops them at its next start, and until then its first message
//! would not show any more what has expired.

use super::logs;
use super::outbox::{Outbox, Question};
use crate::api::beside::Found;
use crate::api::get::{self, Part};
use crate::api::{StreamSettings, message};
use crate::protocol::headers::Headers;
use crate::subject::Subjects;

/// Records that are read at a time. If all of them had to be renewed, the next ones are read.
const RECORDS: usize = 100;

pub(super) struct Renewal {
    stream: String,
    half_age_ms: u64,
    /// The question for the oldest records.
    token: u64,
    /// How many of its answers were renewed, and the last of them.
    renewed: usize,
    last: u64,
}

impl Renewal {
    pub(super) fn new(settings: &StreamSettings) -> Renewal {
        let (stream, half_age_ms) = (settings.name(), settings.max_age_ms() / 2);
        Renewal { stream, half_age_ms, token: 0, renewed: 0, last: 0 }
    }

    /// Reads the oldest records.
    pub(super) fn begin(&mut self, subjects: &Subjects, outbox: &mut Outbox) {
        self.last = 0;
        self.ask(subjects, outbox);
    }

    fn ask(&mut self, subjects: &Subjects, outbox: &mut Outbox) {
        outbox.answered(self.token);
        let request = get::some(&subjects.all_records(), self.last + 1, RECORDS);
        (self.token, self.renewed) = (outbox.read(Question::Records, request), 0);
    }

    /// Takes one of the oldest records, or the end of them, when it is `server_ms` there.
    pub(super) fn answered(
        &mut self,
        token: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        server_ms: u64,
        (subjects, outbox): (&Subjects, &mut Outbox),
    ) {
        if token != self.token {
            return outbox.answered(token);
        }
        match get::part(headers) {
            Part::Message { sequence, .. } => {
                let stored = headers.get("Nats-Subject").zip(headers.get("Nats-Time-Stamp"));
                let Some((subject, time)) = stored else { return };
                let stored_ms = message::wall_ms(time).unwrap_or(u64::MAX);
                // An empty one says that there is none any more.
                if payload.is_empty() || stored_ms.saturating_add(self.half_age_ms) > server_ms {
                    return;
                }
                let record = Found::of(sequence, subject, headers);
                let headers = record.renewed(logs::only_last(&self.stream));
                outbox.publish_with(subject, headers.finish(), payload);
                (self.renewed, self.last) = (self.renewed + 1, sequence);
            }
            Part::End { .. } if self.renewed == RECORDS => self.ask(subjects, outbox),
            Part::End { .. } | Part::Failed => outbox.answered(token),
        }
    }
}
