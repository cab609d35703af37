//! The query parameters of each path that the control plane answers. A request with any other
//! parameter is refused.

use serde_json::{Value, json};
use throng_wire::subscribe::{HISTORY_MAX, WAIT_S_MAX};
use throng_wire::v1::LIMIT_MAX;

/// A query parameter.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The name, as in the query.
    pub name: &'static str,
    /// One sentence, for people.
    pub(crate) description: &'static str,
    /// The schema of its value.
    pub(crate) schema: fn() -> Value,
    /// Whether a request without it is refused.
    pub(crate) is_required: bool,
}

const fn parameter(
    name: &'static str,
    description: &'static str,
    schema: fn() -> Value,
) -> Parameter {
    Parameter { name, description, schema, is_required: false }
}

const LIMIT: Parameter = parameter(
    "limit",
    "The largest number of entries of the page.",
    || json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 }),
);
const AFTER: Parameter = parameter(
    "after",
    "The `after` of the page before: this request is for the next one.",
    || json!({ "type": "string" }),
);
const AFTER_ID: Parameter =
    parameter("after", "The oldest messages after this id.", || reference("MessageId"));
const BEFORE_ID: Parameter =
    parameter("before", "The newest messages before this id.", || reference("MessageId"));
/// The name of a path that has none, such as `/history`.
pub(crate) const CHANNEL: Parameter = parameter("channel", "The channel.", || reference("Name"));
pub(crate) const USER: Parameter = parameter("user", "The user.", || reference("Name"));

const PATTERN: Parameter = parameter(
    "pattern",
    "Only names that match, in which `*` stands for any text.",
    || json!({ "type": "string", "minLength": 1, "maxLength": 255 }),
);

/// `/channels/{channel}/history`, and that of users.
pub const HISTORY: &[Parameter] = &[LIMIT, BEFORE_ID, AFTER_ID];
/// `/channels/{channel}/presence`, and that of users.
pub const PRESENCE: &[Parameter] = &[LIMIT];
/// What publishes one message: `POST` of a channel and of a user.
pub const PUBLISH: &[Parameter] = &[parameter(
    "count",
    "`all`: `subscribers` are those of all nodes, and not of this one alone.",
    || json!({ "type": "string", "enum": ["all"] }),
)];
/// What moves a read marker: `PUT /users/{user}/read`.
pub const READ: &[Parameter] = &[
    Parameter {
        is_required: true,
        ..parameter("id", "The message up to which the user has read.", || reference("MessageId"))
    },
    parameter("back", "Whether the marker may go back.", boolean),
];
/// `/channels` and `/users`.
pub const LISTS: &[Parameter] = &[LIMIT, PATTERN, AFTER];
/// `GET /users/{user}/subscriptions` and `/channels/{channel}/followers`.
pub const KEPT: &[Parameter] = &[LIMIT, AFTER];
/// What ends kept subscriptions: `DELETE /users/{user}/subscriptions`.
pub const UNFOLLOW: &[Parameter] =
    &[parameter("channel", "Only this channel; all unless given.", || reference("Name"))];
/// Changes of many users: `POST /subscriptions`.
pub const BULK: &[Parameter] = &[
    parameter("atomic", "Whether nothing changes unless every line is right.", boolean),
    parameter("check", "Whether nothing changes in any case.", boolean),
];
/// `GET /users/{user}/connections` and `/channels/{channel}/connections`.
pub const CONNECTIONS: &[Parameter] = &[LIMIT];
/// Connections that are behind: `GET /connections`.
pub const BEHIND: &[Parameter] = &[
    parameter(
        "sort",
        "Without a name only connections that are behind are listed, and this says so.",
        || json!({ "type": "string", "enum": ["behind"] }),
    ),
    LIMIT,
];
/// `DELETE` of connections.
pub const DISCONNECT: &[Parameter] = &[
    parameter("reconnect", "Whether the clients may come back; `true` unless given.", boolean),
    parameter(
        "code",
        "The close code of WebSockets: 4100 to 4499 for clients that may come back, 4500 to 4999 \
         for those that should not.",
        || json!({ "type": "integer", "minimum": 4100, "maximum": 4999 }),
    ),
    parameter(
        "reason",
        "The reason that clients get, at most 123 bytes.",
        || json!({ "type": "string", "maxLength": 123 }),
    ),
];
/// The list of revocations: `GET /revocations`.
pub const REVOCATIONS: &[Parameter] = &[LIMIT, AFTER];
/// What revokes tokens of a user: `POST /revocations/users/{user}`.
pub const REVOKE_USER: &[Parameter] = &[parameter(
    "before",
    "Only what was issued before this moment, in seconds since 1970.",
    || json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
)];
/// The newest sample: `GET /status.json`.
pub const STATUS: &[Parameter] = &[parameter(
    "history",
    "How many samples to add, by column.",
    || json!({ "type": "integer", "minimum": 0, "maximum": 900 }),
)];
/// Paths whose requests have no parameters.
pub const NONE: &[Parameter] = &[];

/// Subscriptions, in workers and in the control plane. Which of them a path takes: see
/// `of_subscription`.
const SUBSCRIBE: &[Parameter] = &[
    parameter(
        "channel",
        "A channel to follow; repeat it for several.",
        || json!({ "type": "array", "items": reference("Name") }),
    ),
    parameter(
        "user",
        "The user whose connection this is; it follows the user's inbox, too.",
        || reference("Name"),
    ),
    parameter("since", "Resume: everything after this id, then live.", || reference("Position")),
    parameter(
        "history",
        "The last so many messages, then live. Ignored if there is an id to resume from.",
        || json!({ "type": "integer", "minimum": 0, "maximum": HISTORY_MAX }),
    ),
    parameter(
        "wait",
        "A long-poll, answered after at most so many seconds.",
        || json!({ "type": "number", "minimum": 0, "maximum": WAIT_S_MAX }),
    ),
    parameter("envelope", "Messages come as envelopes instead of plain bodies.", boolean),
    parameter("welcome", "Whether the subscription begins with a welcome.", boolean),
    parameter(
        "presence",
        "Follow presence events, too: `true`, or one value for each channel, joined by commas: \
         `true`, `false`, or the `time` of its last event.",
        || {
            let of_channel = "(true|false|[0-9]{1,19})";
            json!({ "type": "string", "pattern": format!("^{of_channel}(,{of_channel})*$") })
        },
    ),
    parameter(
        "transport",
        "Overrides what the headers ask for.",
        || json!({ "type": "string", "enum": ["websocket", "sse", "poll", "stream"] }),
    ),
    parameter(
        "compression",
        "`none`: messages of a WebSocket are not compressed, whatever the client offers.",
        || json!({ "type": "string", "enum": ["none"] }),
    ),
    parameter(
        "token",
        "A token, for clients that can set no header.",
        || json!({ "type": "string", "maxLength": 8192 }),
    ),
];

/// The parameters of a subscription to what the path names. `/users/{user}` and
/// `/channels/{channel}` take no further channels, and an inbox has one user.
pub(crate) fn of_subscription(path: &str) -> Vec<Parameter> {
    let is_taken = |name: &str| match name {
        "channel" => path == "/subscribe",
        "user" => !path.starts_with("/users/"),
        _ => true,
    };
    SUBSCRIBE.iter().filter(|parameter| is_taken(parameter.name)).copied().collect()
}

fn boolean() -> Value {
    json!({ "type": "boolean", "default": false })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_take_what_the_parser_knows() {
        let names: Vec<_> = SUBSCRIBE.iter().map(|parameter| parameter.name).collect();
        assert_eq!(names, throng_wire::subscribe::PARAMETERS);
    }
}
