//! `POST /publish`.

use serde_json::{Value, json};
use throng_core::{ChannelName, Notification};

use crate::client::{get, post, request};
use crate::server::{Server, small};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_response_has_a_line_for_each_message_in_order() {
    let server = Server::new();
    let body = [
        r#"{"channel":"a","data":"hello"}"#,
        r#"{"user":"u1","data":{"n":1},"key":"order-7"}"#,
        r#"{"channel":"","data":"x"}"#,
        "",
        r#"{"channel":"a","data":"/wA=","encoding":"base64","content_type":"image/png"}"#,
        r#"{"user":"u1","data":2,"key":"order-7"}"#,
        "nonsense",
        r#"{"channel":"a"}"#,
        r#"{"channel":"a","data":"last","exclude":"x"}"#,
        r#"{"channel":"a","data":"last"}"#,
    ];
    let answer = server.ask(post("/publish", &[], body.join("\r\n")));
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/x-ndjson")));
    let answers = lines(answer.text());
    let codes: Vec<_> = answers.iter().map(|answer| answer["error"].as_str()).collect();
    let expected = [
        None,
        None,
        Some("bad_name"),
        None,
        None,
        Some("bad_json"),
        Some("bad_request"),
        Some("bad_parameter"),
        None,
    ];
    assert_eq!(codes, expected);
    assert_eq!(answers[0], json!({"id": "z-1", "subscribers": 0}));
    assert_eq!(answers[1], json!({"id": "z-1", "subscribers": 0}));
    assert_eq!(answers[2]["message"], "the channel name is empty");
    assert_eq!(answers[4], json!({"id": "z-1", "subscribers": 0, "duplicate": true}));
    assert_eq!(answers[8]["id"], "z-3");
    let history = server.ask(get("/channels/a/history")).json();
    assert_eq!(history["messages"][1]["content_type"], "image/png");
    assert_eq!(history["messages"][1]["encoding"], "base64");
    assert_eq!(server.refused("bad_name"), 1);
    assert_eq!(server.metric("throng_http_messages_published_total"), 4);
}

#[test]
fn a_line_may_be_volatile() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    let body = [
        r#"{"channel":"a","data":1,"volatile":true}"#,
        r#"{"channel":"a","data":"2"}"#,
        r#"{"channel":"a","data":3,"volatile":true,"key":"k"}"#,
    ];
    let answers = lines(server.ask(post("/publish", &[], body.join("\n"))).text());
    assert_eq!(answers[0], json!({"volatile": true, "subscribers": 1}));
    assert_eq!(answers[1], json!({"id": "z-1", "subscribers": 1}));
    assert_eq!(answers[2]["error"], "bad_request");
    assert_eq!(server.texts("a"), ["2"]);
    assert_eq!(server.metric("throng_http_messages_published_total"), 2);
}

#[test]
fn an_array_is_answered_with_an_array() {
    let server = Server::new();
    let body =
        "\r\n [\n{\"channel\":\"a\",\"data\":\"w\"}, 5,{\"channel\":\"a\",\n\"data\":\"x\"}]\n";
    let answer = server.ask(post("/publish", &[], body));
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/json")));
    let answers = answer.json();
    assert_eq!(answers[0], json!({"id": "z-1", "subscribers": 0}));
    assert_eq!(answers[1]["error"], "bad_json");
    assert_eq!(answers[2]["id"], "z-2");
    assert_eq!(server.texts("a"), ["w", "x"]);
    assert_eq!(server.ask(post("/publish", &[], "[]")).json(), json!([]));
}

#[test]
fn an_array_that_is_not_whole_is_refused_as_a_whole() {
    let server = Server::new();
    for body in [r#"[{"channel":"a","data":1}"#, r#"[{"channel":"a","data":1}] {}"#] {
        server.ask(post("/publish", &[], body)).expect_refusal(400, "bad_json");
    }
    assert_eq!(server.texts("a"), [""; 0]);
}

#[test]
fn a_line_can_exclude_a_connection() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    let body = r#"{"channel":"a","data":"x","exclude":"0000000000000005"}"#;
    let mut client = server.connect(post("/publish", &[], body));
    let Notification::Follows { ticket, .. } = server.notification() else { panic!("a question") };
    ticket.answer(false);
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    assert_eq!(message.extras.excluded().map(throng_core::ConnectionName::number), Some(5));
    assert_eq!(lines(client.answer().text()), [json!({"id": "z-1", "subscribers": 1})]);
}

