//! Sockets alone: without channels, clients or a worker.

use throng_access::AccessControl;
use throng_dialect::CloseReason;

use super::*;
use crate::connection::State;
use crate::net::fixture::OneNet;
use crate::setup::fixture::setup;

pub(super) fn sockets(takes: usize) -> Sockets<OneNet> {
    Sockets::new(&setup(AccessControl::allow_all()), OneNet::taking(takes))
}

pub(super) fn insert(sockets: &mut Sockets<OneNet>) -> ConnectionId {
    sockets.connections_mut().insert((), Flags::default(), 0, 0, None)
}

/// Does `act` in a turn, and releases those that it has condemned.
fn turn(sockets: &mut Sockets<OneNet>, act: impl FnOnce(&mut Sockets<OneNet>)) {
    sockets.connections_mut().begin_turn();
    act(sockets);
    sockets.connections_mut().end_turn();
    while let Some((id, reason)) = sockets.connections_mut().next_condemned() {
        sockets.release(id, reason);
    }
    sockets.check_invariants();
}

#[test]
fn bytes_that_a_socket_does_not_take_are_written_later_in_order() {
    let mut sockets = sockets(4);
    let id = insert(&mut sockets);
    turn(&mut sockets, |sockets| {
        sockets.send(id, b"first ");
        sockets.send(id, b"second");
    });
    assert!(sockets[id].has(Flags::BLOCKED));
    assert_eq!(sockets.net().take_written(), "firs");
    sockets.net().takes = usize::MAX;
    assert!(sockets.flush(id), "all of it is written");
    assert_eq!(sockets.net().take_written(), "t second");
}

#[test]
fn one_call_writes_to_several_connections() {
    let mut sockets = sockets(usize::MAX);
    let items = [(insert(&mut sockets), "a"), (insert(&mut sockets), "b")];
    let mut transfers = Vec::new();
    sockets.write_each(&items, |item| item.0, &mut transfers, |item, _, _| item.1.as_bytes());
    assert_eq!(transfers.len(), 2);
    assert_eq!(sockets.net().take_written(), "ab");
}

#[test]
fn a_peer_that_is_gone_ends_its_connection_with_the_turn() {
    let mut sockets = sockets(1);
    let id = insert(&mut sockets);
    turn(&mut sockets, |sockets| {
        sockets.condemn(id, CloseReason::Peer);
        sockets.send(id, b"nothing");
        assert!(!sockets.is_here(id) && sockets.connection_count() == 1);
    });
    assert_eq!((sockets.connection_count(), sockets.net().take_written()), (0, String::new()));
}

#[test]
fn a_connection_lingers_once_its_last_bytes_are_written() {
    let mut sockets = sockets(2);
    let id = insert(&mut sockets);
    turn(&mut sockets, |sockets| sockets.close(id, b"bye", 0, CloseReason::Complete));
    assert_eq!((sockets[id].state(), sockets.net().finished), (State::Closing, 0));
    assert!(sockets.flush(id));
    sockets[id].flags.set(Flags::BLOCKED, false);
    sockets.half_close(id);
    assert_eq!((sockets.net().take_written(), sockets.net().finished), ("bye".into(), 1));
    turn(&mut sockets, |sockets| sockets.condemn(id, CloseReason::Complete));
    assert_eq!((sockets.net().closed, sockets.connection_count()), (1, 0));
}
