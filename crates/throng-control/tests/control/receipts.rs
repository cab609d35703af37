//! `Prefer: receipt`: what became of a message.

use serde_json::json;
use throng_core::receipt::RECEIPTS_MAX;
use throng_core::{ChannelName, Notification};

use crate::client::{Client, post};
use crate::server::Server;

fn receipt(
    outcome: &str,
    matched: u64,
    written: u64,
    behind: u64,
    unknown: u64,
) -> serde_json::Value {
    json!({
        "outcome": outcome,
        "matched": matched,
        "written": written,
        "behind": behind,
        "unknown": unknown,
        "dropped": 0,
        "dropped_by": {"lagging": 0, "skipped": 0, "closed": 0, "expired": 0},
    })
}

#[test]
fn a_message_without_subscribers_has_a_complete_receipt_at_once() {
    let server = Server::new();
    let answer = server.ask(post("/channels/a", &["Prefer: receipt"], "x"));
    assert_eq!(answer.status, 201);
    assert_eq!(answer.field("preference-applied"), Some("receipt, wait=5"));
    let expected = receipt("complete", 0, 0, 0, 0);
    assert_eq!(answer.json(), json!({"id": "z-1", "subscribers": 0, "receipt": expected}));
    let without = server.ask(post("/users/a", &["Prefer: wait=1"], "x"));
    assert_eq!(without.json(), json!({"id": "z-1", "subscribers": 0}));
    assert_eq!(without.field("preference-applied"), None);
    assert_eq!(server.metric("throng_http_receipts_total{outcome=\"complete\"}"), 1);
}

#[test]
fn a_silent_worker_is_behind_when_the_time_is_over() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    server.follow(&ChannelName::channel("a"));
    let answer = server.ask(post("/channels/a", &["Prefer: receipt, wait=0.05"], "x"));
    assert_eq!(answer.field("preference-applied"), Some("receipt, wait=0.05"));
    assert_eq!(answer.json()["receipt"], receipt("timeout", 2, 0, 2, 0));
    assert_eq!(server.metric("throng_http_receipts_total{outcome=\"timeout\"}"), 1);
    assert_eq!(server.metric("throng_http_receipts_under_way"), 1, "the worker has its part");
    let Notification::Message { receipt, .. } = server.notification() else { panic!("a message") };
    drop(receipt);
    assert_eq!(server.metric("throng_http_receipts_under_way"), 0);
}

#[test]
fn a_worker_that_ends_leaves_an_unknown_rest() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    let mut client = server.connect(post("/channels/a", &["Prefer: receipt, wait=60"], "x"));
    drop(server.notification());
    assert_eq!(client.answer().json()["receipt"], receipt("unknown", 1, 0, 1, 1));
    assert_eq!(server.metric("throng_http_receipts_total{outcome=\"unknown\"}"), 1);
}

#[test]
fn a_duplicate_has_no_receipt() {
    let server = Server::new();
    let headers = ["Prefer: receipt", "Idempotency-Key: k"];
    server.ask(post("/channels/a", &headers, "x"));
    let again = server.ask(post("/channels/a", &headers, "x"));
    assert_eq!(again.status, 200);
    assert_eq!(again.json(), json!({"id": "z-1", "subscribers": 0, "duplicate": true}));
    assert_eq!(again.field("preference-applied"), None);
    assert_eq!(server.metric("throng_http_receipts_under_way"), 0);
}

#[test]
fn a_receipt_beyond_the_limit_is_refused_unpublished() {
    let server = Server::new();
    server.follow(&ChannelName::channel("a"));
    let preference = ["Prefer: receipt, wait=0"];
    for _ in 0..RECEIPTS_MAX {
        // The worker keeps its part, as one that stands still.
        server.ask(post("/channels/a", &preference, "x"));
    }
    let refused = server.ask(post("/channels/a", &preference, "refused"));
    refused.expect_refusal(503, "busy");
    assert!(refused.field("retry-after").is_some());
    assert_eq!(server.ask(post("/channels/a", &[], "y")).status, 201);
    assert!(!server.texts("a").contains(&"refused".to_owned()));
}

#[test]
fn a_drain_ends_the_wait_and_is_not_held_up_by_it() {
    let mut server = Server::new();
    server.follow(&ChannelName::channel("a"));
    let mut client: Client =
        server.connect(post("/channels/a", &["Prefer: receipt, wait=60"], "x"));
    let notification = server.notification();
    server.begin_drain();
    server.expect_workers_draining();
    // The worker ends.
    drop(notification);
    let answer = client.answer();
    assert_eq!(answer.json()["receipt"], receipt("unknown", 1, 0, 1, 1));
    assert!(answer.closes());
    server.join();
}
