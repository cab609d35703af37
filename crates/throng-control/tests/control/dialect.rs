//! Requests of another dialect, which only tests have.

use crate::client::{post, request};
use crate::server::Server;

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
    let answer = server.ask(request("DELETE", "/testing/a", &[]));
    assert_eq!((answer.status, answer.field("x-testing")), (400, Some("method_not_allowed")));
    // Ours are as they were.
    server.ask(post("/channels/a%2", &[], "hello")).expect_refusal(400, "bad_name");
}
