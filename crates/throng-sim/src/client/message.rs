//! Compares a received message with the model's log.

use serde_json::{Value, json};
use throng_core::{Body, Kind};

use super::Client;
use super::expected::{Cursor, Skipped};
use super::view::{View, is_out_of_reach};
use crate::facts::shown_body;
use crate::model::{Entry, Model};
use crate::{Check, ensure};

/// A message as the client received it.
#[derive(Debug, Clone)]
pub(super) struct Received {
    /// The id of the event, on SSE.
    pub(super) id: Option<String>,
    pub(super) content: Content,
}

/// The parts of a message that a transport preserves.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// The published bytes; whether they are marked as binary, where the transport can mark them.
    Exact(Vec<u8>, Option<bool>),
    /// The published text, with each line break as a line feed.
    Lines(String),
    /// A message in an envelope.
    Envelope(Value),
    /// A message in a compact envelope.
    Compact(Value),
}

impl Client {
    /// Checks that a message is the next one of a channel that the client follows.
    pub(super) fn message(&mut self, received: &Received, view: View<'_>) -> Check {
        ensure!(self.greetings.is_empty(), "a message came before {:?}", self.greetings);
        if let Some(at) = self.follower_of(received, view.model) {
            return self.fact(at, received, view);
        }
        let Some((nth, offset)) = self.find(received, view) else {
            let expected: Vec<String> =
                self.cursors.iter().map(|cursor| self.expected(cursor, view)).collect();
            return Err(format!("got {received:?}, expected one of {expected:?}"));
        };
        let Cursor { topic, offset: before, .. } = self.cursors[nth];
        let passed =
            view.model.between(topic, before, offset).split_last().map_or(&[][..], |it| it.1);
        let expired =
            passed.iter().filter(|entry| entry.is_expired(view.now.now_ms)).count() as u64;
        view.notes.saw_times("message: left out because it expired", expired);
        let excluded = passed.iter().filter(|entry| entry.excluded.is_some()).count() as u64;
        view.notes.saw_times("message: left out for its publisher", excluded);
        self.cursors[nth] = Cursor { topic, offset, skipped: Skipped::default() };
        self.messages += 1;
        self.received.push((topic, offset));
        match &received.id {
            Some(id) => self.check_id(id, nth, view),
            None => Ok(()),
        }
        .map_err(|objection| format!("{objection}, on offset {offset} of {topic}"))
    }

    /// The index of the cursor whose next message this is, and the message's offset.
    fn find(&self, received: &Received, view: View<'_>) -> Option<(usize, u64)> {
        let (model, reader) = (view.model, view.reader(self.name));
        self.cursors.iter().enumerate().find_map(|(nth, cursor)| {
            let mut candidates = cursor.candidates(reader, model);
            let is_it = |entry: &&Entry| match &received.content {
                Content::Compact(value) => {
                    *value
                        == self.compact(
                            cursor.topic,
                            entry.offset,
                            envelope(model, cursor.topic, entry),
                        )
                }
                _ => is_same(received, model, cursor.topic, entry),
            };
            let entry = candidates.find(is_it)?;
            Some((nth, entry.offset))
        })
    }

    /// The compact envelope of a message, whose full one is given, with the number of its channel
    /// that the client was told.
    pub(super) fn compact(&self, topic: usize, offset: u64, mut full: Value) -> Value {
        let number = self.numbers.get(&topic);
        let mut array = vec![json!(number), json!(offset), full["data"].take()];
        if self.plan.compact == Some(true) {
            array.push(full["time"].take());
        }
        let mut others = std::mem::take(full.as_object_mut().expect("an envelope is an object"));
        let known = ["type", "channel", "user", "id", "time", "data"];
        others.retain(|field, _| !known.contains(&&**field));
        if !others.is_empty() {
            array.push(Value::Object(others));
        }
        Value::Array(array)
    }

    fn expected(&self, cursor: &Cursor, view: View<'_>) -> String {
        let name = view.model.topics[cursor.topic].name;
        match view.model.next_for(cursor.topic, cursor.offset, view.reader(self.name)) {
            Some(entry) => format!("{name} {}: {:?}", entry.offset, entry.body),
            None => format!("nothing on {name} after {}", cursor.offset),
        }
    }

    /// The id of an event is the message's, or the client's position in all of its channels.
    fn check_id(&self, id: &str, nth: usize, view: View<'_>) -> Check {
        let model = view.model;
        let ids: Vec<&str> = id.split(',').collect();
        ensure!(ids.len() == self.cursors.len(), "the id `{id}` of {} channels", ids.len());
        for (at, (id, cursor)) in ids.into_iter().zip(&self.cursors).enumerate() {
            let offset = model.offset(cursor.topic, id)?;
            // Other cursors may have passed over messages.
            let is_expected = if at == nth {
                offset == cursor.offset
            } else {
                // One with a gap to come resumes from the beginning.
                let has_gap = is_out_of_reach(cursor.offset, model.head(cursor.topic));
                cursor.passes_over(offset, view.reader(self.name), model)
                    || (has_gap && offset == 0)
            };
            ensure!(is_expected, "the id `{id}`, but the cursor is {}", cursor.offset);
        }
        Ok(())
    }
}

fn is_same(received: &Received, model: &Model, topic: usize, entry: &Entry) -> bool {
    match &received.content {
        Content::Exact(bytes, is_binary) => {
            let was_binary = matches!(entry.body, Body::Binary(_));
            bytes == entry.body.bytes() && is_binary.is_none_or(|is_binary| is_binary == was_binary)
        }
        Content::Lines(text) => match &entry.body {
            Body::Text(body) | Body::Json(body) => *text == with_line_feeds(body),
            Body::Binary(_) => false,
        },
        Content::Envelope(value) => *value == envelope(model, topic, entry),
        // The client knows the numbers.
        Content::Compact(_) => false,
    }
}

fn with_line_feeds(body: &str) -> String {
    body.replace("\r\n", "\n").replace('\r', "\n")
}

/// The envelope of a message, as the reference specifies it.
pub(super) fn envelope(model: &Model, topic: usize, entry: &Entry) -> Value {
    let named = &model.topics[topic];
    let mut value = json!({
        "type": "message",
        noun(named.kind): named.name,
        "id": model.id(topic, entry.offset),
        "time": entry.time_ms,
    });
    if let Some(expires_ms) = entry.expires_ms {
        value["expires"] = json!(expires_ms);
    }
    shown_body(&mut value, &entry.body, entry.content_type.as_deref());
    value
}

/// The field that names a channel or a user.
pub(super) fn noun(kind: Kind) -> &'static str {
    kind.noun()
}
