//! One message, held against the log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::{Body, Kind};

use super::{Client, Cursor, View};
use crate::model::{Entry, Model};
use crate::{Check, ensure};

/// A message as it came.
#[derive(Debug, Clone)]
pub struct Received {
    /// The id that came with it, on SSE.
    pub id: Option<String>,
    /// The content of the message.
    pub content: Content,
}

/// What came of a message.
#[derive(Debug, Clone)]
pub enum Content {
    /// What was published; whether it was marked as binary, where a transport can say so.
    Exact(Vec<u8>, Option<bool>),
    /// What was published, with every line break turned into a line feed.
    Lines(String),
    /// A message in an envelope.
    Envelope(Value),
}

impl Client {
    /// A message has come: it must be the next one of a channel that the client follows.
    pub(super) fn message(&mut self, received: &Received, view: View<'_>) -> Check {
        ensure!(self.greetings.is_empty(), "a message came before {:?}", self.greetings);
        let Some((nth, offset)) = self.find(received, view.model) else {
            let expected: Vec<String> =
                self.cursors.iter().map(|cursor| self.expected(cursor, view.model)).collect();
            return Err(format!("got {received:?}, expected one of {expected:?}"));
        };
        let topic = self.cursors[nth].topic;
        let skipped = offset - self.cursors[nth].at - 1;
        view.notes.saw_times("message: left out for its publisher", skipped);
        self.cursors[nth].at = offset;
        self.messages += 1;
        match &received.id {
            Some(id) => self.check_id(id, nth, view.model),
            None => Ok(()),
        }
        .map_err(|objection| format!("{objection}, on offset {offset} of {topic}"))
    }

    /// The subscription whose next message this is.
    fn find(&self, received: &Received, model: &Model) -> Option<(usize, u64)> {
        self.cursors.iter().enumerate().find_map(|(nth, cursor)| {
            let (offset, entry) = model.next_for(cursor.topic, cursor.at, self.name)?;
            is_it(received, model, cursor.topic, offset, entry).then_some((nth, offset))
        })
    }

    fn expected(&self, cursor: &Cursor, model: &Model) -> String {
        let name = model.topics[cursor.topic].name;
        match model.next_for(cursor.topic, cursor.at, self.name) {
            Some((offset, entry)) => format!("{name} {offset}: {:?}", entry.body),
            None => format!("nothing on {name} after {}", cursor.at),
        }
    }

    /// The id of an event is the message's, or the client's position in all of its channels.
    fn check_id(&self, id: &str, nth: usize, model: &Model) -> Check {
        let ids: Vec<&str> = id.split(',').collect();
        ensure!(ids.len() == self.cursors.len(), "the id `{id}` of {} channels", ids.len());
        for (at, (id, cursor)) in ids.into_iter().zip(&self.cursors).enumerate() {
            let offset = model.offset(id)?;
            // Others may have moved over messages that are not for this connection.
            let is_it = match at == nth {
                true => offset == cursor.at,
                false => model.is_only_excepted(cursor.topic, cursor.at, offset, self.name),
            };
            ensure!(is_it, "the id `{id}` where the cursor is at {}", cursor.at);
        }
        Ok(())
    }
}

fn is_it(received: &Received, model: &Model, topic: usize, offset: u64, entry: &Entry) -> bool {
    match &received.content {
        Content::Exact(bytes, is_binary) => {
            let is_marked = matches!(entry.body, Body::Binary(_));
            bytes == entry.body.bytes() && is_binary.is_none_or(|is| is == is_marked)
        }
        Content::Lines(text) => match &entry.body {
            Body::Text(body) | Body::Json(body) => *text == lines(body),
            Body::Binary(_) => false,
        },
        Content::Envelope(value) => *value == envelope(model, topic, offset, entry),
    }
}

fn lines(body: &str) -> String {
    body.replace("\r\n", "\n").replace('\r', "\n")
}

/// The envelope that the reference asks for.
pub(super) fn envelope(model: &Model, topic: usize, offset: u64, entry: &Entry) -> Value {
    let named = &model.topics[topic];
    let mut value = json!({
        "type": "message",
        noun(named.kind): named.name,
        "id": model.id(offset),
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
