//! The journal's part in changes and erasures of logs: their requests, answers and news.

use std::sync::Arc;

use throng_core::{ChannelName, StateLimits};

use super::StreamJournal;
use super::logs::{LogContext, LogNews, Logs, NO_BATCHES};
use super::publishing::Publishing;
use super::report::{
    ErasedMessages, JournalReport, LogOutcome, LogRequest, Outcome, PublishRequest,
};
use crate::protocol::headers::Headers;
use crate::subject;

/// Begins a hint about erased messages. Older nodes read a number there, and leave it.
const ERASED: &str = "erased ";

impl StreamJournal {
    fn with_context(&mut self, now_ms: u64) -> (&mut Logs, &mut Publishing, LogContext<'_>) {
        let context = LogContext {
            now_ms,
            reached: self.watch.last(),
            first: self.watch.first(),
            server_ms: self.watch.server_ms(now_ms),
            subjects: &self.subjects,
            outbox: &mut self.outbox,
        };
        (&mut self.logs, &mut self.publishing, context)
    }

    /// Begins requests about logs that may begin, while the stream is open.
    pub(super) fn go_on_with_logs(&mut self, now_ms: u64) {
        let (logs, publishing, mut context) = self.with_context(now_ms);
        logs.go_on(true, publishing, &mut context);
    }

    pub(super) fn publish(&mut self, now_ms: u64, mut request: PublishRequest) {
        if request.state.is_some() {
            return self.publish_with_state(now_ms, request);
        }
        // Where nothing can be stored in one step, channels do not end.
        let is_atomic = self.logs.abilities.is_atomic;
        if request.publication.needs_creation && !is_atomic {
            let refused = Outcome::Refused { reason: NO_BATCHES.into(), limit: None };
            let (token, outcome) = (request.token, refused);
            return self.outbox.report(JournalReport::Published { token, outcome });
        }
        request.may_end &= is_atomic;
        let Some(request) = self.logs.hold(request) else { return };
        let (subjects, is_open) = (&self.subjects, self.watch.is_open());
        self.publishing.publish(now_ms, &request, (subjects, is_open), &mut self.outbox);
    }

    /// Takes a hint of another node, if it is about erased messages. Returns whether it is.
    pub(super) fn heard_erased(&mut self, now_ms: u64, hint: &str) -> bool {
        let Some(hint) = hint.strip_prefix(ERASED) else { return false };
        let mut fields = hint.splitn(4, ' ');
        let mut number = || fields.next()?.parse::<u64>().ok();
        if let (Some(epoch), Some(first), Some(last)) = (number(), number(), number())
            && let Some(suffix) = fields.next()
            && self.watch.epoch() == Some(epoch)
        {
            self.are_erased(now_ms, suffix, (first, last));
        }
        true
    }

    /// Nobody may be shown these messages of a channel any more.
    fn are_erased(&mut self, now_ms: u64, suffix: &str, (first, last): (u64, u64)) {
        self.following.erased(now_ms, suffix, (first, last));
        if let Some(channel) = subject::channel(suffix) {
            let erased = ErasedMessages { channel, first, last };
            self.outbox.report(JournalReport::Erased(erased));
        }
    }

    pub(super) fn take_log(
        &mut self,
        now_ms: u64,
        token: u64,
        channel: &ChannelName,
        (request, state): (LogRequest, Option<StateLimits>),
    ) {
        let is_change = !matches!(request, LogRequest::State);
        let state = state.filter(|_| is_change && self.logs.abilities.can_erase);
        let suffix = subject::suffix(channel).filter(|_| self.watch.is_open());
        match (suffix, state) {
            (Some(suffix), Some(limits)) => {
                self.states.ask(now_ms, (suffix.into(), limits), (token, request));
            }
            (Some(suffix), None) => self.logs.take(now_ms, token, suffix.into(), (request, false)),
            (None, _) => {
                let outcome = LogOutcome::Failed(Outcome::Away);
                self.outbox.report(JournalReport::Log { token, outcome });
            }
        }
    }

    /// A request about the log of the channel with this suffix was answered.
    pub(super) fn log_answered(
        &mut self,
        now_ms: u64,
        (token, suffix): (u64, &Arc<str>),
        answer: (Headers<'_>, &[u8]),
    ) {
        let (logs, _, mut context) = self.with_context(now_ms);
        match logs.answered((token, suffix), answer, &mut context) {
            None => {}
            Some(LogNews::Stored(sequence)) => {
                self.watch.reached(sequence);
                self.following.stored(now_ms, suffix, sequence);
            }
            Some(LogNews::Erased(first, last)) => {
                if let Some(epoch) = self.watch.epoch() {
                    let hint = format!("{ERASED}{epoch} {first} {last} {suffix}");
                    self.outbox.publish(self.subjects.hint(), hint.into_bytes());
                }
                self.are_erased(now_ms, suffix, (first, last));
            }
        }
    }

    /// Sends a beat and renews records, if it is time.
    pub(super) fn upkeep(&mut self, now_ms: u64) {
        if self.beats.tick(now_ms, &self.subjects, &mut self.outbox) {
            self.renewal.begin(&self.subjects, &mut self.outbox);
        }
    }
}
