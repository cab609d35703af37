//! What the server sends: frames of `throng.v1`, and the notices of the other transports.

use serde_json::{Value, json};

use super::form::{kind, message, reply_reference};
use crate::schema::form::{count, flag, list, object, partial, reference, text, time_ms};

/// The frames and notices by the names of their messages, in the order of the reference.
pub(super) fn messages() -> Vec<(&'static str, Value)> {
    let mut all = answers();
    all.extend(notices());
    all.extend(bodies());
    all
}

/// A frame of `throng.v1` by the name of its message; the type is part of the name.
fn frame(
    name: &'static str,
    kind_name: &str,
    summary: &str,
    fields: &[(&'static str, Value)],
    optional: &[(&'static str, Value)],
) -> (&'static str, Value) {
    let fields = [&[kind(kind_name)], fields].concat();
    (name, message(summary, object(&fields, optional)))
}

/// Answers to commands.
fn answers() -> Vec<(&'static str, Value)> {
    let id = || ("id", reference("MessageId"));
    let about = |optional: &[(&'static str, Value)]| {
        let own = [
            ("channel", reference("Name")),
            ("user", reference("Name")),
            ("ref", reply_reference()),
        ];
        [&own, optional].concat()
    };
    let more = || ("more", flag());
    let recovered = || ("recovered", flag());
    let user = || ("user", reference("Name"));
    let repeated = || ("ref", reply_reference());
    let place = ("id", reference("Position"));
    let history = [id(), ("messages", list(reference("Message"))), more()];
    let presence = [("connections", count()), ("users", list(text())), more()];
    let error = [("code", reference("ErrorCode")), ("message", text())];
    vec![
        frame(
            "subscribed",
            "subscribed",
            "The connection follows a channel; messages after `id` follow.",
            &[place],
            &about(&[("head", reference("MessageId")), recovered()]),
        ),
        frame(
            "unsubscribed",
            "unsubscribed",
            "The connection follows a channel no longer. With a code, the server has ended that.",
            &[],
            &about(&error),
        ),
        frame(
            "published",
            "published",
            "A message is published.",
            &[id(), ("subscribers", count())],
            &about(&[("duplicate", flag())]),
        ),
        frame("historyPage", "history", "A page of messages.", &history, &about(&[recovered()])),
        frame(
            "presenceState",
            "presence",
            "Who follows a channel.",
            &presence,
            &about(&[("partial", partial())]),
        ),
        frame(
            "readMarker",
            "read",
            "How far a user has read.",
            &[user(), ("unread", count())],
            &[("read", reference("MessageId")), repeated()],
        ),
        frame(
            "authenticated",
            "authenticated",
            "The newer token holds.",
            &[("expires_in", count())],
            &[user(), repeated()],
        ),
        frame("pong", "pong", "The answer to a ping.", &[], &[repeated()]),
        frame("error", "error", "A command is refused.", &error, &[repeated()]),
    ]
}

/// What the server sends by itself.
fn notices() -> Vec<(&'static str, Value)> {
    let unread = || ("unread", count());
    let connection = || ("connection", text());
    let heartbeat = ("heartbeat", json!({ "type": "integer", "description": "In seconds." }));
    let left = object(&[("user", text()), ("last_seen", time_ms())], &[]);
    let event = [
        ("channel", reference("Name")),
        ("time", time_ms()),
        ("connections", count()),
        ("users", list(text())),
        ("more", flag()),
    ];
    vec![
        frame(
            "welcome",
            "welcome",
            "The first frame of `throng.v1`.",
            &[connection(), heartbeat, ("channels_max", count()), ("max_message_bytes", count())],
            &[unread()],
        ),
        frame(
            "greeting",
            "welcome",
            "The first notice of the other transports, with `welcome=true`.",
            &[("id", reference("Position"))],
            &[connection(), ("recovered", flag()), unread()],
        ),
        frame("heartbeat", "heartbeat", "There was no other frame for a while.", &[], &[]),
        frame(
            "gap",
            "gap",
            "Messages are missing; delivery goes on after `id`.",
            &[("id", reference("MessageId"))],
            &[("channel", reference("Name")), ("user", reference("Name")), ("missed", count())],
        ),
        frame(
            "presenceEvent",
            "presence",
            "Who is in a channel, and what has changed.",
            &event,
            &[("joined", list(text())), ("left", list(left))],
        ),
        frame(
            "late",
            "late",
            "Messages come late, or do not any more: the server was cut off from where they come \
             from.",
            &[("late", flag())],
            &[],
        ),
        frame("expiring", "expiring", "The token will expire.", &[("expires_in", count())], &[]),
        frame(
            "closed",
            "closed",
            "The last notice of a stream that the server ends.",
            &[("code", text()), ("close_code", count()), ("message", text())],
            &[],
        ),
        (
            "resumed",
            message(
                "The first event, if the client has resumed.",
                object(&[("recovered", flag())], &[]),
            ),
        ),
    ]
}

/// Messages of channels.
fn bodies() -> Vec<(&'static str, Value)> {
    let envelope = message("A message as one JSON object.", reference("Message"));
    let mut body = message("The body of a message, as published.", json!({}));
    body["contentType"] = "text/plain".into();
    vec![("message", envelope), ("body", body)]
}

#[cfg(test)]
mod tests {
    use throng_wire::v1::{self, HistoryPage, PresenceEvent, Present, RawValue};
    use throng_wire::{ErrorCode, Kind, Target};

    use super::*;

    /// Expects that the message has all fields of a frame, and that the frame has all fields that
    /// the message requires.
    fn check(name: &str, write: impl FnOnce(&mut Vec<u8>, Option<&RawValue>)) {
        let reference = RawValue::from_string("7".into()).unwrap();
        let mut out = Vec::new();
        write(&mut out, Some(&reference));
        let frame: Value = serde_json::from_slice(&out).unwrap();
        let (_, message) = messages().into_iter().find(|(known, _)| *known == name).unwrap();
        let properties = message["payload"]["properties"].as_object().unwrap();
        for field in frame.as_object().unwrap().keys() {
            assert!(properties.contains_key(field), "{name} has no `{field}`");
        }
        for field in message["payload"]["required"].as_array().unwrap() {
            assert!(frame.get(field.as_str().unwrap()).is_some(), "{name} lacks {field}");
        }
        let kind = properties["type"]["const"].as_str().unwrap();
        assert_eq!(frame["type"], kind, "{name}");
    }

    #[test]
    fn answers_have_the_fields_that_are_written() {
        let target = Target { kind: Kind::Channel, name: "a".into() };
        let user = Target { kind: Kind::User, name: "u".into() };
        let error = ErrorCode::Forbidden.into();
        check("subscribed", |out, of| {
            v1::subscribed(out, &target, "a-1", Some("a-2"), Some(true), of);
        });
        check("unsubscribed", |out, of| v1::unsubscribed(out, &target, of));
        check("unsubscribed", |out, _| v1::revoked(out, &target, &error));
        check("published", |out, of| v1::published(out, &target, "a-1", 3, true, of));
        check("historyPage", |out, of| {
            let page = HistoryPage {
                target: &target,
                id: "a-1",
                has_more: true,
                is_recovered: Some(true),
            };
            v1::history(out, page, [] as [fn(&mut Vec<u8>); 0], of);
        });
        let present = Present { connections: 1, users: &["u"], more: true, is_partial: true };
        check("presenceState", |out, of| v1::presence(out, &target, present, of));
        check("readMarker", |out, of| v1::read(out, &user, (Some("a-1"), 3), of));
        check("authenticated", |out, of| v1::authenticated(out, Some("u"), 3, of));
        check("pong", v1::pong);
        check("error", |out, of| v1::error(out, &error, of));
    }

    #[test]
    fn notices_have_the_fields_that_are_written() {
        let terms = v1::Terms { heartbeat_s: 25, max_channels: 128, max_message_bytes: 1 << 16 };
        let target = Target { kind: Kind::Channel, name: "a".into() };
        check("welcome", |out, _| v1::welcome(out, "c1", &terms, Some(3)));
        check("greeting", |out, _| {
            v1::greeting(out, Some("c1"), "a-1", Some(true), Some(3));
        });
        check("gap", |out, _| v1::gap(out, &target, Some(3), "a-1"));
        check("expiring", |out, _| v1::expiring(out, 3));
        check("late", |out, _| v1::late(out, true));
        check("closed", |out, _| v1::closed(out, "token_expired", 4002, "why"));
        let (user, time) = ("u".into(), 1);
        let event = PresenceEvent { channel: "a", time_ms: 1, connections: 1, users: Some(&["u"]) };
        check("presenceEvent", |out, _| v1::presence_state(out, event));
        check("presenceEvent", |out, _| {
            v1::presence_event(out, event, [&user], [(&user, time)]);
        });
    }
}
