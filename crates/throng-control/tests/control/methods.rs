//! `HEAD`, `OPTIONS`, and methods that there are not.

use crate::client::{Answer, get, post, request};
use crate::server::{Server, small};

fn head(server: &Server, target: &str, fields: &[&str]) -> Answer {
    let mut client = server.connect(request("HEAD", target, fields) + &get("/health"));
    let answer = client.answer_to_head();
    // No body came between.
    assert_eq!(client.answer().text(), "ok\n", "{target}");
    answer
}

#[test]
fn head_of_a_subscription_says_where_it_would_start() {
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
    server.edge.expect_nothing_back();
}

#[test]
fn head_of_a_subscription_says_what_would_come() {
    let server = Server::new();
    let type_of = |target: &str, fields: &[&str]| {
        head(&server, target, fields).field("content-type").map(str::to_owned)
    };
    let text = Some("text/plain; charset=utf-8");
    assert_eq!(type_of("/channels/a", &[]).as_deref(), text);
    let lines = Some("application/x-ndjson");
    assert_eq!(type_of("/channels/a?envelope=true", &[]).as_deref(), lines);
    let events = Some("text/event-stream");
    assert_eq!(type_of("/channels/a", &["Accept: text/event-stream"]).as_deref(), events);
    assert_eq!(type_of("/channels/a?wait=1", &[]).as_deref(), None);
}

#[test]
fn head_of_a_subscription_knows_gaps() {
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
    refused("/subscribe?channel=1&channel=2&channel=3&channel=4&user=u", 400, "bad_parameter");
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
fn options_name_the_methods() {
    let server = Server::new();
    for (target, methods) in [
        ("/channels/a", "GET, HEAD, OPTIONS, POST, PUT"),
        ("/users/a", "GET, HEAD, OPTIONS, POST, PUT"),
        ("/channels/a/history", "GET, HEAD, OPTIONS"),
        ("/users/a/presence", "GET, HEAD, OPTIONS"),
        ("/subscribe?channel=a", "GET, HEAD, OPTIONS"),
        ("/publish", "OPTIONS, POST"),
        ("/", "GET, HEAD, OPTIONS"),
        ("/chat", "GET, HEAD, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
    ] {
        let answer = server.ask(request("OPTIONS", target, &[]));
        assert_eq!((answer.status, answer.field("allow")), (204, Some(methods)), "{target}");
    }
}

#[test]
fn other_methods_are_refused() {
    let server = Server::new();
    for target in ["/channels/a", "/users/a/history", "/subscribe", "/publish", "/chat", "/"] {
        for method in ["DELETE", "PATCH", "CONNECT", "TRACE", "get", "X-OWN"] {
            let answer = server.ask(request(method, target, &[]));
            answer.expect_refusal(405, "method_not_allowed");
            let options = server.ask(request("OPTIONS", target, &[]));
            assert_eq!(answer.field("allow"), options.field("allow"), "{method} {target}");
        }
    }
    assert_eq!(server.refused("method_not_allowed"), 36);
    server.ask(request("OPTIONS", "*", &[])).expect_refusal(404, "not_found");
}
