//! The engine as bytes. `model` goes on with thawed engines at random steps.

use proptest::prelude::*;
use throng_wire::v1::ShownMember;

use super::*;
use crate::frozen::{OFFSET_MAX, RecordKind, VERSION};
use crate::publication::{IDEMPOTENCY_MS, PublishError};
use crate::rules::JournalId;
use crate::{Attributes, ConnectionName, Mark, MarkerKey, ResumeRule};

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
fn members_stay_until_their_connections_could_have_come() {
    let mut fixture = fixture();
    let news = ChannelName::channel("news");
    for user in ["ann", "bob"] {
        let shown = ShownMember { connection: None, user: Some(user), info: None };
        fixture.engine.begin_member(6, &news, shown).expect("there is room");
    }
    fixture.engine.rest_member(6, &news, "bob");
    let records = fixture.freeze();
    let at = records.iter().position(|it| it[0] == RecordKind::Members as u8).expect("a record");
    for end in 1..records[at].len() {
        let mut cut = records.clone();
        cut[at].truncate(end);
        assert!(is_refused(&fixture, &cut), "{end}");
    }
    let twice = [&records[..=at], &records[at..]].concat();
    assert!(is_refused(&fixture, &twice));
    let now_ms = crate::clock::now_ms();
    fixture.freeze_and_thaw();
    let users = |fixture: &Fixture, now_ms| fixture.engine.members(now_ms, &news, None, 9).users;
    let tick = |fixture: &Fixture, now_ms| fixture.engine.tick(now_ms);
    assert_eq!(users(&fixture, now_ms), ["ann".into(), "bob".into()]);
    let ann = ShownMember { connection: None, user: Some("ann"), info: None };
    fixture.engine.resume_member(now_ms, &news, ann);
    // Bob's time was frozen.
    tick(&fixture, now_ms + 1_000);
    assert_eq!(users(&fixture, now_ms), ["ann".into()]);
    fixture.freeze_and_thaw();
    let now_ms = crate::clock::now_ms();
    tick(&fixture, now_ms + 9_000);
    assert_eq!(users(&fixture, now_ms), ["ann".into()]);
    tick(&fixture, now_ms + 11_000);
    assert_eq!(users(&fixture, now_ms).len(), 0);
    assert_eq!(fixture.engine.member_metrics().left, 2);
}

/// An engine in which channels have read markers.
fn with_markers() -> Fixture {
    let rule = Rule { retention: retention(9), read_markers: true, ..Rule::default() };
    Fixture::with_rule(rule, 1, usize::MAX)
}

#[test]
fn read_markers_are_thawed() {
    let mut fixture = with_markers();
    let [inbox, room] = [ChannelName::user("ann"), ChannelName::channel("room")];
    let all = [MarkerKey::inbox("ann"), MarkerKey::channel(room.clone(), "ann")];
    let markers = all.each_ref().map(|of| {
        let read = fixture.publish(0, of.log(), "read").id;
        fixture.publish(0, of.log(), "unread");
        let mark = Some(Mark::new(read, false));
        let marker = fixture.engine.read_marker(0, of, mark).unwrap();
        assert_eq!((marker.read, marker.unread), (Some(read), 1));
        (marker.read, marker.unread)
    });
    assert_eq!(all[0].log(), &inbox);
    fixture.freeze_and_thaw();
    let thawed = all.each_ref().map(|of| {
        let marker = fixture.engine.read_marker(0, of, None).unwrap();
        (marker.read, marker.unread)
    });
    assert_eq!(thawed, markers);
    assert_eq!(fixture.engine.metrics().read_markers, 1);
}

