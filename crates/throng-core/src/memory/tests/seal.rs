//! Messages in memory that another process shares. `model` seals at random steps.

use proptest::prelude::*;

use super::*;
use crate::Attributes;
use crate::frozen::RecordKind;
use crate::{History, HistoryQuery};

/// Messages of every kind in several channels.
fn fixture(messages: usize) -> Fixture {
    let fixture = Fixture::new(retention(usize::MAX), 1, usize::MAX);
    for n in 0..messages {
        let text = n.to_string();
        let body = match n % 3 {
            0 => Body::Text(text.into()),
            1 => Body::Json(text.into()),
            _ => Body::Binary(text.into_bytes().into()),
        };
        let publication = Publication {
            body,
            content_type: (n % 3 == 2).then(|| "image/png".into()),
            excluded: (n % 5 == 0).then_some(crate::ConnectionName::numbered(7)),
            attributes: Attributes::of(&[(9_999, &n.to_le_bytes()[..n % 4 / 3])]).ok(),
            expires_in_ms: (n % 7 == 0).then_some(DAY_MS / 2),
            ..publication(&name(n), "")
        };
        fixture.engine.publish(n as u64, publication).expect("nobody follows");
    }
    fixture
}

fn name(n: usize) -> ChannelName {
    if n.is_multiple_of(2) { ChannelName::channel("news") } else { ChannelName::user("ann") }
}

/// All that readers get.
fn read(engine: &MemoryEngine, now_ms: u64) -> String {
    let page = |n| {
        let History { head, messages, .. } =
            engine.history(now_ms, &name(n), HistoryQuery::Newest, usize::MAX);
        let contents: Vec<_> = messages.iter().map(|message| message.content()).collect();
        format!("{head} {contents:?}")
    };
    page(0) + &page(1)
}

fn sealed_records(records: &[Vec<u8>]) -> usize {
    records.iter().filter(|record| record[0] == RecordKind::SealedMessages as u8).count()
}

#[test]
fn messages_come_ahead_and_are_the_same() {
    let mut fixture = fixture(100);
    let (before, metrics) = (read(&fixture.engine, 100), fixture.engine.metrics());
    // Those of the page are on the heap, with nobody who reads them.
    fixture.seal();
    assert_eq!(fixture.segments().freed as u64, metrics.bytes);
    fixture.publish(100, &name(0), "later");
    let records = fixture.freeze();
    assert_eq!(sealed_records(&records), 2, "one for each channel");
    assert_eq!(records.iter().filter(|it| it[0] == RecordKind::Message as u8).count(), 1);
    fixture.freeze_and_thaw();
    let after = read(&fixture.engine, 100);
    assert!(after.starts_with(&before[..20]) || after.contains("later"));
    assert_eq!(fixture.engine.metrics().messages, metrics.messages + 1);
    fixture.freeze_and_thaw();
    assert_eq!(read(&fixture.engine, 100), after, "the second time from the heap");
}

#[test]
fn a_segment_is_given_back_when_its_messages_have_left_it() {
    let mut fixture = fixture(100);
    let before = read(&fixture.engine, 100);
    fixture.seal();
    let readers = |fixture: &Fixture| Arc::strong_count(&fixture.segments().all[0]) - 1;
    fixture.tick_all(100);
    assert_eq!(readers(&fixture), 1, "it is held");
    fixture.freeze_and_thaw();
    assert_eq!(readers(&fixture), 1, "that of the new engine");
    fixture.tick_all(100);
    assert_eq!(readers(&fixture), 0);
    assert_eq!(read(&fixture.engine, 100), before);
}

#[test]
fn messages_that_are_still_sealed_move_from_segment_to_segment() {
    let mut fixture = Fixture::new(retention(usize::MAX), 1, usize::MAX);
    let text = "x".repeat(10_000);
    for n in 0..500 {
        fixture.publish(n as u64, &name(n), &text);
    }
    let before = read(&fixture.engine, 500);
    for round in 0..3 {
        let earlier = fixture.segments().all.clone();
        fixture.seal();
        let are_left = earlier.iter().any(|bytes| Arc::strong_count(bytes) > 1);
        assert!(!are_left, "round {round}");
        let records = fixture.freeze();
        assert!(records.iter().all(|it| it[0] != RecordKind::Message as u8), "round {round}");
        fixture.freeze_and_thaw();
        // Some shards take theirs out.
        (0..20).for_each(|_| fixture.engine.tick(500));
    }
    assert_eq!(read(&fixture.engine, 500), before);
}

#[test]
fn messages_go_back_if_nobody_takes_over() {
    let fixture = fixture(100);
    let before = read(&fixture.engine, 100);
    fixture.seal();
    fixture.engine.end_sealing();
    fixture.tick_all(100);
    assert_eq!(Arc::strong_count(&fixture.segments().all[0]), 1);
    assert_eq!(sealed_records(&fixture.freeze()), 0);
    assert_eq!(read(&fixture.engine, 100), before);
}

