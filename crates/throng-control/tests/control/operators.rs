//! Operators revoke tokens, list and close connections.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;
use throng_access::revocation::FileStorage;
use throng_access::{Policy, RevocationLog, Revocations};
use throng_control::Settings;
use throng_core::{
    ChannelName, ConnectionName, FoundConnection, FoundLag, FoundTransport, ScanAction, ScanClose,
    ScanTarget, Scanned, clock,
};

use crate::client::{Answer, post, request};
use crate::credentials::{Keys, keys, keys_with, log_in, token};
use crate::server::{Scan, Server};

/// A server that keeps at most `most` revocations in a file of the folder, and its operator.
fn revoking(folder: &TempDir, most: usize) -> (Server, String) {
    let revocations = Arc::new(Revocations::default());
    let storage = FileStorage::open(&folder.path().join("revocations")).unwrap();
    let now_s = clock::machine_ms() / 1000;
    let set = Arc::clone(&revocations);
    let log = RevocationLog::open(storage, set, &Policy::default(), most, now_s).unwrap();
    let mut keys = keys_with(revocations);
    keys.access.revocations = Mutex::new(Some(log));
    (Server::controlled(Settings::for_tests(), keys.access), keys.operator)
}

fn read(server: &Server, field: &str) -> Answer {
    server.ask(request("GET", "/channels/a/history", &[field]))
}

fn reader(id: &str) -> String {
    token(json!({ "jti": id, "throng": { "history": ["a"] } }))
}

#[test]
fn a_revoked_token_is_refused_at_once_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (server, operator) = revoking(&folder, 10);
    let [one, other] = ["t/1", "t2"].map(reader);
    assert_eq!(read(&server, &one).status, 200);
    let of = |method| request(method, "/revocations/tokens/t%2F1", &[operator.as_str()]);
    server.ask(of("GET")).expect_refusal(404, "not_found");
    let made = server.ask(of("POST"));
    assert_eq!((made.status, &made.json()["token"]), (201, &json!("t/1")));
    read(&server, &one).expect_refusal(401, "token_revoked");
    assert_eq!(read(&server, &other).status, 200);
    let Scan { target, action, .. } = server.edge.scan();
    assert_eq!(action, ScanAction::Revoke);
    assert!(matches!(target, ScanTarget::Sessions(tags) if tags.len() == 1));
    assert_eq!(server.ask(of("GET")).json(), made.json());
    server.end();

    let (server, operator) = revoking(&folder, 10);
    read(&server, &one).expect_refusal(401, "token_revoked");
    let of = |method| request(method, "/revocations/tokens/t%2F1", &[operator.as_str()]);
    assert_eq!(server.ask(of("DELETE")).status, 204);
    server.ask(of("DELETE")).expect_refusal(404, "not_found");
    assert_eq!(read(&server, &one).status, 200);
    server.end();

    let (server, _) = revoking(&folder, 10);
    assert_eq!(read(&server, &one).status, 200);
}

#[test]
fn tokens_issued_before_a_revocation_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (server, operator) = revoking(&folder, 10);
    let now_s = clock::machine_ms() / 1000;
    let issued = |at_s| token(json!({ "iat": at_s, "throng": { "history": ["a"] } }));
    let revoke = |target: &str| server.ask(request("POST", target, &[operator.as_str()]));
    let before = now_s - 100;
    let answer = revoke(&format!("/revocations/users/ann?before={before}"));
    assert_eq!((answer.status, answer.json()), (201, json!({ "user": "ann", "before": before })));
    read(&server, &issued(before - 1)).expect_refusal(401, "token_revoked");
    assert_eq!(read(&server, &issued(before)).status, 200);
    let Scan { action, .. } = server.edge.scan();
    let ScanAction::Close(close) = action else { panic!("{action:?}") };
    assert!(close.may_return && close.code == 4100, "newer tokens are good: {close:?}");
    assert!(revoke("/revocations/users/ann").json()["before"].as_u64().unwrap() > now_s);
    assert_eq!(server.edge.scan().action, ScanAction::Revoke);
    read(&server, &issued(now_s)).expect_refusal(401, "token_revoked");
    for (target, code) in [
        (format!("/revocations/users/ann?before={}", now_s + 3600), "bad_parameter"),
        ("/revocations/users/ann?before=yesterday".into(), "bad_parameter"),
        ("/revocations/users/ann?until=1".into(), "bad_parameter"),
        ("/revocations/tokens/t?before=1".into(), "bad_parameter"),
        ("/revocations/users/a%2F..%2Fb".into(), "bad_name"),
        ("/revocations/tokens/".into(), "bad_name"),
        (format!("/revocations/tokens/{}", "x".repeat(256)), "bad_name"),
    ] {
        revoke(&target).expect_refusal(400, code);
    }
}

