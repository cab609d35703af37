//! Request smuggling: ambiguous requests are refused, and nothing after them is executed.

use crate::client::{get, post, request};
use crate::server::{Server, small};

/// A request that must not be executed.
fn smuggled() -> Vec<u8> {
    post("/channels/smuggled", &[], "x")
}

/// A request head with these header lines.
fn with(lines: &str) -> String {
    format!("POST /channels/a HTTP/1.1\r\n{lines}\r\n\r\n")
}

#[track_caller]
fn refused(server: &Server, request: impl AsRef<[u8]>, status: u16, code: &str) {
    let bytes = [request.as_ref(), &smuggled()].concat();
    let what = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    for is_first in [true, false] {
        let mut client = if is_first { server.connect(&*bytes) } else { server.connect_again() };
        if !is_first {
            client.try_send(&bytes);
        }
        let answer = client.answer();
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{what:?}");
        assert!(answer.closes(), "{what:?}");
        assert_eq!(client.rest(), "", "{what:?}");
    }
}

#[track_caller]
fn expect_nothing_smuggled(server: &Server) {
    assert_eq!(server.texts("smuggled"), [""; 0]);
    server.edge.expect_no_handoff();
}

#[test]
fn ambiguous_lengths_are_refused() {
    let server = Server::new();
    for lines in [
        "Host: 127.0.0.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        "Host: 127.0.0.1\r\nContent-Length: 3\r\nContent-Length: 4",
        "Host: 127.0.0.1\r\nContent-Length: 3\r\nContent-Length: 3",
        "Host: 127.0.0.1\r\nContent-Length: 3, 3",
        "Host: 127.0.0.1\r\nContent-Length: +3",
        "Host: 127.0.0.1\r\nContent-Length: -3",
        "Host: 127.0.0.1\r\nContent-Length: 0x3",
        "Host: 127.0.0.1\r\nContent-Length: 3 3",
        "Host: 127.0.0.1\r\nContent-Length:",
        "Host: 127.0.0.1\r\nContent-Length: 99999999999999999999",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked, chunked",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked, gzip",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked;a=b",
        "Host: 127.0.0.1\r\nTransfer-Encoding:",
    ] {
        refused(&server, with(lines), 400, "bad_length");
    }
    let old = "POST /channels/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    refused(&server, old, 400, "bad_length");
    assert_eq!(server.refused("bad_length"), 34);
    expect_nothing_smuggled(&server);
}

#[test]
fn lengths_that_would_overflow_are_refused() {
    let server = Server::new();
    for length in [u64::MAX, u64::MAX - 1, u64::MAX - 100, 1 << 63] {
        let lines = format!("Host: 127.0.0.1\r\nContent-Length: {length}");
        refused(&server, with(&lines), 413, "too_large");
    }
    expect_nothing_smuggled(&server);
}

#[test]
fn transfer_codings_other_than_chunked_are_refused() {
    let server = Server::new();
    for coding in ["gzip", "gzip, chunked", "identity", "xchunked", "\"chunked\""] {
        let lines = format!("Host: 127.0.0.1\r\nTransfer-Encoding: {coding}");
        refused(&server, with(&lines), 501, "not_implemented");
    }
    expect_nothing_smuggled(&server);
}

#[test]
fn malformed_heads_are_refused() {
    let server = Server::new();
    for head in [
        // Folded lines.
        with("Host: 127.0.0.1\r\nX: a\r\n b"),
        with(" Host: a"),
        // A line feed or carriage return alone.
        "POST /channels/a HTTP/1.1\nHost: a\n\n".into(),
        with("Host: a\nContent-Length: 3"),
        with("Host: 127.0.0.1\r\nX: a\rContent-Length: 3"),
        // Spaces in the wrong places.
        with("Host : a"),
        with("Host: 127.0.0.1\r\nContent-Length : 3"),
        with("Host: 127.0.0.1\r\nTransfer-Encoding\t: chunked"),
        "POST  /channels/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
        "POST /channels/a b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
        // Invalid names and values.
        with("Host: 127.0.0.1\r\nContent_Length\0: 3"),
        with("Host: 127.0.0.1\r\nX: \0"),
        with("Host: 127.0.0.1\r\n: a"),
        with("Host: 127.0.0.1\r\nno colon"),
        // Missing, repeated and malformed hosts, malformed targets.
        with("X: a"),
        with("Host: 127.0.0.1\r\nHost: b"),
        with("Host: a/b"),
        with("Host: a@b"),
        "POST http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n".into(),
        "CONNECT a:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
        "POST channels/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
        "POST /channels/a#b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
        "\r\n\r\n\r\nPOST /channels/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
        "\nPOST /channels/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into(),
    ] {
        refused(&server, head, 400, "bad_request");
    }
    expect_nothing_smuggled(&server);
}

