//! A change as messages for the stream, all of which it stores or none.

use std::sync::Arc;

use throng_core::{Publication, RecordChange};

use super::batch::{self, BATCH_MAX, Entry, only_last};
use super::context::LogContext;
use super::view::LogView;
use crate::api::message;
use crate::api::stream::StreamAbilities;
use crate::journal::outbox::Question;
use crate::journal::report::{LogEdit, LogOutcome, Outcome};
use crate::protocol::headers::HeaderWriter;

/// Why a stream that older versions have made takes no such change.
pub(super) const OLD_STREAM: &str = "the stream in NATS was made before logs could be changed or \
    erased, and can never allow it: remove it, and nodes make another one, or set another \
    nats-prefix";

/// Why a stream of older servers takes none of several messages.
pub(in crate::journal) const NO_BATCHES: &str = "the stream in NATS does not store several \
    messages in one step, for which its servers need version 2.12: set allow_atomic of the stream";

pub(in crate::journal) const TOO_MANY: &str =
    "servers of NATS store at most 1,000 messages in one step, with the record";

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
    let of_message = |publication: &Publication| {
        let headers = message::published(own(), publication);
        Entry::new(ingest.clone(), headers, publication.body.bytes())
    };
    let record = view.record();
    // Whether it is taken was asked before.
    let admitted = edit.admit(record.as_ref().map(|known| &known.record)).unwrap_or_default();
    let mut entries: Vec<Entry> = admitted.iter().map(|it| of_message(it)).collect();
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
    let replaced = edit.replaces().filter(|_| is_atomic);
    entries.extend(replaced.map(|replaced| {
        let erasures = view.erasures().with_message(replaced, view.last);
        Entry::new(subjects.erasures(suffix), only_last(stream), &erasures.block())
    }));
    let head = edit.head.map(|_| (ingest, view.last));
    // A message may have come and been erased: the last one would be the same again.
    let erasures = edit.head.or(replaced).filter(|_| is_atomic);
    let erasures = erasures.map(|_| (subjects.erasures(suffix), view.erasures_sequence()));
    let may_end = edit.may_end && is_atomic && edit.is_refused_by_end();
    let depends = edit.record_version.is_some() || may_end;
    let version = depends.then(|| (subjects.record(suffix), view.record_sequence()));
    for condition in [head, erasures, version].into_iter().flatten() {
        batch::require(&mut entries, condition, (subjects.guard(suffix), stream));
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
    (suffix, stream, id): (&Arc<str>, &str, String),
    abilities: StreamAbilities,
    context: &mut LogContext<'_>,
) -> Result<SentEdit, LogOutcome> {
    let (entries, record) = entries(edit, view, (suffix, stream), abilities.is_atomic, context);
    let count = entries.len();
    match count {
        // Nothing could be compared with it.
        _ if edit.is_of_creation() && !abilities.is_atomic => {
            return Err(LogOutcome::Unsupported(NO_BATCHES));
        }
        0 => {
            let record = view.record_version();
            return Err(LogOutcome::Changed { first: context.reached + 1, record });
        }
        1 => {}
        _ if !abilities.can_erase => return Err(LogOutcome::Unsupported(OLD_STREAM)),
        _ if !abilities.is_atomic => return Err(LogOutcome::Unsupported(NO_BATCHES)),
        _ if count > BATCH_MAX => return Err(LogOutcome::Unsupported(TOO_MANY)),
        _ => {}
    }
    let question = Question::Log(Arc::clone(suffix));
    let token = batch::send(entries, &id, question, context.outbox)
        .map_err(|bytes_max| LogOutcome::Failed(Outcome::TooLarge { bytes_max }))?;
    Ok(SentEdit { token, entries: count as u64, record })
}