#[test]
fn they_go_back_as_soon_after_many_failures() {
    let fixture = fixture(100);
    let before = read(&fixture.engine, 100);
    for _ in 0..10 {
        fixture.seal();
        fixture.engine.end_sealing();
    }
    fixture.tick_all(100);
    let readers = Arc::strong_count(&fixture.segments().all[0]) - 1;
    assert_eq!(readers, 0, "one look at each shard is enough for one segment");
    assert_eq!(read(&fixture.engine, 100), before);
}

#[test]
fn messages_go_back_if_the_memory_for_them_fails() {
    let mut fixture = fixture(100);
    let before = read(&fixture.engine, 100);
    fixture.seal();
    fixture.engine.end_sealing();
    fixture.engine.seal(&mut Failing).unwrap_err();
    fixture.engine.end_sealing();
    fixture.tick_all(100);
    assert_eq!(Arc::strong_count(&fixture.segments().all[0]), 1);
    fixture.freeze_and_thaw();
    assert_eq!(read(&fixture.engine, 100), before);
}

/// A sink that takes nothing.
struct Failing;

impl SegmentSink for Failing {
    type Error = ();

    fn append(&mut self, _bytes: &[u8]) -> Result<(), ()> {
        Err(())
    }

    fn seal(&mut self) -> Result<SharedBytes, ()> {
        Err(())
    }

    fn freed(&mut self, _bytes: usize) {}
}

#[test]
fn sealed_messages_expire_and_are_dropped() {
    let mut fixture = fixture(100);
    let alive = read(&fixture.engine, DAY_MS / 2 + 200);
    let mut fixture_sealed = self::fixture(100);
    for fixture in [&mut fixture, &mut fixture_sealed] {
        fixture.seal();
        fixture.freeze_and_thaw();
        assert_eq!(read(&fixture.engine, DAY_MS / 2 + 200), alive);
        fixture.tick_all(2 * DAY_MS);
        assert_eq!((fixture.engine.metrics().messages, fixture.engine.metrics().bytes), (0, 0));
        assert_eq!(Arc::strong_count(&fixture.segments().all[0]), 1);
    }
}

#[test]
fn a_message_on_its_way_stays_on_the_heap() {
    let mut fixture = Fixture::new(retention(9), 1, usize::MAX);
    fixture.follow(0, &name(0), 0, StartAt::Live);
    fixture.publish(0, &name(0), "on its way");
    fixture.seal();
    assert!(fixture.segments().all.is_empty());
    fixture.notifications(0);
    fixture.freeze_and_thaw();
    assert!(read(&fixture.engine, 0).contains("on its way"));
}

#[test]
fn large_logs_are_in_several_segments_the_oldest_first() {
    let mut fixture = Fixture::new(retention(usize::MAX), 1, usize::MAX);
    let text = "x".repeat(10_000);
    for n in 0..700 {
        fixture.publish(n as u64, &ChannelName::channel(&(n % 10).to_string()), &text);
    }
    fixture.seal();
    let count = fixture.segments().all.len();
    assert!((5..9).contains(&count), "{count} segments of a megabyte");
    fixture.freeze_and_thaw();
    fixture.tick_all(700);
    let readers: Vec<usize> =
        fixture.segments().all.iter().map(|it| Arc::strong_count(it) - 1).collect();
    let expected: Vec<usize> = (0..count).map(|at| usize::from(at > 0)).collect();
    assert_eq!(readers, expected, "the first one has been given back");
}

#[test]
fn what_refers_to_no_message_of_a_segment_is_refused() {
    let fixture = fixture(10);
    fixture.seal();
    let records = fixture.freeze();
    let is_refused = |at: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let mut records = records.clone();
        change(&mut records[at]);
        fixture.thaw(&records).is_err()
    };
    assert!(fixture.thaw(&records).is_ok());
    let at = records.iter().position(|it| it[0] == RecordKind::SealedMessages as u8).unwrap();
    // The place of the segment, the first message, the number of messages.
    for field in 0..3 {
        for value in [9, u32::MAX] {
            let put = |record: &mut Vec<u8>| {
                record[1 + 4 * field..][..4].copy_from_slice(&value.to_le_bytes());
            };
            assert!(is_refused(at, &put), "field {field} is {value}");
        }
    }
    assert!(is_refused(at, &|record| record[5] += 1), "messages of another channel");
    assert!(is_refused(1, &|record| record[1] += 1), "a segment that has not come");
    *fixture.segments() = Segments::default();
    assert!(fixture.thaw(&records).is_err(), "no segment has come");
}

proptest! {
    #[test]
    fn no_bytes_of_a_segment_make_a_thaw_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end: prop::sample::Index,
        is_cut: bool,
    ) {
        let fixture = fixture(6);
        fixture.seal();
        let records = fixture.freeze();
        let mut bytes = (*fixture.segments().all[0]).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(end.index(bytes.len()));
        }
        fixture.segments().all[0] = Arc::new(bytes);
        if let Ok(engine) = fixture.thaw(&records) {
            let _ = read(&engine, 6);
            (0..=SHARDS).for_each(|_| engine.tick(6));
            engine.seal(&mut Segments::default()).unwrap();
        }
    }
}