#[test]
fn users_go_on_after_a_thaw() {
    let resume = Some(ResumeRule { is_at_least_once: true, for_ms: 30_000 });
    let rule = Rule { retention: retention(9), resume, ..Rule::default() };
    let mut fixture = Fixture::with_rule(rule, 1, usize::MAX);
    let [room, inbox] = [ChannelName::channel("room"), ChannelName::user("ann")];
    let read = fixture.publish(0, &room, "read").id;
    let now_ms = crate::clock::now_ms();
    for (user, channel) in [("ann", &room), ("ann", &room), ("ann", &inbox), ("bob", &room)] {
        fixture.engine.leave_bookmark(now_ms, user, channel, read);
    }
    let records = fixture.freeze();
    let at = records.iter().position(|it| it[0] == RecordKind::Bookmarks as u8).expect("a record");
    for end in 1..records[at].len() {
        let mut cut = records.clone();
        cut[at].truncate(end);
        assert!(is_refused(&fixture, &cut), "{end}");
    }
    fixture.freeze_and_thaw();
    let taken = |user, channel| fixture.engine.take_bookmark(now_ms, user, channel);
    assert_eq!([0; 3].map(|_| taken("ann", &room)), [Some(read), Some(read), None]);
    assert_eq!((taken("ann", &inbox), taken("bob", &inbox)), (Some(read), None));
    assert_eq!(fixture.engine.bookmark(now_ms, "bob", &room), Some(read));
    assert_eq!(fixture.engine.bookmark(now_ms + 31_000, "bob", &room), None);
    fixture.engine.part_with_user(now_ms, "bob", 0);
    assert_eq!(
        fixture.engine.bookmark(now_ms, "bob", &room),
        None,
        "who is erased goes on nowhere"
    );
    let far = MessageId { offset: OFFSET_MAX + 1, ..read };
    fixture.engine.bring_bookmarks(now_ms, ("bob", &room), &[far, read], true);
    assert_eq!(
        fixture.engine.bookmark(now_ms, "bob", &room),
        Some(read),
        "frozen state has no other"
    );
}