#[test]
fn revocations_are_listed_in_pages_and_limited() {
    let folder = tempfile::tempdir().unwrap();
    let (server, operator) = revoking(&folder, 5);
    for user in ["a", "b", "c", "d", "e"] {
        let target = format!("/revocations/users/{user}");
        assert_eq!(server.ask(request("POST", &target, &[operator.as_str()])).status, 201);
    }
    let full = server.ask(request("POST", "/revocations/tokens/t", &[operator.as_str()]));
    full.expect_refusal(507, "not_stored");
    let mut users = Vec::new();
    let mut after = String::new();
    loop {
        let target = format!("/revocations?limit=2{after}");
        let page = server.ask(request("GET", &target, &[operator.as_str()])).json();
        let entries = page["revocations"].as_array().unwrap();
        users.extend(entries.iter().map(|entry| entry["user"].as_str().unwrap().to_owned()));
        let Some(next) = page["after"].as_str() else {
            assert_eq!(page["more"], false);
            break;
        };
        assert_eq!((entries.len(), &page["more"]), (2, &Value::Bool(true)));
        after = format!("&after={next}");
    }
    assert_eq!(users, ["a", "b", "c", "d", "e"]);
    let bad = request("GET", "/revocations?after=x", &[operator.as_str()]);
    server.ask(bad).expect_refusal(400, "bad_parameter");
}

#[test]
fn a_server_without_a_file_revokes_nothing() {
    let Keys { access, operator, .. } = keys();
    let server = Server::controlled(Settings::for_tests(), access);
    for method in ["POST", "GET", "DELETE"] {
        let answer = server.ask(request(method, "/revocations/users/ann", &[operator.as_str()]));
        answer.expect_refusal(403, "forbidden");
        assert!(answer.text().contains("--revocations-file"));
    }
}

#[test]
fn only_operators_operate() {
    let Keys { access, publisher, operator, .. } = keys();
    let server = Server::controlled(Settings::for_tests(), access);
    let login = log_in(&server, "http://127.0.0.1", &operator);
    let login = login.field("set-cookie").unwrap().split(';').next().unwrap();
    let login = format!("Cookie: {login}");
    for (method, target) in [
        ("GET", "/users/ann/connections"),
        ("DELETE", "/users/ann/connections"),
        ("DELETE", "/channels/a/connections"),
        ("DELETE", "/connections/1"),
        ("GET", "/revocations"),
        ("POST", "/revocations/users/ann"),
        ("DELETE", "/revocations/tokens/t"),
    ] {
        let ask = |field: &str| server.ask(request(method, target, &[field]));
        server.ask(request(method, target, &[])).expect_refusal(401, "unauthorized");
        ask(&login).expect_refusal(401, "unauthorized");
        ask(&publisher).expect_refusal(403, "forbidden");
        ask(&reader("t")).expect_refusal(403, "forbidden");
        let fields = ["Origin: http://127.0.0.1", &operator];
        server.ask(request(method, target, &fields)).expect_refusal(403, "forbidden");
    }
    let answer = server.ask(post("/users/ann/connections", &[&operator], ""));
    answer.expect_refusal(405, "method_not_allowed");
}

fn found(number: u64, since_ms: Option<u64>) -> FoundConnection {
    FoundConnection {
        name: ConnectionName::numbered(number),
        transport: FoundTransport::Sse,
        since_ms,
        peer: Some("192.0.2.1:5000".parse().unwrap()),
        proxied: None,
        lag: None,
    }
}

#[test]
fn connections_are_listed_newest_first() {
    let server = Server::new();
    let mut client = server.connect(request("GET", "/users/ann/connections?limit=3", &[]));
    let Scan { target, action, ticket } = server.edge.scan();
    let ScanTarget::User { inbox, .. } = target else { panic!("{target:?}") };
    assert_eq!((inbox, action), (ChannelName::user("ann"), ScanAction::List { limit: 3 }));
    let connections = vec![found(1, Some(1000)), found(2, None), found(3, Some(3000))];
    ticket.answer(Scanned { count: 5, connections });
    let answer = client.answer().json();
    let counted = json!([answer["user"], answer["count"], answer["more"]]);
    assert_eq!(counted, json!(["ann", 5, true]));
    let listed = answer["connections"].as_array().unwrap();
    let names: Vec<_> = listed.iter().map(|one| one["connection"].as_str().unwrap()).collect();
    let expected = [3, 1, 2].map(|number| ConnectionName::numbered(number).to_string());
    assert_eq!(names, expected);
    let first = json!({
        "connection": expected[0], "transport": "sse", "since": 3000, "address": "192.0.2.1:5000",
    });
    assert_eq!((&listed[0], &listed[2]["since"]), (&first, &Value::Null));
    let mut client = server.connect(request("GET", "/channels/a/connections", &[]));
    drop(server.edge.scan().ticket);
    client.answer().expect_refusal(503, "busy");
}

