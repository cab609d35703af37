//! The engine as bytes. `model` goes on with thawed engines at random steps.

use proptest::prelude::*;

use super::*;
use crate::frozen::{OFFSET_MAX, VERSION};
use crate::publication::{IDEMPOTENCY_MS, PublishError};
use crate::rules::JournalId;
use crate::{Attributes, ConnectionName};

/// An engine with every kind of record.
fn fixture() -> Fixture {
    let fixture = Fixture::new(retention(3), 2, usize::MAX);
    let (news, ann) = (ChannelName::channel("news"), ChannelName::user("ann"));
    for n in 0..5 {
        fixture.publish(n, &news, &n.to_string());
    }
    fixture.follow(5, &ann, 1, StartAt::Live);
    fixture.follow(5, &ann, 0, StartAt::Live);
    fixture.follow(5, &news, 0, StartAt::Live);
    let body = Body::Binary([0xff, 0].into());
    let publication = Publication {
        content_type: Some("image/png".into()),
        idempotency_key: Some("key".into()),
        excluded: Some(ConnectionName::numbered(7)),
        attributes: Attributes::of(&[(9_999, b"unknown")]).ok(),
        ..Publication::new(ann.clone(), body)
    };
    fixture.engine.publish(6, publication).expect("the queues have capacity");
    // The engine notes an empty channel that is read, because its reader may resume it.
    fixture.engine.history(6, &ChannelName::channel("quiet"), HistoryQuery::Newest, 9);
    fixture
}

fn is_refused(fixture: &Fixture, records: &[Vec<u8>]) -> bool {
    fixture.thaw(records).is_err()
}

#[test]
fn a_read_marker_is_thawed() {
    let mut fixture = Fixture::new(retention(9), 1, usize::MAX);
    let inbox = ChannelName::user("ann");
    let read = fixture.publish(0, &inbox, "read").id;
    fixture.publish(0, &inbox, "unread");
    let mark = crate::Mark { id: read, may_go_back: false };
    let marker = fixture.engine.read_marker(0, &inbox, Some(mark));
    assert_eq!((marker.read, marker.unread), (Some(read), 1));
    fixture.freeze_and_thaw();
    assert_eq!(fixture.engine.read_marker(0, &inbox, None), marker);
}

#[test]
fn a_thawed_engine_goes_on_where_the_frozen_one_stopped() {
    let mut fixture = fixture();
    let before = fixture.engine.metrics();
    fixture.freeze_and_thaw();
    assert_eq!(fixture.engine.metrics(), before);
    let (news, ann) = (ChannelName::channel("news"), ChannelName::user("ann"));
    let resumed = StartAt::After(MessageId { epoch: Epoch::numbered(7), offset: 3 });
    let followed = fixture.follow(7, &news, 1, resumed);
    assert_eq!((followed.is_recovered, offsets(&followed.backlog)), (Some(true), vec![4, 5]));
    let since = |stamp| {
        let watermark = fixture.engine.watermark();
        assert_eq!(watermark.stamp, Stamp(6));
        let start = StartAt::Since(Watermark { stamp: Stamp(stamp), ..watermark });
        let followed = fixture.follow(7, &news, 1, start);
        (followed.is_recovered, offsets(&followed.backlog))
    };
    assert_eq!(since(4), (Some(true), vec![5]));
    assert_eq!(since(2), (Some(true), vec![3, 4, 5]));
    assert_eq!(since(1), (Some(false), vec![3, 4, 5]), "the second message was dropped");
    assert_eq!(fixture.publish(7, &news, "next").id.offset, 6);
    let audience = fixture.engine.audience(&ann);
    assert_eq!((audience.subscribers, audience.workers.len()), (2, 2));
    let history = fixture.engine.history(7, &ann, crate::HistoryQuery::Newest, 9);
    let message = &history.messages[0];
    assert_eq!(
        (message.time_ms, message.extras.excluded()),
        (6, Some(ConnectionName::numbered(7)))
    );
    assert_eq!(message.content_type(), "image/png");
    assert_eq!(message.extras.attributes(), Attributes::of(&[(9_999, b"unknown")]).ok().as_ref());
}

#[test]
fn channels_keep_their_ids_over_a_thaw() {
    let mut fixture = Fixture::new(retention(2), 1, usize::MAX);
    let names: Vec<_> = (0..300).map(|n| ChannelName::channel(&format!("c{n}"))).collect();
    let ids: Vec<_> =
        names.iter().map(|name| fixture.follow(0, name, 0, StartAt::Live).channel).collect();
    // Some end, so that there are holes.
    for &id in ids.iter().step_by(3) {
        fixture.engine.unfollow(0, id, WorkerId(0));
    }
    fixture.freeze_and_thaw();
    for (at, (name, &id)) in names.iter().zip(&ids).enumerate().filter(|(at, _)| at % 3 > 0) {
        assert!(fixture.engine.is_named(id, name), "{at}");
        assert_eq!(fixture.follow(1, name, 0, StartAt::Live).channel, id);
    }
    let mut all: Vec<_> = names.iter().map(|it| fixture.follow(2, it, 0, StartAt::Live)).collect();
    all.sort_by_key(|followed| followed.channel.0);
    assert!(all.windows(2).all(|pair| pair[0].channel != pair[1].channel));
}

