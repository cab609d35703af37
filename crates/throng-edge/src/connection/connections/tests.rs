use super::*;
use throng_dialect::{CloseReason, Encoding};

fn connections(capacity: u32) -> Connections<()> {
    let metrics = Metrics::new([capacity].into_iter());
    Connections::new(NodeTag::ALONE, WorkerId(0), metrics, limits(), Arc::default(), u32::MAX - 1)
}

fn limits() -> Limits {
    Limits {
        max_heads: 1,
        max_lingering: 1,
        max_viewers: 1,
        max_buffered_bytes: 100,
        held_bytes_floor: 10,
        ..Limits::default()
    }
}

fn insert(connections: &mut Connections<()>) -> ConnectionId {
    let id = connections.insert((), Flags::default(), 0, 0, None);
    connections.check_invariants();
    id
}

#[test]
fn a_token_finds_its_own_connection_only() {
    let mut connections = connections(9);
    let first = insert(&mut connections);
    let (token, name) = (connections.token(first), connections.name(first));
    assert_eq!((connections.find(token), connections.find_name(name)), (Some(first), Some(first)));
    drop(connections.take(first));
    let second = insert(&mut connections);
    assert_eq!(first, second, "the place is used again");
    assert_eq!((connections.find(token), connections.find_name(name)), (None, None));
}

#[test]
fn parked_connections_are_counted_until_they_leave_the_state() {
    let mut connections = connections(9);
    let [stream, poll, gone] = [(); 3].map(|()| insert(&mut connections));
    for (id, state) in
        [(stream, State::Streaming), (poll, State::LongPolling), (gone, State::Streaming)]
    {
        connections.admit_subscriber(id, false);
        connections.park(id, state, Encoding::SSE, Flags::SERVED);
        connections.check_invariants();
    }
    assert_eq!(connections.parked(), 3);
    connections.await_request(poll, 7);
    connections.check_invariants();
    connections.begin_closing(stream);
    connections.check_invariants();
    assert_eq!(connections.parked(), 1);
    drop((connections.take(gone), connections.take(stream)));
    connections.check_invariants();
    assert_eq!(connections.parked(), 0);
}

#[test]
fn closing_subscribers_give_back_their_places() {
    let mut connections = connections(2);
    let ids = [(); 3].map(|()| insert(&mut connections));
    assert_eq!(connections.room(), 2, "heads take no places");
    assert_eq!(connections.room_for_new(), 0, "and each may take one");
    connections.admit_subscriber(ids[0], false);
    connections.admit_subscriber(ids[0], false);
    assert_eq!(connections.room(), 1, "a second request takes no second place");
    assert_eq!(connections.room_for_new(), 0, "two may take the one that is left");
    connections.admit_subscriber(ids[1], false);
    assert!(connections.is_full() && !connections.has_place(ids[2]));
    assert!(connections.has_place(ids[0]), "it has its place");
    assert!(connections.begin_closing(ids[0]), "it lingers in the place that it had");
    connections.check_invariants();
    assert_eq!(connections.room(), 1, "one that lingers takes none");
    drop(connections.take(ids[0]));
    connections.check_invariants();
    assert_eq!((connections.room(), connections.len()), (1, 2));
}

#[test]
fn heads_beyond_the_reserve_give_way_the_oldest_first() {
    let mut connections = connections(1);
    let ids = [(); 3].map(|()| insert(&mut connections));
    ids.iter().for_each(|&id| connections.watch_head(id));
    assert!(!connections.has_room_for_head());
    connections.admit_subscriber(ids[0], false);
    assert_eq!(connections.take_oldest_unfinished_head(), Some(ids[1]));
    drop(connections.take(ids[1]));
    assert!(connections.has_room_for_head());
}

#[test]
fn a_connection_that_is_put_back_keeps_its_id_and_its_token() {
    let mut connections = connections(2);
    let id = insert(&mut connections);
    connections.admit_subscriber(id, true);
    let token = connections.token(id);
    connections[id].io_mut().inbound = vec![0; 50];
    connections.update_buffered(id);
    let (taken, client) = connections.take(id);
    connections.check_invariants();
    connections.put_back(id, taken, client);
    connections.check_invariants();
    assert_eq!(connections.find(token), Some(id));
    assert!(!connections.has_viewer_place());
}

/// The connections that are freed after the turn, each with its reason and its former state.
fn freed(connections: &mut Connections<()>) -> Vec<(ConnectionId, CloseReason, State)> {
    let mut freed = Vec::new();
    while let Some((id, reason)) = connections.next_condemned() {
        let (connection, _) = connections.take(id);
        freed.push((id, reason, connection.state()));
    }
    freed
}

#[test]
fn a_condemned_connection_is_there_until_its_turn_is_over() {
    let mut connections = connections(9);
    let ids = [(); 3].map(|()| insert(&mut connections));
    connections.admit_subscriber(ids[1], false);
    connections.park(ids[1], State::Streaming, Encoding::SSE, connections[ids[1]].flags);
    connections.begin_turn();
    connections.condemn(ids[1], CloseReason::Overload);
    connections.condemn(ids[0], CloseReason::Peer);
    connections.condemn(ids[1], CloseReason::Complete);
    let connection = &connections[ids[1]];
    assert!(!connection.takes_messages() && !connection.is_parked() && connection.is_ending());
    assert_eq!((connections.len(), connections.admitted()), (3, 1), "its place is still taken");
    connections.end_turn();
    let expected = [
        (ids[1], CloseReason::Overload, State::Streaming),
        (ids[0], CloseReason::Peer, State::Head),
    ];
    assert_eq!(freed(&mut connections), expected, "in their order, for their first reasons");
    connections.check_invariants();
    assert_eq!((connections.len(), connections.admitted()), (1, 0));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "somebody may hold its id")]
fn nothing_is_freed_in_a_turn() {
    let mut connections = connections(9);
    let id = insert(&mut connections);
    connections.begin_turn();
    connections.condemn(id, CloseReason::Peer);
    let _ = connections.next_condemned();
}

#[test]
#[should_panic(expected = "condemned and not freed")]
fn a_condemned_connection_that_stays_breaks_an_invariant() {
    let mut connections = connections(9);
    let id = insert(&mut connections);
    connections.begin_turn();
    connections.condemn(id, CloseReason::Peer);
    connections.end_turn();
    connections.check_invariants();
}

#[test]
fn the_largest_buffers_are_evicted_beyond_the_limit() {
    let mut connections = connections(9);
    let ids = [(); 2].map(|()| insert(&mut connections));
    for (id, bytes) in ids.into_iter().zip([90, 11]) {
        connections[id].io_mut().inbound = Vec::with_capacity(bytes);
        connections[id].io_mut().inbound.push(0);
        connections.update_buffered(id);
    }
    connections.check_invariants();
    assert_eq!(connections.to_evict(), Some(ids[0]));
    connections[ids[0]].io_mut().inbound = Vec::new();
    connections.trim_buffers(ids[0]);
    connections.check_invariants();
    assert!(connections[ids[0]].io.is_none());
    assert_eq!(connections.to_evict(), None);
}
