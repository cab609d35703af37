//! `GET …/presence`.

use serde_json::json;
use throng_core::{ChannelName, Notification};

use crate::client::{get, request};
use crate::server::Server;

#[test]
fn an_unknown_channel_has_no_subscribers() {
    let answer = Server::new().ask(get("/channels/a/presence"));
    let expected = json!({"channel": "a", "connections": 0, "users": [], "more": false});
    assert_eq!(answer.json(), expected);
    assert_eq!(answer.field("throng-id"), Some("z-0"));
}

#[test]
fn the_workers_report_the_users() {
    let server = Server::new();
    let user = ChannelName::user("ann");
    server.follow(&user);
    server.follow(&user);
    server.follow(&user);
    let mut client = server.connect(get("/users/ann/presence?limit=1"));
    let Notification::Presence { query, .. } = server.notification() else { panic!("a question") };
    assert_eq!(query.max_users(), 1);
    query.answer(["bo".into(), "ann".into()], false);
    let expected = json!({"user": "ann", "connections": 3, "users": ["ann"], "more": true});
    assert_eq!(client.answer().json(), expected);
}

#[test]
fn the_limit_is_checked() {
    let server = Server::new();
    for limit in ["0", "1001", "-1", ""] {
        let answer = server.ask(get(&format!("/channels/a/presence?limit={limit}")));
        answer.expect_refusal(400, "bad_parameter");
    }
    let answer = server.ask(request("DELETE", "/channels/a/presence", &[]));
    answer.expect_refusal(405, "method_not_allowed");
}
