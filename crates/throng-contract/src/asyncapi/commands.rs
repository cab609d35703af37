//! The commands of clients on `throng.v1`.

use serde_json::{Value, json};
use throng_wire::subscribe::HISTORY_MAX;
use throng_wire::v1::{CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX, KEY_BYTES_MAX, LIMIT_MAX};

use super::form::{kind, message, reply_reference};
use crate::schema::form::{flag, object, reference, text};

/// The commands by the names of their messages.
pub(super) fn messages() -> Vec<(&'static str, Value)> {
    let name = || reference("Name");
    let id = || reference("MessageId");
    let count =
        |least: u32, most: u32| json!({ "type": "integer", "minimum": least, "maximum": most });
    let short = |most: usize| json!({ "type": "string", "minLength": 1, "maxLength": most });
    let subscribe = [
        ("since", reference("Position")),
        ("history", count(0, HISTORY_MAX)),
        ("presence", flag()),
    ];
    let publish = [
        ("encoding", json!({ "type": "string", "const": "base64" })),
        ("content_type", short(CONTENT_TYPE_BYTES_MAX)),
        ("key", short(KEY_BYTES_MAX)),
        ("expires_in", count(1, EXPIRES_IN_S_MAX)),
        ("echo", flag()),
    ];
    let history = [("limit", count(1, LIMIT_MAX)), ("before", id()), ("after", id())];
    let data = ("data", json!({ "description": "A string is a text, any other value JSON." }));
    let read = [("id", id()), ("back", flag())];
    vec![
        about("subscribe", "Follow a channel.", &[], &subscribe),
        about("unsubscribe", "Follow a channel no longer.", &[], &[]),
        about("publish", "Publish a message.", &[data], &publish),
        about("history", "Read messages of a channel.", &[], &history),
        about("presence", "Ask who follows a channel.", &[], &[("limit", count(1, LIMIT_MAX))]),
        other("read", "Ask for or move the read marker of a user.", &[("user", name())], &read),
        other("auth", "Show a newer token.", &[("token", text())], &[]),
        other("ping", "Ask for a pong.", &[], &[]),
    ]
}

/// A command about a channel or a user.
fn about(
    name: &'static str,
    summary: &str,
    fields: &[(&'static str, Value)],
    optional: &[(&'static str, Value)],
) -> (&'static str, Value) {
    let targets = [("channel", reference("Name")), ("user", reference("Name"))];
    let (name, mut message) = other(name, summary, fields, &[&targets, optional].concat());
    let one = [json!({ "required": ["channel"] }), json!({ "required": ["user"] })];
    message["payload"]["oneOf"] = one.as_slice().into();
    (name, message)
}

fn other(
    name: &'static str,
    summary: &str,
    fields: &[(&'static str, Value)],
    optional: &[(&'static str, Value)],
) -> (&'static str, Value) {
    let fields = [&[kind(name)], fields].concat();
    let optional = [&[("ref", reply_reference())], optional].concat();
    let mut payload = object(&fields, &optional);
    // A command with any other field is refused.
    payload["additionalProperties"] = false.into();
    (name, message(summary, payload))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn commands_have_the_fields_that_the_parser_knows() {
        let documented = messages().into_iter().map(|(name, message)| {
            let properties = message["payload"]["properties"].as_object().unwrap().clone();
            (name.to_owned(), properties.keys().cloned().collect::<BTreeSet<_>>())
        });
        let known = throng_wire::v1::COMMANDS.iter().map(|(name, fields)| {
            ((*name).to_owned(), fields.iter().map(|field| (*field).to_owned()).collect())
        });
        assert_eq!(documented.collect::<Vec<_>>(), known.collect::<Vec<_>>());
    }
}
