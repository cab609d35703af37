//! Paths that subscribe.

use serde_json::{Value, json};
use throng_wire::ErrorCode;

use super::noun::NOUNS;
use crate::operation::{Access, Operation};
use crate::query::{self, of_subscription};
use crate::schema::form::reference;

const DESCRIPTION: &str = "The transport is a WebSocket with `Upgrade: websocket`, server-sent \
    events with `Accept: text/event-stream`, a long-poll with `wait`, and a chunked stream \
    otherwise; `transport` overrides that. A temporary refusal has the form of its transport: \
    `200` with a comment and `retry:` for server-sent events, `101` and a close code for \
    WebSockets.";

/// The headers of subscriptions that change what they do.
pub(super) fn headers() -> Vec<(&'static str, &'static str, Value)> {
    vec![("Last-Event-ID", "Resume after this id; it overrides `since`.", reference("Position"))]
}

pub(super) fn operations() -> Vec<Operation> {
    let several =
        Operation::new("GET", "/subscribe", "subscribe", ("Subscribe", "Follow several channels"));
    let mut all = vec![subscription(several)];
    for noun in NOUNS {
        let id = format!("subscribeTo{}", noun.id);
        let summary = format!("Follow {}", noun.words);
        let operation = Operation::new("GET", noun.path, id, ("Subscribe", summary));
        all.push(subscription(operation));
    }
    let status = Operation::new(
        "GET",
        "/status/stream",
        "followStatus",
        ("Status", "Follow the samples of the status"),
    );
    let events = ("text/event-stream", json!({ "type": "string" }));
    let status = status
        .access(Access::Key("administration"))
        .query(query::NONE)
        .answers_with(200, "A sample a second.", &[events], &["Throng-Id", "Throng-Connection"])
        .refuses(&[ErrorCode::NotFound, ErrorCode::BadId, ErrorCode::Unavailable]);
    all.push(status);
    all
}

fn subscription(operation: Operation) -> Operation {
    let parameters = of_subscription(&operation.path);
    let text = || json!({ "type": "string" });
    let content = [
        ("text/event-stream", text()),
        ("text/plain", text()),
        ("application/x-ndjson", text()),
        ("*/*", json!({})),
    ];
    const HEADERS: &[&str] = &["Throng-Id", "Throng-Recovered", "Throng-Connection"];
    operation
        .described(DESCRIPTION)
        .query(&parameters)
        .headers(&["Last-Event-ID", "Prefer"])
        .answers(101, "A WebSocket: see `/asyncapi.json`.", &[])
        .answers_with(
            200,
            "A stream of messages, or the messages of a long-poll with their content type.",
            &content,
            HEADERS,
        )
        .answers_with(204, "A long-poll that ended without a message.", &[], HEADERS)
        .refuses(&[
            ErrorCode::BadName,
            ErrorCode::BadId,
            ErrorCode::TooManyChannels,
            ErrorCode::BadUtf8,
            ErrorCode::BadHandshake,
            ErrorCode::NotFound,
            ErrorCode::UpgradeRequired,
            ErrorCode::Unavailable,
        ])
}
