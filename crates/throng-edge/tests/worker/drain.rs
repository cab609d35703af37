//! Drains.

use throng_core::{Listener, Notification};
use throng_edge::net::HandoffHeader;
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

/// The control plane hands connections off until it hears that the worker has ended.
#[test]
fn a_worker_that_has_ended_answers_late_handoffs() {
    let mut rig = Rig::new();
    rig.queue.post(Notification::Drain);
    for _ in 0..4 {
        rig.worker.work(true);
    }
    assert!(rig.worker.is_ended());
    let whole = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for head in [whole, &whole[..20]] {
        let (socket, client) = Rig::pair();
        let header = HandoffHeader::between_planes(Listener::Public);
        rig.worker.handed_off(header, socket, &mut head.as_bytes().to_vec());
        let received = client.received();
        let is_refused = received.starts_with("HTTP/1.1 503 ") && received.contains("draining");
        assert!(is_refused, "{head:?}: {received}");
    }
    // It is between two requests: there is nothing to answer.
    let (socket, client) = Rig::pair();
    rig.worker.handed_off(HandoffHeader::between_planes(Listener::Public), socket, &mut []);
    assert!(client.is_closed() && client.received().is_empty());
}