/// Hyper is stricter about these than the workers. The responses are the control plane's, and
/// counted.
#[test]
fn targets_that_hyper_would_refuse_are_refused() {
    let server = Server::new();
    for target in ["/a<b", "/a>b", "/a`b", "/a?b<c", "/a?\"", "http://a%41/", "http://a:/?<"] {
        refused(&server, request("POST", target, &[]), 400, "bad_request");
    }
    assert_eq!(server.refused("bad_request"), 14);
    expect_nothing_smuggled(&server);
}

#[test]
fn unknown_versions_are_refused() {
    let server = Server::new();
    refused(&server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "bad_version");
    refused(&server, "POST / HTTP/3.0\r\nHost: 127.0.0.1\r\n\r\n", 505, "bad_version");
    refused(&server, "POST / HTTP/1.2\r\nHost: 127.0.0.1\r\n\r\n", 505, "bad_version");
    expect_nothing_smuggled(&server);
}

#[test]
fn malformed_chunks_are_refused() {
    let server = Server::with(small());
    let head = request("POST", "/channels/a", &["Transfer-Encoding: chunked"]);
    for chunks in [
        "z\r\n",
        "-1\r\n",
        "0x1\r\nx\r\n0\r\n\r\n",
        " 1\r\nx\r\n0\r\n\r\n",
        "\r\n1\r\nx\r\n0\r\n\r\n",
        "1\nx\r\n0\r\n\r\n",
        "1\r\nxx\r\n0\r\n\r\n",
        "1\r\nx\n0\r\n\r\n",
        "1;a\nb\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx",
        "1\r\nx\r\n0\r\nTrailer",
    ] {
        let mut client = server.connect(format!("{head}{chunks}"));
        client.finish();
        let answer = client.answer();
        assert_eq!(answer.refusal(), (400, "bad_length".into()), "{chunks:?}");
        assert!(answer.closes());
        client.expect_end();
    }
    let extensions = format!("1;{}\r\nx\r\n0\r\n\r\n", "x".repeat(20_000));
    let trailers = format!("0\r\n{}\r\n", "X: a\r\n".repeat(10_000));
    for chunks in [extensions, trailers] {
        let mut client = server.connect(format!("{head}{chunks}"));
        client.answer().expect_refusal(400, "bad_length");
        client.expect_end();
    }
    assert_eq!(server.texts("a"), [""; 0]);
}

/// Only hyper knows where a chunked request ends, so nothing after it is executed, even if it is
/// well-formed.
#[test]
fn a_request_after_chunks_is_not_executed() {
    let server = Server::new();
    for target in ["/channels/a", "/channels/..", "/nowhere", "/health", "/publish"] {
        let head = request("POST", target, &["Transfer-Encoding: chunked"]);
        let body = b"2\r\n{}\r\n0\r\n\r\n";
        let mut client = server.connect([head.as_bytes(), body, &smuggled()].concat());
        assert!(client.answer().closes(), "{target}");
        client.expect_end();
    }
    expect_nothing_smuggled(&server);
}

/// An unread body is skipped and not parsed as the next request.
#[test]
fn unread_bodies_are_skipped() {
    let server = Server::new();
    for (method, target) in [
        ("POST", "/channels/.."),
        ("POST", "/nowhere"),
        ("GET", "/channels/a/history"),
        ("OPTIONS", "/channels/a"),
        ("DELETE", "/channels/a"),
        ("GET", "/chat"),
    ] {
        let body = smuggled();
        let length = format!("Content-Length: {}", body.len());
        let head = request(method, target, &[&length]);
        // First in one piece, then with a body that arrives later.
        let mut client =
            server.connect([head.as_bytes(), &body, get("/health").as_bytes()].concat());
        assert!(!client.answer().closes(), "{method} {target}");
        assert_eq!(client.answer().text(), "ok\n", "{method} {target}");
        client.send(head);
        client.send(body);
        client.send(get("/health"));
        assert!(!client.answer().closes(), "{method} {target}");
        assert_eq!(client.answer().text(), "ok\n", "{method} {target}");
    }
    expect_nothing_smuggled(&server);
}

#[test]
fn the_connection_ends_after_a_refused_expectation() {
    let server = Server::new();
    let fields = ["Expect: 100-continue", "Content-Length: 3"];
    let mut client = server.connect(request("POST", "/channels/..", &fields));
    let answer = client.answer();
    answer.expect_refusal(400, "bad_name");
    assert!(answer.closes());
    client.try_send(smuggled());
    assert_eq!(client.rest(), "");
    expect_nothing_smuggled(&server);
}
