//! A change as messages for the stream, all of which it stores or none.

use std::sync::Arc;

use throng_core::RecordChange;

use super::context::LogContext;
use super::view::LogView;
use crate::api::beside::{EXPECTED, EXPECTED_OF};
use crate::api::message;
use crate::api::stream::StreamAbilities;
use crate::journal::outbox::Question;
use crate::journal::report::{LogEdit, LogOutcome, Outcome};
use crate::protocol::headers::HeaderWriter;

/// Messages that servers store in one step, at most, unless their `max_batch_size` is another.
const BATCH_MAX: usize = 1_000;

/// Why a stream that older versions have made takes no such change.
pub(super) const OLD_STREAM: &str = "the stream in NATS was made before logs could be changed or \
    erased, and can never allow it: remove it, and nodes make another one, or set another \
    nats-prefix";

/// Why a stream of older servers takes none of several messages.
const NO_BATCHES: &str = "the stream in NATS does not store several messages in one step, for \
    which its servers need version 2.12: set allow_atomic of the stream";

const TOO_MANY: &str = "servers of NATS store at most 1,000 messages in one step, with the record";

struct Entry {
    subject: String,
    headers: HeaderWriter,
    body: Arc<[u8]>,
    has_condition: bool,
}

impl Entry {
    fn new(subject: String, headers: HeaderWriter, body: &[u8]) -> Entry {
        Entry { subject, headers, body: body.into(), has_condition: false }
    }

    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        self.headers = std::mem::take(&mut self.headers).field(name, value);
    }
}

/// The headers of a message of which the stream keeps only the last one.
pub(in crate::journal) fn only_last(stream: &str) -> HeaderWriter {
    HeaderWriter::default().field(message::EXPECTED_STREAM, stream).field("Nats-Rollup", "sub")
}

/// A change that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentEdit {
    /// Where its answer comes.
    pub(super) token: u64,
    entries: u64,
    /// The place of the record among them, or its version, which stays.
    record: Result<u64, u64>,
}

impl SentEdit {
    /// Its outcome if the last message is stored with this sequence.
    pub(super) fn stored(self, last: u64) -> LogOutcome {
        let first = (last + 1).saturating_sub(self.entries);
        LogOutcome::Changed { first, record: self.record.map_or_else(|it| it, |at| first + at) }
    }
}

/// The messages of a change, and where its record is among them.
fn entries(
    edit: &LogEdit,
    view: &LogView,
    (suffix, stream): (&str, &str),
    is_atomic: bool,
    context: &LogContext<'_>,
) -> (Vec<Entry>, Result<u64, u64>) {
    let subjects = context.subjects;
    let ingest = subjects.ingest(suffix);
    let own = || HeaderWriter::default().field(message::EXPECTED_STREAM, stream);
    let of_message = |publication| {
        let headers = message::published(own(), publication);
        Entry::new(ingest.clone(), headers, publication.body.bytes())
    };
    let mut entries: Vec<Entry> = edit.messages.iter().map(of_message).collect();
    let at = entries.len() as u64;
    let record = match &edit.record {
        RecordChange::Keep => Err(view.record_version()),
        RecordChange::Write(record) => {
            entries.push(Entry::new(subjects.record(suffix), only_last(stream), record.block()));
            Ok(at)
        }
        RecordChange::Remove => {
            entries.push(Entry::new(subjects.record(suffix), only_last(stream), b""));
            Err(0)
        }
    };
    if entries.is_empty() {
        return (entries, record);
    }
    let head = edit.head.map(|_| (ingest, view.last));
    let may_end = edit.may_end && is_atomic && edit.is_refused_by_end();
    let depends = edit.record_version.is_some() || may_end;
    let version = depends.then(|| (subjects.record(suffix), view.record_sequence()));
    for (subject, expected) in [head, version].into_iter().flatten() {
        let own = entries.iter_mut().find(|entry| entry.subject == subject);
        match own {
            Some(entry) => {
                entry.add(EXPECTED, expected);
                entry.has_condition = true;
            }
            // A message can have one condition, and one of another subject only if it has none.
            None => {
                if entries.iter().all(|entry| entry.has_condition) {
                    entries.push(Entry::new(subjects.guard(suffix), only_last(stream), b""));
                }
                if let Some(entry) = entries.iter_mut().rfind(|entry| !entry.has_condition) {
                    entry.add(EXPECTED, expected);
                    entry.add(EXPECTED_OF, subject);
                    entry.has_condition = true;
                }
            }
        }
    }
    (entries, record)
}

/// Sends a change of a log that is as in this view.
///
/// # Errors
///
/// Its outcome, if it cannot be sent or need not.
pub(super) fn send(
    edit: &LogEdit,
    view: &LogView,
    (suffix, stream, batch): (&Arc<str>, &str, String),
    abilities: StreamAbilities,
    context: &mut LogContext<'_>,
) -> Result<SentEdit, LogOutcome> {
    let (mut entries, record) = entries(edit, view, (suffix, stream), abilities.is_atomic, context);
    let count = entries.len();
    match count {
        0 => {
            let record = view.record_version();
            return Err(LogOutcome::Changed { first: context.reached + 1, record });
        }
        1 => {}
        _ if !abilities.can_erase => return Err(LogOutcome::Unsupported(OLD_STREAM)),
        _ if !abilities.is_atomic => return Err(LogOutcome::Unsupported(NO_BATCHES)),
        _ if count > BATCH_MAX => return Err(LogOutcome::Unsupported(TOO_MANY)),
        _ => {
            for (entry, at) in entries.iter_mut().zip(1..) {
                entry.add("Nats-Batch-Id", &batch);
                entry.add("Nats-Batch-Sequence", at);
                if at == count {
                    entry.add("Nats-Batch-Commit", 1);
                }
            }
        }
    }
    let bytes_max = context.outbox.payload_bytes_max;
    let finish = |Entry { subject, headers, body, .. }: Entry| (subject, headers.finish(), body);
    let messages: Vec<_> = entries.into_iter().map(finish).collect();
    if messages.iter().any(|(_, headers, body)| headers.len() + body.len() > bytes_max) {
        return Err(LogOutcome::Failed(Outcome::TooLarge { bytes_max }));
    }
    let token = context.outbox.token();
    for ((subject, headers, body), at) in messages.into_iter().zip(1..) {
        if at == count {
            let (question, content) = (Question::Log(Arc::clone(suffix)), (headers.into(), body));
            context.outbox.ask_again(token, question, subject, content);
        } else {
            context.outbox.publish_with(&subject, headers, &body);
        }
    }
    Ok(SentEdit { token, entries: count as u64, record })
}
