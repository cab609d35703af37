//! The table against a model.
//!
//! A script of random steps drives a table through a small engine whose notifications may wait,
//! with connections that block in the middle of a write. The model knows every message of every
//! channel, and checks that each subscription gets the next message after its last one, or a gap.

mod check;
mod latest;
pub(super) mod model;
mod pace;
mod resumable;
mod volatile;

use proptest::prelude::*;

use super::*;
use crate::id::Epoch;
use crate::later::Ticket;
use crate::receipt::{Delivered, Receipts};
use crate::rules::{LagPolicy, Retention, Rule};
use cursor::{REACH, REACH_BITS};
use model::{Offsets, Steps, World};

fn rules(retained: usize, lag_messages: usize, lag_bodies: usize, policy: LagPolicy) -> Arc<Rules> {
    let weight_bytes = model::weight_bytes();
    Arc::new(Rules::new(
        Vec::new(),
        Rule {
            retention: Retention {
                max_messages: retained,
                max_bytes: retained * weight_bytes,
                max_age_ms: u64::MAX,
            },
            max_lag_messages: lag_messages,
            max_lag_bytes: lag_bodies * weight_bytes,
            lag_policy: policy,
            slow_timeout: None,
            presence_events: false,
            ..Rule::default()
        },
    ))
}

fn any_rules() -> impl Strategy<Value = Arc<Rules>> {
    let policy = prop_oneof![Just(LagPolicy::Close), Just(LagPolicy::Skip)];
    (0usize..6, 0usize..9, 0usize..12, policy)
        .prop_map(|(retained, messages, bodies, policy)| rules(retained, messages, bodies, policy))
}

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec(any::<[u8; 4]>(), 0..250)
}

proptest! {
    #[test]
    fn each_subscription_gets_each_message_once_in_order(rules in any_rules(), steps in steps()) {
        World::new(rules, Offsets::CountingFrom(0)).run(&steps);
    }

    #[test]
    fn delivery_is_exact_where_32_bits_of_an_offset_wrap(
        rules in any_rules(),
        steps in steps(),
        before in 0u64..40,
        wraps in 1u64..5,
    ) {
        // Cursors wrap at 2^32. At each multiple of 2^30 those left behind are pulled up.
        let from = (wraps << REACH_BITS) - before;
        World::new(rules, Offsets::CountingFrom(from)).run(&steps);
    }

    #[test]
    fn delivery_is_exact_where_offsets_skip(
        rules in any_rules(),
        steps in steps(),
        from in 0u64..1 << 33,
    ) {
        World::new(rules, Offsets::SkippingFrom(from)).run(&steps);
    }

    #[test]
    fn delivery_is_exact_where_offsets_leap(rules in any_rules(), steps in steps()) {
        World::new(rules, Offsets::Leaping).run(&steps);
    }

    #[test]
    fn delivery_is_exact_with_few_blocked_bytes(
        rules in any_rules(),
        offsets in prop::sample::select(vec![
            Offsets::CountingFrom(0),
            Offsets::SkippingFrom(7),
            Offsets::Leaping,
            Offsets::WithHoles,
        ]),
        steps in steps(),
        max_messages in 0usize..8,
    ) {
        World::new(rules, offsets).holding(max_messages).run(&steps);
    }

    #[test]
    fn a_hole_in_the_notifications_is_reported(rules in any_rules(), steps in steps()) {
        World::new(rules, Offsets::WithHoles).run(&steps);
    }
}

#[test]
fn a_burst_beyond_the_lag_limit_reaches_a_quick_reader() {
    let mut world = World::new(rules(0, 1, 1, LagPolicy::Close), Offsets::CountingFrom(0));
    for connection in 0..3 {
        world.subscribe(connection, 0, crate::StartAt::Live);
    }
    for _ in 0..5 {
        world.publish(0);
    }
    world.finish();
    assert_eq!(world.delivered, 15);
}

