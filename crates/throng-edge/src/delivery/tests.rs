//! Delivery alone: its subscribers have no clients, and nobody is asked whether they may.

use throng_access::AccessControl;
use throng_core::{Body, ChannelName, Kind, Later, Publication, StartAt, Ticket};
use throng_dialect::{CloseReason, Encoding};

use super::*;
use crate::connection::{Flags, State};
use crate::net::fixture::OneNet;
use crate::setup::fixture::setup;

fn delivery(takes: usize) -> Delivery<OneNet> {
    let setup = setup(AccessControl::allow_all());
    let sockets = Sockets::new(&setup, OneNet::taking(takes));
    let mut delivery = Delivery::new(&setup, sockets);
    delivery.begin_slice();
    delivery
}

fn channel() -> ChannelName {
    ChannelName::new(Kind::Channel, "c")
}

/// A stream of lines that follows the channel.
fn subscribe(delivery: &mut Delivery<OneNet>) -> ConnectionId {
    let connections = delivery.connections_mut();
    let id = connections.insert((), Flags::default(), 0, 0, None);
    connections.admit_subscriber(id, false);
    connections.park(id, State::Streaming, Encoding::LINE, Flags::SERVED);
    delivery.follow(id, &channel(), StartAt::Live);
    id
}

/// Publishes a message, and does one slice of its fan-out.
fn publish(delivery: &mut Delivery<OneNet>, text: &str) {
    let publication = Publication::new(channel(), Body::Text(text.into()));
    let mut issue = || Ticket::new(drop);
    let outcome = delivery.engine.publish(0, publication, Later::new(&mut issue));
    assert!(outcome.now().is_some_and(|outcome| outcome.is_ok()));
    let mut notifications = Vec::new();
    delivery.take_queue(&mut notifications);
    for notification in notifications {
        if let Notification::Message { local, channel, message, .. } = notification {
            delivery.notified_of(local, channel, &message, None, false);
        }
    }
    delivery.end_notifications();
    turn(delivery, |delivery| {
        delivery.begin_fan_out();
        while delivery.next_visits() {
            delivery.visit();
        }
        delivery.end_fan_out();
    });
}

fn turn(delivery: &mut Delivery<OneNet>, act: impl FnOnce(&mut Delivery<OneNet>)) {
    delivery.connections_mut().begin_turn();
    act(delivery);
    delivery.connections_mut().end_turn();
    while let Some((id, reason)) = delivery.connections_mut().next_condemned() {
        delivery.free(id, reason);
    }
    delivery.settle_receipts();
    delivery.check_invariants();
}

#[test]
fn each_subscriber_gets_each_message_once() {
    let mut delivery = delivery(usize::MAX);
    (0..5).for_each(|_| {
        subscribe(&mut delivery);
    });
    publish(&mut delivery, "x");
    assert_eq!(delivery.net().take_written(), "x\n".repeat(5));
    publish(&mut delivery, "y");
    assert_eq!(delivery.net().take_written(), "y\n".repeat(5));
    assert!(!delivery.is_fanning_out());
}

#[test]
fn a_subscriber_whose_socket_was_full_gets_the_rest_in_order() {
    let mut delivery = delivery(1);
    let id = subscribe(&mut delivery);
    publish(&mut delivery, "first");
    publish(&mut delivery, "second");
    assert_eq!(delivery.net().take_written(), "f");
    delivery.net().takes = usize::MAX;
    turn(&mut delivery, |delivery| {
        assert!(delivery.flush(id));
        delivery[id].flags.set(Flags::BLOCKED, false);
        delivery.flush_subscriptions(id);
        delivery.note_caught_up(id);
    });
    assert_eq!(delivery.net().take_written(), "irst\nsecond\n");
}

#[test]
fn a_subscriber_that_lags_leaves_its_channels_and_its_end_is_listed() {
    let mut delivery = delivery(usize::MAX);
    let (id, stays) = (subscribe(&mut delivery), subscribe(&mut delivery));
    let name = delivery.connections().name(id);
    turn(&mut delivery, |delivery| delivery.close_lagging(id, CloseReason::Lagging));
    assert_eq!(delivery.next_ended(), Some((name, CloseReason::Lagging)));
    assert_eq!((delivery.next_ended(), delivery.subscriptions_in_all()), (None, 1));
    publish(&mut delivery, "x");
    assert_eq!(delivery.net().take_written(), "x\n");
    assert!(delivery.is_here(stays));
}
