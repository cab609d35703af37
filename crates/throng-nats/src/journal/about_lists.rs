//! The journal's part in lists: the names of the channels in the stream, and their messages.

use throng_core::Kind;

use super::StreamJournal;
use super::report::{CountedLog, JournalReport, Naming};
use crate::protocol::decoder::ServerMessage;
use crate::protocol::headers::Headers;

impl StreamJournal {
    pub(super) fn name(&mut self, now_ms: u64, token: u64, kind: Kind, is_anew: bool) {
        if self.watch.is_open() {
            let asked = (token, kind, is_anew);
            self.names.ask(now_ms, asked, &self.subjects, &mut self.outbox);
        } else {
            let (logs, naming) = (Vec::new(), Naming::Failed(None));
            self.outbox.report(JournalReport::Named { token, logs, naming });
        }
    }

    /// Takes a message of a consumer, if it is one.
    pub(super) fn given(&mut self, now_ms: u64, message: &ServerMessage<'_>) {
        let stream = (&self.subjects, self.watch.first());
        self.names.given(now_ms, message, stream, &mut self.outbox);
    }

    pub(super) fn count(&mut self, now_ms: u64, (token, logs): (u64, Vec<CountedLog>)) {
        if self.watch.is_open() {
            self.counts.ask(now_ms, (token, logs), &mut self.outbox);
        } else {
            self.outbox.report(JournalReport::Counted { token, counts: None });
        }
    }

    pub(super) fn names_answered(&mut self, now_ms: u64, token: u64, answer: (Headers<'_>, &[u8])) {
        self.names.answered((now_ms, token), answer, self.watch.first(), &mut self.outbox);
    }

    pub(super) fn counts_answered(
        &mut self,
        now_ms: u64,
        token: u64,
        answer: (Headers<'_>, &[u8]),
    ) {
        let server_ms = self.watch.server_ms(now_ms);
        self.counts.answered((token, server_ms), answer, &mut self.outbox);
    }

    pub(super) fn go_on_with_lists(&mut self, now_ms: u64) {
        let times = (now_ms, self.watch.server_ms(now_ms));
        self.counts.send(times, &self.subjects, &mut self.outbox);
    }

    pub(super) fn tick_lists(&mut self, now_ms: u64) {
        self.names.tick(now_ms, &mut self.outbox);
        self.counts.tick(now_ms, &mut self.outbox);
    }

    /// Whatever is read of the stream cannot be read now.
    pub(super) fn cancel_readings(&mut self) {
        self.readings.cancel(&mut self.outbox);
        self.scans.cancel(&mut self.outbox);
        self.names.cancel(&mut self.outbox);
        self.counts.cancel(&mut self.outbox);
    }
}
