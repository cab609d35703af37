//! `GET …/presence`.

use std::sync::Arc;

use serde_json::json;
use throng_access::AllowAll;
use throng_control::Settings;
use throng_core::{ChannelName, MemoryEngine, Notification};
use throng_wire::v1::ShownMember;

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

#[test]
fn the_members_of_a_channel_come_in_pages_without_a_question() {
    let hall = ChannelName::channel("halls/a");
    let begin = |engine: &MemoryEngine| {
        for number in 0..100_000 {
            let (user, info) = (format!("user-{number:05}"), format!(r#"{{"n":{number}}}"#));
            let (user, info) = (Some(&*user), Some(&*info).filter(|_| number % 2 == 0));
            let member = ShownMember { connection: None, user, info };
            engine.begin_member(1, &hall, member).expect("the list has room");
        }
    };
    let server = Server::prepared(Settings::for_tests(), Arc::new(AllowAll), begin);
    let page = server.ask(get("/channels/halls%2Fa/presence?limit=2")).json();
    let expected = json!({
        "channel": "halls/a", "connections": 0, "users": ["user-00000", "user-00001"],
        "members": [{"user": "user-00000", "info": {"n": 0}}, {"user": "user-00001"}],
        "next": "user-00001", "more": true,
    });
    assert_eq!(page, expected);
    let (mut after, mut found) = (String::new(), 0);
    loop {
        let target = format!("/channels/halls%2Fa/presence?limit=1000{after}");
        let page = server.ask(get(&target)).json();
        found += page["members"].as_array().expect("a list").len();
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(found, 100_000);
    assert_eq!(server.metric("throng_members"), 100_000);
    let refused = server.ask(get("/channels/a/presence?after=x"));
    refused.expect_refusal(400, "bad_parameter");
}
