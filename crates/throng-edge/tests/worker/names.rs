//! Names of connections.

use throng_core::ConnectionName;

use crate::rig::Rig;

fn name(head: &str) -> ConnectionName {
    let line = head.lines().find_map(|line| line.strip_prefix("Throng-Connection: "));
    line.expect("a stream has a name").parse().expect("it is a name")
}

/// A log keeps the name of the connection that does not get a message. A later connection in the
/// same place has another name, even after 2^16 connections.
#[test]
fn a_message_excludes_one_connection_only() {
    let mut rig = Rig::new();
    let publisher = rig.get("/channels/a");
    let of_publisher = name(&publisher.received());
    rig.publish("a", "not to me", Some(of_publisher));
    rig.worker.work(true);
    assert_eq!(publisher.received(), "");
    rig.hang_up(&publisher);
    for _ in 1..1 << 16 {
        let other = rig.get("/channels/b");
        rig.hang_up(&other);
        rig.worker.work(true);
    }
    let later = rig.get("/channels/a?history=1").received();
    assert_eq!(name(&later).index(), of_publisher.index());
    assert_ne!(name(&later), of_publisher);
    assert!(later.contains("not to me"), "{later}");
}
