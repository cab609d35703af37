//! Requests of another dialect, which only tests have.

use crate::client::{post, request};
use crate::server::{Server, small};

#[test]
fn another_dialect_publishes_and_has_statuses_of_its_own() {
    let server = Server::new();
    let answer = server.ask(post("/testing/a?protocol=7", &[], "hello"));
    assert_eq!((answer.status, answer.field("x-testing")), (200, Some("ok")));
    assert_eq!(answer.text(), r#"ok {"id":"z-1","subscribers":0}"#);
    assert_eq!(server.texts("a"), ["hello"]);
    let answer = server.ask(post("/testing/a%2", &[], "hello"));
    assert_eq!((answer.status, answer.field("x-testing")), (400, Some("bad_name")));
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    let answer = server.ask(request("PATCH", "/testing/a", &[]));
    assert_eq!((answer.status, answer.field("x-testing")), (400, Some("method_not_allowed")));
    // Ours are as they were.
    server.ask(post("/channels/a%2", &[], "hello")).expect_refusal(400, "bad_name");
}

#[test]
fn errors_that_hyper_does_not_see_are_in_the_form_of_the_dialect() {
    let server = Server::new();
    for (head, code) in [
        // A worker has handed it over, so that it cannot go back.
        (request("GET", "/testing/a", &[]), "bad_handshake"),
        (request("GET", "/testing/%00", &[]), "bad_name"),
        (request("POST", "/testing/a", &["Content-Length: 9223372036854775807"]), "too_large"),
        (request("POST", "/testing/a<", &[]), "bad_request"),
    ] {
        let mut client = server.connect(head.as_str());
        let answer = client.answer();
        assert_eq!((answer.status, answer.field("x-testing")), (400, Some(code)), "{head}");
        assert_eq!(answer.field("content-type"), Some("text/plain"));
        assert!(!answer.text().starts_with('{'), "{}", answer.text());
        client.expect_end();
    }
    server.ask(request("GET", "/channels/%00", &[])).expect_refusal(400, "bad_name");
}

#[test]
fn answers_that_are_pages_or_compressed_are_translated() {
    let server = Server::with(small());
    let answer = server.ask(post("/testing/a/nothing", &[], ""));
    assert_eq!((answer.status, answer.field("x-testing")), (400, Some("not_found")));
    assert!(!answer.text().starts_with('{'), "{}", answer.text());
    for _ in 0..9 {
        server.ask(post("/testing/a", &[], "again ".repeat(90)));
    }
    let gzip = ["Accept-Encoding: gzip"];
    let own = server.connect(request("GET", "/channels/a/history", &gzip)).answer();
    assert_eq!(own.field("content-encoding"), Some("gzip"), "the test can fail");
    let answer = server.ask(request("GET", "/testing/a/history", &gzip));
    assert_eq!((answer.status, answer.field("x-testing")), (200, Some("ok")));
    assert_eq!(answer.field("content-encoding"), None);
    assert!(answer.text().starts_with(r#"ok {"channel":"a""#), "{}", answer.text());
    assert_eq!(answer.text().matches("again again").count(), 9 * 45);
}
