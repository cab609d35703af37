//! `POST` and `PUT`: publishing one message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::json;
use throng_access::{Access, Action, Asker, Decision};
use throng_control::Settings;
use throng_core::worker_queue::QUEUE_MESSAGES_MAX;
use throng_core::{Answer, ChannelName, ConnectionName, Later, Notification, Ticket};

use crate::client::{get, post, request};
use crate::server::{EPOCH, Server};

#[test]
fn the_response_has_the_id_and_the_number_of_subscribers() {
    let server = Server::new();
    let answer = server.ask(post("/channels/a", &[], "hello"));
    assert_eq!(answer.status, 201);
    assert_eq!(answer.json(), json!({"id": "z-1", "subscribers": 0}));
    assert!(answer.field("date").is_some() && !answer.closes());
    server.follow(&ChannelName::channel("a"));
    server.follow(&ChannelName::channel("a"));
    let put = "PUT /channels/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\ntwo";
    assert_eq!(server.ask(put).json(), json!({"id": "z-2", "subscribers": 2}));
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    assert_eq!(message.body.bytes(), b"two");
    assert_eq!(message.id.to_string(), format!("{EPOCH}-2"));
    assert_eq!(server.metric("throng_http_messages_published_total"), 2);
}

#[test]
fn a_volatile_message_has_no_id_and_is_in_no_log() {
    let server = Server::new();
    let channel = ChannelName::channel("a");
    server.follow(&channel);
    let answer = server.ask(post("/channels/a?volatile=true", &[], "typing"));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"volatile": true, "subscribers": 1}));
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    assert!(message.is_volatile() && message.body.bytes() == b"typing");
    let answer = server.ask(post("/users/nobody?volatile=true", &[], "x"));
    assert_eq!(answer.json(), json!({"volatile": true, "subscribers": 0}));
    assert_eq!(server.ask(post("/channels/a?volatile=false", &[], "kept")).json()["id"], "z-1");
    assert_eq!(server.texts("a"), ["kept"]);
    assert_eq!(server.metric("throng_http_messages_published_total"), 3);
    assert_eq!(server.metric("throng_volatile_messages_published_total"), 2);
    assert_eq!(server.metric("throng_log_messages_published_total"), 1);
}

#[test]
fn a_volatile_message_with_what_only_a_kept_one_has_is_refused() {
    let server = Server::new();
    for (field, reason) in [
        ("Idempotency-Key: k", "no idempotency key"),
        ("Throng-Expires-In: 3", "no expiry"),
        ("Prefer: receipt", "no receipt"),
    ] {
        let answer = server.ask(post("/channels/a?volatile=true", &[field], "x"));
        answer.expect_refusal(400, "bad_request");
        assert!(answer.text().contains(reason), "{}", answer.text());
    }
    server.ask(post("/channels/a?volatile=1", &[], "x")).expect_refusal(400, "bad_parameter");
    assert_eq!(server.metric("throng_http_messages_published_total"), 0);
}

#[test]
fn users_have_an_inbox_of_their_own() {
    let server = Server::new();
    assert_eq!(server.ask(post("/users/a", &[], "x")).json()["id"], "z-1");
    assert_eq!(server.ask(post("/channels/a", &[], "y")).json()["id"], "z-1");
    let history = server.ask(get("/users/a/history")).json();
    assert_eq!(history["user"], "a");
    assert_eq!(history["messages"][0]["data"], "x");
    assert_eq!(server.texts("a"), ["y"]);
}

#[test]
fn names_are_percent_encoded_segments() {
    let server = Server::new();
    assert_eq!(server.ask(post("/channels/a%2Fb%20%C3%A9+c", &[], "x")).status, 201);
    let history = server.ask(get("/channels/a%2fb%20é+c/history")).json();
    assert_eq!(history["channel"], "a/b é+c");
    for name in ["", "%ff", "%f", "..", "a%2F%2Fb", "a%0A", &"x".repeat(256)] {
        let answer = server.ask(post(&format!("/channels/{name}"), &[], "x"));
        answer.expect_refusal(400, "bad_name");
        let answer = server.ask(post(&format!("/users/{name}"), &[], "x"));
        answer.expect_refusal(400, "bad_name");
    }
    assert_eq!(server.refused("bad_name"), 14);
    server.ask(post("/channels/a/b", &[], "x")).expect_refusal(404, "not_found");
}

