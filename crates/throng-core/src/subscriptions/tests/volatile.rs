//! Volatile messages: each subscription that is there all the time gets each of them once.

use std::collections::BTreeMap;

use super::super::*;
use super::model::{followed, weight_bytes};
use super::{rules, steps};
use crate::message::Body;
use crate::publication::VolatilePublication;
use crate::subscriptions::volatile::VolatileDropped;
use crate::subscriptions::volatile_passes::{VOLATILE_BYTES_MAX, VOLATILE_MESSAGES_MAX};
use crate::{ChannelName, Epoch, LagPolicy};
use proptest::prelude::*;

const CHANNELS: u32 = 3;
const CONNECTIONS: u32 = 9;

fn volatile(text: &str) -> Arc<Message> {
    let publication = VolatilePublication::new(ChannelName::channel("c"), Body::Text(text.into()));
    Arc::new(Message::from(Arc::new(publication.content(Epoch::numbered(1), 0))))
}

fn table() -> SubscriptionTable {
    SubscriptionTable::new(rules(9, 9, 9, LagPolicy::Close))
}

#[derive(Debug, Default)]
struct Subscriber {
    id: Option<SubscriptionId>,
    /// The numbers of the messages that must come, in this order.
    due: Vec<u32>,
    got: Vec<u32>,
}

struct World {
    table: SubscriptionTable,
    /// Where the worker keeps each channel, and for how many.
    followed: [Option<(LocalId, u32)>; CHANNELS as usize],
    subscribers: BTreeMap<(u32, u32), Subscriber>,
    published: u32,
}

impl World {
    fn step(&mut self, [what, channel, connection, how]: [u8; 4]) {
        let channel = u32::from(channel) % CHANNELS;
        let place = (channel, u32::from(connection) % CONNECTIONS);
        match what % 8 {
            0 | 1 => self.subscribe(place),
            2 => self.unsubscribe(place),
            3 | 4 => self.publish(channel),
            _ => {
                let mut visits = u32::from(how) % 5;
                while self.visit(&mut visits) {}
            }
        }
        self.table.check_invariants();
    }

    fn subscribe(&mut self, (channel, connection): (u32, u32)) {
        let subscriber = self.subscribers.entry((channel, connection)).or_default();
        if subscriber.id.is_some() {
            return;
        }
        let next = self.table.next_local();
        let (local, count) = self.followed[channel as usize].get_or_insert((next, 0));
        *count += 1;
        let followed = followed(ChannelId(channel), *local, 0);
        let id = self.table.join(ConnectionId::new(connection), &followed, false, None);
        *subscriber = Subscriber { id: Some(id), ..Subscriber::default() };
    }

    fn unsubscribe(&mut self, place: (u32, u32)) {
        let Some(id) = self.subscribers.get_mut(&place).and_then(|one| one.id.take()) else {
            return;
        };
        self.table.leave(id);
        let followed = &mut self.followed[place.0 as usize];
        let (_, count) = followed.as_mut().expect("it was followed");
        *count -= 1;
        if *count == 0 {
            *followed = None;
        }
    }

    fn publish(&mut self, channel: u32) {
        let Some((local, _)) = self.followed[channel as usize] else { return };
        let message = volatile(&self.published.to_string());
        assert_eq!(self.table.append_volatile(local, ChannelId(channel), &message), Ok(()));
        for (place, subscriber) in &mut self.subscribers {
            if place.0 == channel && subscriber.id.is_some() {
                subscriber.due.push(self.published);
            }
        }
        self.published += 1;
    }

    fn visit(&mut self, visits: &mut u32) -> bool {
        let (before, mut batch) = (*visits, Vec::new());
        let Some(message) = self.table.next_volatile(visits, &mut batch) else { return false };
        assert_eq!(batch.len() as u32, before - *visits);
        let number = str::from_utf8(message.body.bytes()).unwrap().parse().unwrap();
        for (id, connection) in batch {
            let mut all = self.subscribers.iter_mut();
            let found = all.find(|(_, subscriber)| subscriber.id == Some(id));
            let ((_, owner), subscriber) = found.expect("it has not ended");
            assert_eq!(*owner, connection.index());
            subscriber.got.push(number);
        }
        true
    }

    fn finish(&mut self) {
        while self.visit(&mut 7) {}
        assert!(!self.table.has_volatile() && !self.table.is_fanning_out());
        for Subscriber { got, due, .. } in self.subscribers.values().filter(|one| one.id.is_some())
        {
            assert!(got.is_sorted_by(|before, after| before < after), "each once, in order");
            // Those that were published before it subscribed may come, too.
            let since: Vec<_> = got.iter().filter(|number| due.contains(number)).copied().collect();
            assert_eq!(&since, due);
        }
    }
}

