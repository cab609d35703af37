//! `DELETE` of messages, histories and channels.

use serde_json::{Value, json};
use throng_access::{AccessRules, ChannelAccess, Who};
use throng_control::Settings;

use crate::client::{Answer, get, post, request};
use crate::credentials::{keys, token};
use crate::server::Server;

fn server_with(texts: &[&str]) -> Server {
    let server = Server::new();
    for text in texts {
        assert_eq!(server.ask(post("/channels/a", &[], text)).status, 201);
    }
    server
}

fn delete(server: &Server, target: &str) -> Answer {
    server.ask(request("DELETE", target, &[]))
}

fn history(server: &Server, name: &str) -> Vec<Value> {
    let page = server.ask(get(&format!("/{name}/history"))).json();
    let mut messages = page["messages"].as_array().unwrap().clone();
    for message in &mut messages {
        message.as_object_mut().unwrap().remove("time");
    }
    messages
}

#[test]
fn an_erased_message_leaves_a_notice() {
    let server = server_with(&["1", "2", "3"]);
    let answer = delete(&server, "/channels/a/messages/z-2");
    assert_eq!((answer.status, answer.json()), (200, json!({"erased": "z-2", "id": "z-4"})));
    let notice = json!({"type": "erased", "channel": "a", "id": "z-4", "erased": "z-2"});
    let all = history(&server, "channels/a");
    assert_eq!(
        all.iter().map(|it| it["id"].as_str().unwrap()).collect::<Vec<_>>(),
        ["z-1", "z-3", "z-4"]
    );
    assert_eq!(all[2], notice);
    // The same with the name in the query.
    let answer = delete(&server, "/messages?channel=a&id=z-3");
    assert_eq!(answer.json(), json!({"erased": "z-3", "id": "z-5"}));
    delete(&server, "/messages?channel=a").expect_refusal(400, "bad_parameter");
    delete(&server, "/messages?channel=a&id=z-1&id=z-1").expect_refusal(400, "bad_parameter");
    delete(&server, "/messages?id=z-1").expect_refusal(400, "bad_parameter");
}

#[test]
fn a_message_that_is_not_there_cannot_be_erased() {
    let server = server_with(&["1", "2"]);
    delete(&server, "/channels/a/messages/z-1");
    for (id, code) in [
        ("z-1", "not_found"),
        ("z-0", "not_found"),
        ("z-99", "not_found"),
        ("y-2", "not_found"),
        ("z-18446744073709551615", "not_found"),
        ("z", "bad_id"),
        ("2", "bad_id"),
        ("z-2%2Cz-2", "bad_id"),
        ("%ff", "bad_id"),
        ("", "bad_id"),
    ] {
        let status = if code == "bad_id" { 400 } else { 404 };
        delete(&server, &format!("/channels/a/messages/{id}")).expect_refusal(status, code);
    }
    delete(&server, "/channels/b/messages/z-2").expect_refusal(404, "not_found");
    delete(&server, "/channels/%00/messages/z-2").expect_refusal(400, "bad_name");
    delete(&server, "/channels/a*/messages/z-2").expect_refusal(400, "bad_name");
    delete(&server, "/channels/a/messages/z-2?x=1").expect_refusal(400, "bad_parameter");
    assert_eq!(history(&server, "channels/a").len(), 2, "the second one and the notice");
}

#[test]
fn an_erased_history_leaves_a_notice_alone() {
    let server = server_with(&["1", "2", "3"]);
    let answer = delete(&server, "/channels/a/history");
    let erased = json!({"erased_up_to": "z-3", "messages": 3, "id": "z-4"});
    assert_eq!((answer.status, answer.json()), (200, erased));
    let notice = json!({"type": "erased", "channel": "a", "id": "z-4", "erased_up_to": "z-3"});
    assert_eq!(history(&server, "channels/a"), [notice]);
    let page = server.ask(get("/channels/a/history?after=z-1"));
    assert_eq!(page.json()["recovered"], false);
    // An inbox has the same.
    server.ask(post("/users/ann", &[], "x"));
    let answer = delete(&server, "/history?user=ann");
    assert_eq!(answer.json()["messages"], 1);
    server.ask(post("/users/ann", &[], "y"));
    let id = history(&server, "users/ann")[1]["id"].as_str().unwrap().to_owned();
    assert_eq!(delete(&server, &format!("/users/ann/messages/{id}")).status, 200);
}

#[test]
fn an_erased_channel_is_gone_with_its_name() {
    let server = server_with(&["1", "2", "3"]);
    let names = || server.ask(get("/channels")).json()["channels"].as_array().unwrap().len();
    assert_eq!(names(), 1);
    let answer = delete(&server, "/channels/a");
    let erased = json!({"erased_up_to": "z-3", "messages": 3, "id": "z-4"});
    assert_eq!((answer.status, answer.json()), (200, erased));
    assert_eq!((history(&server, "channels/a"), names()), (Vec::new(), 0));
    let next = server.ask(post("/channels/a", &[], "next")).json();
    assert_eq!(next["id"], "z-5", "no id names two messages");
    assert_eq!(delete(&server, "/publish?channel=a").json()["messages"], 1);
    let never = delete(&Server::new(), "/channels/never").json();
    assert_eq!(never, json!({"erased_up_to": "z-0", "messages": 0}));
    delete(&server, "/users/ann").expect_refusal(405, "method_not_allowed");
}

