//! The schemas of messages, and of what is known about channels and users.

use serde_json::{Value, json};
use throng_wire::ErrorCode;
use throng_wire::v1::{CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX, KEY_BYTES_MAX};

use super::form::{count, described, flag, list, object, partial, reference, text, time_ms};

pub(super) fn all() -> Vec<(&'static str, Value)> {
    let mut all = names();
    all.extend(messages());
    all.extend(logs());
    all
}

fn names() -> Vec<(&'static str, Value)> {
    let name = json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "description": "1 to 255 bytes of UTF-8 without control characters. No part between \
            slashes is empty, `.` or `..`.",
    });
    let id = json!({
        "type": "string",
        "pattern": "^[0-9a-z]{1,13}-[0-9]{1,20}$",
        "description": "A message's id: the epoch of its log, and its offset there.",
    });
    let position = described(
        text(),
        "A message's id; with several channels one for each, joined by commas; on a connection \
         with kept channels its position, which begins with `~`.",
    );
    let codes: Vec<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
    let code = json!({ "type": "string", "enum": codes });
    let message = described(text(), "One sentence, for people.");
    let error = object(&[("error", reference("ErrorCode")), ("message", message)], &[]);
    vec![
        ("Name", name),
        ("MessageId", id),
        ("Position", position),
        ("ErrorCode", described(code, "Why something is refused. Programs may rely on it.")),
        ("Error", described(error, "Why something is refused.")),
    ]
}

/// Messages, and what becomes of them.
fn messages() -> Vec<(&'static str, Value)> {
    let data = json!({
        "description": "A string for text, base64 for a binary body, and any other value for JSON.",
    });
    let base64 = json!({ "type": "string", "const": "base64" });
    let target = || vec![("channel", reference("Name")), ("user", reference("Name"))];
    let content_type =
        || json!({ "type": "string", "minLength": 1, "maxLength": CONTENT_TYPE_BYTES_MAX });
    let mut optional = target();
    optional.extend([
        ("content_type", content_type()),
        ("encoding", base64.clone()),
        ("expires", time_ms()),
        ("position", reference("Position")),
    ]);
    let message = object(
        &[
            ("type", json!({ "type": "string", "const": "message" })),
            ("id", reference("MessageId")),
            ("time", time_ms()),
            ("data", data.clone()),
        ],
        &optional,
    );
    let mut optional = target();
    optional.extend([
        ("encoding", base64),
        ("content_type", content_type()),
        ("key", json!({ "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX })),
        ("exclude", described(text(), "The connection that does not get the message.")),
        ("expires_in", json!({ "type": "integer", "minimum": 1, "maximum": EXPIRES_IN_S_MAX })),
    ]);
    let publication = object(&[("data", data)], &optional);
    let published = object(
        &[
            ("id", reference("MessageId")),
            ("subscribers", described(count(), "Connections that get the message.")),
        ],
        &[
            ("duplicate", described(flag(), "Whether its idempotency key is repeated.")),
            ("receipt", reference("Receipt")),
            ("partial", partial()),
        ],
    );
    let reasons = ["lagging", "skipped", "closed", "expired"].map(|name| (name, count()));
    let outcomes = json!({ "type": "string", "enum": ["complete", "timeout", "unknown"] });
    let receipt = object(
        &[
            ("outcome", outcomes),
            ("matched", count()),
            ("written", count()),
            ("behind", count()),
            ("unknown", count()),
            ("dropped", count()),
            ("dropped_by", object(&reasons, &[])),
        ],
        &[],
    );
    let answer = json!({ "oneOf": [reference("Published"), reference("Error")] });
    vec![
        ("Message", described(message, "An envelope. It has `channel` or `user`.")),
        ("Publication", described(publication, "A message to publish to `channel` or `user`.")),
        ("Published", published),
        ("Receipt", described(receipt, "What became of a message.")),
        ("BatchAnswer", answer),
    ]
}

/// What is known about channels and users.
fn logs() -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for (noun, [history, presence, page, entry], plural) in [
        (
            "channel",
            ["ChannelHistory", "ChannelPresence", "ChannelList", "ListedChannel"],
            "channels",
        ),
        ("user", ["UserHistory", "UserPresence", "UserList", "ListedUser"], "users"),
    ] {
        let named = (noun, reference("Name"));
        let fields = [
            named.clone(),
            ("id", reference("MessageId")),
            ("messages", list(reference("Message"))),
            ("more", flag()),
        ];
        all.push((history, object(&fields, &[("recovered", flag())])));
        let fields =
            [named.clone(), ("connections", count()), ("users", list(text())), ("more", flag())];
        all.push((presence, object(&fields, &[("partial", partial())])));
        let fields = [
            named,
            ("subscribers", count()),
            ("id", reference("MessageId")),
            ("messages", described(count(), "How many the log keeps.")),
        ];
        all.push((entry, object(&fields, &[])));
        let fields = [(plural, list(reference(entry))), ("more", flag())];
        all.push((page, object(&fields, &[("after", text())])));
    }
    let marker = object(
        &[("user", reference("Name")), ("unread", count())],
        &[("read", reference("MessageId"))],
    );
    all.push(("ReadMarker", marker));
    all
}