#[test]
fn a_short_backlog_does_not_hide_queued_messages_from_others() {
    let mut world = World::new(rules(1, 100, 100, LagPolicy::Close), Offsets::CountingFrom(0));
    world.subscribe(0, 0, crate::StartAt::Live);
    for _ in 0..4 {
        world.publish(0);
    }
    world.subscribe(1, 0, crate::StartAt::Last(1));
    world.finish();
    assert_eq!(world.delivered, 4 + 1);
}

#[test]
fn a_pass_counts_right_when_the_last_of_the_list_leaves() {
    let mut world = World::new(rules(0, 9, 9, LagPolicy::Close), Offsets::CountingFrom(0));
    for connection in 0..3 {
        world.subscribe(connection, 0, crate::StartAt::Live);
    }
    world.publish(0);
    world.take_notifications(usize::MAX);
    world.fan_out(2, usize::MAX, false);
    world.unsubscribe(2, 0);
    world.finish();
    assert_eq!(world.table.pending_bytes(), 0);
}

/// A message was skipped silently here once.
#[test]
fn a_gap_caused_by_a_leap_survives_a_later_backlog() {
    let mut table = SubscriptionTable::new(rules(9, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let id = table.join(ConnectionId::new(0), &model::followed(channel, local, 0), false, None);
    table.block(id);
    let far = REACH + 5;
    let messages = [(1, 0), (7, 1), (far, 7)].map(|(at, previous)| model::message(at, previous));
    messages.iter().for_each(|message| table.append(local, channel, message));
    let has_gap = |table: &SubscriptionTable| matches!(table.waiting(id), Waiting::Gap { .. });
    assert!(has_gap(&table));
    // A backlog brings the replay buffer back to just this side of where cursors are pulled up to.
    let mut followed = model::followed(channel, local, far);
    (followed.cursor.offset, followed.backlog) = (1, messages[1..].to_vec());
    table.join(ConnectionId::new(1), &followed, false, None);
    assert!(has_gap(&table));
    table.check_invariants();
}

#[test]
fn a_hole_before_a_leap_is_a_gap_for_a_complete_reader() {
    let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let id = table.join(ConnectionId::new(0), &model::followed(channel, local, 5), false, None);
    // The message after 5 is lost, and so is what came before the leap.
    let previous = 3 * REACH;
    table.append(local, channel, &model::message(previous + 1, previous));
    match table.waiting(id) {
        Waiting::Gap { missed, resume_at, .. } => {
            assert!(missed.is_some_and(|missed| missed > 0) && resume_at.offset == previous);
        }
        other => panic!("{other:?}"),
    }
    table.check_invariants();
}

#[test]
fn a_subscription_that_starts_out_of_reach_of_the_head_is_exact() {
    for ahead in [REACH - 1, REACH, 2 * REACH, 4 * REACH, 4 * REACH + 5] {
        let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
        let (channel, local) = (ChannelId(0), table.next_local());
        let join = |table: &mut SubscriptionTable, connection, head| {
            let followed = model::followed(channel, local, head);
            table.join(ConnectionId::new(connection), &followed, false, None)
        };
        let old = join(&mut table, 0, 5);
        // The notification of the message at `head` is still on its way.
        let head = 5 + ahead;
        let new = join(&mut table, 1, head);
        table.check_invariants();
        assert_eq!(table.cursor(new), Some(head));
        assert!(matches!(table.waiting(new), Waiting::Nothing), "{ahead} ahead");
        table.append(local, channel, &model::message(head, 5));
        assert!(matches!(table.waiting(new), Waiting::Nothing), "it started after this one");
        match table.waiting(old) {
            Waiting::Messages(_) if ahead < REACH => {}
            Waiting::Gap { missed, resume_at, .. } if ahead >= REACH => {
                // It goes on within reach of the new one, and gets the message.
                assert!(missed.is_some_and(|missed| missed > 0));
                assert_eq!(resume_at.offset, head - (REACH - 1));
            }
            other => panic!("{ahead} ahead: {other:?}"),
        }
        // The pass offers the gap, and both go on with the next message.
        let (mut visits, mut batch) = (9, Vec::new());
        table.next_batch(&mut visits, &mut batch);
        assert_eq!(batch.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [old]);
        table.advance(old, head);
        table.append(local, channel, &model::message(head + 1, head));
        for id in [old, new] {
            let Waiting::Messages(messages) = table.waiting(id) else { panic!("it is behind") };
            assert_eq!(messages.map(|message| message.id.offset).collect::<Vec<_>>(), [head + 1]);
        }
        table.check_invariants();
    }
}

#[test]
fn only_subscriptions_out_of_reach_of_a_leap_have_a_gap() {
    let has = |table: &SubscriptionTable, id, expected: &[u64]| {
        let Waiting::Messages(messages) = table.waiting(id) else { panic!("it is within reach") };
        assert_eq!(messages.map(|message| message.id.offset).collect::<Vec<_>>(), expected);
    };
    let (channel, near) = (ChannelId(0), REACH / 2);
    let messages = [(near, 5), (near + 1, near), (REACH + 5, near + 1)]
        .map(|(at, before)| model::message(at, before));
    for is_known_before in [false, true] {
        let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
        let local = table.next_local();
        let join = |table: &mut SubscriptionTable, connection, head| {
            let followed = model::followed(channel, local, head);
            table.join(ConnectionId::new(connection), &followed, false, None)
        };
        let far = join(&mut table, 0, 5);
        let close = join(&mut table, 1, near);
        if is_known_before {
            // Both are blocked, and lack messages before the leap.
            [far, close].into_iter().for_each(|id| table.block(id));
        } else {
            // A subscription begins after the leap while all notifications are on their way.
            join(&mut table, 2, REACH + 5);
        }
        messages.iter().for_each(|message| table.append(local, channel, message));
        table.check_invariants();
        assert!(matches!(table.waiting(far), Waiting::Gap { .. }));
        assert_eq!(table.position(far).map(|id| id.offset), Some(0));
        has(&table, close, &[near + 1, REACH + 5]);
        assert_eq!(table.position(close).map(|id| id.offset), Some(near));
        // Further on, but before the next 2^30 offsets, the cursor is exact yet.
        table.append(local, channel, &model::message(2 * REACH - 1, REACH + 5));
        has(&table, close, &[near + 1, REACH + 5, 2 * REACH - 1]);
        assert_eq!(table.position(close).map(|id| id.offset), Some(near));
        table.check_invariants();
    }
}

#[test]
fn the_oldest_blocked_messages_are_evicted_first() {
    let world = World::new(rules(0, 9, 9, LagPolicy::Skip), Offsets::CountingFrom(0));
    let mut world = world.holding(6);
    // One is blocked in two channels, another later in a third; a fourth channel keeps up.
    for (connection, topic) in [(0, 0), (0, 1), (1, 2), (2, 2)] {
        world.subscribe(connection, topic, crate::StartAt::Live);
    }
    world.block(0, 0);
    world.block(1, 0);
    let publish = |world: &mut World, topic, count| {
        (0..count).for_each(|_| world.publish(topic));
        world.take_notifications(usize::MAX);
        while world.table.is_fanning_out() {
            world.fan_out(9, usize::MAX, false);
        }
    };
    publish(&mut world, 0, 3);
    publish(&mut world, 1, 3);
    assert_eq!((world.missed(0, 0), world.missed(0, 1), world.table.dropped()), (0, 0, 0));
    publish(&mut world, 2, 5);
    // Offsets count as age here: 1 to 3, 1 to 3 and 1 to 5. Six are left.
    assert_eq!(world.table.dropped(), 5);
    let missed =
        [(0, 0), (0, 1), (1, 2)].map(|(connection, topic)| world.missed(connection, topic));
    assert_eq!(missed.iter().sum::<u64>(), 5);
    assert!(missed.iter().all(|&missed| missed <= 2), "{missed:?}");
    assert_eq!(world.missed(2, 2), 0, "it kept up");
    world.finish();
}

#[test]
fn a_message_completes_once_with_the_last_worker() {
    let mut tables = [0, 1].map(|_| SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip)));
    let (channel, local) = (ChannelId(0), tables[0].next_local());
    let blocked = tables.each_mut().map(|table| {
        let ids = [0, 1].map(|connection| {
            table.join(
                ConnectionId::new(connection),
                &model::followed(channel, local, 0),
                false,
                None,
            )
        });
        table.block(ids[0]);
        ids[0]
    });
    let content = model::message(1, 0).content();
    let message = Arc::new(Message::tracked(content, InFlight::to(2)));
    let fan_out = |table: &mut SubscriptionTable| {
        let (mut visits, mut batch) = (9, Vec::new());
        table.next_batch(&mut visits, &mut batch);
        batch.drain(..).for_each(|(id, _)| table.advance(id, 1));
        table.next_batch(&mut visits, &mut batch);
        assert!(batch.is_empty());
        table.completions().count()
    };
    tables.iter_mut().for_each(|table| table.append(local, channel, &message));
    assert_eq!(fan_out(&mut tables[0]), 0, "the other worker has not offered it yet");
    // It is offered again to a subscription that was blocked, but completes only once.
    tables[0].unblock(blocked[0]);
    assert_eq!(fan_out(&mut tables[0]), 0);
    assert_eq!(fan_out(&mut tables[1]), 1);
    tables[1].unblock(blocked[1]);
    assert_eq!(fan_out(&mut tables[1]), 0);
}

