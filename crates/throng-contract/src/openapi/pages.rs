//! Probes, metrics, the status, and files.

use serde_json::{Value, json};
use throng_wire::ErrorCode;

use crate::operation::{Access, Operation};
use crate::query;
use crate::schema::form::reference;

const KEY: Access = Access::Key("administration");
const HTML: &str = "text/html";
const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = vec![
        probe("/health", "getHealth", "Whether the server is ready, in one word", (TEXT, string())),
        probe("/health/live", "getLiveness", "Whether all event loops turn", finding()),
        probe("/health/ready", "getReadiness", "Whether new clients are welcome", finding()),
    ];
    all.extend(status());
    all.extend(files());
    all
}

fn probe(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    content: (&'static str, Value),
) -> Operation {
    Operation::new("GET", path, id, ("Status", summary))
        .access(Access::Anyone)
        .answers(200, "Yes.", std::slice::from_ref(&content))
        .answers_with(503, "No.", &[content], &["Retry-After"])
}

fn status() -> Vec<Operation> {
    let new = |method, path, id, summary| {
        Operation::new(method, path, id, ("Status", summary)).access(KEY)
    };
    let page = || (HTML, string());
    let logs_in = || Access::Anyone;
    vec![
        new("GET", "/metrics", "getMetrics", "Metrics in the text format of Prometheus").answers(
            200,
            "The metrics.",
            &[(TEXT, string())],
        ),
        new("GET", "/status.json", "getStatus", "The newest sample of the status")
            .query(query::STATUS)
            .answers(200, "The sample.", &[(JSON, reference("Status"))]),
        new("GET", "/status", "getStatusPage", "The status page")
            .answers_with(200, "The page.", &[page()], &["ETag"])
            .answers(304, "The page is as `If-None-Match` says.", &[])
            .answers(401, "The page of the login.", &[page(), refused()]),
        new("POST", "/status/login", "logIn", "Log in to the status page")
            .access(logs_in())
            .described("A refusal is the page of the login, with the reason.")
            .body(&[(
                "application/x-www-form-urlencoded",
                json!({
                    "type": "object",
                    "properties": { "key": { "type": "string", "description": "A server key." } },
                    "required": ["key"],
                }),
            )])
            .answers_with(303, "The browser has a cookie.", &[], &["Location"])
            .answers(400, "The form is malformed.", &[page(), refused()])
            .answers(401, "The key is wrong.", &[page()])
            .answers(403, "Not over this connection, or not with this key.", &[page(), refused()])
            .answers(404, "The server has no keys.", &[page()])
            .answers(408, "The form did not arrive in time.", &[page(), refused()])
            .answers(413, "The form is too large.", &[page(), refused()])
            .answers(429, "Too many logins have failed.", &[page()])
            .answers(503, "The server is busy or shuts down.", &[page(), refused()])
            .refuses(&[
                ErrorCode::InvalidToken,
                ErrorCode::Forbidden,
                ErrorCode::NotFound,
                ErrorCode::TooManyRequests,
            ]),
        new("POST", "/status/logout", "logOut", "Log out of the status page")
            .access(logs_in())
            .answers_with(303, "The browser forgets its cookie.", &[], &["Location"]),
    ]
}

fn files() -> Vec<Operation> {
    let file = |path: &'static str, id: &'static str, summary: &'static str, kind| {
        Operation::new("GET", path, id, ("Files", summary))
            .access(Access::Anyone)
            .answers_with(200, "The file.", &[(kind, string())], &["ETag"])
            .answers(304, "The file is as `If-None-Match` says.", &[])
    };
    let object = || [(JSON, json!({ "type": "object" }))];
    let script = "text/javascript";
    vec![
        Operation::new("GET", "/", "getRoot", ("Files", "The way to a page, or a line of text"))
            .access(Access::Anyone)
            .answers(200, "A line of text.", &[(TEXT, string())])
            .answers_with(302, "To the chat, or the status page.", &[], &["Location"]),
        file("/chat", "getChat", "The chat", HTML).refuses(&[ErrorCode::NotFound]),
        Operation::new("GET", "/docs", "getDocs", ("Files", "The way to the documentation"))
            .access(Access::Anyone)
            .answers_with(302, "To the directory.", &[], &["Location"])
            .refuses(&[ErrorCode::NotFound]),
        file("/docs/", "getDocsIndex", "The documentation, if the server has it", HTML)
            .refuses(&[ErrorCode::NotFound]),
        file("/status.md", "getStatusReference", "What a sample of the status has", TEXT),
        file("/throng.js", "getClient", "The JavaScript client", script),
        file("/throng-{version}.js", "getClientOfVersion", "The client of a version", script)
            .refuses(&[ErrorCode::NotFound]),
        file("/throng-tabs.js", "getSharedClient", "The client for shared tabs", script),
        file("/openapi.json", "getOpenApi", "This document", JSON).answers_with(
            200,
            "The document.",
            &object(),
            &["ETag"],
        ),
        file("/asyncapi.json", "getAsyncApi", "The document for WebSockets and streams", JSON)
            .answers_with(200, "The document.", &object(), &["ETag"]),
    ]
}

fn string() -> Value {
    json!({ "type": "string" })
}

fn finding() -> (&'static str, Value) {
    (JSON, reference("Finding"))
}

fn refused() -> (&'static str, Value) {
    (JSON, reference("Error"))
}
