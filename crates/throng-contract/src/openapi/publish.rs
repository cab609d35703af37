//! Paths that publish.

use serde_json::{Value, json};
use throng_wire::ErrorCode;
use throng_wire::v1::{EXPIRES_IN_S_MAX, KEY_BYTES_MAX};

use super::noun::NOUNS;
use crate::operation::Operation;
use crate::query;
use crate::schema::form::reference;

/// The headers of publications that change what they do.
pub(super) fn headers() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (
            "Idempotency-Key",
            "A repeated key on the same channel publishes nothing.",
            json!({ "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX }),
        ),
        (
            "Throng-Exclude",
            "Do not deliver to the connection with this `Throng-Connection`.",
            json!({ "type": "string" }),
        ),
        (
            "Throng-Expires-In",
            "After how many seconds the message expires.",
            json!({ "type": "integer", "minimum": 1, "maximum": EXPIRES_IN_S_MAX }),
        ),
        (
            "Prefer",
            "When publishing `receipt, wait=SECONDS`, when subscribing `wait=SECONDS`.",
            json!({ "type": "string" }),
        ),
    ]
}

const DESCRIPTION: &str = "The body is the message, of any content type; `application/json` must \
    be JSON, and text must be UTF-8. The answer comes once the message is accepted, or with \
    `Prefer: receipt` once its subscribers have it.";

const BATCH: &str = "With a name in the query, the body is one message to it, as with the name in \
    the path. Without one, the body is a batch: one JSON object per line, or one array of them; \
    the answers have the same form and order. The status says nothing about single messages: look \
    at each answer.";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    for noun in NOUNS {
        for (method, verb) in [("POST", "publish"), ("PUT", "put")] {
            let id = format!("{verb}To{}", noun.id);
            let summary = format!("Publish a message to {}", noun.words);
            let operation = Operation::new(method, noun.path, id, ("Publish", summary));
            all.push(message(operation));
        }
    }
    let item = || json!({ "type": "array", "items": reference("Publication") });
    let answer = || json!({ "type": "array", "items": reference("BatchAnswer") });
    let lines = || json!({ "type": "string", "description": "One JSON object per line." });
    let batch = Operation::new(
        "POST",
        "/publish",
        "publishBatch",
        ("Publish", "Publish a batch of messages"),
    );
    let batch = batch
        .described(BATCH)
        .query(&[query::CHANNEL, query::USER])
        .body(&[("application/json", item()), ("application/x-ndjson", lines())])
        .answers(
            200,
            "One answer for each message; that of one message whose key is repeated.",
            &[
                ("application/json", json!({ "anyOf": [answer(), reference("Published")] })),
                ("application/x-ndjson", lines()),
            ],
        )
        .answers(201, "The message is published.", &[("application/json", reference("Published"))])
        .refuses(REFUSED);
    all.push(batch);
    all
}

/// The codes with which a message is refused.
const REFUSED: &[ErrorCode] = &[
    ErrorCode::BadName,
    ErrorCode::BadJson,
    ErrorCode::BadUtf8,
    ErrorCode::Unavailable,
    ErrorCode::OutcomeUnknown,
    ErrorCode::NotStored,
];

fn message(operation: Operation) -> Operation {
    let body = [
        ("text/plain", json!({ "type": "string" })),
        ("application/json", json!({})),
        ("application/octet-stream", json!({ "type": "string", "format": "binary" })),
    ];
    let published = [("application/json", reference("Published"))];
    operation
        .described(DESCRIPTION)
        .headers(&["Idempotency-Key", "Throng-Exclude", "Throng-Expires-In", "Prefer"])
        .query(query::PUBLISH)
        .body(&body)
        .answers(200, "The idempotency key is repeated; nothing was published.", &published)
        .answers_with(201, "The message is published.", &published, &["Preference-Applied"])
        .refuses(REFUSED)
}
