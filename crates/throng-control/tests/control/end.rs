//! `POST` and `DELETE` of `/channels/{channel}/end`.

use std::sync::Arc;

use serde_json::json;
use throng_access::{AccessRules, ChannelAccess, Who};
use throng_control::Settings;

use crate::client::{Answer, get, post, request};
use crate::credentials::{keys, token};
use crate::server::{Server, small};

fn open(server: &Server, target: &str) -> Answer {
    server.ask(request("DELETE", target, &[]))
}

#[test]
fn a_channel_ends_with_a_last_message() {
    let server = Server::new();
    server.ask(post("/channels/a", &[], "1"));
    let answer = server.ask(post("/channels/a/end", &["Throng-Event: over"], "that was it"));
    assert_eq!((answer.status, answer.json()), (201, json!({"ended": "z-3", "id": "z-2"})));
    for (target, body) in [
        ("/channels/a", "late"),
        ("/channels/a/end", ""),
        ("/channels/a/end", "late"),
        ("/publish?channel=a", "late"),
        ("/end?channel=a", "late"),
    ] {
        server.ask(post(target, &[], body)).expect_refusal(409, "closed");
    }
    let line = r#"{"channel":"a","data":"late"}"#;
    let batch = server.ask(post("/publish", &["Content-Type: application/x-ndjson"], line));
    assert!(batch.text().starts_with(r#"{"error":"closed","#), "{}", batch.text());
    let edit = request("PUT", "/channels/a/messages/z-1", &["Content-Length: 1"]) + "x";
    server.ask(edit).expect_refusal(409, "closed");
    let page = server.ask(get("/channels/a/history")).json();
    assert_eq!((&page["ended"], &page["id"]), (&json!(true), &json!("z-3")));
    let messages = page["messages"].as_array().unwrap();
    assert_eq!((messages.len(), &messages[1]["event"]), (2, &json!("over")));
    // Messages may still be erased.
    let erased = server.ask(request("DELETE", "/channels/a/messages/z-1", &[]));
    assert_eq!(erased.json(), json!({"erased": "z-1", "id": "z-4"}));
    server.ask(post("/channels/a", &[], "late")).expect_refusal(409, "closed");
}

#[test]
fn a_channel_that_has_ended_can_be_opened_again() {
    let server = Server::new();
    open(&server, "/channels/a/end").expect_refusal(404, "not_found");
    // Also one that was never published to.
    let answer = server.ask(post("/end?channel=a", &[], ""));
    assert_eq!((answer.status, answer.json()), (201, json!({"ended": "z-1"})));
    assert_eq!(server.ask(get("/channels/a/history")).json()["ended"], true);
    let answer = open(&server, "/end?channel=a");
    assert_eq!((answer.status, answer.json()), (200, json!({"channel": "a", "id": "z-1"})));
    let page = server.ask(get("/channels/a/history")).json();
    assert_eq!((&page["ended"], &page["id"]), (&json!(null), &json!("z-1")));
    assert_eq!(server.ask(post("/channels/a", &[], "again")).json()["id"], "z-2");
    open(&server, "/channels/a/end").expect_refusal(404, "not_found");
    // The erasure of the channel opens it, too.
    server.ask(post("/channels/a/end", &[], ""));
    server.ask(request("DELETE", "/channels/a", &[]));
    assert_eq!(server.ask(post("/channels/a", &[], "anew")).status, 201);
}

#[test]
fn what_cannot_end_is_refused() {
    let server = Server::with(small());
    server.ask(post("/users/ann/end", &[], "")).expect_refusal(404, "not_found");
    server.ask(get("/channels/a/end")).expect_refusal(405, "method_not_allowed");
    server.ask(post("/channels/a*/end", &[], "")).expect_refusal(400, "bad_name");
    server.ask(post("/channels/a/end?x=1", &[], "")).expect_refusal(400, "bad_parameter");
    server.ask(post("/end", &[], "")).expect_refusal(400, "bad_parameter");
    let json = ["Content-Type: application/json"];
    server.ask(post("/channels/a/end", &json, "{")).expect_refusal(400, "bad_json");
    let large = "x".repeat(2000);
    server.ask(post("/channels/a/end", &[], &large)).expect_refusal(413, "too_large");
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201, "nothing has ended");
}

#[test]
fn to_end_a_channel_is_a_right_of_its_own() {
    let mut keys = keys();
    let rules = ChannelAccess { history: Who::Anyone, ..ChannelAccess::default() };
    keys.access.policy = Arc::new(AccessRules::new(Vec::new(), rules));
    let (publisher, operator) = (keys.publisher.clone(), keys.operator.clone());
    let server = Server::controlled(Settings::for_tests(), keys.access);
    let all = ["subscribe", "publish", "history", "presence", "erase", "edit", "state"];
    let all: serde_json::Map<_, _> =
        all.map(|right| (right.to_owned(), json!(["*"]))).into_iter().collect();
    let ungranted = token(json!({"throng": all}));
    let granted = token(json!({"throng": {"end": ["a"]}}));
    let both = token(json!({"throng": {"end": ["a"], "publish": ["a"]}}));
    for method in ["POST", "DELETE"] {
        let ask = |fields: &[&str]| server.ask(request(method, "/channels/a/end", fields));
        ask(&[]).expect_refusal(401, "unauthorized");
        for credential in [&ungranted, &publisher, &operator] {
            ask(&[credential]).expect_refusal(403, "forbidden");
        }
    }
    server.ask(post("/channels/b/end", &[&granted], "")).expect_refusal(403, "forbidden");
    // A last message is a publication.
    server.ask(post("/channels/a/end", &[&granted], "x")).expect_refusal(403, "forbidden");
    assert_eq!(server.ask(post("/channels/a/end", &[&granted], "")).status, 201);
    let opened = server.ask(request("DELETE", "/channels/a/end", &[&granted]));
    assert_eq!(opened.status, 200);
    assert_eq!(server.ask(post("/channels/a/end", &[&both], "x")).status, 201);
}
