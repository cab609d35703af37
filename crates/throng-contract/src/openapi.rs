//! The OpenAPI document: every path of HTTP, for both listeners.

mod by_query;
mod kept;
mod noun;
mod operate;
mod pages;
mod publish;
mod read;
mod subscribe;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::operation::{Operation, refusal_component};
use crate::schema::{self, form};

/// What the document says about all paths.
const DESCRIPTION: &str = "Throng holds live connections and delivers messages to them. \
    The HTTP reference explains what this document lists.\n\n\
    Every path that takes `GET` takes `HEAD`, too, with the same status and headers and without a \
    body. On a path that subscribes, `HEAD` does not subscribe. `OPTIONS` lists the methods of a \
    path; any other method is refused with `405 method_not_allowed`. The server ignores query \
    parameters whose names begin with `_`. JSON objects of answers may have further fields in a \
    later version. WebSockets and the events of streams are in `/asyncapi.json`. The files that \
    pages and the JavaScript client load are not listed.";

/// The sections of the document.
const TAGS: &[(&str, &str)] = &[
    ("Subscribe", "Follow channels and inboxes over any transport."),
    ("Publish", "Publish messages."),
    ("Read", "History, presence and read markers."),
    ("Lists", "The channels and users that exist."),
    ("Kept subscriptions", "What the server keeps about which channels users follow."),
    ("Connections", "See and close connections."),
    ("Revocations", "Refuse tokens before they expire."),
    ("Status", "The live status, metrics and probes."),
    ("Files", "Pages, the JavaScript client and the documents."),
];

static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let mut all: Vec<_> = [
        subscribe::operations(),
        publish::operations(),
        read::operations(),
        kept::operations(),
        operate::operations(),
        pages::operations(),
    ]
    .into_iter()
    .flatten()
    .collect();
    all.extend(by_query::operations(&all));
    all
});

/// All operations of the document.
pub(crate) fn operations() -> &'static [Operation] {
    &OPERATIONS
}

/// One method of one path, and the parameters that its query may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The method, in upper case.
    pub method: &'static str,
    /// The path, with names in braces.
    pub path: &'static str,
    /// The names of the parameters.
    pub parameters: Vec<&'static str>,
}

/// The routes of the document.
pub fn routes() -> impl Iterator<Item = Route> {
    operations().iter().map(|operation| Route {
        method: operation.method,
        path: &operation.path,
        parameters: operation.parameters(),
    })
}

/// The document, for a server of this version.
pub fn openapi(version: &str) -> Value {
    let mut paths = Map::new();
    for operation in operations() {
        let methods = paths.entry(operation.path.clone()).or_insert_with(|| json!({}));
        methods[operation.method.to_ascii_lowercase()] = operation.document();
    }
    let tags = TAGS.iter().map(|(name, text)| json!({ "name": name, "description": text }));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Throng",
            "summary": "A push server.",
            "description": DESCRIPTION,
            "version": version,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "The server that serves this document." }],
        "tags": tags.collect::<Vec<_>>(),
        "components": {
            "responses": refusals(&paths),
            "parameters": parameters(),
            "headers": headers(),
            "schemas": schema::all(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of a user, or a server key.",
                },
                "token": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "token",
                    "description": "A token, where a client can set no header.",
                },
            },
        },
        "paths": paths,
    })
}

/// The responses that operations refer to.
fn refusals(paths: &Map<String, Value>) -> Value {
    let operations = paths.values().filter_map(Value::as_object).flat_map(Map::values);
    let responses = operations.filter_map(|operation| operation["responses"].as_object());
    let references = responses.flat_map(Map::values).filter_map(|response| {
        response.get("$ref")?.as_str()?.strip_prefix("#/components/responses/")
    });
    let components =
        references.filter_map(|name| Some((name.to_owned(), refusal_component(name)?)));
    Value::Object(components.collect())
}

