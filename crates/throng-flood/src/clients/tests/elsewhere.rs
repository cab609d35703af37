//! The audit of clients whose publisher is on another machine: what the board says is behind.

use super::*;

/// A client that becomes subscribed while a publisher elsewhere has sent some of its messages,
/// which the board does not say yet.
fn late() -> (Watched, Receiver<Peer>) {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let fleet = Fleet::start(&plan, 1).expect("started");
    fleet.told(true);
    fleet.ramp(1, None, 1);
    let mut watched = Watched { fleet, all: Tally::default() };
    watched.wait_active(1);
    (watched, peers)
}

/// What the publisher has sent until now becomes known.
fn tell(watched: &Watched, published: u32, is_behind: bool) {
    watched.fleet.board().published(0, published);
    watched.fleet.told(is_behind);
}

/// What the audit says now: expected, received, lost.
fn counts(watched: &Watched) -> (u64, u64, u64) {
    let last = watched.fleet.board().last_published(0);
    let audit = watched.audit(last.into());
    (audit.expected, audit.received, audit.lost)
}

#[test]
fn what_was_sent_before_a_client_came_is_not_lost() {
    let (watched, _peers) = late();
    // Five messages were sent before the client came, and become known afterwards.
    tell(&watched, 5, true);
    assert_eq!(counts(&watched), (0, 0, 0));
    tell(&watched, 5, true);
    assert_eq!(counts(&watched), (0, 0, 0));
    tell(&watched, 5, false);
    assert_eq!(counts(&watched), (0, 0, 0));
    watched.fleet.stop();
}

#[test]
fn nothing_is_lost_when_publishing_ends_at_once() {
    let (watched, _peers) = late();
    tell(&watched, 5, false);
    assert_eq!(counts(&watched), (0, 0, 0));
    // Another phase publishes: the audit counts from where the board was.
    watched.fleet.told(true);
    tell(&watched, 7, true);
    assert_eq!(counts(&watched), (2, 0, 2));
}

#[test]
fn what_is_sent_after_the_board_was_told_twice_must_come() {
    let (mut watched, peers) = late();
    let mut peer = peers.recv().expect("a peer");
    // Read before the client came, perhaps.
    tell(&watched, 3, true);
    // Read after it.
    tell(&watched, 5, true);
    tell(&watched, 6, true);
    assert_eq!(counts(&watched), (1, 0, 1));
    // The first one that comes does not hide the one that has not.
    peer.send(&watched.frame(7));
    watched.wait("the seventh", |tally| tally.received == 1);
    assert_eq!(counts(&watched), (2, 1, 1));
    peer.send(&watched.frame(6));
    watched.wait("the sixth", |tally| tally.received == 2);
    assert_eq!(counts(&watched), (2, 2, 0));
}

#[test]
fn what_follows_the_first_message_must_come() {
    let (mut watched, peers) = late();
    let mut peer = peers.recv().expect("a peer");
    tell(&watched, 3, true);
    peer.send(&watched.frame(5));
    watched.wait("the fifth", |tally| tally.received == 1);
    tell(&watched, 7, true);
    assert_eq!(counts(&watched), (3, 1, 2));
}

#[test]
fn who_comes_back_is_told_anew() {
    let (mut watched, peers) = late();
    let _first = peers.recv().expect("a peer");
    tell(&watched, 3, true);
    for times in 2..=3 {
        watched.fleet.storm(1);
        watched.wait("back", |tally| tally.subscribed == times && tally.states.active == 1);
    }
    // Once since it came back: the board was read before, perhaps.
    tell(&watched, 5, true);
    tell(&watched, 9, true);
    assert_eq!(counts(&watched), (0, 0, 0));
    tell(&watched, 10, true);
    assert_eq!(counts(&watched), (1, 0, 1));
}

#[test]
fn a_server_that_closes_does_not_lose_what_was_sent_before() {
    let (mut watched, peers) = late();
    tell(&watched, 5, true);
    drop(peers.recv().expect("a peer"));
    watched.wait_failure(&Failure::Closed(None), 1);
    assert_eq!(counts(&watched), (0, 0, 0));
}

#[test]
fn each_of_several_streams_has_its_own_start() {
    let (port, peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/{{streams:,}}"));
    plan.target.streams = Streams::Friends { edges: 2 };
    let fleet = Fleet::start(&plan, 6).expect("started");
    fleet.told(true);
    fleet.ramp(1, None, 1);
    let mut watched = Watched { fleet, all: Tally::default() };
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    let path = peer.request.split(' ').nth(1).expect("a path");
    let streams: Vec<u32> = path[1..].split(',').map(|name| name.parse().expect("one")).collect();
    let (one, other) = (streams[0], streams[1]);
    let board = watched.fleet.board();
    let lost = |watched: &Watched| watched.fleet.audit(crate::publish::sent(&board)).lost;
    board.published(other, 4);
    let mut frame = Vec::new();
    write_frame(&mut frame, Opcode::Text, &watched.payload(one, 3));
    peer.send(&frame);
    watched.wait("one", |tally| tally.received == 1);
    board.published(one, 4);
    assert_eq!(lost(&watched), 1);
    watched.fleet.told(true);
    watched.fleet.told(true);
    assert_eq!(lost(&watched), 1);
    board.published(other, 6);
    assert_eq!(lost(&watched), 3);
}