#[test]
fn the_content_type_decides_what_a_body_is() {
    let server = Server::new();
    let publish = |content_type: &str, body: &[u8]| {
        let field = format!("Content-Type: {content_type}");
        server.ask(post("/channels/a", &[&field], body))
    };
    let newest = || server.ask(get("/channels/a/history?limit=1")).json()["messages"][0].clone();

    assert_eq!(publish("application/json", b"{\"n\": 1}").status, 201);
    assert_eq!(newest()["data"], json!({"n": 1}));
    assert_eq!(publish("application/ld+json", b"[1]").status, 201);
    assert_eq!(newest()["content_type"], "application/ld+json");
    assert_eq!(publish("application/octet-stream", b"\xff\x00").status, 201);
    assert_eq!(
        (newest()["data"].clone(), newest()["encoding"].clone()),
        (json!("/wA="), json!("base64"))
    );
    assert_eq!(publish("application/x-www-form-urlencoded", b"a=b").status, 201);
    assert_eq!(newest()["data"], "a=b");
    assert_eq!(newest().get("content_type"), None);

    publish("application/json", b"{").expect_refusal(400, "bad_json");
    publish("text/plain", b"\xff").expect_refusal(400, "bad_utf8");
    let long = format!("text/{}", "x".repeat(300));
    publish(&long, b"x").expect_refusal(400, "bad_parameter");
    publish("text/\u{e9}", b"x").expect_refusal(400, "bad_parameter");
    let empty = server.ask(post("/channels/a", &[], ""));
    assert_eq!(empty.status, 201);
}

#[test]
fn a_body_may_arrive_in_pieces_or_chunks() {
    let server = Server::new();
    let body = "x".repeat(60_000);
    let request = post("/channels/a", &[], &body);
    let mut client = server.connect(&request[..70]);
    for piece in request[70..].chunks(997) {
        client.send(piece);
    }
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (201, false));
    assert_eq!(server.texts("a"), [body]);

    let chunked = request_chunked("5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nTrailer: x\r\n\r\n");
    let mut client = server.connect(chunked);
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (201, true));
    client.expect_end();
    assert_eq!(server.texts("c"), ["hello!"]);
    assert_eq!(server.metric("throng_http_buffered_request_bytes"), 0);
}

fn request_chunked(chunks: &str) -> String {
    request("POST", "/channels/c", &["Transfer-Encoding: chunked"]) + chunks
}

#[test]
fn a_body_that_ends_early_is_not_published() {
    let server = Server::new();
    for request in [
        request("POST", "/channels/c", &["Content-Length: 10"]) + "short",
        request_chunked("5\r\nhel"),
        request_chunked("5\r\nhello\r\n"),
    ] {
        let mut client = server.connect(request);
        client.finish();
        let answer = client.answer();
        answer.expect_refusal(400, "bad_length");
        assert!(answer.closes());
        client.expect_end();
    }
    assert_eq!(server.texts("c"), [""; 0]);
}

#[test]
fn a_repeated_idempotency_key_publishes_once() {
    let server = Server::new();
    let publish = |key: &str, body: &str| {
        server.ask(post("/channels/a", &[&format!("Idempotency-Key: {key}")], body))
    };
    assert_eq!(publish("k", "one").json(), json!({"id": "z-1", "subscribers": 0}));
    let again = publish("k", "two");
    assert_eq!(again.status, 200);
    assert_eq!(again.json(), json!({"id": "z-1", "subscribers": 0, "duplicate": true}));
    assert_eq!(publish("other", "three").json()["id"], "z-2");
    let elsewhere = server.ask(post("/users/a", &["Idempotency-Key: k"], "x"));
    assert_eq!(elsewhere.status, 201);
    assert_eq!(server.texts("a"), ["one", "three"]);
    assert_eq!(publish(&"k".repeat(128), "x").status, 201);
    publish("", "x").expect_refusal(400, "bad_parameter");
    publish(&"k".repeat(129), "x").expect_refusal(400, "bad_parameter");
    publish("\u{e9}", "x").expect_refusal(400, "bad_parameter");
    assert_eq!(server.metric("throng_http_messages_published_total"), 4);
    assert_eq!(server.metric("throng_log_duplicate_publications_total"), 1);
}

#[test]
fn a_message_can_exclude_a_connection() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    server.follow(&ChannelName::channel("a"));
    let excluded = ConnectionName::numbered(0x17);
    let mut client =
        server.connect(post("/channels/a", &["Throng-Exclude: 0000000000000017"], "x"));
    let Notification::Follows { connection, ticket, .. } = server.notification() else {
        panic!("a question")
    };
    assert_eq!(connection, excluded);
    ticket.answer(true);
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    assert_eq!(message.extras.excluded(), Some(excluded));
    assert_eq!(client.answer().json()["subscribers"], 1);
    for name in ["", "x", "-1", "11111111111111111"] {
        let answer = server.ask(post("/channels/a", &[&format!("Throng-Exclude: {name}")], "x"));
        answer.expect_refusal(400, "bad_parameter");
    }
}