#[test]
fn each_line_is_a_message() {
    let server = Server::new();
    let body: String =
        (0..1000).map(|n| format!("{{\"channel\":\"c{}\",\"data\":{n}}}\n", n % 10)).collect();
    let answers = lines(server.ask(post("/publish", &[], body)).text());
    assert_eq!(answers.len(), 1000);
    assert_eq!(answers[999]["id"], "z-100");
    assert_eq!(server.ask(post("/publish", &[], "\n \n")).text(), "");
}

#[test]
fn the_size_of_messages_and_batches_is_limited() {
    let server = Server::with(small());
    let line = |bytes: usize| format!(r#"{{"channel":"a","data":"{}"}}"#, "x".repeat(bytes));
    let body = [line(1000), line(1001), "\u{1}".into()].join("\n");
    let mut bytes = post("/publish", &[], body);
    *bytes.last_mut().unwrap() = 0xff;
    let answers = lines(server.ask(bytes).text());
    assert_eq!(answers[0]["id"], "z-1");
    assert_eq!(answers[1]["error"], "too_large");
    assert_eq!(answers[2]["error"], "bad_utf8");
    let answer = server.ask(post("/publish", &[], line(10_000)));
    answer.expect_refusal(413, "too_large");
    assert!(answer.json()["message"].as_str().unwrap().contains("10000"));
    server.ask(request("GET", "/publish", &[])).expect_refusal(405, "method_not_allowed");
}

/// The response to a short line is fifty times as long, so a limit on the size is not enough.
#[test]
fn the_number_of_lines_is_limited() {
    let server = Server::new();
    let line = r#"{"channel":"a","data":1}"#;
    let refused = server.ask(post("/publish", &[], format!("{line}\n{}", "x\n".repeat(10_000))));
    refused.expect_refusal(413, "too_large");
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("10001 lines") && message.contains("10000"), "{message}");
    assert_eq!((server.refused("too_large"), server.refused("bad_json")), (1, 0));
    assert_eq!(server.ask(get("/channels/a/history")).json()["id"], "z-0");
    // Empty lines do not count.
    let body = format!("{}{line}", "x\n\n".repeat(9_999));
    let answers = lines(server.ask(post("/publish", &[], body)).text());
    assert_eq!((answers.len(), &answers[9_999]["id"]), (10_000, &json!("z-1")));
    assert_eq!(server.metric("throng_http_buffered_request_bytes"), 0);
}

#[test]
fn an_atomic_batch_is_published_as_a_whole_or_not_at_all() {
    let server = Server::new();
    let ask =
        |fields: &[&str], batch: &str| server.ask(post("/publish?atomic=true", fields, batch));
    let two = "{\"channel\":\"a\",\"data\":1}\n{\"channel\":\"a\",\"data\":2,\"event\":\"x\"}";
    let answer = ask(&[], two);
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.text(),
        "{\"id\":\"z-1\",\"subscribers\":0}\n{\"id\":\"z-2\",\"subscribers\":0}\n"
    );
    let array = r#"[{"channel":"a","data":3}]"#;
    assert_eq!(ask(&[], array).text(), r#"[{"id":"z-3","subscribers":0}]"#);
    // One that is refused refuses all.
    for (line, status, code) in [
        (r#"{"channel":"b","data":1}"#, 400, "bad_request"),
        (r#"{"user":"a","data":1}"#, 400, "bad_request"),
        (r#"{"channel":"a","data":1,"volatile":true}"#, 400, "bad_request"),
        (r#"{"channel":"a","data":1,"key":"k"}"#, 400, "bad_request"),
        (r#"{"channel":"a"}"#, 400, "bad_request"),
        (r#"{"channel":"a","data":"#, 400, "bad_json"),
    ] {
        let answer = ask(&[], &format!("{two}\n{line}"));
        assert!(answer.text().contains("message 3: "), "{}", answer.text());
        answer.expect_refusal(status, code);
    }
    let many = two.to_owned() + &"\n{\"channel\":\"a\",\"data\":1}".repeat(997);
    ask(&[], &many).expect_refusal(413, "too_large");
    // With the head that the publisher knows.
    ask(&["If-Match: \"z-2\""], two).expect_refusal(412, "conflict");
    ask(&["If-Match: x"], two).expect_refusal(400, "bad_parameter");
    ask(&["If-Match: \"z-2\""], "").expect_refusal(400, "bad_request");
    assert_eq!(ask(&[], "").status, 200);
    let answer = ask(&["If-Match: \"z-3\""], two);
    assert!(answer.text().starts_with("{\"id\":\"z-4\""), "{}", answer.text());
    let page = server.ask(get("/channels/a/history")).json();
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(5));
    server.ask(post("/publish?atomic=yes", &[], two)).expect_refusal(400, "bad_parameter");
}
