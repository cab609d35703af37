//! The journal's part in channels that keep a state.

use std::sync::Arc;

use super::StreamJournal;
use super::logs::LogContext;
use super::report::{JournalReport, Outcome, PublishRequest, ReadState};
use super::states::{ScanDone, ScanFor, ScanRequest, StateNews};
use crate::protocol::headers::Headers;
use crate::subject;

impl StreamJournal {
    pub(super) fn publish_with_state(&mut self, now_ms: u64, request: PublishRequest) {
        let PublishRequest { token, ref publication, state, .. } = request;
        let is_away = !self.watch.is_open() || self.publishing.stall.is_stalled();
        let of = subject::suffix(&publication.channel).zip(state).filter(|_| !is_away);
        match of {
            Some((suffix, limits)) => self.states.publish(now_ms, (suffix.into(), limits), request),
            None => {
                let outcome = Outcome::Away;
                self.outbox.report(JournalReport::Published { token, outcome });
            }
        }
    }

    /// Begins requests about states that may begin, while the stream is open.
    pub(super) fn go_on_with_states(&mut self, now_ms: u64) {
        let mut context = LogContext {
            now_ms,
            reached: self.watch.last(),
            first: self.watch.first(),
            server_ms: self.watch.server_ms(now_ms),
            subjects: &self.subjects,
            outbox: &mut self.outbox,
        };
        self.states.go_on(&mut self.scans, &mut context);
        self.scans.send(now_ms, &self.subjects, &mut self.outbox);
        for done in self.scans.take_refused() {
            self.scan_done(now_ms, done);
        }
        self.tell_states(now_ms);
    }

    pub(super) fn state_answered(
        &mut self,
        now_ms: u64,
        about: (u64, &Arc<str>),
        answer: (Headers<'_>, &[u8]),
    ) {
        let mut context = LogContext {
            now_ms,
            reached: self.watch.last(),
            first: self.watch.first(),
            server_ms: self.watch.server_ms(now_ms),
            subjects: &self.subjects,
            outbox: &mut self.outbox,
        };
        self.states.answered(about, answer, &mut context);
        self.tell_states(now_ms);
    }

    fn tell_states(&mut self, now_ms: u64) {
        for (suffix, news) in self.states.take_news() {
            match news {
                StateNews::Stored { sequence, is_late } => {
                    self.publishing.stall.answered();
                    self.watch.reached(sequence);
                    self.following.stored(now_ms, &suffix, sequence);
                    if is_late {
                        // Whether it was republished is not known.
                        self.hint(now_ms, &suffix, sequence);
                    }
                }
                StateNews::Erase { token, request, has_erased } => {
                    self.logs.take(now_ms, token, suffix, (request, has_erased));
                }
            }
        }
    }

    pub(super) fn scan_answered(&mut self, now_ms: u64, token: u64, answer: (Headers<'_>, &[u8])) {
        let outbox = (&self.subjects, &mut self.outbox);
        if let Some(done) = self.scans.answered((now_ms, token), answer, outbox) {
            self.scan_done(now_ms, done);
        }
    }

    fn scan_done(&mut self, now_ms: u64, ScanDone { request, read }: ScanDone) {
        match request.owner {
            ScanFor::Owner(token) => {
                let state = read.map(|read| read.facts);
                self.outbox.report(JournalReport::StateRead { token, state });
            }
            owner => {
                let times = (now_ms, self.watch.server_ms(now_ms));
                let of = (owner, &request.suffix);
                self.states.scanned(of, read, times, &mut self.outbox);
            }
        }
    }

    pub(super) fn read_state(&mut self, now_ms: u64, read: ReadState) {
        let ReadState { token, channel, page, at_least, wants_bounds, is_of_expiring } = read;
        let suffix = subject::suffix(&channel).filter(|_| self.watch.is_open());
        let Some(suffix) = suffix else {
            return self.outbox.report(JournalReport::StateRead { token, state: None });
        };
        let (owner, suffix) = (ScanFor::Owner(token), suffix.into());
        let request = ScanRequest { owner, suffix, page, at_least, wants_bounds, is_of_expiring };
        self.scans.ask(now_ms, request);
    }
}
