//! All logs together stay within their limit, and the oldest messages are evicted first.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn name(nth: usize) -> ChannelName {
    ChannelName::channel(&format!("room-{nth:05}"))
}

fn kept(fixture: &Fixture, name: &ChannelName) -> Vec<(u64, u64)> {
    let page = fixture.engine.history(0, name, HistoryQuery::Newest, usize::MAX);
    page.messages.iter().map(|message| (message.time_ms, message.id.offset)).collect()
}

#[test]
fn a_busy_channel_outlives_quiet_ones_that_are_older() {
    let max_bytes = 5 * weight_bytes(&name(0), "a");
    let fixture = Fixture::new(retention(9), 0, max_bytes);
    for at_ms in 1..=3 {
        fixture.publish(at_ms, &name(0), "a");
    }
    for at_ms in 4..=8 {
        fixture.publish(at_ms, &name(1), "b");
    }
    assert_eq!((kept(&fixture, &name(0)).len(), kept(&fixture, &name(1)).len()), (0, 5));
    let metrics = fixture.engine.metrics();
    assert_eq!((metrics.messages, metrics.evicted), (5, 3));
    assert_eq!(metrics.bytes as usize, max_bytes);
    fixture.tick_all(8);
    assert_eq!(fixture.engine.metrics().channels, 1, "an emptied channel is forgotten");
    assert!(fixture.publish(9, &name(0), "a").id.offset > 3, "and its offsets are not repeated");
}

#[test]
fn many_channels_with_one_message_stay_within_the_limit() {
    let body = "x".repeat(65_000);
    let max_bytes = 16 << 20;
    let fixture = Fixture::new(retention(100), 0, max_bytes);
    for nth in 0..4000 {
        fixture.publish(nth as u64, &name(nth), &body);
        assert!(fixture.engine.shared.bytes.load(Ordering::Relaxed) <= max_bytes);
    }
    let metrics = fixture.engine.metrics();
    assert_eq!(metrics.messages as usize, max_bytes / weight_bytes(&name(0), &body));
    assert_eq!(metrics.messages + metrics.evicted, 4000);
    let oldest = 4000 - metrics.messages as usize;
    assert!((0..4000).all(|nth| kept(&fixture, &name(nth)).is_empty() == (nth < oldest)));
}

#[test]
fn a_resume_across_evicted_messages_is_not_recovered() {
    let fixture = Fixture::new(retention(9), 1, 2 * weight_bytes(&name(0), "a"));
    let ids: Vec<_> = (0..4).map(|at_ms| fixture.publish(at_ms, &name(0), "a").id).collect();
    for (id, is_recovered) in ids.into_iter().zip([false, true, true, true]) {
        let followed = fixture.follow(4, &name(0), 0, StartAt::After(id));
        assert_eq!(followed.is_recovered, Some(is_recovered));
    }
    (5..7).for_each(|at_ms| _ = fixture.publish(at_ms, &name(1), "a"));
    let followed = fixture.follow(7, &name(0), 0, StartAt::Last(9));
    assert_eq!((followed.head.offset, followed.cursor.offset, followed.backlog.len()), (4, 4, 0));
}

#[test]
fn a_limit_below_one_message_keeps_none() {
    let fixture = Fixture::new(retention(9), 1, 10);
    fixture.follow(0, &name(0), 0, StartAt::Live);
    fixture.publish(0, &name(0), "a");
    let metrics = fixture.engine.metrics();
    assert_eq!((metrics.messages, metrics.bytes, metrics.evicted), (0, 0, 1));
    assert_eq!(fixture.notifications(0), [(1, "a".to_owned())], "it is still delivered");
}

#[test]
fn concurrent_publishers_stay_within_the_limit() {
    const PUBLISHERS: usize = 4;
    let max_bytes = 50 * weight_bytes(&name(0), "a");
    let fixture = Fixture::new(retention(9), 0, max_bytes);
    let slack = PUBLISHERS * weight_bytes(&name(0), "a");
    std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let fixture = &fixture;
            scope.spawn(move || {
                for nth in 0..3000 {
                    fixture.publish(nth as u64, &name(nth * PUBLISHERS % 333 + publisher), "a");
                    let bytes = fixture.engine.shared.bytes.load(Ordering::Relaxed);
                    assert!(bytes <= max_bytes + slack);
                }
            });
        }
    });
    let metrics = fixture.engine.metrics();
    assert!(metrics.bytes as usize <= max_bytes);
    fixture.tick_all(DAY_MS * 2);
    let metrics = fixture.engine.metrics();
    assert_eq!((metrics.channels, metrics.messages, metrics.bytes), (0, 0, 0));
}

#[test]
fn tables_shrink_after_all_messages_expire() {
    let fixture = Fixture::new(retention(9), 0, usize::MAX);
    for nth in 0..20_000 {
        fixture.publish(0, &name(nth), "a");
    }
    // One round of ticks forgets all channels, and shrinks the tables.
    fixture.tick_all(DAY_MS);
    for at in 0..SHARDS {
        assert!(fixture.engine.lock(at).capacity() < 2 * 300, "shard {at}");
    }
}

proptest! {
    /// The oldest messages of the whole server are evicted first.
    #[test]
    fn the_oldest_messages_are_evicted(
        max_messages in 1usize..20,
        steps in prop::collection::vec((0usize..12, 0usize..300, any::<bool>()), 0..200),
    ) {
        let max_bytes = max_messages * weight_bytes(&name(0), "");
        let fixture = Fixture::new(retention(10), 0, max_bytes);
        let mut all: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for (at_ms, (channel, bytes, is_tick)) in (1..).zip(steps) {
            let offset = fixture.publish(at_ms, &name(channel), &"x".repeat(bytes)).id.offset;
            all.entry(channel).or_default().push((at_ms, offset));
            let metrics = fixture.engine.metrics();
            prop_assert!(metrics.bytes as usize <= max_bytes);
            if is_tick {
                fixture.engine.tick(at_ms);
            }
        }
        let kept: Vec<_> = all.keys().map(|channel| kept(&fixture, &name(*channel))).collect();
        let oldest_ms = kept.iter().flatten().map(|(at_ms, _)| *at_ms).min().unwrap_or(u64::MAX);
        for (all, kept) in all.values().zip(kept) {
            prop_assert!(all.ends_with(&kept), "the log keeps its newest messages");
            // Unless the channel's own retention dropped it.
            if kept.len() < 10 {
                let newest_dropped = all[..all.len() - kept.len()].last();
                prop_assert!(newest_dropped.is_none_or(|last| last.0 < oldest_ms));
            }
        }
    }
}
