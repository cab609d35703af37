//! The journal's part in readings of channels.

use throng_core::ChannelName;

use super::StreamJournal;
use super::outbox::Question;
use super::reading::{self, Purpose};
use super::report::JournalReport;
use crate::protocol::headers::Headers;
use crate::subject;

impl StreamJournal {
    /// A question about what is read was answered.
    pub(super) fn reading_answered(
        &mut self,
        (now_ms, token): (u64, u64),
        question: &Question,
        (headers, payload): (Headers<'_>, &[u8]),
    ) {
        let first = self.watch.first();
        let (subjects, outbox) = (&self.subjects, &mut self.outbox);
        match question {
            Question::Batch => {
                let answer = (headers, payload);
                let (is_end, done) = self.readings.answered((now_ms, token), answer, first, outbox);
                if is_end {
                    self.outbox.answered(token);
                }
                self.batches_done(now_ms, done.into_iter().collect());
            }
            Question::Bounds => {
                outbox.answered(token);
                let done = self.readings.bounds_are((now_ms, token), payload, subjects, outbox);
                self.batches_done(now_ms, done);
            }
            Question::Erasures => {
                outbox.answered(token);
                let done = self.readings.erasures_are(now_ms, token, payload);
                self.batches_done(now_ms, done.into_iter().collect());
            }
            _ => {
                outbox.answered(token);
                let done = self.readings.end_is((now_ms, token), payload, first, outbox);
                self.batches_done(now_ms, done.into_iter().collect());
            }
        }
    }

    pub(super) fn batches_done(&mut self, now_ms: u64, done: Vec<reading::BatchDone>) {
        done.into_iter().for_each(|done| self.batch_done(now_ms, done));
    }

    fn batch_done(&mut self, now_ms: u64, done: reading::BatchDone) {
        match done.purpose {
            Purpose::Fill(channel) => {
                self.following.filled(now_ms, channel, done.batch, &mut self.outbox);
            }
            Purpose::Read { token } => {
                self.outbox.report(JournalReport::Read { token, reading: Some(done.batch) });
            }
        }
    }

    pub(super) fn read(
        &mut self,
        now_ms: u64,
        token: u64,
        channel: &ChannelName,
        (after, at_least, wants_end): (u64, u64, bool),
    ) {
        let suffix = subject::suffix(channel).filter(|_| self.watch.is_open());
        let is_taken = suffix.is_some_and(|suffix| {
            let subject = self.subjects.ingest(&suffix);
            let record = wants_end.then(|| self.subjects.record(&suffix));
            let asked = (after, at_least, record);
            self.readings.ask(now_ms, Purpose::Read { token }, subject, asked)
        });
        if !is_taken {
            self.outbox.report(JournalReport::Read { token, reading: None });
        }
    }
}
