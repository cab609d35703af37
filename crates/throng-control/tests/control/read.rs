//! `GET` and `PUT` of `/users/{user}/read` and `/channels/{channel}/read`.

use serde_json::json;

use crate::client::{get, post, request};
use crate::server::Server;

#[test]
fn a_marker_moves_and_unread_messages_are_counted() {
    let server = Server::new();
    let put = |query: &str| server.ask(request("PUT", &format!("/users/ann/read{query}"), &[]));
    assert_eq!(server.ask(get("/users/ann/read")).json(), json!({"user": "ann", "unread": 0}));
    for text in ["a", "b", "c"] {
        server.ask(post("/users/ann", &[], text));
    }
    assert_eq!(server.ask(get("/users/ann/read")).json(), json!({"user": "ann", "unread": 3}));
    let second = json!({"user": "ann", "read": "z-2", "unread": 1});
    assert_eq!(put("?id=z-2").json(), second);
    assert_eq!(put("?id=z-1").json(), second, "it goes forward only");
    let first = json!({"user": "ann", "read": "z-1", "unread": 2});
    assert_eq!(put("?id=z-1&back=true").json(), first);
    assert_eq!(server.ask(get("/users/ann/read")).json(), first);
    put("").expect_refusal(400, "bad_parameter");
    put("?id=2").expect_refusal(400, "bad_id");
    put("?id=z-1&back=1").expect_refusal(400, "bad_parameter");
    put("?id=z-1&bak=true").expect_refusal(400, "bad_parameter");
    server.ask(get("/users/ann/read?id=z-1")).expect_refusal(400, "bad_parameter");
    server.ask(post("/users/ann/read", &[], "")).expect_refusal(405, "method_not_allowed");
    server.ask(get("/users/ann/read?reader=ann")).expect_refusal(400, "bad_parameter");
}

#[test]
fn a_channel_has_markers_where_its_rule_says_so() {
    let server = Server::new();
    server.ask(get("/channels/a/read")).expect_refusal(400, "bad_parameter");
    server.ask(get("/channels/a/read?reader=")).expect_refusal(400, "bad_name");
    let refused = server.ask(get("/channels/a/read?reader=ann"));
    refused.expect_refusal(400, "bad_request");
    assert!(refused.text().contains("`read-markers`"), "{}", refused.text());
}
