//! Drains.

use throng_core::Notification;
use throng_edge::{Limits, Settings};

use crate::rig::Rig;

#[test]
fn a_drain_delivers_messages_accepted_before_it() {
    let limits = Limits { max_pending_bytes: 0, ..Limits::default() };
    let mut rig = Rig::with(Settings { limits, ..Settings::for_tests() });
    let client = rig.get("/channels/a");
    rig.publish("a", "first", None);
    rig.worker.work(false);
    assert!(!rig.worker.takes_notifications(), "a fan-out is under way");
    rig.publish("a", "second", None);
    rig.queue.post(Notification::Drain);
    rig.worker.work(false);
    assert!(!rig.worker.takes_connections(), "it drains");
    for _ in 0..4 {
        rig.worker.work(true);
    }
    let received = client.received();
    let at = |text| received.find(text).unwrap_or_else(|| panic!("{text} in {received}"));
    assert!(at("first") < at("second") && received.ends_with("0\r\n\r\n"), "{received}");
}
