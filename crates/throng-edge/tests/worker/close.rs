//! Close frames of clients.

use throng_edge::{Limits, Settings};

use crate::rig::Rig;

/// The worker is so far behind that notifications wait.
#[test]
fn a_close_is_answered_after_what_was_published_before() {
    let limits = Limits { pending_bytes_max: 0, ..Limits::default() };
    let mut rig = Rig::with(Settings { limits, ..Settings::for_tests() });
    let client = rig.connect(
        "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    rig.publish("a", "first", None);
    rig.worker.work(false);
    rig.publish("a", "second", None);
    rig.send(&client, &[0x88, 0x80, 0, 0, 0, 0]);
    let has_work = rig.worker.work(false);
    assert!(!has_work, "without a baton there is nothing to do");
    for _ in 0..3 {
        rig.worker.work(true);
    }
    let received = client.received();
    let at = |text| received.find(text).unwrap_or_else(|| panic!("{text} in {received}"));
    assert!(at("first") < at("second") && received.ends_with("\u{fffd}\0"), "{received}");
}
