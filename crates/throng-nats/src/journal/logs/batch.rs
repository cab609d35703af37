//! Messages that the stream stores all or none, under conditions.

use std::sync::Arc;

use crate::api::beside::{EXPECTED, EXPECTED_OF};
use crate::api::message;
use crate::journal::outbox::{Outbox, Question};
use crate::protocol::headers::HeaderWriter;

/// Messages that servers store in one step, at most, unless their `max_batch_size` is another.
pub(in crate::journal) const BATCH_MAX: usize = 1_000;

/// A message of a batch.
#[derive(Debug, Clone)]
pub(in crate::journal) struct Entry {
    subject: String,
    headers: HeaderWriter,
    body: Arc<[u8]>,
    has_condition: bool,
}

impl Entry {
    pub(in crate::journal) fn new(subject: String, headers: HeaderWriter, body: &[u8]) -> Entry {
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

/// Has the messages stored only if the last message of a subject has this sequence. `guard` is the
/// subject of a message that is there for the condition alone, if no other has room for it.
pub(in crate::journal) fn require(
    entries: &mut Vec<Entry>,
    (subject, expected): (String, u64),
    (guard, stream): (String, &str),
) {
    if let Some(own) = entries.iter_mut().find(|entry| entry.subject == subject) {
        own.add(EXPECTED, expected);
        own.has_condition = true;
        return;
    }
    // A message can have one condition, and one of another subject only if it has none.
    if entries.iter().all(|entry| entry.has_condition) {
        entries.push(Entry::new(guard, only_last(stream), b""));
    }
    if let Some(entry) = entries.iter_mut().rfind(|entry| !entry.has_condition) {
        entry.add(EXPECTED, expected);
        entry.add(EXPECTED_OF, subject);
        entry.has_condition = true;
    }
}

/// Sends the messages. Returns the token under which the answer comes.
///
/// # Errors
///
/// The largest message that the servers accept, in bytes, if one is larger.
pub(in crate::journal) fn send(
    mut entries: Vec<Entry>,
    batch: &str,
    question: Question,
    outbox: &mut Outbox,
) -> Result<u64, usize> {
    let count = entries.len();
    if count > 1 {
        for (entry, at) in entries.iter_mut().zip(1..) {
            entry.add("Nats-Batch-Id", batch);
            entry.add("Nats-Batch-Sequence", at);
            if at == count {
                entry.add("Nats-Batch-Commit", 1);
            }
        }
    }
    let bytes_max = outbox.payload_bytes_max;
    let finish = |Entry { subject, headers, body, .. }: Entry| (subject, headers.finish(), body);
    let messages: Vec<_> = entries.into_iter().map(finish).collect();
    if messages.iter().any(|(_, headers, body)| headers.len() + body.len() > bytes_max) {
        return Err(bytes_max);
    }
    let token = outbox.token();
    for ((subject, headers, body), at) in messages.into_iter().zip(1..) {
        if at == count {
            outbox.ask_again(token, question.clone(), subject, (headers.into(), body));
        } else {
            outbox.publish_with(&subject, headers, &body);
        }
    }
    Ok(token)
}