#[test]
fn erasure_is_a_right_of_its_own() {
    let mut keys = keys();
    let rules = ChannelAccess { publish: Who::Anyone, ..ChannelAccess::default() };
    keys.access.policy = std::sync::Arc::new(AccessRules::new(Vec::new(), rules));
    let (publisher, operator) = (keys.publisher.clone(), keys.operator.clone());
    let server = Server::controlled(Settings::for_tests(), keys.access);
    let sent = server.ask(post("/channels/a", &[], "x"));
    assert_eq!(sent.status, 201);
    let all = json!({"subscribe": ["*"], "publish": ["*"], "history": ["*"], "presence": ["*"]});
    let (ungranted, granted) =
        (token(json!({"throng": all})), token(json!({"throng": {"erase": ["a"]}})));
    let targets = ["/channels/a/messages/z-1", "/channels/a/history", "/channels/a"];
    for target in targets {
        let ask = |fields: &[&str]| server.ask(request("DELETE", target, fields));
        ask(&[]).expect_refusal(401, "unauthorized");
        for credential in [&ungranted, &publisher, &operator] {
            ask(&[credential]).expect_refusal(403, "forbidden");
        }
    }
    let other = server.ask(request("DELETE", "/channels/b/history", &[&granted]));
    other.expect_refusal(403, "forbidden");
    for target in targets {
        assert_eq!(server.ask(request("DELETE", target, &[&granted])).status, 200, "{target}");
    }
}

fn put(server: &Server, target: &str, fields: &[&str], body: &str) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    let fields: Vec<_> = fields.iter().copied().chain([&*length]).collect();
    server.ask(request("PUT", target, &fields) + body)
}

#[test]
fn a_message_can_be_replaced() {
    let server = server_with(&["1", "2"]);
    let fields = ["Content-Type: application/json", "Throng-Event: fixed"];
    let answer = put(&server, "/channels/a/messages/z-1", &fields, "{\"n\":1}");
    assert_eq!((answer.status, answer.json()), (200, json!({"replaces": "z-1", "id": "z-3"})));
    let all = history(&server, "channels/a");
    let replacing = json!({
        "type": "message", "channel": "a", "id": "z-3", "event": "fixed", "replaces": "z-1",
        "data": {"n": 1},
    });
    assert_eq!((all[0]["data"].as_str(), &all[1], all.len()), (Some("2"), &replacing, 2));
    // What is replaced is gone, and what replaces it may be replaced.
    put(&server, "/channels/a/messages/z-1", &[], "x").expect_refusal(404, "not_found");
    let answer = put(&server, "/messages?channel=a&id=z-3", &[], "again");
    assert_eq!(answer.json(), json!({"replaces": "z-3", "id": "z-4"}));
    assert_eq!(server.metric("throng_http_messages_published_total"), 4);
    for (fields, body, status, code) in [
        (&["Content-Type: application/json"][..], "x", 400, "bad_json"),
        (&["Throng-Event: erased"], "x", 400, "bad_parameter"),
    ] {
        put(&server, "/channels/a/messages/z-4", fields, body).expect_refusal(status, code);
    }
    put(&server, "/channels/a/messages/z", &[], "x").expect_refusal(400, "bad_id");
    put(&server, "/channels/a/messages/z-4?volatile=true", &[], "x")
        .expect_refusal(400, "bad_parameter");
    assert_eq!(history(&server, "channels/a").len(), 2);
}

#[test]
fn replacing_messages_of_others_is_a_right_of_its_own() {
    let mut keys = keys();
    let rules = ChannelAccess { publish: Who::Anyone, ..ChannelAccess::default() };
    keys.access.policy = std::sync::Arc::new(AccessRules::new(Vec::new(), rules));
    let publisher = keys.publisher.clone();
    let server = Server::controlled(Settings::for_tests(), keys.access);
    server.ask(post("/channels/a", &[], "x"));
    let target = "/channels/a/messages/z-1";
    put(&server, target, &[], "y").expect_refusal(401, "unauthorized");
    let erase = token(json!({"throng": {"publish": ["a"], "erase": ["a"]}}));
    for credential in [&publisher, &erase] {
        put(&server, target, &[credential], "y").expect_refusal(403, "forbidden");
    }
    let edit = token(json!({"throng": {"edit": ["a"]}}));
    assert_eq!(put(&server, target, &[&edit], "y").json()["replaces"], "z-1");
}

#[test]
fn nobody_can_publish_a_notice() {
    let server = Server::new();
    let answer = server.ask(post("/channels/a", &["Throng-Event: erased"], "x"));
    answer.expect_refusal(400, "bad_parameter");
    let line = r#"{"channel":"a","data":null,"erased":"z-1"}"#;
    let answer = server.ask(post("/publish", &[], line));
    assert!(answer.text().contains("bad_request"), "{}", answer.text());
}
