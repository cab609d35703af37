//! Compares a received message with the model's log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::{Body, Kind};

use super::Client;
use super::expected::Cursor;
use super::view::{View, is_out_of_reach};
use crate::model::{Entry, Model};
use crate::{Check, ensure};

/// A message as the client received it.
#[derive(Debug, Clone)]
pub(super) struct Received {
    /// The id of the event, on SSE.
    pub(super) id: Option<String>,
    pub(super) content: Content,
}

/// What a transport preserves of a message.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// The published bytes; whether they are marked as binary, where the transport can mark them.
    Exact(Vec<u8>, Option<bool>),
    /// The published text, with each line break as a line feed.
    Lines(String),
    /// A message in an envelope.
    Envelope(Value),
}

impl Client {
    /// Checks that a message is the next one of a channel that the client follows.
    pub(super) fn message(&mut self, received: &Received, view: View<'_>) -> Check {
        ensure!(self.greetings.is_empty(), "a message came before {:?}", self.greetings);
        let Some((nth, offset)) = self.find(received, view.model) else {
            let expected: Vec<String> =
                self.cursors.iter().map(|cursor| self.expected(cursor, view.model)).collect();
            return Err(format!("got {received:?}, expected one of {expected:?}"));
        };
        let Cursor { topic, offset: before } = self.cursors[nth];
        let excluded = view.model.between(topic, before, offset).len() as u64 - 1;
        view.notes.saw_times("message: left out for its publisher", excluded);
        self.cursors[nth].offset = offset;
        self.messages += 1;
        self.received.push((topic, offset));
        match &received.id {
            Some(id) => self.check_id(id, nth, view.model),
            None => Ok(()),
        }
        .map_err(|objection| format!("{objection}, on offset {offset} of {topic}"))
    }

    /// The index of the cursor whose next message this is, and the message's offset.
    fn find(&self, received: &Received, model: &Model) -> Option<(usize, u64)> {
        self.cursors.iter().enumerate().find_map(|(nth, cursor)| {
            let (offset, entry) = model.next_for(cursor.topic, cursor.offset, self.name)?;
            is_same(received, model, cursor.topic, entry).then_some((nth, offset))
        })
    }

    fn expected(&self, cursor: &Cursor, model: &Model) -> String {
        let name = model.topics[cursor.topic].name;
        match model.next_for(cursor.topic, cursor.offset, self.name) {
            Some((offset, entry)) => format!("{name} {offset}: {:?}", entry.body),
            None => format!("nothing on {name} after {}", cursor.offset),
        }
    }

    /// The id of an event is the message's, or the client's position in all of its channels.
    fn check_id(&self, id: &str, nth: usize, model: &Model) -> Check {
        let ids: Vec<&str> = id.split(',').collect();
        ensure!(ids.len() == self.cursors.len(), "the id `{id}` of {} channels", ids.len());
        for (at, (id, cursor)) in ids.into_iter().zip(&self.cursors).enumerate() {
            let offset = model.offset(cursor.topic, id)?;
            // Other cursors may have passed messages that exclude this connection.
            let is_expected = if at == nth {
                offset == cursor.offset
            } else {
                // One with a gap to come resumes from the beginning.
                let has_gap = is_out_of_reach(cursor.offset, model.head(cursor.topic));
                model.is_only_excluded(cursor.topic, cursor.offset, offset, self.name)
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
    match (&entry.content_type, &entry.body) {
        (Some(content_type), _) => value["content_type"] = json!(content_type),
        (None, Body::Binary(_)) => value["content_type"] = json!("application/octet-stream"),
        (None, _) => {}
    }
    value["data"] = match &entry.body {
        Body::Text(text) => json!(text),
        Body::Json(text) => serde_json::from_str(text).unwrap_or_default(),
        Body::Binary(bytes) => {
            value["encoding"] = json!("base64");
            json!(STANDARD.encode(bytes))
        }
    };
    value
}

/// The field that names a channel or a user.
pub(super) fn noun(kind: Kind) -> &'static str {
    kind.noun()
}