#[test]
fn an_idempotency_key_is_remembered_for_its_five_minutes_in_all() {
    let mut fixture = fixture();
    let again = || Publication {
        idempotency_key: Some("key".into()),
        ..publication(&ChannelName::user("ann"), "again")
    };
    for _ in 0..2 {
        fixture.freeze_and_thaw();
    }
    let late_ms = 6 + IDEMPOTENCY_MS - 1;
    let published = fixture.engine.publish(late_ms, again()).expect("a duplicate");
    assert!(published.is_duplicate && published.id.offset == 1);
    fixture.freeze_and_thaw();
    let published = fixture.engine.publish(late_ms + 1, again()).expect("a new one");
    assert!(!published.is_duplicate);
}

#[test]
fn offsets_of_forgotten_channels_are_not_repeated_after_a_thaw() {
    let mut fixture = Fixture::new(retention(2), 1, usize::MAX);
    let name = ChannelName::channel("news");
    let last = (0..9).map(|_| fixture.publish(0, &name, "a").id.offset).last();
    fixture.tick_all(DAY_MS);
    assert_eq!(fixture.engine.metrics().channels, 0);
    fixture.freeze_and_thaw();
    assert!(Some(fixture.publish(DAY_MS, &name, "b").id.offset) > last);
    // A channel that is about to be forgotten is left out.
    let followed = fixture.follow(2 * DAY_MS, &name, 0, StartAt::Live);
    fixture.tick_all(3 * DAY_MS);
    fixture.engine.set_subscribers(3 * DAY_MS, followed.channel, WorkerId(0), 0);
    fixture.freeze_and_thaw();
    assert_eq!(fixture.engine.metrics().channels, 0);
    assert!(fixture.publish(3 * DAY_MS, &name, "c").id.offset > followed.head.offset);
}

#[test]
fn a_quiet_channel_that_was_forgotten_resumes_after_a_thaw() {
    let mut fixture = Fixture::new(retention(2), 1, usize::MAX);
    let names = ["forgotten", "about-to-be-forgotten", "busy"].map(ChannelName::channel);
    let [forgotten, about_to_be, busy] = &names;
    let last = names.each_ref().map(|name| fixture.publish(0, name, "a").id);
    fixture.tick_all(DAY_MS);
    let followed = fixture.follow(DAY_MS, about_to_be, 0, StartAt::Live);
    fixture.engine.set_subscribers(DAY_MS, followed.channel, WorkerId(0), 0);
    for day in 1..4 {
        // In whichever shard, all others start after it.
        for _ in 0..9 {
            fixture.publish(day * DAY_MS, busy, "b");
        }
        fixture.notifications(0);
        fixture.freeze_and_thaw();
        fixture.tick_all((day + 1) * DAY_MS);
        let resumed = |name, after| {
            let history =
                fixture.engine.history((day + 1) * DAY_MS, name, HistoryQuery::After(after), 9);
            history.is_recovered
        };
        assert_eq!(resumed(forgotten, last[0]), Some(true), "{day}");
        assert_eq!(resumed(about_to_be, followed.head), Some(true), "{day}");
        assert_eq!(resumed(busy, last[2]), Some(false), "{day}");
    }
    let next = fixture.publish(5 * DAY_MS, forgotten, "next").id;
    let history = fixture.engine.history(5 * DAY_MS, forgotten, HistoryQuery::After(last[0]), 9);
    assert_eq!((history.is_recovered, offsets(&history.messages)), (Some(true), vec![next.offset]));
}

#[test]
fn a_channel_at_the_last_offset_can_be_thawed() {
    for retention in [retention(3), retention(0)] {
        let mut fixture = Fixture::new(retention, 1, usize::MAX);
        let (known, new) = (ChannelName::channel("known"), ChannelName::channel("new"));
        fixture.follow(0, &known, 0, StartAt::Live);
        let mut records = fixture.freeze();
        // The head of the channel ends 49 bytes before the record: the number of its followers, the
        // follower, the number of its messages, a stamp, a read marker, a flag, its id, and a
        // version and a length of 0 come after it.
        let head = records[1].len() - 49 - 8;
        records[1][head..head + 8].copy_from_slice(&(OFFSET_MAX - 1).to_le_bytes());
        let forgotten = records[2].len() - 8;
        records[2][forgotten..].copy_from_slice(&OFFSET_MAX.to_le_bytes());
        fixture.engine = fixture.thaw(&records).expect("no offset is beyond the last");
        assert_eq!(fixture.publish(1, &known, "last").id.offset, OFFSET_MAX);
        for name in [&known, &new] {
            let refused = fixture.engine.publish(2, publication(name, "one more"));
            assert_eq!(refused, Err(PublishError::NoOffset));
        }
        assert_eq!((fixture.engine.metrics().published, fixture.engine.metrics().busy), (1, 2));
        fixture.notifications(0);
        fixture.freeze_and_thaw();
        assert_eq!(
            fixture.engine.publish(3, publication(&known, "a")),
            Err(PublishError::NoOffset)
        );
    }
}