#[test]
fn a_message_can_expire() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    server.ask(post("/channels/a", &["Throng-Expires-In: 30"], "x"));
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    let expires_ms = message.expires_ms.expect("it expires").get();
    assert_eq!(expires_ms - message.time_ms, 30_000);
    server.ask(post("/publish", &[], r#"{"channel":"a","data":"x","expires_in":1}"#));
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    assert_eq!(message.expires_ms.map(|it| it.get() - message.time_ms), Some(1000));
    for value in ["", "0", "-1", "+1", "1.5", "1s", "31536001", "99999999999"] {
        let answer =
            server.ask(post("/channels/a", &[&format!("Throng-Expires-In: {value}")], "x"));
        answer.expect_refusal(400, "bad_parameter");
    }
}

#[test]
fn a_message_is_refused_while_a_workers_queue_is_full() {
    let server = Server::new();
    let channel = ChannelName::channel("a");
    server.follow(&channel);
    server.ask(post("/channels/a", &[], "first"));
    let Notification::Message { local, channel, message, .. } = server.notification() else {
        panic!("a message")
    };
    for _ in 0..QUEUE_MESSAGES_MAX {
        let message = std::sync::Arc::clone(&message);
        let waiting = Notification::Message { local, channel, message, receipt: None };
        server.engine.post(throng_core::WorkerId(0), waiting);
    }
    let answer = server.ask(post("/channels/a", &[], "x"));
    answer.expect_refusal(503, "busy");
    assert!(!answer.closes());
    assert_eq!(server.texts("a"), ["first"]);
    assert_eq!(server.refused("busy"), 1);
    assert_eq!(server.metric("throng_log_publications_refused_total"), 1);
}

#[test]
fn a_header_that_says_two_things_is_refused() {
    let server = Server::new();
    for (name, first, second) in [
        ("Throng-Expires-In", "30", "60"),
        ("Idempotency-Key", "one", "two"),
        ("Throng-Exclude", "002d5e1b30000001", "002d5e1b30000002"),
        ("Throng-Event", "price", "trade"),
        ("Throng-Tags", "{}", "{\"n\":2}"),
        ("Content-Type", "text/plain", "application/json"),
    ] {
        let headers = [format!("{name}: {first}"), format!("{name}: {second}")];
        let answer = server.ask(post("/channels/a", &headers.each_ref().map(|line| &**line), "x"));
        answer.expect_refusal(400, "bad_request");
        let message = answer.json()["message"].to_string();
        assert!(message.contains("given twice"), "{message}");
    }
    assert_eq!(server.ask(post("/channels/a", &["Throng-Expires-In: 30"], "x")).status, 201);
}

#[test]
fn a_message_has_the_event_and_the_tags_of_its_headers() {
    let server = Server::new();
    let headers =
        ["Throng-Event: Größe", "Throng-Tags: { \"symbol\": \"ACM\\u0045\", \"n\": 2.50 }"];
    let path = "/channels/a?volatile=true";
    assert_eq!(server.ask(post(path, &headers, "x")).status, 200);
    assert_eq!(server.ask(post("/channels/a", &headers, "x")).status, 201);
    assert_eq!(server.ask(post("/channels/a", &["Throng-Tags: {}"], "y")).status, 201);
    let line = r#"{"channel":"a","data":"z","event":"trade","tags":{"side":"buy"}}"#;
    assert_eq!(server.ask(post("/publish", &[], line)).status, 200);
    let history = server.ask(get("/channels/a/history")).json();
    let messages = history["messages"].as_array().unwrap();
    assert_eq!(messages[0]["event"], "Größe");
    assert_eq!(messages[0]["tags"].to_string(), r#"{"n":2.5,"symbol":"ACME"}"#);
    assert!(messages[1].get("event").is_none() && messages[1].get("tags").is_none());
    assert_eq!(
        (&messages[2]["event"], &messages[2]["tags"]["side"]),
        (&"trade".into(), &"buy".into())
    );
}

#[test]
fn malformed_labels_are_refused() {
    let server = Server::new();
    let many: Vec<_> = (0..17).map(|n| format!(r#""t{n}":{n}"#)).collect();
    let [long, many] = ["e".repeat(129), format!("{{{}}}", many.join(","))];
    for (header, value, problem) in [
        ("Throng-Event", "", "must be 1 to 128 bytes of UTF-8"),
        ("Throng-Event", long.as_str(), "must be 1 to 128 bytes of UTF-8"),
        ("Throng-Event", "a\tb", "must be 1 to 128 bytes of UTF-8"),
        ("Throng-Event", "binary", "has a name that is reserved"),
        ("Throng-Event", "throng-erased", "has a name that is reserved"),
        ("Throng-Tags", "symbol=ACME", "must be a JSON object of strings and finite numbers"),
        ("Throng-Tags", r#"{"a":{"b":1}}"#, "must be a JSON object of strings and finite numbers"),
        ("Throng-Tags", r#"{"a":1,"a":2}"#, "has a tag twice"),
        ("Throng-Tags", &many, "has more than 16 tags"),
    ] {
        let answer = server.ask(post("/channels/a", &[&format!("{header}: {value}")], "x"));
        answer.expect_refusal(400, "bad_parameter");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        let expected = format!("the header `{header}` {problem}");
        assert!(message.starts_with(&expected), "{message}");
    }
    assert!(server.texts("a").is_empty());
}

/// Denies every action on channels and users called `secret`.
struct Secrecy;

impl Access for Secrecy {
    fn may(&self, _: &Asker<'_>, action: Action<'_>, _: Later<'_, Decision>) -> Answer<Decision> {
        let (Action::Subscribe(name)
        | Action::Publish(name)
        | Action::ReadHistory(name)
        | Action::ReadPresence(name)
        | Action::Erase(name)
        | Action::Edit(name)
        | Action::SetState(name)
        | Action::End(name)
        | Action::UpdateMember(name)
        | Action::Create(name)) = action
        else {
            return Decision::Allowed.into();
        };
        if name.name() == "secret" {
            return Decision::forbidden("this channel is secret").into();
        }
        Decision::Allowed.into()
    }
}

#[test]
fn every_action_is_checked() {
    let server = Server::with_access(Settings::for_tests(), Arc::new(Secrecy));
    for request in [
        post("/channels/secret", &[], "x"),
        post("/users/secret", &[], "x"),
        get("/channels/secret/history").into(),
        get("/users/secret/presence").into(),
    ] {
        let answer = server.ask(request);
        answer.expect_refusal(403, "forbidden");
        assert_eq!(answer.json()["message"], "this channel is secret");
    }
    let mut client = server.connect(request("HEAD", "/subscribe?channel=a&user=secret", &[]));
    assert_eq!(client.answer_to_head().status, 403);
    let answer = server.ask(post("/publish", &[], r#"{"channel":"secret","data":"x"}"#));
    assert!(answer.text().contains(r#""error":"forbidden""#));
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201);
}

/// Passes each question to the test, which answers it later. Once it is closed, it allows nothing.
struct Undecided(mpsc::Sender<Ticket<Decision>>, Arc<AtomicBool>);

impl Access for Undecided {
    fn may(
        &self,
        asker: &Asker<'_>,
        _: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        if self.1.load(Ordering::Relaxed) {
            return Decision::forbidden("the rules have changed").into();
        }
        if asker.is_repeated {
            return Decision::Allowed.into();
        }
        let (ticket, answer) = later.ticket();
        self.0.send(ticket).expect("the test waits");
        answer
    }
}

#[test]
fn a_decision_may_come_later() {
    let (sender, questions) = mpsc::channel();
    let is_closed = Arc::new(AtomicBool::new(false));
    let policy = Undecided(sender, Arc::clone(&is_closed));
    let server = Server::with_access(Settings::for_tests(), Arc::new(policy));
    let publish = || server.connect(post("/channels/a", &[], "x"));
    let mut client = publish();
    questions.recv().expect("the policy is asked").answer(Decision::Allowed);
    assert_eq!(client.answer().status, 201);
    let mut client = publish();
    let denial = Decision::forbidden("only others may do this");
    questions.recv().expect("the policy is asked").answer(denial);
    client.answer().expect_refusal(403, "forbidden");
    let mut client = publish();
    drop(questions.recv().expect("the policy is asked"));
    let answer = client.answer();
    answer.expect_refusal(503, "busy");
    assert!(answer.field("retry-after").is_some());
    let mut client = publish();
    let question = questions.recv().expect("the policy is asked");
    is_closed.store(true, Ordering::Relaxed);
    question.answer(Decision::Allowed);
    client.answer().expect_refusal(403, "forbidden");
    assert!(questions.try_recv().is_err(), "each is asked once");
}
