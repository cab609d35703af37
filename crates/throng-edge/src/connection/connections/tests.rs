use super::*;
use crate::encoding::Encoding;

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
    let token = connections.token(first).unwrap();
    let name = connections.name(first).unwrap();
    assert_eq!((connections.find(token), connections.find_name(name)), (Some(first), Some(first)));
    connections.remove(first).unwrap();
    let second = insert(&mut connections);
    assert_eq!(first, second, "the place is used again");
    assert_eq!((connections.find(token), connections.find_name(name)), (None, None));
}

#[test]
fn parked_connections_are_counted_until_they_leave_the_state() {
    let mut connections = connections(9);
    let [stream, poll, gone] = [(); 3].map(|()| insert(&mut connections));
    let flags = Flags::default().with_encoding(Encoding::Sse);
    for (id, state) in
        [(stream, State::Streaming), (poll, State::LongPolling), (gone, State::Streaming)]
    {
        connections.admit_subscriber(id, false);
        connections.park(id, state, flags.with(Flags::SERVED, true));
        connections.check_invariants();
    }
    assert_eq!(connections.parked(), 3);
    connections.await_request(poll, 7);
    connections.check_invariants();
    connections.begin_closing(stream);
    connections.check_invariants();
    assert_eq!(connections.parked(), 1);
    connections.remove(gone);
    connections.remove(stream);
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
    connections.remove(ids[0]).unwrap();
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
    connections.remove(ids[1]).unwrap();
    assert!(connections.has_room_for_head());
}

#[test]
fn a_connection_that_is_put_back_keeps_its_place_and_its_token() {
    let mut connections = connections(2);
    let id = insert(&mut connections);
    connections.admit_subscriber(id, true);
    let token = connections.token(id).unwrap();
    connections.get_mut(id).unwrap().io_mut().inbound = vec![0; 50];
    connections.update_buffered(id);
    let removed = connections.remove(id).unwrap();
    connections.check_invariants();
    let id = connections.put_back(removed, None);
    connections.check_invariants();
    assert_eq!(connections.find(token), Some(id));
    assert!(!connections.has_viewer_place());
}

#[test]
fn the_largest_buffers_are_evicted_beyond_the_limit() {
    let mut connections = connections(9);
    let ids = [(); 2].map(|()| insert(&mut connections));
    for (id, bytes) in ids.into_iter().zip([90, 11]) {
        connections.get_mut(id).unwrap().io_mut().inbound = Vec::with_capacity(bytes);
        connections.get_mut(id).unwrap().io_mut().inbound.push(0);
        connections.update_buffered(id);
    }
    connections.check_invariants();
    assert_eq!(connections.to_evict(), Some(ids[0]));
    connections.get_mut(ids[0]).unwrap().io_mut().inbound = Vec::new();
    connections.trim_buffers(ids[0]);
    connections.check_invariants();
    assert!(connections.get(ids[0]).unwrap().io.is_none());
    assert_eq!(connections.to_evict(), None);
}
