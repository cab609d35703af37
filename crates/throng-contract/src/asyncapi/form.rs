//! The parts that messages are made of.

use serde_json::{Value, json};

/// A message of the document, whose payload is a JSON object.
pub(super) fn message(summary: &str, payload: Value) -> Value {
    json!({ "summary": summary, "payload": payload })
}

/// The field `type`, with its only value.
pub(super) fn kind(name: &str) -> (&'static str, Value) {
    ("type", json!({ "type": "string", "const": name }))
}

/// What an answer repeats.
pub(super) fn reply_reference() -> Value {
    json!({
        "type": ["string", "number"],
        "description": "The answer repeats it, if it has at most 64 bytes.",
    })
}
