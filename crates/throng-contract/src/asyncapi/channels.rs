//! Where messages go: paths with their transports, and who sends what.

use serde_json::{Map, Value, json};

/// The commands of `throng.v1`, and what answers them.
const COMMANDS: &[(&str, &[&str])] = &[
    ("subscribe", &["subscribed"]),
    ("unsubscribe", &["unsubscribed"]),
    ("publish", &["published"]),
    ("history", &["historyPage"]),
    ("presence", &["presenceState"]),
    ("read", &["readMarker"]),
    ("auth", &["authenticated"]),
    ("ping", &["pong"]),
];

/// What the server sends on `throng.v1` by itself.
const V1_NOTICES: &[&str] = &[
    "welcome",
    "subscribed",
    "unsubscribed",
    "message",
    "heartbeat",
    "gap",
    "presenceEvent",
    "late",
    "expiring",
    "error",
];

/// What it sends on WebSockets without `throng.v1`.
const PLAIN: &[&str] = &["body", "message", "greeting", "gap", "presenceEvent", "error"];
/// What it sends as server-sent events.
const EVENTS: &[&str] =
    &["body", "message", "resumed", "greeting", "gap", "presenceEvent", "late", "closed"];
/// What it sends as lines.
const LINES: &[&str] = &["body", "message", "greeting", "gap", "presenceEvent", "closed"];

/// A transport of a path.
struct Transport {
    id: &'static str,
    title: &'static str,
    description: &'static str,
    server: &'static str,
    /// What the server sends.
    sends: &'static [&'static str],
    /// What it receives.
    receives: &'static [&'static str],
}

const TRANSPORTS: [Transport; 4] = [
    Transport {
        id: "V1",
        title: "throng.v1",
        description: "A WebSocket with the sub-protocol `throng.v1`: text frames, one object each.",
        server: "websocket",
        sends: V1_NOTICES,
        receives: &[],
    },
    Transport {
        id: "Plain",
        title: "WebSocket",
        description: "A WebSocket without a sub-protocol, or with `throng.plain`: each message is \
            a frame. With several channels it takes no messages.",
        server: "websocket",
        sends: PLAIN,
        receives: &["body"],
    },
    Transport {
        id: "Events",
        title: "Server-sent events",
        description: "With `Accept: text/event-stream`. The type of an event is that of its \
            object; messages have none, and an `id`; `binary` is a message in base64.",
        server: "http",
        sends: EVENTS,
        receives: &[],
    },
    Transport {
        id: "Lines",
        title: "Stream",
        description: "One message or notice per line. An empty line is a heartbeat.",
        server: "http",
        sends: LINES,
        receives: &[],
    },
];

/// The paths that subscribe.
const PATHS: [(&str, &str, Option<&str>); 3] = [
    ("channel", "/channels/{channel}", Some("channel")),
    ("user", "/users/{user}", Some("user")),
    ("several", "/subscribe", None),
];

/// All messages that a transport has.
fn messages_of(transport: &Transport) -> Vec<&'static str> {
    let mut all: Vec<_> = transport.sends.iter().chain(transport.receives).copied().collect();
    if transport.id == "V1" {
        let of_commands = COMMANDS
            .iter()
            .flat_map(|(name, answers)| std::iter::once(*name).chain(answers.iter().copied()));
        all.extend(of_commands);
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The channels of the document: each path with each transport.
pub(super) fn channels() -> Value {
    let mut all = Map::new();
    for (word, address, parameter) in PATHS {
        for transport in &TRANSPORTS {
            let messages = messages_of(transport).into_iter().map(|name| {
                let reference = format!("#/components/messages/{name}");
                (name.to_owned(), json!({ "$ref": reference }))
            });
            let mut channel = json!({
                "address": address,
                "title": transport.title,
                "description": transport.description,
                "servers": [{ "$ref": format!("#/servers/{}", transport.server) }],
                "messages": messages.collect::<Map<_, _>>(),
            });
            if let Some(parameter) = parameter {
                let description = format!("The name of the {parameter}, percent-encoded.");
                channel["parameters"] = json!({ parameter: { "description": description } });
            }
            if transport.server == "websocket" {
                channel["bindings"] = json!({ "ws": { "method": "GET" } });
            }
            all.insert(format!("{word}{}", transport.id), channel);
        }
    }
    Value::Object(all)
}

/// The operations of the document: what the server sends and receives in each channel.
pub(super) fn operations() -> Value {
    let mut all = Map::new();
    for (word, _, _) in PATHS {
        for transport in &TRANSPORTS {
            let id = format!("{word}{}", transport.id);
            let channel = json!({ "$ref": format!("#/channels/{id}") });
            let messages = |names: &[&str]| {
                let of = |name| json!({ "$ref": format!("#/channels/{id}/messages/{name}") });
                names.iter().map(of).collect::<Vec<_>>()
            };
            let operation = |action: &str, summary: &str, names: &[&str]| {
                json!({
                    "action": action,
                    "channel": channel,
                    "summary": summary,
                    "messages": messages(names),
                })
            };
            let sends = operation("send", "What the server sends.", transport.sends);
            all.insert(format!("{id}Send"), sends);
            if !transport.receives.is_empty() && word != "several" {
                let publishes =
                    operation("receive", "What a client publishes.", transport.receives);
                all.insert(format!("{id}Receive"), publishes);
            }
            let commands = if transport.id == "V1" { COMMANDS } else { &[] };
            for (command, answers) in commands {
                let mut asks = operation("receive", "A command, and its answer.", &[command]);
                let answers: Vec<_> = answers.iter().chain(&["error"]).copied().collect();
                asks["reply"] = json!({ "channel": channel, "messages": messages(&answers) });
                all.insert(format!("{id}_{command}"), asks);
            }
        }
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_answered() {
        let known = throng_wire::v1::COMMANDS.map(|(name, _)| name);
        let documented: Vec<_> = COMMANDS.iter().map(|(name, _)| *name).collect();
        assert_eq!(documented, known);
        let operations = operations();
        for command in known {
            let reply = &operations[format!("severalV1_{command}")]["reply"]["messages"];
            assert_eq!(reply.as_array().unwrap().len(), 2, "{command}");
        }
    }
}
