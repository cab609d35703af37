//! Valid and invalid request heads.

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { max_head_bytes: 16 * 1024 };

const VALID: &[u8] = b"\r\nPOST /channels/a%20b?x=1 HTTP/1.1\r\nHost: example.org:8080\r\n\
    Content-Length: 5\r\nX-Empty:\r\nAccept: text/html, */*\r\naccept:  text/plain \r\n\r\n";

fn complete(bytes: &[u8]) -> (Head<'_>, usize) {
    match parse(bytes, LIMITS) {
        Ok(Parsed::Complete { head, length }) => (head, length),
        other => panic!("{:?} gives {other:?}", String::from_utf8_lossy(bytes)),
    }
}

/// Status and code of the error, or the other result.
fn refused(bytes: &[u8]) -> String {
    refused_within(bytes, LIMITS)
}

fn refused_within(bytes: &[u8], limits: Limits) -> String {
    match parse(bytes, limits) {
        Err(error) => format!("{} {}", error.code.status(), error.code.name()),
        Ok(Parsed::Incomplete) => "incomplete".to_owned(),
        Ok(Parsed::Complete { .. }) => "complete".to_owned(),
    }
}

/// A request with `Host` and these headers.
fn with_headers(lines: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes()
}

#[test]
fn a_head_is_parsed() {
    let mut bytes = VALID.to_vec();
    bytes.extend_from_slice(b"hello");
    let (head, length) = complete(&bytes);
    assert_eq!(length, VALID.len());
    assert_eq!((head.method, head.target), ("POST", "/channels/a%20b?x=1"));
    assert_eq!(head.version, Version::Http11);
    assert_eq!(head.host(), Some("example.org:8080"));
    assert_eq!(head.header("ACCEPT"), Some(&b"text/html, */*"[..]));
    assert_eq!(head.headers("accept").collect::<Vec<_>>(), [&b"text/html, */*"[..], b"text/plain"]);
    assert_eq!(
        head.items("accept").collect::<Vec<_>>(),
        [&b"text/html"[..], b"*/*", b"text/plain"]
    );
    assert!(head.has_item("Accept", "TEXT/plain") && !head.has_item("accept", "text"));
    assert_eq!(head.header("x-empty"), Some(&b""[..]));
    assert_eq!(head.header("x-none"), None);
    assert_eq!(head.content_length(), Some(5));
    assert!(head.has_body() && !head.is_chunked() && head.keep_alive());
}

#[test]
fn a_head_is_incomplete_up_to_its_last_byte() {
    for end in 0..VALID.len() {
        assert!(matches!(parse(&VALID[..end], LIMITS), Ok(Parsed::Incomplete)), "at {end}");
    }
    complete(VALID);
}

#[test]
fn two_empty_lines_may_come_first() {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for count in 0..=2 {
        let bytes = [&b"\r\n".repeat(count), &request[..]].concat();
        assert_eq!(complete(&bytes).1, bytes.len());
    }
    assert_eq!(refused(b"\r\n\r\n\r\n"), "400 bad_request");
}

#[test]
fn bare_line_feeds_are_refused_as_soon_as_seen() {
    assert_eq!(refused(b"\n"), "400 bad_request");
    assert_eq!(refused(b"GET / HTTP/1.1\n"), "400 bad_request");
    assert_eq!(refused(b"GET / HTTP/1.1\r\nHost: a\n"), "400 bad_request");
    assert_eq!(refused(b"GET / HTTP/1.1\r\nHost: a\r\n\n"), "400 bad_request");
    assert_eq!(refused(b"GET / HTTP/1.1\r\nA: b\nHost: a\r\n\r\n"), "400 bad_request");
}

