//! `HEAD`, `OPTIONS`, and unknown methods.

use std::num::NonZeroU32;

use throng_core::{ChannelName, Follow, LocalId, MessageId, StartAt, WorkerId};

use crate::client::{Answer, get, post, request};
use crate::server::{Server, small};

fn head(server: &Server, target: &str, fields: &[&str]) -> Answer {
    let mut client = server.connect(request("HEAD", target, fields) + &get("/health"));
    let answer = client.answer_to_head();
    // The next response follows at once: there is no body.
    assert_eq!(client.answer().text(), "ok\n", "{target}");
    answer
}

#[test]
fn head_of_a_subscription_has_the_id_where_it_would_start() {
    let server = Server::new();
    server.ask(post("/channels/a", &[], "x"));
    server.ask(post("/users/u", &[], "x"));
    let ids = |target: &str| {
        let answer = head(&server, target, &[]);
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(answer.field("content-length"), None);
        answer.field("throng-id").map(str::to_owned)
    };
    assert_eq!(ids("/channels/a").as_deref(), Some("z-1"));
    assert_eq!(ids("/channels/b").as_deref(), Some("z-0"));
    assert_eq!(ids("/users/u").as_deref(), Some("z-1"));
    assert_eq!(ids("/channels/b?user=u").as_deref(), Some("z-0,z-1"));
    assert_eq!(ids("/subscribe?user=u&channel=b&channel=a").as_deref(), Some("z-0,z-1,z-1"));
    server.edge.expect_no_handoff();
}

/// A client that continues from the id must not miss a message that the same `GET` would deliver.
#[test]
fn head_of_a_subscription_starts_where_get_does() {
    let server = Server::new();
    // More messages than the log keeps.
    for _ in 0..103 {
        server.ask(post("/channels/a", &[], "x"));
    }
    let id = |text: &str| text.parse::<MessageId>().unwrap();
    for (query, start) in [
        ("", StartAt::Live),
        ("?history=0", StartAt::Last(0)),
        ("?history=5", StartAt::Last(5)),
        ("?history=100", StartAt::Last(100)),
        ("?history=5000", StartAt::Last(5000)),
        ("?since=z-100", StartAt::After(id("z-100"))),
        ("?since=z-103", StartAt::After(id("z-103"))),
        ("?since=z-3", StartAt::After(id("z-3"))),
        ("?since=z-2", StartAt::After(id("z-2"))),
        ("?since=z-104", StartAt::After(id("z-104"))),
        ("?since=y-1", StartAt::After(id("y-1"))),
        ("?since=z-100&history=1", StartAt::After(id("z-100"))),
    ] {
        for name in ["a", "never-seen"] {
            let answer = head(&server, &format!("/channels/{name}{query}"), &[]);
            let channel = ChannelName::channel(name);
            let followed = server.engine.follow(
                0,
                Follow {
                    channel: &channel,
                    worker: WorkerId(0),
                    local_if_new: LocalId(NonZeroU32::MIN),
                    start,
                },
            );
            server.engine.unfollow(0, followed.channel, WorkerId(0));
            let cursor = followed.cursor.to_string();
            assert_eq!(answer.field("throng-id"), Some(&*cursor), "{name}{query}");
            let recovered = followed.is_recovered.map(|recovered| recovered.to_string());
            let field = answer.field("throng-recovered");
            assert_eq!(field, recovered.as_deref(), "{name}{query}");
        }
    }
    let both = head(&server, "/subscribe?channel=never&channel=a&history=5", &[]);
    assert_eq!(both.field("throng-id"), Some("z-0,z-98"));
}

#[test]
fn head_of_a_subscription_has_the_status_and_headers_of_get() {
    let server = Server::new();
    server.ask(post("/channels/full", &[], "x"));
    let head_of = |target: &str, fields: &[&str]| {
        let answer = head(&server, target, fields);
        assert_eq!(answer.field("throng-connection"), None);
        assert_eq!(answer.field("content-length"), None);
        let field = |name: &str| answer.field(name).map(str::to_owned);
        let headers = ["content-type", "cache-control", "x-accel-buffering"].map(field);
        (answer.status, headers.map(Option::unwrap_or_default))
    };
    let stream =
        |status, kind: &str| (status, [kind, "no-store, no-transform", "no"].map(String::from));
    let poll = |status| (status, ["", "no-store", ""].map(String::from));
    let events = ["Accept: text/event-stream"];
    assert_eq!(head_of("/channels/a", &[]), stream(200, "text/plain; charset=utf-8"));
    let lines = stream(200, "application/x-ndjson");
    assert_eq!(head_of("/channels/a?envelope=true", &[]), lines);
    assert_eq!(head_of("/channels/a", &events), stream(200, "text/event-stream"));
    assert_eq!(head_of("/channels/a?wait=0", &[]), poll(204));
    assert_eq!(head_of("/channels/a?wait=300", &[]), poll(204));
    assert_eq!(head_of("/channels/full?wait=0", &[]), poll(204));
    assert_eq!(head_of("/channels/full?wait=0&since=z-1", &[]), poll(204));
    assert_eq!(head_of("/channels/full?wait=0&since=z-0", &[]), poll(200));
    assert_eq!(head_of("/channels/full?transport=poll&history=1", &[]), poll(200));
    assert_eq!(head_of("/channels/full?transport=poll&since=y-7", &[]), poll(200));
}

