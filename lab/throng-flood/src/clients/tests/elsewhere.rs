//! The audit of clients whose publisher is on another machine, with counters that are out of date.

use super::*;

/// A client that subscribes while a publisher elsewhere has sent some of its messages, which the
/// counters do not include yet.
fn late() -> (Watched, Receiver<Peer>) {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let pool = ClientPool::start(&plan, 1).expect("started");
    pool.counters_updated(true);
    pool.command(ClientCommand::Ramp { to: 1, rate: None, in_flight: 1 });
    let mut watched = Watched { pool, all: ClientCounts::default() };
    watched.wait_active(1);
    (watched, peers)
}

/// Updates the counters with what the publisher has sent.
fn command(watched: &Watched, published: u32, is_behind: bool) {
    watched.pool.counters().published(0, published);
    watched.pool.counters_updated(is_behind);
}

/// The current audit: expected, received, lost.
fn counts(watched: &Watched) -> (u64, u64, u64) {
    let last = watched.pool.counters().last_published(0);
    let audit = watched.audit(last.into());
    (audit.expected, audit.received, audit.lost)
}

#[test]
fn messages_before_the_subscription_are_not_lost() {
    let (watched, _peers) = late();
    // Five messages were sent before the client subscribed, and become known later.
    command(&watched, 5, true);
    assert_eq!(counts(&watched), (0, 0, 0));
    command(&watched, 5, true);
    assert_eq!(counts(&watched), (0, 0, 0));
    command(&watched, 5, false);
    assert_eq!(counts(&watched), (0, 0, 0));
    watched.pool.stop();
}

#[test]
fn nothing_is_lost_if_publishing_ends_at_once() {
    let (watched, _peers) = late();
    command(&watched, 5, false);
    assert_eq!(counts(&watched), (0, 0, 0));
    // Another phase publishes; the audit continues from the counters.
    watched.pool.counters_updated(true);
    command(&watched, 7, true);
    assert_eq!(counts(&watched), (2, 0, 2));
}

#[test]
fn messages_after_the_second_update_are_expected() {
    let (mut watched, peers) = late();
    let mut peer = peers.recv().expect("a peer");
    // May have been read before the client subscribed.
    command(&watched, 3, true);
    // Read afterwards.
    command(&watched, 5, true);
    command(&watched, 6, true);
    assert_eq!(counts(&watched), (1, 0, 1));
    // The first delivery does not hide the missing one.
    peer.send(&watched.frame(7));
    watched.wait("the seventh", |counts| counts.received == 1);
    assert_eq!(counts(&watched), (2, 1, 1));
    peer.send(&watched.frame(6));
    watched.wait("the sixth", |counts| counts.received == 2);
    assert_eq!(counts(&watched), (2, 2, 0));
}

#[test]
fn messages_after_the_first_one_are_expected() {
    let (mut watched, peers) = late();
    let mut peer = peers.recv().expect("a peer");
    command(&watched, 3, true);
    peer.send(&watched.frame(5));
    watched.wait("the fifth", |counts| counts.received == 1);
    command(&watched, 7, true);
    assert_eq!(counts(&watched), (3, 1, 2));
}

#[test]
fn a_reconnected_client_starts_again() {
    let (mut watched, peers) = late();
    let _first = peers.recv().expect("a peer");
    command(&watched, 3, true);
    for times in 2..=3 {
        watched.pool.command(ClientCommand::Storm { in_flight: 1 });
        watched.wait("back", |counts| counts.subscribed == times && counts.states.active == 1);
    }
    // One update since the reconnect may have been read before it.
    command(&watched, 5, true);
    command(&watched, 9, true);
    assert_eq!(counts(&watched), (0, 0, 0));
    command(&watched, 10, true);
    assert_eq!(counts(&watched), (1, 0, 1));
}

#[test]
fn messages_before_a_close_by_the_server_are_not_lost() {
    let (mut watched, peers) = late();
    command(&watched, 5, true);
    drop(peers.recv().expect("a peer"));
    watched.wait_failure(&Failure::Closed(None), 1);
    assert_eq!(counts(&watched), (0, 0, 0));
}

#[test]
fn each_stream_has_its_own_start() {
    let (port, peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/{{streams:,}}"));
    plan.target.streams = Streams::Friends { edges: 2 };
    let pool = ClientPool::start(&plan, 6).expect("started");
    pool.counters_updated(true);
    pool.command(ClientCommand::Ramp { to: 1, rate: None, in_flight: 1 });
    let mut watched = Watched { pool, all: ClientCounts::default() };
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    let path = peer.request.split(' ').nth(1).expect("a path");
    let streams: Vec<u32> = path[1..].split(',').map(|name| name.parse().expect("one")).collect();
    let (one, other) = (streams[0], streams[1]);
    let counters = watched.pool.counters();
    let lost = |watched: &Watched| watched.pool.audit(crate::publish::sent(&counters)).lost;
    counters.published(other, 4);
    let mut frame = Vec::new();
    write_frame(&mut frame, Opcode::Text, &watched.payload(one, 3));
    peer.send(&frame);
    watched.wait("one", |counts| counts.received == 1);
    counters.published(one, 4);
    assert_eq!(lost(&watched), 1);
    watched.pool.counters_updated(true);
    watched.pool.counters_updated(true);
    assert_eq!(lost(&watched), 1);
    counters.published(other, 6);
    assert_eq!(lost(&watched), 3);
}