#[test]
fn a_message_completes_when_all_subscriptions_have_ended() {
    let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let in_flight = |offset| {
        let content = model::message(offset, offset - 1).content();
        Arc::new(Message::tracked(content, InFlight::to(1)))
    };
    let id = table.join(ConnectionId::new(0), &model::followed(channel, local, 0), false, None);
    table.append(local, channel, &in_flight(1));
    table.leave(id);
    assert_eq!(table.completions().count(), 1);
    table.append(local, channel, &in_flight(2));
    assert_eq!(table.completions().count(), 1, "the channel is not followed any more");
}

/// A channel of a journal had the place, and its log has another epoch.
#[test]
fn a_receipt_of_another_log_waits_for_nobody() {
    let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let own = MessageId { epoch: Epoch::numbered(2), offset: 5 };
    let followed = Followed { head: own, cursor: own, ..model::followed(channel, local, 5) };
    let id = table.join(ConnectionId::new(0), &followed, false, None);
    table.note_joined(id, &followed, true);
    let (sender, done) = std::sync::mpsc::channel();
    let ticket = Ticket::new(move |_: Option<()>| sender.send(()).expect("the test listens"));
    let receipt = Arc::<Receipts>::default()
        .open(crate::Publisher::Anonymous, &crate::ChannelName::channel("a"), ticket)
        .expect("there is room");
    receipt.begin(1);
    let late = model::message(1000, 999).content();
    table.watch(local, channel, &late, Some(id), receipt.part(1));
    assert_eq!(done.try_recv(), Ok(()), "all is known");
    let expected = Delivered { matched: 1, closed: 1, ..<_>::default() };
    assert_eq!(receipt.close(), expected);
}