#[test]
fn head_of_a_subscription_reports_gaps() {
    let server = Server::new();
    server.ask(post("/channels/a", &[], "x"));
    let recovered = |target: &str, fields: &[&str]| {
        head(&server, target, fields).field("throng-recovered").map(str::to_owned)
    };
    assert_eq!(recovered("/channels/a", &[]), None);
    assert_eq!(recovered("/channels/a?since=z-0", &[]).as_deref(), Some("true"));
    assert_eq!(recovered("/channels/a?since=y-0", &[]).as_deref(), Some("false"));
    let newer = ["Last-Event-ID: z-1"];
    assert_eq!(recovered("/channels/a?since=y-0", &newer).as_deref(), Some("true"));
    let both = "/subscribe?channel=b&channel=a&since=z-0,y-0";
    assert_eq!(recovered(both, &[]).as_deref(), Some("false"));
}

#[test]
fn head_of_a_subscription_refuses_what_a_worker_would() {
    let server = Server::with(small());
    let refused = |target: &str, status: u16, code: &str| {
        let before = server.refused(code);
        assert_eq!(head(&server, target, &[]).status, status, "{target}");
        assert_eq!(server.refused(code), before + 1, "{target}");
    };
    refused("/channels/..", 400, "bad_name");
    refused("/subscribe", 400, "bad_parameter");
    refused("/subscribe?channel=a&channel=a", 400, "bad_parameter");
    refused("/channels/a?channel=b", 400, "bad_parameter");
    refused("/users/a?user=b", 400, "bad_parameter");
    refused("/channels/a?user=b&user=c", 400, "bad_parameter");
    refused("/channels/a?wait=x", 400, "bad_parameter");
    refused("/channels/a?transport=websocket", 426, "upgrade_required");
    let answer = head(&server, "/channels/a?transport=websocket", &[]);
    assert_eq!(answer.field("upgrade"), Some("websocket"));
    refused("/channels/a?since=x", 400, "bad_id");
    refused("/channels/a?since=z-1,z-1", 400, "bad_id");
    refused("/subscribe?channel=1&channel=2&channel=3&channel=4&user=u", 400, "too_many_channels");
}

#[test]
fn head_of_a_page_has_the_headers_of_get() {
    let server = Server::new();
    server.ask(post("/channels/a", &[], "x"));
    for target in [
        "/channels/a/history",
        "/channels/a/presence",
        "/channels/a/history?limit=0",
        "/nowhere",
        "/health",
        "/chat",
    ] {
        let (mut head, get) = (head(&server, target, &[]), server.ask(get(target)));
        let names = ["content-type", "content-length", "cache-control", "throng-id", "etag"];
        assert_eq!(head.status, get.status, "{target}");
        for name in names {
            assert_eq!(head.field(name), get.field(name), "{name} of {target}");
        }
        head = server.connect(request("HEAD", target, &["Connection: close"])).answer_to_head();
        assert!(head.closes());
    }
}

#[test]
fn options_lists_the_methods() {
    let server = Server::new();
    for (target, methods) in [
        ("/channels/a", "DELETE, GET, HEAD, OPTIONS, POST, PUT"),
        ("/users/a", "GET, HEAD, OPTIONS, POST, PUT"),
        ("/channels/a/history", "DELETE, GET, HEAD, OPTIONS"),
        ("/channels/a/messages/z-1", "DELETE, OPTIONS, PUT"),
        ("/users/a/presence", "GET, HEAD, OPTIONS"),
        ("/subscribe?channel=a", "GET, HEAD, OPTIONS"),
        ("/publish", "DELETE, OPTIONS, POST, PUT"),
        ("/", "GET, HEAD, OPTIONS"),
        ("/chat", "GET, HEAD, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/health/ready", "GET, HEAD, OPTIONS"),
    ] {
        let answer = server.ask(request("OPTIONS", target, &[]));
        assert_eq!((answer.status, answer.field("allow")), (204, Some(methods)), "{target}");
    }
}

#[test]
fn other_methods_are_refused() {
    let server = Server::new();
    for target in ["/channels/a", "/users/a/history", "/subscribe", "/publish", "/chat", "/"] {
        for method in ["SEARCH", "PATCH", "CONNECT", "TRACE", "get", "X-OWN"] {
            let answer = server.ask(request(method, target, &[]));
            answer.expect_refusal(405, "method_not_allowed");
            let options = server.ask(request("OPTIONS", target, &[]));
            assert_eq!(answer.field("allow"), options.field("allow"), "{method} {target}");
        }
    }
    assert_eq!(server.refused("method_not_allowed"), 36);
    server.ask(request("OPTIONS", "*", &[])).expect_refusal(404, "not_found");
}