#[test]
fn bytes_after_a_head_are_ignored() {
    let (_, length) = complete(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\n\0\n");
    assert_eq!(length, 27);
}

#[test]
fn bad_syntax_is_refused() {
    for bytes in [
        &b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"GET /\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"G{T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nnocolon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX\xff: a\r\n\r\n",
        b"GET / FTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / http/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.10\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\r\n\r\n",
    ] {
        assert_eq!(refused(bytes), "400 bad_request", "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn other_versions_are_refused_as_such() {
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/2", "HTTP/3"] {
        let bytes = format!("GET / {version}\r\nHost: a\r\n\r\n");
        assert_eq!(refused(bytes.as_bytes()), "505 bad_version", "{version}");
    }
    assert_eq!(refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "505 bad_version");
}

#[test]
fn targets_are_paths_or_reduced_to_paths() {
    for (line, target, host) in [
        ("GET /a?b HTTP/1.1", "/a?b", "h"),
        ("GET //a HTTP/1.1", "//a", "h"),
        ("GET /日本 HTTP/1.1", "/日本", "h"),
        ("OPTIONS * HTTP/1.1", "*", "h"),
        ("GET http://other:81/a?b HTTP/1.1", "/a?b", "other:81"),
        ("GET HTTPS://other HTTP/1.1", "/", "other"),
        ("GET http://[::1]/a HTTP/1.1", "/a", "[::1]"),
    ] {
        let bytes = format!("{line}\r\nHost: h\r\n\r\n");
        let (head, _) = complete(bytes.as_bytes());
        assert_eq!((head.target, head.host()), (target, Some(host)), "{line}");
    }
    for line in [
        "GET * HTTP/1.1",
        "GET a HTTP/1.1",
        "GET ?a HTTP/1.1",
        "GET ftp://a/ HTTP/1.1",
        "GET http:/// HTTP/1.1",
        "GET http://user@a/ HTTP/1.1",
        "GET http://a?b HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "CONNECT a:443 HTTP/1.1",
    ] {
        let bytes = format!("{line}\r\nHost: h\r\n\r\n");
        assert_eq!(refused(bytes.as_bytes()), "400 bad_request", "{line}");
    }
}

#[test]
fn a_request_has_one_valid_host() {
    for host in ["a", "a:80", "a:", "127.0.0.1:65535", "[::1]", "[::1]:80", "a_b.example"] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(complete(bytes.as_bytes()).0.host(), Some(host));
    }
    for host in
        ["", "a b", "a:b", "a:65536", "a:-1", "user@a", "a/b", "[::1", "[a]", "::1", "[::1]a", "ä"]
    {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(refused(bytes.as_bytes()), "400 bad_request", "{host}");
    }
    assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n"), "400 bad_request");
    assert_eq!(refused(b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n"), "400 bad_request");
    assert_eq!(refused(b"GET / HTTP/1.0\r\nHost: a\r\nhost: a\r\n\r\n"), "400 bad_request");
    assert_eq!(complete(b"GET / HTTP/1.0\r\n\r\n").0.host(), None);
}

#[test]
fn ambiguous_lengths_are_refused() {
    let (head, _) = complete(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!head.has_body() && head.content_length().is_none() && !head.is_chunked());
    let bytes = with_headers("Content-Length: 0\r\n");
    let (head, _) = complete(&bytes);
    assert!(!head.has_body() && head.content_length() == Some(0));
    let bytes = with_headers("content-length: 18446744073709551615\r\n");
    assert_eq!(complete(&bytes).0.content_length(), Some(u64::MAX));
    let bytes = with_headers("Transfer-Encoding: Chunked\r\n");
    let (head, _) = complete(&bytes);
    assert!(!head.has_body() && head.is_chunked() && head.content_length().is_none());

    for lines in [
        "Content-Length:\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 5x\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nX: y\r\ncontent-length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: gzip\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunked;a=b\r\n",
        "Transfer-Encoding: chunked,\r\n",
        "Transfer-Encoding:\r\n",
    ] {
        assert_eq!(refused(&with_headers(lines)), "400 bad_length", "{lines}");
    }
    for lines in [
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ] {
        assert_eq!(refused(&with_headers(lines)), "501 not_implemented", "{lines}");
    }
    assert_eq!(refused(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), "400 bad_length");
}

#[test]
fn keep_alive_follows_the_version_and_the_client() {
    for (version, connection, expected) in [
        ("HTTP/1.1", "X: y", true),
        ("HTTP/1.1", "Connection: close", false),
        ("HTTP/1.1", "Connection: Upgrade, CLOSE", false),
        ("HTTP/1.1", "Connection: keep-alive, Upgrade", true),
        ("HTTP/1.0", "X: y", false),
        ("HTTP/1.0", "connection: Keep-Alive", true),
        ("HTTP/1.0", "Connection: keep-alive\r\nConnection: close", false),
    ] {
        let bytes = format!("GET / {version}\r\nHost: a\r\n{connection}\r\n\r\n");
        assert_eq!(complete(bytes.as_bytes()).0.keep_alive(), expected, "{version} {connection}");
    }
}

#[test]
fn at_most_sixty_four_headers_are_accepted() {
    let most = with_headers(&"X: y\r\n".repeat(HEADERS_MAX - 1));
    assert_eq!(complete(&most).0.headers("x").count(), HEADERS_MAX - 1);
    let more = with_headers(&"X: y\r\n".repeat(HEADERS_MAX));
    assert_eq!(refused(&more), "431 head_too_large");
}

#[test]
fn limits_are_exact_to_the_byte() {
    let bytes = with_headers("X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n");
    let exact = Limits { max_head_bytes: bytes.len() };
    let tight = Limits { max_head_bytes: bytes.len() - 1 };
    assert_eq!(refused_within(&bytes, exact), "complete");
    assert_eq!(refused_within(&bytes[..bytes.len() - 1], exact), "incomplete");
    assert_eq!(refused_within(&bytes, tight), "431 head_too_large");
    assert_eq!(refused_within(&bytes[..bytes.len() - 1], tight), "431 head_too_large");

    let line = |length: usize| {
        let path = "x".repeat(length - "GET / HTTP/1.1".len());
        format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
    };
    // The request line has no limit below the head's.
    let long = line(50_000);
    let exact = Limits { max_head_bytes: long.len() };
    assert_eq!(refused_within(&long, exact), "complete");
    let tight = Limits { max_head_bytes: long.len() - 1 };
    assert_eq!(refused_within(&long, tight), "431 head_too_large");
    let small = Limits { max_head_bytes: 100 };
    let whole_line = Limits { max_head_bytes: line(98).len() - "Host: a\r\n\r\n".len() };
    assert_eq!(whole_line.max_head_bytes, 100);
    assert_eq!(refused_within(&line(98), small), "431 head_too_large");
    assert_eq!(refused_within(&line(99), small), "414 uri_too_long");
    assert_eq!(refused_within(&line(99)[..99], small), "incomplete");
    assert_eq!(refused_within(&line(200), small), "414 uri_too_long");
    assert_eq!(refused_within(&line(200)[..100], small), "414 uri_too_long");
}

/// Bytes that resemble a head: relevant pieces in any order, some of them corrupted.
fn nearly_a_head() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"\r\n"[..],
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b" ",
        b":",
        b",",
        b"%",
        b"GET / HTTP/1.1\r\n",
        b"GET http://a/b HTTP/1.0\r\n",
        b"Host: a\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"PRI * HTTP/2.0",
        b"\xff\0",
        b"xxxxxxxxxxxxxxxxxxxx",
    ]);
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

/// Checks that the result does not depend on how the bytes arrive.
fn check_pieces(bytes: &[u8], limits: Limits) {
    let whole = parse(bytes, limits).map(|parsed| format!("{parsed:?}"));
    for end in 0..bytes.len() {
        match parse(&bytes[..end], limits) {
            Ok(Parsed::Incomplete) => {}
            early => {
                assert_eq!(early.map(|parsed| format!("{parsed:?}")), whole);
                return;
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        check_pieces(&bytes, Limits { max_head_bytes: 256 });
    }

    #[test]
    fn head_like_bytes_do_not_panic(bytes in nearly_a_head(), max_head_bytes in 0_usize..200) {
        check_pieces(&bytes, Limits { max_head_bytes });
    }

    #[test]
    fn corrupted_heads_do_not_panic(
        changes in prop::collection::vec((0..VALID.len(), any::<u8>()), 1..4),
    ) {
        let mut bytes = VALID.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        check_pieces(&bytes, LIMITS);
    }
}