#[test]
fn a_connection_leaves_all_its_channels_and_no_other_does() {
    const CHANNELS: u32 = 40;
    let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
    let mut newest = [None; 2];
    for channel in (0..CHANNELS).map(ChannelId) {
        let local = table.next_local();
        for (connection, newest) in (0..).zip(&mut newest) {
            let followed = model::followed(channel, local, 0);
            table.look_ahead(&[local]);
            let id = table.join(ConnectionId::new(connection), &followed, false, *newest);
            *newest = Some(id);
        }
    }
    let mut left = Vec::new();
    table.leave_all(newest[0], |channel| left.push(channel));
    let newest_first: Vec<_> = (0..CHANNELS).rev().map(ChannelId).collect();
    assert_eq!(left, newest_first);
    let others = std::iter::successors(newest[1], |&id| table.sibling(id));
    let followed: Vec<_> = others.filter_map(|id| table.channel(id)).map(|(id, _)| id).collect();
    assert_eq!(followed, newest_first);
    assert_eq!(table.len(), CHANNELS as usize);
    table.leave_all(None, |_| panic!("there is none"));
}

#[test]
fn messages_kept_for_blocked_subscriptions_are_not_encoded() {
    let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let ids = [0, 1].map(|connection| {
        table.join(ConnectionId::new(connection), &model::followed(channel, local, 0), false, None)
    });
    table.block(ids[0]);
    let message = model::message(1, 0);
    table.append(local, channel, &message);
    let mut visits = 9;
    let mut batch = Vec::new();
    table.next_batch(&mut visits, &mut batch);
    for (id, _) in batch {
        let Waiting::Messages(mut messages) = table.waiting(id) else { panic!("it is behind") };
        let encode = |_: &Message| b"encoded".to_vec();
        let first = messages.next().expect("at least one").encoding(0, encode).as_ptr();
        assert_eq!(first, message.encoding(0, |_| unreachable!("it is shared")).as_ptr());
        table.advance(id, 1);
    }
    table.next_batch(&mut visits, &mut Vec::new());
    let Waiting::Messages(mut messages) = table.waiting(ids[0]) else { panic!("it is blocked") };
    assert!(messages.next().is_some_and(|held| held.id == message.id && !held.is_encoded()));
}

