//! Close frames of clients.

use throng_edge::{Counter, Limits, Settings};

use crate::rig::Rig;

const WEBSOCKET: &str = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A close frame without a code.
const CLOSE: &[u8] = &[0x88, 0x80, 0, 0, 0, 0];

/// The worker is so far behind that notifications wait.
#[test]
fn a_close_is_answered_after_messages_published_before_it() {
    let limits = Limits { max_pending_bytes: 0, ..Limits::default() };
    let mut rig = Rig::with(Settings { limits, ..Settings::for_tests() });
    let client = rig.connect(WEBSOCKET);
    rig.publish("a", "first", None);
    rig.worker.work(false);
    rig.publish("a", "second", None);
    rig.send(&client, CLOSE);
    let has_work = rig.worker.work(false);
    assert!(!has_work, "without a permit there is nothing to do");
    for _ in 0..3 {
        rig.worker.work(true);
    }
    let received = client.received();
    let at = |text| received.find(text).unwrap_or_else(|| panic!("{text} in {received}"));
    assert!(at("first") < at("second") && received.ends_with("\u{fffd}\0"), "{received}");
}

/// The write of a message published before the close frame finds the client gone.
#[test]
fn a_client_may_be_gone_before_its_close_is_answered() {
    let mut rig = Rig::new();
    let client = rig.connect(WEBSOCKET);
    rig.worker.work(false);
    rig.publish("a", "unread", None);
    rig.send(&client, CLOSE);
    rig.vanish(&client);
    rig.worker.work(false);
    assert_eq!(rig.worker.connection_count(), 0);
    rig.worker.check_invariants();
}

/// A fan-out makes their writes together.
#[test]
fn writes_that_fail_together_end_only_their_own_connections() {
    let mut rig = Rig::new();
    let clients = [(); 6].map(|()| rig.connect(WEBSOCKET));
    rig.work();
    clients[..3].iter().for_each(|client| rig.vanish(client));
    rig.publish("a", "for all", None);
    rig.work();
    rig.worker.check_invariants();
    assert_eq!((rig.worker.connection_count(), rig.worker.subscriptions_in_all()), (3, 3));
    assert!(clients[3..].iter().all(|client| client.received().contains("for all")));
    assert_eq!(rig.count(Counter::ClosedByPeer), 3);
}
