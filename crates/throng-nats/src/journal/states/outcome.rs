//! The outcomes of requests about channels with a state.

use std::sync::Arc;

use super::request::{Done, Forgotten, Item, Refusal, Sent, Work};
use super::{StateNews, States};
use crate::api::beside;
use crate::journal::logs::LogContext;
use crate::journal::outbox::{Outbox, Question};
use crate::journal::report::{JournalReport, LogOutcome, LogRequest, Outcome, PublishRequest};

impl States {
    /// The requests that were handled have these outcomes; the last message of their batch has this
    /// sequence.
    pub(super) fn end(
        &mut self,
        suffix: &Arc<str>,
        sent: Sent,
        last: u64,
        context: &mut LogContext<'_>,
    ) {
        let first = (last + 1).saturating_sub(sent.entries as u64);
        let at = |place: usize| first + place as u64;
        for fate in sent.fates {
            let Some(Item { work, .. }) = self.pop(suffix) else { break };
            match (work, fate) {
                (Work::Publish(request), fate) => {
                    let outcome = match fate {
                        Ok(Done::Published { at: place, is_duplicate }) => {
                            Outcome::Stored { sequence: at(place), is_duplicate }
                        }
                        Err(Refusal::Publication(outcome)) => outcome,
                        _ => Outcome::Unknown,
                    };
                    let token = request.token;
                    context.outbox.report(JournalReport::Published { token, outcome });
                }
                (Work::Change { token, .. }, fate) => {
                    let outcome = match fate {
                        Ok(Done::Changed { at: place, record }) => {
                            let record = record.map_or_else(|version| version, at);
                            LogOutcome::Changed { first: at(place), record }
                        }
                        Err(Refusal::Log(outcome)) => outcome,
                        _ => LogOutcome::Failed(Outcome::Unknown),
                    };
                    context.outbox.report(JournalReport::Log { token, outcome });
                }
                (Work::Forget { token, request, .. }, fate) => {
                    let (up_to, has_erased) = match fate {
                        Ok(Done::Forgotten(Forgotten::UpTo(up_to))) => (Some(up_to), true),
                        fate => (None, fate.is_ok()),
                    };
                    let request = match request {
                        LogRequest::EraseHistory { with_record, .. } => {
                            LogRequest::EraseHistory { with_record, up_to }
                        }
                        request => request,
                    };
                    let news = StateNews::Erase { token, request, has_erased };
                    self.news.push((Arc::clone(suffix), news));
                }
                (Work::Count(counted), fate) => {
                    let counted = counted.filter(|_| fate.is_ok());
                    let gone = counted.iter().flat_map(|counted| &counted.dropped);
                    let up_to = counted.as_ref().map_or(0, |counted| counted.sequence);
                    for key in gone {
                        let request = beside::purge(&context.subjects.key(suffix, key), up_to);
                        let question = Question::State(Arc::clone(suffix));
                        context.outbox.ask_leader(question, "PURGE", request);
                    }
                }
            }
        }
        self.ended(suffix, context.now_ms);
    }

    fn pop(&mut self, suffix: &Arc<str>) -> Option<Item> {
        let channel = self.channels.get_mut(suffix)?;
        channel.taken = channel.taken.saturating_sub(1);
        channel.queue.pop_front()
    }

    fn ended(&mut self, suffix: &Arc<str>, now_ms: u64) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        (channel.taken, channel.seen) = (0, None);
        if channel.queue.is_empty() {
            self.channels.remove(suffix);
        } else {
            self.again(suffix, now_ms);
        }
    }

    /// The requests that are handled all have this outcome.
    pub(super) fn end_all(&mut self, suffix: &Arc<str>, outcome: &LogOutcome, outbox: &mut Outbox) {
        let taken = self.channels.get(suffix).map_or(0, |channel| channel.taken.max(1));
        for _ in 0..taken {
            let Some(Item { work, .. }) = self.pop(suffix) else { break };
            work.fail(outcome.clone(), outbox);
        }
        self.ended(suffix, 0);
    }
}

impl Work {
    pub(super) fn fail(self, outcome: LogOutcome, outbox: &mut Outbox) {
        match self {
            Work::Publish(PublishRequest { token, .. }) => {
                let outcome = match outcome {
                    LogOutcome::Failed(outcome) => outcome,
                    LogOutcome::Unsupported(reason) => {
                        Outcome::Refused { reason: reason.to_owned(), limit: None }
                    }
                    _ => Outcome::Unknown,
                };
                outbox.report(JournalReport::Published { token, outcome });
            }
            Work::Change { token, .. } | Work::Forget { token, .. } => {
                outbox.report(JournalReport::Log { token, outcome });
            }
            Work::Count(_) => {}
        }
    }
}