/// The parameters of paths, and headers of requests.
fn parameters() -> Value {
    let mut all = Map::new();
    for (name, description, schema) in [
        ("channel", "The name of the channel, percent-encoded.", form::reference("Name")),
        ("user", "The name of the user, percent-encoded.", form::reference("Name")),
        (
            "connection",
            "The value of a `Throng-Connection`.",
            json!({ "type": "string", "minLength": 1 }),
        ),
        (
            "id",
            "The id of a token, its `jti`.",
            json!({ "type": "string", "minLength": 1, "maxLength": 255 }),
        ),
        ("version", "The version of the server.", json!({ "type": "string" })),
    ] {
        let object = json!({
            "name": name, "in": "path", "required": true,
            "description": description, "schema": schema,
        });
        all.insert(name.into(), object);
    }
    for (name, description, schema) in publish::headers().into_iter().chain(subscribe::headers()) {
        let object =
            json!({ "name": name, "in": "header", "description": description, "schema": schema });
        all.insert(name.into(), object);
    }
    let request_id = json!({
        "name": "X-Request-Id",
        "in": "header",
        "description": "The id of this request in the log and in the answer: 1 to 128 letters, \
            digits and `.`, `_`, `~`, `:`, `/`, `+`, `=`, `@`, `-`. Another value counts as none.",
        "schema": { "type": "string" },
    });
    all.insert("X-Request-Id".into(), request_id);
    Value::Object(all)
}

/// The headers of answers.
fn headers() -> Value {
    let described = [
        ("Throng-Id", "Where the subscription starts or the log ends.", "Position"),
        ("Throng-Connection", "The name of this connection.", "Text"),
        ("Throng-Recovered", "Whether nothing after the given id is missing.", "Flag"),
        ("Preference-Applied", "Which preferences the answer obeys.", "Text"),
        ("Location", "Where to go.", "Text"),
        ("ETag", "What `If-None-Match` may name.", "Text"),
        ("Retry-After", "After how many seconds to try again.", "Seconds"),
        ("WWW-Authenticate", "`Bearer`, with `error` if there was a token.", "Text"),
        (
            "X-Request-Id",
            "The id of the request, as the log has it. Subscriptions have that which the request \
                has brought, or none.",
            "Text",
        ),
    ];
    let headers = described.into_iter().map(|(name, description, schema)| {
        let schema = match schema {
            "Position" => form::reference(schema),
            "Flag" => json!({ "type": "boolean" }),
            "Seconds" => json!({ "type": "integer", "minimum": 0 }),
            _ => json!({ "type": "string" }),
        };
        (name.to_owned(), json!({ "description": description, "schema": schema }))
    });
    Value::Object(headers.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_operation_is_there_once() {
        let all = operations();
        let routes: HashSet<_> = all.iter().map(|it| (it.method, &*it.path)).collect();
        assert_eq!(routes.len(), all.len());
        let document = openapi("1.2.3");
        let paths = document["paths"].as_object().unwrap().values();
        let ids: HashSet<_> = paths
            .flat_map(|methods| methods.as_object().unwrap().values())
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), all.len());
        assert_eq!(document["info"]["version"], "1.2.3");
    }

    /// All values of `$ref` in the document.
    fn references(value: &Value) -> Vec<&str> {
        match value {
            Value::Object(fields) => {
                let own = fields.get("$ref").and_then(Value::as_str);
                own.into_iter().chain(fields.values().flat_map(references)).collect()
            }
            Value::Array(items) => items.iter().flat_map(references).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn each_component_is_there_and_used() {
        let document = openapi("1");
        let used: HashSet<_> = references(&document).into_iter().collect();
        for reference in &used {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        for kind in ["responses", "parameters", "headers", "schemas"] {
            for name in document["components"][kind].as_object().unwrap().keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(used.contains(&*reference), "{reference} is not used");
            }
        }
        let tags = document["tags"].as_array().unwrap();
        let used = document["paths"].to_string();
        for tag in tags {
            assert!(used.contains(&format!("\"tags\":[{}]", tag["name"])), "{tag}");
        }
    }
}
