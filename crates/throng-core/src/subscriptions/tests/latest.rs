//! The newest message in place of several.

use super::*;

/// A table with one blocked subscription of a channel that gives the newest message alone, and the
/// messages after offset 5 that it lacks.
fn conflating(offsets: &[u64], are_consecutive: bool) -> (SubscriptionTable, SubscriptionId) {
    let mut table = SubscriptionTable::new(rules(0, 2, 9, LagPolicy::Latest));
    let (channel, local) = (ChannelId(0), table.next_local());
    let mut followed = model::followed(channel, local, 5);
    followed.are_offsets_consecutive = are_consecutive;
    let id = table.join(ConnectionId::new(0), &followed, false, None);
    table.block_slow(id);
    let mut previous = 5;
    for &offset in offsets {
        table.append(local, channel, &model::message(offset, previous));
        previous = offset;
        table.next_batch(&mut 9, &mut Vec::new());
    }
    table.check_invariants();
    (table, id)
}

#[test]
fn latest_passes_over_all_but_the_newest_and_counts_them() {
    let (mut table, id) = conflating(&[6, 7, 8], true);
    assert_eq!((table.conflate(id, |_| true), lacked(&table, id)), (Some(2), vec![8]));
    assert_eq!((table.conflate(id, |_| true), lacked(&table, id)), (Some(0), vec![8]));
    table.check_invariants();
}

#[test]
fn latest_counts_what_the_replay_buffer_has_dropped() {
    let offsets: Vec<_> = (6..40).collect();
    let (mut table, id) = conflating(&offsets, true);
    assert!(matches!(table.waiting(id), Waiting::Gap { .. }), "few are kept");
    assert_eq!((table.conflate(id, |_| true), lacked(&table, id)), (Some(33), vec![39]));
    let (mut table, id) = conflating(&offsets, false);
    assert_eq!((table.conflate(id, |_| true), lacked(&table, id)), (None, vec![39]));
    table.check_invariants();
}

#[test]
fn latest_gives_the_newest_message_that_is_for_the_client() {
    let (mut table, id) = conflating(&[6, 7, 8, 9], true);
    let count = table.conflate(id, |message| message.id.offset != 9);
    assert_eq!((count, lacked(&table, id)), (Some(2), vec![8, 9]));
    // None is: nothing is skipped for it.
    let (mut table, id) = conflating(&[6, 7], true);
    assert_eq!((table.conflate(id, |_| false), lacked(&table, id)), (Some(0), vec![6, 7]));
}

#[test]
fn latest_does_not_conflate_history_before_a_block() {
    let mut table = SubscriptionTable::new(rules(9, 9, 9, LagPolicy::Latest));
    let (channel, local) = (ChannelId(0), table.next_local());
    let mut followed = model::followed(channel, local, 3);
    followed.cursor.offset = 0;
    followed.backlog = (1..=3).map(|offset| model::message(offset, offset - 1)).collect();
    let id = table.join(ConnectionId::new(0), &followed, false, None);
    assert!(!table.is_conflated(id));
    assert_eq!(lacked(&table, id), [1, 2, 3]);
    table.block_slow(id);
    assert!(table.is_conflated(id));
    table.trim_channel_of(id);
    table.check_invariants();
}