#[test]
fn connections_that_are_behind_are_listed_with_what_they_lack() {
    let server = Server::new();
    let mut client = server.connect(request("GET", "/connections?sort=behind&limit=2", &[]));
    let Scan { target, action, ticket } = server.edge.scan();
    assert_eq!((target, action), (ScanTarget::Behind, ScanAction::List { limit: 2 }));
    let lag = FoundLag {
        since_ms: 5000,
        messages: 7,
        bytes: 700,
        kernel_bytes: 100,
        user: Some("ann".into()),
        channels: vec![ChannelName::channel("news"), ChannelName::user("ann")],
        subscriptions: 3,
    };
    let first = FoundConnection { lag: Some(Box::new(lag)), ..found(3, Some(3000)) };
    ticket.answer(Scanned { count: 2, connections: vec![first] });
    let expected = json!({
        "connection": ConnectionName::numbered(3).to_string(), "transport": "sse", "since": 3000,
        "address": "192.0.2.1:5000", "user": "ann", "channels": ["news"], "inboxes": ["ann"],
        "subscriptions": 3, "behind_since": 5000, "messages": 7, "bytes": 700, "kernel_bytes": 100,
    });
    let answer = client.answer().json();
    assert_eq!(answer, json!({ "count": 2, "connections": [expected], "more": true }));
    for query in ["", "?sort=age", "?sort=behind&limit=0", "?sort=behind&limit=1001", "?after=1"] {
        let answer = server.ask(request("GET", &format!("/connections{query}"), &[]));
        answer.expect_refusal(400, "bad_parameter");
    }
    // It would close the connections of a name in the query.
    server.ask(request("DELETE", "/connections", &[])).expect_refusal(400, "bad_parameter");
    server.ask(request("PUT", "/connections", &[])).expect_refusal(405, "method_not_allowed");
}

/// How the connections of a target are closed, for a query.
fn close(server: &Server, target: &str, count: u64) -> (ScanTarget, ScanClose, Answer) {
    let mut client = server.connect(request("DELETE", target, &[]));
    let Scan { target, action, ticket } = server.edge.scan();
    let ScanAction::Close(close) = action else { panic!("{action:?}") };
    ticket.answer(Scanned { count, connections: vec![] });
    (target, close, client.answer())
}

#[test]
fn connections_are_closed_with_a_code_and_a_reason() {
    let server = Server::new();
    let (target, plain, answer) = close(&server, "/channels/a%2Fb/connections", 7);
    assert_eq!(target, ScanTarget::Channel(ChannelName::channel("a/b")));
    assert_eq!((plain.code, plain.may_return), (4100, true));
    assert!(!plain.reason.is_empty());
    assert_eq!((answer.status, answer.json()), (200, json!({ "disconnected": 7 })));
    let name = ConnectionName::numbered(0xab).to_string();
    let query = "reconnect=false&reason=out%20of%20credit";
    let (target, close_it, _) = close(&server, &format!("/connections/{name}?{query}"), 1);
    assert_eq!(target, ScanTarget::Connections(vec![ConnectionName::numbered(0xab)]));
    let reason = "out of credit".into();
    assert_eq!(close_it, ScanClose { code: 4500, reason, may_return: false });
    let (_, with_code, answer) = close(&server, "/users/ann/connections?code=4999", 0);
    assert_eq!((with_code.code, with_code.may_return), (4999, false));
    assert_eq!(answer.json()["disconnected"], 0);
    let (_, _, gone) = close(&server, &format!("/connections/{name}"), 0);
    gone.expect_refusal(404, "not_found");
}

#[test]
fn bad_ways_to_close_are_refused() {
    let server = Server::new();
    let long = format!("reason={}", "x".repeat(124));
    for query in [
        "code=4099",
        "code=5000",
        "code=x",
        "code=4100&reconnect=false",
        "code=4500&reconnect=true",
        "reconnect=never",
        "reason=a%0Ab",
        "limit=1",
        &long,
    ] {
        let target = format!("/users/ann/connections?{query}");
        let answer = server.ask(request("DELETE", &target, &[]));
        answer.expect_refusal(400, "bad_parameter");
    }
    server.ask(request("DELETE", "/connections/no", &[])).expect_refusal(400, "bad_name");
}
