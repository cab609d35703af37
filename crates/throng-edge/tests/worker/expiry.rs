//! Messages that expire.

use throng_core::Delivered;

use crate::receipts::publish_with_receipt;
use crate::rig::Rig;

#[test]
fn a_subscriber_that_is_behind_does_not_get_what_has_expired() {
    for target in [
        "/channels/a",
        "/channels/a?transport=sse&envelope=true",
        "/subscribe?channel=a&channel=b&transport=sse",
    ] {
        let mut rig = Rig::new();
        let client = rig.get(target);
        let since = client.received();
        assert!(since.contains("Throng-Id"), "{since}");
        client.stall_after(3);
        rig.publish("a", "first", None);
        rig.work();
        rig.publish_brief("a", "brief", 1000);
        rig.publish_brief("a", "longer", 10_000);
        rig.work();
        rig.pass(10);
        rig.read_again(&client);
        rig.work();
        let received = client.received();
        assert!(received.contains("first") && received.contains("longer"), "{received}");
        assert!(!received.contains("brief") && !received.contains("gap"), "{received}");
    }
}

#[test]
fn a_poll_waits_for_a_message_that_has_not_expired() {
    let mut rig = Rig::new();
    rig.publish_brief("a", "brief", 1000);
    rig.pass(10);
    let poll = rig.get("/channels/a?since=z-0&wait=30");
    assert_eq!(poll.received(), "", "nothing is left to answer with");
    rig.publish_brief("a", "expires in the queue", 100);
    rig.pass(1);
    assert_eq!(poll.received(), "");
    rig.publish("a", "lasting", None);
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("Throng-Recovered: true\r\n"), "{answer}");
    assert!(answer.contains("Throng-Id: z-3\r\n") && answer.ends_with("\r\n\r\nlasting"));
}

#[test]
fn a_receipt_counts_those_for_whom_the_message_expired() {
    let mut rig = Rig::new();
    let (behind, _reads) = (rig.get("/channels/a"), rig.get("/channels/a"));
    behind.stall_after(3);
    rig.publish("a", "first", None);
    rig.work();
    let receipt = publish_with_receipt(&rig, "a", "brief", Some(1000));
    rig.work();
    rig.pass(10);
    rig.read_again(&behind);
    rig.work();
    assert!(!behind.received().contains("brief"));
    let expected = Delivered { matched: 2, written: 1, expired: 1, ..Delivered::default() };
    assert_eq!(receipt.close(), expected);
}

#[test]
fn a_subscription_of_a_command_ends_by_itself() {
    let mut rig = Rig::new();
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"a","expires_in":2}"#);
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"b"}"#);
    rig.pass(10);
    assert!(!client.received().contains("unsubscribed"));
    rig.pass(20);
    let told = client.received();
    assert!(told.contains(r#"{"type":"unsubscribed","channel":"a","code":"forbidden""#), "{told}");
    rig.publish("a", "to nobody", None);
    rig.publish("b", "to all", None);
    rig.work();
    let told = client.received();
    assert!(told.contains("to all") && !told.contains("to nobody"), "{told}");
    rig.send_frame(&client, r#"{"type":"subscribe","channels":["c"],"expires_in":2}"#);
    assert!(client.received().contains("for one channel"));
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"c","expires_in":0}"#);
    assert!(client.received().contains("a number of seconds"));
}