#[test]
fn a_lower_limit_evicts_the_oldest_messages() {
    let mut fixture = fixture();
    let records = fixture.freeze();
    fixture.max_bytes = fixture.engine.log_bytes() as usize - 1;
    let thawed = fixture.thaw(&records).expect("only the limit has changed");
    assert_eq!(thawed.metrics().evicted, 1);
    assert_eq!(thawed.metrics().messages, fixture.engine.metrics().messages - 1);
}

#[test]
fn every_part_of_a_frozen_engine_is_refused() {
    let fixture = fixture();
    let records = fixture.freeze();
    assert!(!is_refused(&fixture, &records));
    for (at, record) in records.iter().enumerate() {
        assert!(is_refused(&fixture, &records[..at]), "cut before record {at}");
        for end in 0..record.len() {
            let mut cut = records.clone();
            cut[at].truncate(end);
            assert!(is_refused(&fixture, &cut), "record {at} cut at {end}");
        }
        let mut longer = records.clone();
        longer[at].push(0);
        assert!(is_refused(&fixture, &longer), "record {at} with one byte more");
    }
}

#[test]
fn channels_and_messages_out_of_place_are_refused() {
    let fixture = fixture();
    let records = fixture.freeze();
    for at in 0..records.len() {
        let mut doubled = records.clone();
        doubled.insert(at, records[at].clone());
        // A key or a quiet channel twice is the same.
        assert!(
            [4, 10].contains(&records[at][0]) || is_refused(&fixture, &doubled),
            "record {at} twice"
        );
    }
    let mut swapped = records.clone();
    let message = records.iter().position(|record| record[0] == 3).expect("there are some");
    let other = (0..records.len()).rfind(|&at| records[at][0] == 3).expect("there are some");
    swapped.swap(message, other);
    assert!(is_refused(&fixture, &swapped));
}

#[test]
fn a_channel_in_use_cannot_move_to_another_journal() {
    let (followed, with_messages) = (ChannelName::channel("followed"), ChannelName::user("ann"));
    let with_rules = |journal: Option<u8>| {
        let mut fixture = Fixture::new(retention(3), 1, usize::MAX);
        let journal = journal.map(JournalId);
        let rule = Rule { journal, retention: retention(3), ..Rule::default() };
        fixture.rules = Arc::new(Rules::new(Vec::new(), rule));
        fixture.engine = fixture.thaw(&Fixture::new(retention(3), 1, 0).freeze()).expect("empty");
        fixture
    };
    let moved = |name: &str| Some(ThawError::Moved(name.into()));
    let [memory, durable, other] = [None, Some(0), Some(1)].map(with_rules);
    memory.follow(0, &followed, 0, StartAt::Live);
    durable.follow(0, &followed, 0, StartAt::Live);
    for (from, to) in [(&memory, &durable), (&durable, &memory), (&durable, &other)] {
        assert_eq!(to.thaw(&from.freeze()).err(), moved("followed"));
        assert_eq!(from.thaw(&from.freeze()).err(), None);
    }
    let memory = with_rules(None);
    memory.publish(0, &with_messages, "a");
    assert_eq!(durable.thaw(&memory.freeze()).err(), moved("ann"));
    // A channel that nobody uses is no obstacle.
    memory.tick_all(DAY_MS);
    assert_eq!(durable.thaw(&memory.freeze()).err(), None);
}

#[test]
fn an_engine_of_a_newer_version_is_refused_by_name() {
    let fixture = fixture();
    let mut records = fixture.freeze();
    records[0][7] += 1;
    assert_eq!(fixture.thaw(&records).err(), Some(ThawError::Newer(VERSION + 1)));
}

proptest! {
    #[test]
    fn no_bytes_make_a_thaw_panic(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u16>(), any::<u8>()),
            1..4,
        ),
    ) {
        let fixture = fixture();
        let mut records = fixture.freeze();
        for (record, at, value) in changes {
            let record = record.index(records.len());
            let at = usize::from(at) % records[record].len();
            records[record][at] = value;
        }
        if let Ok(engine) = fixture.thaw(&records) {
            engine.tick(DAY_MS);
            let _ = engine.publish(DAY_MS, publication(&ChannelName::channel("news"), "a"));
        }
    }
}