#[test]
fn a_marker_ends_with_the_messages_of_its_channel() {
    let fixture = with_markers();
    let room = ChannelName::channel("room");
    let read = fixture.publish(0, &room, "brief").id;
    let of = MarkerKey::channel(room.clone(), "ann");
    fixture.engine.read_marker(0, &of, Some(Mark::new(read, false))).unwrap();
    assert_eq!(fixture.engine.metrics().read_markers, 1);
    fixture.engine.erase(0, &room, Erase::Log);
    // A round of all shards.
    (0..SHARDS).for_each(|_| fixture.engine.tick(0));
    assert_eq!(fixture.engine.metrics().read_markers, 0);
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
        // The head of the channel ends 52 bytes before the record: the number of its followers, the
        // follower, the number of its messages, a stamp, a read marker, a flag, its id, a
        // version and a length of 0, a flag, and who has created it come after it.
        let head = records[1].len() - 52 - 8;
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

/// Lets the fixture's next thaws have the rules of a server on which this journal has the logs of
/// all channels but `stays`, which is in memory.
fn choose(fixture: &mut Fixture, journal: Option<u8>) {
    let rule = |pattern: &str, journal: Option<u8>| Rule {
        pattern: pattern.into(),
        retention: retention(3),
        journal: journal.map(JournalId),
        ..Rule::default()
    };
    fixture.rules = Arc::new(Rules::new(vec![rule("stays", None)], rule("*", journal)));
}

fn chosen(journal: Option<u8>) -> Fixture {
    let mut fixture = Fixture::new(retention(3), 2, usize::MAX);
    choose(&mut fixture, journal);
    fixture.engine = fixture.thaw(&fixture.freeze()).expect("an empty engine");
    fixture
}

#[test]
fn a_channel_with_another_journal_begins_a_new_log() {
    let (moves, stays) = (ChannelName::channel("moves"), ChannelName::channel("stays"));
    for (from, to) in [(None, Some(0)), (Some(0), None), (Some(0), Some(1))] {
        let mut fixture = chosen(from);
        for name in [&moves, &stays] {
            fixture.publish(0, name, "before");
        }
        let left = fixture.follow(0, &moves, 0, StartAt::Live);
        fixture.follow(0, &stays, 1, StartAt::Live);
        choose(&mut fixture, to);
        fixture.freeze_and_thaw();
        let engine = &fixture.engine;
        assert_eq!((engine.moved_channels(), engine.metrics().messages), (1, 1), "{from:?}");
        assert_eq!(engine.audience(&stays).subscribers, 1);
        // They keep its id, and nobody else finds it.
        let known = engine.left_by(&moves, WorkerId(0));
        assert_eq!(known, Some((left.channel, left.local)));
        assert_eq!(engine.left_by(&moves, WorkerId(1)), None);
        assert_eq!(engine.left_by(&stays, WorkerId(1)), None);
        assert_eq!(engine.name(left.channel), Some(moves.clone()));
        assert_eq!((engine.audience(&moves).subscribers, engine.followed_head(&moves)), (0, None));
        let new = fixture.follow(1, &moves, 0, StartAt::After(left.head));
        assert_ne!(new.channel, left.channel);
        assert_eq!(new.is_recovered, Some(false));
        let next = fixture.publish(1, &moves, "after");
        assert_eq!(fixture.notifications(0), [(next.id.offset, "after".to_owned())]);
        fixture.engine.unfollow(2, left.channel, WorkerId(0));
        assert_eq!(fixture.engine.left_by(&moves, WorkerId(0)), None);
        assert_eq!(fixture.engine.audience(&moves).subscribers, 1);
        // The next process has the same journals.
        fixture.freeze_and_thaw();
        assert_eq!(fixture.engine.moved_channels(), 0);
        assert_eq!(fixture.engine.audience(&moves).subscribers, 1);
    }
}

#[test]
fn ids_of_a_channel_that_has_been_in_a_journal_stay_invalid() {
    // Each channel is used in other ones of the processes, so that it is there, forgotten, or
    // followed when the next one takes over.
    let names: Vec<_> = (0..8).map(|n| ChannelName::channel(&format!("c{n}"))).collect();
    let mut fixture = chosen(None);
    let (mut given, mut now_ms) = (Vec::new(), 0);
    let journals = [None, Some(0), None, Some(1), Some(0), None, None, Some(1), None];
    for pair in journals.windows(2) {
        let (journal, next) = (pair[0], pair[1]);
        let mut followed = Vec::new();
        for (at, name) in names.iter().enumerate().filter(|_| journal.is_none()) {
            let resumes = |id: MessageId| {
                let query = HistoryQuery::After(id);
                fixture.engine.history(now_ms, name, query, 9).is_recovered
            };
            for (_, id) in given.iter().filter(|(of, _)| *of == at) {
                assert_eq!(resumes(*id), Some(false), "{name:?} {id} of {given:?}");
            }
            if at % 2 == 0 {
                followed.push(fixture.follow(now_ms, name, 0, StartAt::Live));
                given.push((at, followed.last().expect("it was pushed").head));
            }
            for _ in 0..at % 3 {
                let id = fixture.publish(now_ms, name, "a").id;
                assert!(!given.contains(&(at, id)), "{id} twice");
                given.push((at, id));
            }
        }
        fixture.notifications(0);
        now_ms += 2 * DAY_MS;
        fixture.tick_all(now_ms);
        for followed in followed.iter().step_by(2) {
            fixture.engine.unfollow(now_ms, followed.channel, WorkerId(0));
        }
        choose(&mut fixture, next);
        if next == journal {
            given.clear();
        }
        fixture.freeze_and_thaw();
        for name in &names {
            if let Some((channel, _)) = fixture.engine.left_by(name, WorkerId(0)) {
                fixture.engine.unfollow(now_ms, channel, WorkerId(0));
            }
        }
    }
}

#[test]
fn positions_from_before_a_change_of_journals_are_unknown() {
    let stays = ChannelName::channel("stays");
    let mut fixture = chosen(None);
    let before = fixture.engine.watermark();
    fixture.publish(0, &stays, "a");
    let newest = fixture.engine.watermark();
    let is_known = |fixture: &Fixture| [before, newest].map(|at| fixture.engine.is_known(at));
    fixture.freeze_and_thaw();
    assert_eq!(is_known(&fixture), [true; 2]);
    choose(&mut fixture, Some(0));
    for _ in 0..2 {
        fixture.freeze_and_thaw();
        assert_eq!(is_known(&fixture), [false, true]);
        let follow = |at| fixture.follow(1, &stays, 0, StartAt::Since(at)).is_recovered;
        assert_eq!([before, newest].map(follow), [Some(false), Some(true)]);
    }
}

#[test]
fn messages_that_are_left_out_are_checked() {
    for is_sealed in [false, true] {
        let mut fixture = chosen(None);
        for text in ["a", "b", "c"] {
            fixture.publish(0, &ChannelName::channel("moves"), text);
        }
        if is_sealed {
            fixture.seal();
        }
        let records = fixture.freeze();
        choose(&mut fixture, Some(0));
        let thawed = fixture.thaw(&records).expect("it was frozen just now");
        assert_eq!((thawed.moved_channels(), thawed.log_bytes()), (1, 0));
        let channel = records.iter().position(|record| record[0] == 2).expect("there is one");
        assert_eq!(records[channel + 1][0], if is_sealed { 9 } else { 3 });
        for at in channel..records.len() {
            let (mut lost, mut doubled, mut cut) =
                (records.clone(), records.clone(), records.clone());
            lost.remove(at);
            doubled.insert(at, records[at].clone());
            cut[at].pop();
            assert!(is_refused(&fixture, &lost), "without record {at}");
            assert!(is_refused(&fixture, &doubled), "record {at} twice");
            assert!(is_refused(&fixture, &cut), "record {at} cut");
        }
        if !is_sealed {
            let mut swapped = records.clone();
            swapped.swap(channel + 1, channel + 3);
            assert!(is_refused(&fixture, &swapped));
        }
    }
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