/// Also encodings of a later reader, and of another worker.
#[test]
fn encodings_are_dropped_after_each_write() {
    let mut table = SubscriptionTable::new(rules(9, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let encode = |message: &Arc<Message>| {
        message.encoding(0, |_| b"encoded".to_vec());
    };
    let elsewhere: Vec<_> = (1..=5).map(|offset| model::message(offset, offset - 1)).collect();
    let join = |table: &mut SubscriptionTable, connection| {
        let mut followed = model::followed(channel, local, 5);
        followed.cursor.offset = 0;
        followed.backlog = elsewhere.clone();
        table.join(ConnectionId::new(connection), &followed, false, None)
    };
    let blocked = join(&mut table, 0);
    table.block(blocked);
    elsewhere.iter().for_each(encode);
    let are_unencoded = |table: &SubscriptionTable| {
        let Waiting::Messages(messages) = table.waiting(blocked) else { panic!("it is blocked") };
        let held: Vec<_> = messages.map(|message| message.is_encoded()).collect();
        held == [false; 5]
    };
    assert!(are_unencoded(&table), "another worker's encodings");
    // Another one catches up, in two writes; the first encodes more than the socket takes.
    let reader = join(&mut table, 1);
    for (encoded, taken) in [(4, 2), (3, 5)] {
        let Waiting::Messages(messages) = table.waiting(reader) else { panic!("it is behind") };
        messages.take(encoded).for_each(encode);
        assert!(!are_unencoded(&table));
        let from = table.cursor(reader).expect("it is there");
        table.advance(reader, taken);
        table.drop_encodings(reader, from);
        assert!(are_unencoded(&table));
    }
    // A pass offers to a subscription that resumes what all had been offered before.
    table.trim(local);
    table.unblock(blocked);
    let again = join(&mut table, 2);
    table.block(again);
    let (mut visits, mut batch) = (9, Vec::new());
    table.next_batch(&mut visits, &mut batch);
    for (id, _) in batch.drain(..) {
        let Waiting::Messages(messages) = table.waiting(id) else { panic!("it is behind") };
        messages.for_each(encode);
        table.advance(id, 5);
    }
    table.next_batch(&mut visits, &mut batch);
    let Waiting::Messages(mut held) = table.waiting(again) else { panic!("it is blocked") };
    assert!(held.all(|message| !message.is_encoded()));
}

/// But not at once, where many catch up with the same.
#[test]
fn many_that_catch_up_share_encodings_for_a_moment() {
    let mut table = SubscriptionTable::new(rules(9, 9, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let backlog: Vec<_> = (1..=5).map(|offset| model::message(offset, offset - 1)).collect();
    let readers: Vec<_> = (0..5)
        .map(|connection| {
            let mut followed = model::followed(channel, local, 5);
            followed.cursor.offset = 0;
            followed.backlog = backlog.clone();
            let id = table.join(ConnectionId::new(connection), &followed, false, None);
            table.block(id);
            id
        })
        .collect();
    let encoded = |table: &SubscriptionTable| {
        let Waiting::Messages(messages) = table.waiting(readers[4]) else { panic!("it is behind") };
        messages.filter(|message| message.is_encoded()).count()
    };
    let write = |table: &mut SubscriptionTable, reader| {
        let Waiting::Messages(messages) = table.waiting(reader) else { panic!("it is behind") };
        messages.for_each(|message| {
            message.encoding(0, |_| b"encoded".to_vec());
        });
        table.advance(reader, 5);
        table.drop_encodings(reader, 0);
    };
    table.set_now(7_000);
    write(&mut table, readers[0]);
    table.set_now(7_999);
    assert_eq!(encoded(&table), 5);
    table.set_now(8_000);
    assert_eq!(encoded(&table), 0, "after a second");
    write(&mut table, readers[1]);
    assert_eq!(encoded(&table), 0, "few are left");
}

/// A state that others could have asked for is none of a channel without keys.
#[test]
fn a_slow_reader_of_a_backlog_is_within_the_lag_limit() {
    let mut table = SubscriptionTable::new(rules(2, 4, 9, LagPolicy::Skip));
    let (channel, local) = (ChannelId(0), table.next_local());
    let mut followed = model::followed(channel, local, 2);
    followed.cursor.offset = 0;
    followed.backlog = (1..=2).map(|offset| model::message(offset, offset - 1)).collect();
    let slow = table.join(ConnectionId::new(0), &followed, false, None);
    table.block(slow);
    for offset in 3..=20 {
        table.append(local, channel, &model::message(offset, offset - 1));
        table.next_batch(&mut 9, &mut Vec::new());
    }
    let buffer = table.channels[local.index()].buffer.as_ref().expect("one is slow");
    assert_eq!(buffer.messages().len(), 4);
    assert!(!matches!(table.waiting(slow), Waiting::Messages(_)), "it has missed some");
}

#[test]
fn each_channel_has_its_own_epoch() {
    let mut table = SubscriptionTable::new(rules(0, 9, 9, LagPolicy::Skip));
    let ids = [1, 2, 1].map(|number| {
        let local = table.next_local();
        let mut followed = model::followed(ChannelId(local.index()), local, 7);
        followed.head.epoch = crate::Epoch::numbered(number);
        followed.cursor.epoch = followed.head.epoch;
        table.join(ConnectionId::new(number as u32), &followed, false, None)
    });
    let position = |table: &SubscriptionTable, at: usize| {
        table.position(ids[at]).map(|id| id.to_string()).expect("it has not ended")
    };
    assert_eq!([0, 1, 2].map(|at| position(&table, at)), ["1-7", "2-7", "1-7"]);
    table.leave(ids[0]);
    assert_eq!([1, 2].map(|at| position(&table, at)), ["2-7", "1-7"]);
    // A message of another epoch is for a channel that had this place before.
    let local = table.local(ids[1]).expect("it has not ended");
    table.append(local, ChannelId(local.index()), &model::message(8, 7));
    assert!(matches!(table.waiting(ids[1]), Waiting::Nothing));
    table.check_invariants();
}

/// The offsets of the messages that a subscription lacks.
fn lacked(table: &SubscriptionTable, id: SubscriptionId) -> Vec<u64> {
    let Waiting::Messages(messages) = table.waiting(id) else { return Vec::new() };
    messages.map(|message| message.id.offset).collect()
}
