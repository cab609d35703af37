//! For any request head the response is one of the control plane. Hyper's own error responses have
//! no body and are not counted.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use crate::server::Server;

/// Mostly bytes that are valid in a request, and some that are not.
fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![20 => 0x21_u8..0x7f, 1 => Just(b' '), 1 => 0x7f_u8..=0xff, 1 => any::<u8>()];
    prop::collection::vec(byte, 0..max)
}

fn head() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![
        9 => prop::sample::select(vec!["GET", "POST", "PUT", "HEAD", "OPTIONS", "CONNECT", "PRI"])
            .prop_map(|method| method.as_bytes().to_vec()),
        1 => bytes(8),
    ];
    let start = prop::sample::select(vec![
        "",
        "/",
        "*",
        "/channels/",
        "/channels/a/history?",
        "/users/a/presence?limit=",
        "/subscribe?channel=",
        "http://",
        "https://a:80/",
    ]);
    let name = prop::sample::select(vec![
        "Connection",
        "Content-Length",
        "Content-Type",
        "Expect",
        "Host",
        "Origin",
        "Throng-Exclude",
        "Transfer-Encoding",
        "Upgrade",
        "X",
    ]);
    let field = (name, prop_oneof![3 => bytes(12), 1 => Just(b"chunked".to_vec())]);
    let version = prop::sample::select(vec!["1.1", "1.1", "1.1", "1.0", "2.0"]);
    (method, start, bytes(12), version, prop::collection::vec(field, 0..3)).prop_map(
        |(method, start, rest, version, fields)| {
            let mut head = method;
            head.extend_from_slice(format!(" {start}").as_bytes());
            head.extend_from_slice(&rest);
            head.extend_from_slice(format!(" HTTP/{version}\r\nHost: 127.0.0.1\r\n").as_bytes());
            for (name, value) in fields {
                head.extend_from_slice(format!("{name}: ").as_bytes());
                head.extend_from_slice(&value);
                head.extend_from_slice(b"\r\n");
            }
            head.extend_from_slice(b"\r\n");
            head
        },
    )
}

#[test]
fn every_error_response_has_a_json_body() {
    let server = Server::new();
    // Subscriptions cannot be handed off, so they get a response, too.
    server.edge.is_full.store(true, Ordering::SeqCst);
    proptest!(|(head in head())| {
        let mut client = server.connect_again();
        client.send(&head);
        client.finish();
        let rest = client.rest_bytes();
        let rest = String::from_utf8_lossy(&rest);
        for answer in rest.split("HTTP/1.1 ").filter(|answer| answer.starts_with(['4', '5'])) {
            prop_assert!(answer.contains("ype: application/json\r\n"), "{answer}");
        }
    });
}
