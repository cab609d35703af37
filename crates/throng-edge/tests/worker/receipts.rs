//! Receipts: what became of a message, as the worker counts it.

use std::sync::Arc;

use throng_core::{
    Body, ChannelName, Delivered, Publication, Publisher, Receipt, Receipts, ScanAction,
    ScanTarget, Ticket,
};

use crate::rig::Rig;
use crate::scan::scan;

/// Publishes a message with a receipt, which no worker has heard of yet.
fn publish(rig: &Rig, channel: &str, text: &str) -> Arc<Receipt> {
    publish_with_receipt(rig, channel, text, None)
}

/// The same with a message that may expire.
pub(crate) fn publish_with_receipt(
    rig: &Rig,
    channel: &str,
    text: &str,
    expires_in_ms: Option<u64>,
) -> Arc<Receipt> {
    let channel = ChannelName::channel(channel);
    let receipts = Arc::<Receipts>::default();
    let opened = receipts.open(Publisher::Anonymous, &channel, Ticket::new(|_| {}));
    let receipt = opened.expect("there is room");
    let publication = Publication {
        expires_in_ms,
        receipt: Some(Arc::clone(&receipt)),
        ..Publication::new(channel, Body::Text(text.into()))
    };
    rig.engine.publish(1, publication).expect("the queue has room");
    receipt
}

#[test]
fn receipts_tell_late_from_early_subscribers() {
    let mut rig = Rig::new();
    let _stays = rig.get("/channels/a");
    let leaves = rig.get("/channels/a");
    let receipt = publish(&rig, "a", "x");
    let late = rig.get("/channels/a?history=1");
    rig.hang_up(&leaves);
    rig.work();
    assert!(late.received().contains('x'));
    let expected = Delivered { matched: 2, written: 1, closed: 1, ..Delivered::default() };
    assert_eq!(receipt.close(), expected);
}

#[test]
fn a_channel_that_was_followed_anew_is_another_one_to_a_receipt() {
    let mut rig = Rig::new();
    let leaves = rig.get("/channels/a");
    let receipt = publish(&rig, "a", "x");
    rig.hang_up(&leaves);
    let _late = rig.get("/channels/a?history=1");
    rig.work();
    assert_eq!(receipt.close(), Delivered { matched: 1, closed: 1, ..Delivered::default() });
}

#[test]
fn a_message_counts_with_its_own_last_byte() {
    let mut rig = Rig::new();
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"a"}"#);
    rig.work();
    client.received();
    client.stall_after(10);
    let receipt = publish(&rig, "a", &"x".repeat(1000));
    rig.work();
    rig.send_frame(&client, r#"{"type":"ping"}"#);
    rig.work();
    // All of the message, and a part of the pong.
    rig.read_some(&client, 1060);
    rig.work();
    let received = client.received();
    assert!(received.contains("xxx") && !received.contains("pong\"}"), "{received}");
    let expected = Delivered { matched: 1, written: 1, ..Delivered::default() };
    assert_eq!(receipt.close(), expected);
}

#[test]
fn a_message_written_in_part_is_behind() {
    let mut rig = Rig::new();
    let client = rig.get("/channels/a");
    client.stall_after(10);
    let receipt = publish(&rig, "a", &"x".repeat(1000));
    rig.work();
    let expected = Delivered { matched: 1, behind: 1, ..Delivered::default() };
    assert_eq!(receipt.close(), expected);
}

#[test]
fn a_connection_that_is_reset_for_memory_is_closed_to_a_receipt() {
    for taken in [0, 10] {
        let mut rig = Rig::new();
        let (_reader, slow) = (rig.get("/channels/a"), rig.get("/channels/a"));
        slow.stall_after(taken);
        let receipt = publish(&rig, "a", &"x".repeat(1000));
        rig.work();
        let found = scan(&mut rig, ScanTarget::Behind, ScanAction::List { limit: 9 });
        let names = found.connections.iter().map(|found| found.name).collect();
        scan(&mut rig, ScanTarget::Connections(names), ScanAction::CloseForMemory);
        assert!(slow.is_closed());
        let expected = Delivered { matched: 2, written: 1, closed: 1, ..Delivered::default() };
        assert_eq!(receipt.close(), expected);
    }
}

#[test]
fn a_process_that_is_replaced_leaves_the_rest_unknown() {
    let mut rig = Rig::new();
    let _client = rig.get("/channels/a");
    let stalled = rig.get("/channels/a");
    stalled.stall_after(0);
    let receipt = publish(&rig, "a", "x");
    rig.work();
    rig.replace_process();
    rig.read_again(&stalled);
    rig.work();
    assert!(stalled.received().contains('x'));
    let expected =
        Delivered { matched: 2, written: 1, behind: 1, unknown: 1, ..Delivered::default() };
    assert_eq!(receipt.close(), expected);
}

/// More late subscribers than a worker remembers: it does not guess.
#[test]
fn a_storm_of_late_subscribers_leaves_receipts_unknown() {
    let mut rig = Rig::new();
    let _client = rig.get("/channels/a");
    let receipt = publish(&rig, "a", "x");
    let late: Vec<_> = (0..5000).map(|_| rig.get("/channels/a?history=1")).collect();
    rig.work();
    assert!(late.iter().all(|client| client.received().contains('x')));
    let expected = Delivered { matched: 1, behind: 1, unknown: 1, ..Delivered::default() };
    assert_eq!(receipt.close(), expected);
    let next = publish(&rig, "a", "y");
    rig.work();
    assert_eq!(next.close(), Delivered { matched: 5001, written: 5001, ..Delivered::default() });
}
