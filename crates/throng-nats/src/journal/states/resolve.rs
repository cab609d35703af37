//! A batch whose answer is lost: whether it is stored.
//!
//! It needs the record that it was planned for. So it is stored if and only if the first message
//! behind that record is its own; while there is none and the record is the same, it may still be
//! stored, and is sent again.

use std::sync::Arc;

use super::request::{Resolving, Sent, Step};
use super::{RETRY_MS, States};
use crate::api::beside::{self, Found};
use crate::api::get;
use crate::api::state::{self, KnownState};
use crate::journal::logs::{LogContext, send};
use crate::journal::outbox::Question;

/// What became of a batch.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Its record, which is its last message, has this sequence.
    Stored {
        last: u64,
    },
    /// Another one took its place.
    Never,
    /// It may still be stored.
    NotYet,
    Unclear,
}

impl States {
    /// Looks for a batch that was sent.
    pub(super) fn resolve(&mut self, suffix: &Arc<str>, sent: Sent, context: &mut LogContext<'_>) {
        let next = get::next(&context.subjects.ingest(suffix), sent.record + 1);
        let requests = [next, get::last(&context.subjects.state(suffix))];
        let tokens = requests.map(|request| {
            let question = Question::State(Arc::clone(suffix));
            context.outbox.ask_leader(question, "MSG.GET", request)
        });
        let resolving = Resolving { tokens, found: [None, None] };
        self.set(suffix, Step::Resolve(resolving, sent), context.now_ms);
    }

    pub(super) fn resolved(
        &mut self,
        suffix: &Arc<str>,
        token: u64,
        payload: &[u8],
        context: &mut LogContext<'_>,
    ) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        let Step::Resolve(resolving, _) = &mut channel.step else { return };
        let Some(at) = resolving.tokens.iter().position(|own| *own == token) else { return };
        match beside::found(payload) {
            Ok(found) => resolving.found[at] = Some(found),
            Err(error) => {
                // It begins anew, with what is known to be under way.
                resolving.forget(context.outbox);
                *resolving = Resolving::default();
                channel.at_ms = context.now_ms + RETRY_MS;
                tracing::debug!("a batch is looked for again: {error}");
                return;
            }
        }
        if resolving.found.iter().any(Option::is_none) {
            return;
        }
        let step = std::mem::replace(&mut channel.step, Step::Begin);
        let Step::Resolve(resolving, sent) = step else { return };
        let [next, record] = resolving.found.map(Option::flatten);
        match verdict(&sent, next.as_ref(), record.as_ref()) {
            Verdict::Stored { last } => {
                self.stored(suffix, Sent { sends: 2, ..sent }, last, context);
            }
            Verdict::Never => self.again(suffix, context.now_ms),
            Verdict::NotYet => self.send_again(suffix, sent, context),
            Verdict::Unclear => {
                let step = Step::Resolve(Resolving::default(), sent);
                self.set(suffix, step, context.now_ms + RETRY_MS);
            }
        }
    }

    fn send_again(&mut self, suffix: &Arc<str>, mut sent: Sent, context: &mut LogContext<'_>) {
        sent.sends += 1;
        let question = Question::State(Arc::clone(suffix));
        self.next_batch += 1;
        // The servers may have a part of the one before.
        let name = format!("{}.s{}", self.nonce, self.next_batch);
        match send(Vec::from(&*sent.all), &name, question, context.outbox) {
            Ok(token) => self.set(suffix, Step::Store(token, sent), context.now_ms),
            Err(_) => {
                let step = Step::Resolve(Resolving::default(), sent);
                self.set(suffix, step, context.now_ms + RETRY_MS);
            }
        }
    }
}

fn verdict(sent: &Sent, next: Option<&Found>, record: Option<&Found>) -> Verdict {
    if sent.messages > 0
        && let Some(next) = next
    {
        return match state::batch_of(next) {
            Some((batch, _, at)) if batch == sent.batch => {
                let first = next.sequence.saturating_sub(at);
                Verdict::Stored { last: first + sent.entries as u64 - 1 }
            }
            Some((_, before, _)) if before == sent.record => Verdict::Never,
            _ => of_record(sent, record),
        };
    }
    of_record(sent, record)
}

/// The same of a batch of whose messages none is found.
fn of_record(sent: &Sent, record: Option<&Found>) -> Verdict {
    let sequence = record.map_or(0, |record| record.sequence);
    if sequence == sent.record {
        return Verdict::NotYet;
    }
    let known = record.and_then(|record| KnownState::read(record.sequence, &record.data));
    match known {
        Some(known) if known.record.batch == sent.batch => {
            Verdict::Stored { last: known.written() }
        }
        Some(known) if known.written() == sent.record => Verdict::Never,
        _ => Verdict::Unclear,
    }
}
