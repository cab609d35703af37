//! Headers about messages and conditions: which requests take them, and that no other one ignores
//! them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Operation, openapi, operations};
use crate::client::{post, request};
use crate::server::Server;

/// Each with a value that the server takes.
const HEADERS: [(&str, &str); 11] = [
    ("Idempotency-Key", "k"),
    ("If-Match", "\"z-1\""),
    ("If-None-Match", "*"),
    ("Prefer", "receipt, wait=0"),
    ("Throng-Event", "e"),
    ("Throng-Exclude", "002d5e1b30000001"),
    ("Throng-Expires-In", "60"),
    ("Throng-State-Key", "another"),
    ("Throng-Tags", "{}"),
    ("Throng-Volatile", "true"),
    ("Throng-Events", "e"),
];

fn documented<'a>(document: &'a Value, operation: &Operation<'a>) -> BTreeSet<&'a str> {
    let resolved = |parameter: &'a Value| {
        let reference = parameter["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
        reference.and_then(|pointer| document.pointer(pointer)).unwrap_or(parameter)
    };
    let parameters = operation.value["parameters"].as_array().expect("a list").iter().map(resolved);
    let headers = parameters.filter(|parameter| parameter["in"] == "header");
    headers.map(|parameter| parameter["name"].as_str().expect("a name")).collect()
}

/// A target of an operation, with the parameters that it needs. `header` needs one, too.
fn target(operation: &Operation<'_>, header: &str) -> String {
    let names = operation.query_names();
    let mut query = Vec::new();
    for (name, value) in [("user", "a"), ("channel", "a"), ("id", "z-1"), ("key", "k")] {
        let is_second = name == "channel" && query.contains(&"user=a".to_owned());
        if names.contains(&name) && !is_second {
            query.push(format!("{name}={value}"));
        }
    }
    if operation.path == "/publish" && operation.method == "POST" {
        query = Vec::new();
        if header == "If-Match" {
            query.push("atomic=true".to_owned());
        }
    }
    format!("{}?{}", operation.example(), query.join("&"))
}

#[test]
fn no_request_that_changes_something_ignores_a_header() {
    let document = openapi(&Server::new());
    let (mut taken, mut refused) = (0, 0);
    for operation in operations(&document) {
        let is_read = operation.method == "GET";
        if is_read || operation.path.starts_with("/status/log") {
            continue;
        }
        let documented = documented(&document, &operation);
        let server = Server::new();
        for (name, value) in HEADERS {
            let fields = [&*format!("{name}: {value}"), "Content-Length: 0"];
            let target = target(&operation, name);
            let answer = server.ask(request(&operation.method, &target, &fields));
            let text = answer.text();
            let asked = format!("{} {target} with {name}: {text}", operation.method);
            let is_refused = text.contains(" does not take the header ")
                || text.contains("is unknown; did you mean `Throng-Event`?")
                || text.contains("names another key than the path");
            assert_eq!(is_refused, !documented.contains(name), "{asked}");
            if is_refused {
                answer.expect_refusal(400, "bad_parameter");
                let name = if name == "Throng-Events" { "throng-events" } else { name };
                assert!(text.contains(&format!("`{name}`")), "{asked}");
                refused += 1;
            } else {
                taken += 1;
            }
        }
    }
    assert!(taken > 50 && refused > 200, "{taken} taken, {refused} refused");
}

#[test]
fn a_batch_takes_a_condition_for_all_of_its_messages_only() {
    let server = Server::new();
    let line = r#"{"channel":"a","data":1}"#;
    let answer = server.ask(post("/publish", &["If-Match: \"z-1\""], line));
    answer.expect_refusal(400, "bad_parameter");
    assert!(answer.text().contains("`atomic=true`"), "{}", answer.text());
    assert_eq!(server.metric("throng_http_messages_published_total"), 0);
}

#[test]
fn preferences_and_headers_of_others_are_ignored() {
    let server = Server::new();
    for header in ["Prefer: return=minimal", "Prefer: wait=5", "X-Throng: 1", "If-Range: x"] {
        let answer = server.ask(post("/publish", &[header], r#"{"channel":"a","data":1}"#));
        assert_eq!(answer.status, 200, "{header}");
        let history = server.ask(request("GET", "/channels/a/history", &[header]));
        assert_eq!(history.status, 200, "{header}");
    }
    let read = server.ask(request("GET", "/channels/a/history", &["If-None-Match: \"x\""]));
    assert_eq!(read.status, 200);
}

#[test]
fn a_method_that_a_path_does_not_take_is_the_first_error() {
    let server = Server::new();
    for (method, target) in [("DELETE", "/users/a"), ("POST", "/state"), ("PUT", "/end")] {
        let fields = ["Throng-Event: e", "Idempotency-Key: k", "Content-Length: 0"];
        let answer = server.ask(request(method, target, &fields));
        answer.expect_refusal(405, "method_not_allowed");
    }
}