proptest! {
    #[test]
    fn a_subscription_that_stays_gets_each_volatile_message_once(steps in steps()) {
        let (followed, subscribers) = Default::default();
        let mut world = World { table: table(), followed, subscribers, published: 0 };
        steps.into_iter().for_each(|step| world.step(step));
        world.finish();
    }
}

#[test]
fn volatile_messages_move_no_cursor_and_fill_no_buffer() {
    let mut table = table();
    let local = table.next_local();
    let id = table.join(ConnectionId::new(0), &followed(ChannelId(1), local, 7), false, None);
    assert_eq!(table.append_volatile(local, ChannelId(1), &volatile("x")), Ok(()));
    assert_eq!(table.append_volatile(local, ChannelId(2), &volatile("late")), Ok(()));
    let mut batch = Vec::new();
    assert!(table.next_volatile(&mut 9, &mut batch).is_some());
    assert_eq!((batch, table.pending_bytes()), (vec![(id, ConnectionId::new(0))], 0));
    assert!(matches!(table.waiting(id), Waiting::Nothing));
    assert_eq!(table.cursor(id), Some(7));
    assert!(table.next_volatile(&mut 9, &mut Vec::new()).is_none());
}

/// A table in which each channel has two subscriptions, and the channels' local ids.
fn table_with(channels: u32) -> (SubscriptionTable, Vec<LocalId>) {
    let mut table = table();
    let join = |channel: u32| {
        let local = table.next_local();
        for connection in 0..2 {
            let connection = ConnectionId::new(2 * channel + connection);
            table.join(connection, &followed(ChannelId(channel), local, 0), false, None);
        }
        local
    };
    let locals = (0..channels).map(join).collect();
    (table, locals)
}

fn over_share() -> Result<(), VolatileDropped> {
    Err(VolatileDropped { deliveries: 2, is_over_share: true })
}

#[test]
fn volatile_messages_beyond_the_limits_are_dropped_and_counted() {
    let (mut table, locals) = table_with(1);
    let local = locals[0];
    assert!(VOLATILE_MESSAGES_MAX * weight_bytes() < VOLATILE_BYTES_MAX / 2);
    let share = VOLATILE_MESSAGES_MAX / 2;
    for _ in 0..share {
        assert_eq!(table.append_volatile(local, ChannelId(0), &volatile("body")), Ok(()));
    }
    assert_eq!(table.append_volatile(local, ChannelId(0), &volatile("body")), over_share());
    table.next_volatile(&mut 1, &mut Vec::new());
    assert_eq!(table.drop_volatile(), 2 * share as u64 - 1);
    assert!(!table.is_fanning_out());
    let large = "x".repeat(VOLATILE_BYTES_MAX / 2);
    assert_eq!(table.append_volatile(local, ChannelId(0), &volatile(&large)), Ok(()));
    assert_eq!(table.append_volatile(local, ChannelId(0), &volatile(&large)), over_share());
    table.check_invariants();
}

#[test]
fn a_flood_of_volatile_messages_leaves_room_for_other_channels() {
    for body in ["body".to_owned(), "x".repeat(60_000)] {
        let (mut table, locals) = table_with(4);
        let mut taken = Vec::new();
        for (channel, &local) in (0..).zip(&locals) {
            let message = volatile(&body);
            let flood = (0..VOLATILE_MESSAGES_MAX)
                .take_while(|_| table.append_volatile(local, ChannelId(channel), &message).is_ok());
            taken.push(flood.count());
            table.check_invariants();
        }
        let is_less = |pair: &[usize]| pair[0] > pair[1];
        assert!(taken[3] > 0 && taken.windows(2).all(is_less), "{taken:?}");
        // All has been delivered: a channel may have as many again.
        while table.next_volatile(&mut 9, &mut Vec::new()).is_some() {}
        table.check_invariants();
        let message = volatile(&body);
        for _ in 0..taken[0] {
            assert_eq!(table.append_volatile(locals[3], ChannelId(3), &message), Ok(()));
        }
        assert_eq!(table.append_volatile(locals[3], ChannelId(3), &message), over_share());
    }
}

#[test]
fn a_channel_finds_no_room_once_others_have_all() {
    let channels = VOLATILE_MESSAGES_MAX as u32 + 1;
    let (mut table, locals) = table_with(channels);
    let mut append = |channel: u32| {
        let local = locals[channel as usize];
        table.append_volatile(local, ChannelId(channel), &volatile("body"))
    };
    for channel in 0..channels - 1 {
        assert_eq!(append(channel), Ok(()));
    }
    let full = VolatileDropped { deliveries: 2, is_over_share: false };
    assert_eq!((append(0), append(channels - 1)), (over_share(), Err(full)));
}
