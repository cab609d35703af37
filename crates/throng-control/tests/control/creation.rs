//! `PUT` and `GET` of `/channels/{channel}/creation`.

use std::sync::Arc;

use serde_json::json;
use throng_access::{AccessRules, ChannelAccess, Who};
use throng_control::Settings;
use throng_core::clock;

use crate::client::{Answer, get, post, request};
use crate::credentials::{keys, token};
use crate::server::{Server, small};

fn create_with(server: &Server, target: &str, fields: &[&str], body: &str) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    let fields = [fields, &[&*length]].concat();
    server.ask(request("PUT", target, &fields) + body)
}

fn create(server: &Server, target: &str, body: &str) -> Answer {
    create_with(server, target, &[], body)
}

#[test]
fn a_creation_can_be_repeated_with_the_same_properties() {
    let server = Server::new();
    let body = r#"{"content_type":"application/json","ttl":3600}"#;
    let first = create(&server, "/channels/a/creation", body);
    let created = first.json()["created"].clone();
    let expected = json!({
        "channel": "a", "content_type": "application/json", "created": created, "ttl": 3600,
    });
    assert_eq!((first.status, first.json()), (201, expected.clone()));
    let other = r#"{"ttl":3600,"content_type":"Application/JSON; charset=utf-8"}"#;
    for (target, body) in [("/channels/a/creation", body), ("/creation?channel=a", other)] {
        let again = create(&server, target, body);
        assert_eq!((again.status, again.json()), (200, expected.clone()));
    }
    assert_eq!(server.ask(get("/channels/a/creation")).json(), expected);
    let later_ms = clock::machine_ms() + 3_600_000;
    let all = body.replace('}', &format!(r#","expires_at":{later_ms}}}"#));
    for (body, differs) in [
        ("", "another `content_type`: application/json"),
        (r#"{"content_type":"application/json"}"#, "another `ttl`: 3600"),
        (&*all, "without `expires_at`"),
    ] {
        let refused = create(&server, "/channels/a/creation", body);
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with(differs), "{message}");
        refused.expect_refusal(409, "already_created");
    }
}

#[test]
fn a_created_channel_takes_messages_of_its_type() {
    let server = Server::new();
    server.ask(post("/channels/a", &[], "before"));
    let body = r#"{"content_type":"application/json"}"#;
    assert_eq!(create(&server, "/channels/a/creation", body).status, 201);
    let html = ["Content-Type: text/html"];
    server.ask(post("/channels/a", &html, "<p>")).expect_refusal(415, "other_type");
    server.ask(post("/channels/a", &[], "no JSON")).expect_refusal(415, "other_type");
    server.ask(post("/channels/a/end", &[], "no JSON")).expect_refusal(415, "other_type");
    let line = r#"{"channel":"a","data":"text"}"#;
    let batch = server.ask(post("/publish", &["Content-Type: application/x-ndjson"], line));
    assert!(batch.text().starts_with(r#"{"error":"other_type","#), "{}", batch.text());
    assert_eq!(server.ask(post("/channels/a", &[], r#"{"n":1}"#)).status, 201);
    assert_eq!(data(&server, "a"), [json!("before"), json!({"n": 1})]);
    // With the channel goes its creation.
    server.ask(request("DELETE", "/channels/a", &[]));
    server.ask(get("/channels/a/creation")).expect_refusal(404, "not_created");
    assert_eq!(server.ask(post("/channels/a", &html, "<p>")).status, 201);
}

fn data(server: &Server, channel: &str) -> Vec<serde_json::Value> {
    let page = server.ask(get(&format!("/channels/{channel}/history"))).json();
    page["messages"].as_array().unwrap().iter().map(|it| it["data"].clone()).collect()
}

#[test]
fn a_channel_is_created_with_all_of_its_first_messages_or_none() {
    let server = Server::new();
    let with = |messages: &str| {
        let body = format!(r#"{{"content_type":"application/json","messages":{messages}}}"#);
        create(&server, "/channels/a/creation", &body)
    };
    for (messages, status, code, reason) in [
        (r#"[{"data":1},{"data":"x","content_type":"text/plain"}]"#, 415, "other_type", "own"),
        (r#"[{"data":1},{"data":2,"key":"k"}]"#, 400, "bad_request", "message 2: "),
        (r#"[{"data":1,"volatile":true}]"#, 400, "bad_request", "message 1: "),
        (r#"[{"data":1},{"channel":"a","data":2}]"#, 400, "bad_request", "`channel` is unknown"),
        (r#"[{"data":1},7]"#, 400, "bad_json", "message 2: "),
        ("7", 400, "bad_json", "must be an array"),
        (&*format!("[{}1]", "1,".repeat(999)), 413, "too_large", "at most 998"),
    ] {
        let refused = with(messages);
        assert!(refused.text().contains(reason), "{messages}: {}", refused.text());
        refused.expect_refusal(status, code);
        server.ask(get("/channels/a/creation")).expect_refusal(404, "not_created");
        assert_eq!(data(&server, "a"), [json!(null); 0]);
    }
    let messages = r#"[{"data":{"n":1},"event":"first"},{"data":7,"state_key":"k"}]"#;
    let created = with(messages);
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(created.json()["ids"].as_array().map(Vec::len), Some(2));
    assert_eq!(data(&server, "a"), [json!({"n": 1}), json!(7)]);
    let again = with(messages);
    assert_eq!((again.status, again.json().get("ids")), (200, None));
    assert_eq!(data(&server, "a").len(), 2, "they come with the creation");
    assert_eq!(with("[]").status, 200);
}

#[test]
fn what_cannot_be_created_is_refused() {
    let server = Server::with(small());
    let long = format!(r#"{{"content_type":"text/{}"}}"#, "x".repeat(300));
    for (body, code) in [
        ("[]", "bad_json"),
        ("{", "bad_json"),
        (r#"{"type":"text/plain"}"#, "bad_json"),
        (r#"{"ttl":"1h"}"#, "bad_json"),
        (r#"{"ttl":-1}"#, "bad_json"),
        (r#"{"ttl":0}"#, "bad_parameter"),
        (r#"{"ttl":31536001000}"#, "bad_parameter"),
        (r#"{"expires_at":1}"#, "bad_parameter"),
        (r#"{"content_type":""}"#, "bad_parameter"),
        (r#"{"content_type":"text"}"#, "bad_parameter"),
        (r#"{"content_type":"text/a\nb"}"#, "bad_parameter"),
        (&*long, "bad_parameter"),
    ] {
        create(&server, "/channels/a/creation", body).expect_refusal(400, code);
    }
    let large = format!(r#"{{"content_type":"text/{}"}}"#, "x".repeat(20_000));
    create(&server, "/channels/a/creation", &large).expect_refusal(413, "too_large");
    create(&server, "/users/ann/creation", "").expect_refusal(404, "not_found");
    create(&server, "/channels/a*/creation", "").expect_refusal(400, "bad_name");
    create(&server, "/channels/a/creation?x=1", "").expect_refusal(400, "bad_parameter");
    server.ask(post("/channels/a/creation", &[], "")).expect_refusal(405, "method_not_allowed");
    server.ask(get("/channels/a/creation")).expect_refusal(404, "not_created");
    server.ask(post("/channels/b/end", &[], ""));
    create(&server, "/channels/b/creation", "").expect_refusal(409, "closed");
    assert_eq!(create(&server, "/channels/a/creation", "").status, 201);
}

#[test]
fn to_create_a_channel_is_a_right_of_its_own() {
    let mut keys = keys();
    let rules = ChannelAccess { history: Who::Anyone, ..ChannelAccess::default() };
    keys.access.policy = Arc::new(AccessRules::new(Vec::new(), rules));
    let (publisher, operator) = (keys.publisher.clone(), keys.operator.clone());
    let server = Server::controlled(Settings::for_tests(), keys.access);
    let all = ["subscribe", "publish", "history", "presence", "erase", "edit", "state", "end"];
    let all: serde_json::Map<_, _> =
        all.map(|right| (right.to_owned(), json!(["*"]))).into_iter().collect();
    let ungranted = token(json!({"throng": all}));
    let granted = token(json!({"throng": {"create": ["a"]}}));
    let ask = |fields: &[&str]| create_with(&server, "/channels/a/creation", fields, "");
    ask(&[]).expect_refusal(401, "unauthorized");
    for credential in [&ungranted, &publisher, &operator] {
        ask(&[credential]).expect_refusal(403, "forbidden");
    }
    create_with(&server, "/channels/b/creation", &[&granted], "").expect_refusal(403, "forbidden");
    let first = r#"{"messages":[{"data":"x"}]}"#;
    let with = |token: &str| create_with(&server, "/channels/a/creation", &[token], first);
    with(&granted).expect_refusal(403, "forbidden");
    assert_eq!(ask(&[&granted]).status, 201);
    assert_eq!(server.ask(get("/channels/a/creation")).status, 200);
}
