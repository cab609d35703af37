//! The AsyncAPI document: WebSockets, server-sent events, streams of lines, and their messages.

mod channels;
mod commands;
mod form;
mod frames;

use serde_json::{Map, Value, json};

use crate::schema;

const DESCRIPTION: &str = "What goes over connections that stay open: WebSockets with `throng.v1` \
    or without a sub-protocol, server-sent events, and streams of lines. How they are opened is in \
    `/openapi.json`; the references of HTTP and WebSockets explain both. Objects that the server \
    sends may have further fields in a later version, and there may be further types of frames.";

/// The document, for a server of this version.
pub fn asyncapi(version: &str) -> Value {
    let mut messages = Map::new();
    for (name, message) in commands::messages().into_iter().chain(frames::messages()) {
        messages.insert(name.into(), message);
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Throng",
            "description": DESCRIPTION,
            "version": version,
            "license": { "name": "Apache-2.0" },
            "tags": [{ "name": "push" }],
        },
        "defaultContentType": "application/json",
        "servers": servers(),
        "channels": channels::channels(),
        "operations": channels::operations(),
        "components": {
            "messages": messages,
            "schemas": schemas(),
        },
    })
}

/// The servers of the document: this one. The address is the one that clients use.
fn servers() -> Value {
    let server = |protocol: &str, description: &str| {
        json!({
            "host": "{host}",
            "protocol": protocol,
            "description": description,
            "variables": { "host": {
                "default": "127.0.0.1:8080",
                "description": "Where the server that serves this document is reached.",
            } },
        })
    };
    json!({
        "websocket": server("ws", "WebSockets; over TLS `wss`."),
        "http": server("http", "Server-sent events and streams of lines; over TLS `https`."),
    })
}

/// The schemas of the OpenAPI document that messages refer to.
fn schemas() -> Value {
    let mut all = schema::all();
    if let Some(all) = all.as_object_mut() {
        all.retain(|name, _| {
            matches!(&**name, "Name" | "MessageId" | "Position" | "ErrorCode" | "Message")
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_lead_somewhere() {
        fn check(document: &Value, value: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                        let found = document.pointer(reference.strip_prefix('#').unwrap());
                        assert!(found.is_some(), "{reference}");
                    }
                    fields.values().for_each(|value| check(document, value));
                }
                Value::Array(items) => items.iter().for_each(|value| check(document, value)),
                _ => {}
            }
        }
        let document = asyncapi("1.2.3");
        check(&document, &document);
        assert_eq!(document["info"]["version"], "1.2.3");
    }
}
