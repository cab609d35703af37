//! Clocks that hold messages back.

use super::*;

/// A table whose only channel has this pace, with subscriptions of these paces at offset 0.
fn paced(pace_ms: u32, own: &[Option<u32>]) -> (SubscriptionTable, LocalId, Vec<SubscriptionId>) {
    let rule = Rule { pace_ms, max_lag_messages: 20, ..Rule::default() };
    let mut table = SubscriptionTable::new(Arc::new(Rules::new(Vec::new(), rule)));
    let local = table.next_local();
    let join = |(nth, &pace_ms): (usize, &Option<u32>)| {
        let followed = model::followed(ChannelId(0), local, 0);
        let id = table.join(ConnectionId::new(nth as u32), &followed, false, None);
        table.set_terms(id, Terms { pace_ms, ..Terms::default() });
        id
    };
    let ids = own.iter().enumerate().map(join).collect();
    (table, local, ids)
}

fn append(table: &mut SubscriptionTable, local: LocalId, offset: u64) {
    table.append(local, ChannelId(0), &model::message(offset, offset - 1));
}

/// Lets time pass, and writes what passes offer. Returns how many messages each subscription got.
fn go_on(table: &mut SubscriptionTable, ids: &[SubscriptionId], now_ms: u64) -> Vec<usize> {
    table.set_now(now_ms);
    table.fire_clocks();
    let mut got = vec![0; ids.len()];
    let mut batch = Vec::new();
    loop {
        table.next_batch(&mut 99, &mut batch);
        if batch.is_empty() {
            break;
        }
        for (id, _) in batch.drain(..) {
            let offsets = lacked(table, id);
            let nth = ids.iter().position(|known| *known == id).expect("one of them");
            got[nth] += offsets.len();
            table.advance(id, offsets[offsets.len() - 1]);
        }
    }
    table.check_invariants();
    got
}

#[test]
fn a_pace_joins_what_comes_within_it() {
    let (mut table, local, ids) = paced(100, &[None, None]);
    assert_eq!(table.until_due_ms(), None);
    append(&mut table, local, 1);
    assert_eq!(go_on(&mut table, &ids, 0), [1, 1], "the first goes at once");
    (2..=4).for_each(|offset| append(&mut table, local, offset));
    assert_eq!(go_on(&mut table, &ids, 60), [0, 0]);
    assert_eq!(table.until_due_ms(), Some(40));
    assert_eq!(go_on(&mut table, &ids, 100), [3, 3]);
    append(&mut table, local, 5);
    assert_eq!(go_on(&mut table, &ids, 199), [0, 0], "the clock has started again");
    assert_eq!(go_on(&mut table, &ids, 200), [1, 1]);
    assert_eq!(go_on(&mut table, &ids, 300), [0, 0]);
    assert_eq!(table.until_due_ms(), None, "nothing was held");
    append(&mut table, local, 6);
    assert_eq!(go_on(&mut table, &ids, 301), [1, 1], "after silence at once");
}

#[test]
fn a_subscription_with_a_slower_pace_waits_alone() {
    let (mut table, local, ids) = paced(0, &[None, Some(250), Some(250)]);
    for (now_ms, expected) in [(0, [1, 1, 1]), (100, [1, 0, 0]), (200, [1, 0, 0]), (240, [1, 0, 0])]
    {
        let next = 1 + table.cursor(ids[0]).unwrap();
        append(&mut table, local, next);
        assert_eq!(go_on(&mut table, &ids, now_ms), expected, "{now_ms}");
    }
    assert_eq!(go_on(&mut table, &ids, 250), [0, 3, 3]);
    assert_eq!(go_on(&mut table, &ids, 500), [0, 0, 0]);
    assert_eq!(table.until_due_ms(), None);
}

#[test]
fn a_slower_pace_goes_out_with_its_channel() {
    // A pace that is no slower than the rule's is none.
    let (mut table, local, ids) = paced(100, &[Some(100), Some(150)]);
    append(&mut table, local, 1);
    assert_eq!(go_on(&mut table, &ids, 0), [1, 1]);
    append(&mut table, local, 2);
    assert_eq!(go_on(&mut table, &ids, 100), [1, 0]);
    append(&mut table, local, 3);
    assert_eq!(go_on(&mut table, &ids, 150), [0, 0], "the channel is held until 200");
    assert_eq!(go_on(&mut table, &ids, 200), [1, 2]);
}

#[test]
fn a_pace_never_makes_a_gap() {
    let (mut table, local, ids) = paced(0, &[None, Some(60_000)]);
    let mut got = [0, 0];
    for offset in 1..=100 {
        append(&mut table, local, offset);
        let more = go_on(&mut table, &ids, 1);
        got = [got[0] + more[0], got[1] + more[1]];
        assert!(!matches!(table.waiting(ids[1]), Waiting::Gap { .. }), "at {offset}");
    }
    assert!(got[0] == 100 && got[1] > 80, "{got:?}");
    let (mut table, local, ids) = paced(60_000, &[None]);
    (1..=100).for_each(|offset| append(&mut table, local, offset));
    assert!(go_on(&mut table, &ids, 1)[0] > 80);
}

#[test]
fn the_clocks_of_a_channel_end_with_its_last_subscription() {
    let (mut table, local, ids) = paced(100, &[None, Some(250)]);
    (1..=2).for_each(|offset| append(&mut table, local, offset));
    go_on(&mut table, &ids, 0);
    assert!(table.until_due_ms().is_some());
    ids.iter().for_each(|&id| assert!(table.leave(id).is_some()));
    assert_eq!(table.until_due_ms(), None);
}
