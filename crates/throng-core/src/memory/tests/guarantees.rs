//! The guarantees of the engine, one test each.

use std::collections::BTreeSet;

use super::*;
use crate::idempotency_key::{IdempotencyKey, Publisher};
use crate::publication::{IDEMPOTENCY_MS, PublishError};
use crate::rules::LagPolicy;
use crate::worker_queue::QUEUE_MESSAGES_MAX;

fn name() -> ChannelName {
    ChannelName::channel("news")
}

fn id(offset: u64) -> MessageId {
    MessageId { epoch: Epoch::numbered(7), offset }
}

#[test]
fn history_pages_both_ways() {
    let fixture = Fixture::new(retention(10), 0, usize::MAX);
    for n in 0..13 {
        fixture.publish(0, &name(), &n.to_string());
    }
    let page = |query, limit| {
        let page = fixture.engine.history(0, &name(), query, limit);
        assert_eq!(page.head, id(13));
        (offsets(&page.messages), page.has_more, page.is_recovered)
    };
    assert_eq!(page(HistoryQuery::Newest, 4), (vec![10, 11, 12, 13], true, None));
    assert_eq!(page(HistoryQuery::Before(id(10)), 4), (vec![6, 7, 8, 9], true, None));
    assert_eq!(page(HistoryQuery::Before(id(6)), 4), (vec![4, 5], false, None));
    assert_eq!(page(HistoryQuery::Before(id(4)), 4), (vec![], false, None));
    assert_eq!(page(HistoryQuery::After(id(3)), 4), (vec![4, 5, 6, 7], true, Some(true)));
    assert_eq!(page(HistoryQuery::After(id(9)), 4), (vec![10, 11, 12, 13], false, Some(true)));
    assert_eq!(page(HistoryQuery::After(id(13)), 4), (vec![], false, Some(true)));
    assert_eq!(page(HistoryQuery::After(id(2)), 2), (vec![4, 5], true, Some(false)));
}

#[test]
fn a_resume_says_whether_it_is_complete() {
    let fixture = Fixture::new(retention(3), 1, usize::MAX);
    for n in 0..5 {
        fixture.publish(0, &name(), &n.to_string());
    }
    let resume = |id| {
        let followed = fixture.follow(0, &name(), 0, StartAt::After(id));
        fixture.engine.unfollow(0, followed.channel, WorkerId(0));
        (followed.is_recovered, followed.cursor.offset, offsets(&followed.backlog))
    };
    assert_eq!(resume(id(5)), (Some(true), 5, vec![]));
    assert_eq!(resume(id(3)), (Some(true), 3, vec![4, 5]));
    assert_eq!(resume(id(2)), (Some(true), 2, vec![3, 4, 5]), "the floor itself");
    assert_eq!(resume(id(1)), (Some(false), 2, vec![3, 4, 5]), "before the floor");
    assert_eq!(resume(id(6)), (Some(false), 2, vec![3, 4, 5]), "ahead");
    let foreign = MessageId { epoch: Epoch::numbered(8), offset: 4 };
    assert_eq!(resume(foreign), (Some(false), 2, vec![3, 4, 5]), "another epoch");
}

#[test]
fn a_resume_on_a_latest_channel_has_the_newest_message_alone() {
    let (lag_policy, retention) = (LagPolicy::Latest, retention(3));
    let rule = Rule { lag_policy, retention, ..Rule::default() };
    let fixture = Fixture::with_rule(rule, 1, usize::MAX);
    for n in 0..5 {
        fixture.publish(0, &name(), &n.to_string());
    }
    let start = |start| {
        let followed = fixture.follow(0, &name(), 0, start);
        fixture.engine.unfollow(0, followed.channel, WorkerId(0));
        (followed.is_recovered, followed.cursor.offset, offsets(&followed.backlog))
    };
    let resume = |id| start(StartAt::After(id));
    assert_eq!(resume(id(5)), (Some(true), 5, vec![]));
    assert_eq!(resume(id(3)), (Some(true), 3, vec![5]));
    assert_eq!(resume(id(1)), (Some(true), 1, vec![5]), "before the floor");
    assert_eq!(resume(id(6)), (Some(false), 2, vec![5]), "ahead");
    let foreign = MessageId { epoch: Epoch::numbered(8), offset: 4 };
    assert_eq!(resume(foreign), (Some(false), 2, vec![5]), "another epoch");
    assert_eq!(start(StartAt::Last(2)), (None, 3, vec![4, 5]), "history is asked for");
}

#[test]
fn an_unused_channel_is_not_created_but_its_ids_grow() {
    let fixture = Fixture::new(retention(0), 1, usize::MAX);
    let first = fixture.publish(0, &name(), "a").id;
    let second = fixture.publish(0, &name(), "b").id;
    assert!(second.offset > first.offset);
    assert_eq!(fixture.engine.metrics().channels, 0);
    let followed = fixture.follow(0, &name(), 0, StartAt::After(first));
    assert_eq!(followed.is_recovered, Some(false));
    let third = fixture.publish(0, &name(), "c").id;
    assert!(third.offset > second.offset);
    assert_eq!(fixture.engine.name(followed.channel), Some(name()));
    fixture.engine.unfollow(0, followed.channel, WorkerId(0));
    assert_eq!(fixture.engine.metrics().channels, 0);
    assert_eq!(fixture.engine.name(followed.channel), None);
    assert!(fixture.publish(0, &name(), "d").id.offset > third.offset);
}

#[test]
fn offsets_of_forgotten_channels_are_never_repeated() {
    let fixture = Fixture::new(retention(2), 1, usize::MAX);
    let last = (0..9).map(|_| fixture.publish(0, &name(), "a").id).last().unwrap();
    fixture.tick_all(DAY_MS);
    assert_eq!(fixture.engine.metrics(), EngineMetrics { published: 9, ..Default::default() });
    let history = fixture.engine.history(DAY_MS, &name(), HistoryQuery::After(last), 9);
    assert_eq!((history.head, history.is_recovered), (last, Some(true)), "nothing is missing");
    assert!(fixture.publish(DAY_MS, &name(), "b").id.offset > last.offset);
    let followed = fixture.follow(DAY_MS, &name(), 0, StartAt::After(last));
    assert_eq!(followed.is_recovered, Some(true));
    assert_eq!(followed.backlog.len(), 1);
}

#[test]
fn a_forgotten_quiet_channel_resumes_without_a_gap() {
    let fixture = Fixture::new(retention(2), 1, usize::MAX);
    let (shard, _) = fixture.engine.find(&name());
    let mut others = (0..).map(|number| ChannelName::channel(&format!("other-{number}")));
    let other = others.find(|other| fixture.engine.find(other).0 == shard).expect("one of many");
    let last = fixture.publish(0, &name(), "a").id;
    fixture.tick_all(DAY_MS);
    let mut now_ms = DAY_MS;
    let mut advance = || {
        (0..3).for_each(|_| {
            fixture.publish(now_ms, &other, "b");
        });
        now_ms += DAY_MS;
        fixture.tick_all(now_ms);
        now_ms
    };
    for _ in 0..3 {
        let now_ms = advance();
        let history = fixture.engine.history(now_ms, &name(), HistoryQuery::After(last), 9);
        assert_eq!(history.is_recovered, Some(true));
        let followed = fixture.follow(now_ms, &name(), 0, StartAt::After(last));
        assert_eq!((followed.is_recovered, followed.cursor), (Some(true), followed.head));
        fixture.engine.unfollow(now_ms, followed.channel, WorkerId(0));
    }
    let now_ms = advance();
    let next = fixture.publish(now_ms, &name(), "c").id;
    let followed = fixture.follow(now_ms, &name(), 0, StartAt::After(last));
    assert_eq!(followed.is_recovered, Some(true));
    assert_eq!(offsets(&followed.backlog), [next.offset]);
    fixture.engine.unfollow(now_ms, followed.channel, WorkerId(0));
    let now_ms = advance();
    for (id, is_recovered) in [(last, false), (next, true)] {
        let history = fixture.engine.history(now_ms, &name(), HistoryQuery::After(id), 9);
        assert_eq!(history.is_recovered, Some(is_recovered));
    }
}

#[test]
fn a_message_for_nobody_is_missed() {
    let fixture = Fixture::new(retention(0), 1, usize::MAX);
    let followed = fixture.follow(0, &name(), 0, StartAt::Live);
    let last = fixture.publish(0, &name(), "a").id;
    fixture.engine.unfollow(0, followed.channel, WorkerId(0));
    let resume = || fixture.engine.history(0, &name(), HistoryQuery::After(last), 9).is_recovered;
    assert_eq!(resume(), Some(true));
    fixture.publish(0, &name(), "b");
    assert_eq!(resume(), Some(false));
    let followed = fixture.follow(0, &name(), 0, StartAt::After(last));
    assert_eq!(followed.is_recovered, Some(false));
}

#[test]
fn an_idempotency_key_publishes_once_per_channel_and_time() {
    let fixture = Fixture::new(retention(9), 1, usize::MAX);
    let publish = |now_ms, channel: &ChannelName, key: &str| {
        let idempotency_key = Some(key.into());
        let publication = Publication { idempotency_key, ..publication(channel, "a") };
        let published =
            fixture.engine.publish(now_ms, publication).expect("the queue has capacity");
        (published.id.offset, published.is_duplicate)
    };
    let user = ChannelName::user("news");
    assert_eq!(publish(0, &name(), "k"), (1, false));
    assert_eq!(publish(1, &name(), "k"), (1, true));
    assert_eq!(publish(1, &name(), "l"), (2, false));
    assert!(!publish(1, &user, "k").1);
    assert_eq!(publish(IDEMPOTENCY_MS - 1, &name(), "k"), (1, true));
    assert_eq!(publish(IDEMPOTENCY_MS, &name(), "k"), (3, false), "forgotten");
    assert_eq!(fixture.engine.metrics().duplicates, 2);
    assert_eq!(fixture.engine.shared.keys.kept.load(Ordering::Relaxed), 2 + 1);
}

#[test]
fn a_full_worker_queue_refuses_for_its_channels_only() {
    let fixture = Fixture::new(retention(1), 2, usize::MAX);
    let other = ChannelName::channel("other");
    fixture.follow(0, &name(), 0, StartAt::Live);
    fixture.follow(0, &name(), 1, StartAt::Live);
    fixture.follow(0, &other, 1, StartAt::Live);
    let keyed = || Publication { idempotency_key: Some("k".into()), ..publication(&name(), "a") };
    let text = Body::Text("x".into());
    let message = Arc::new(crate::Message::new(id(1), 0, 0, name(), text));
    for _ in 0..QUEUE_MESSAGES_MAX {
        let (message, channel) = (Arc::clone(&message), ChannelId(0));
        fixture.queues[0].post(Notification::Message {
            local: local(1),
            channel,
            message,
            receipt: None,
        });
    }
    assert_eq!(fixture.engine.publish(0, keyed()), Err(PublishError::Busy));
    assert_eq!(fixture.notifications(1), [], "all workers or none");
    assert_eq!(fixture.publish(0, &other, "a").subscribers, 1);
    assert_eq!(fixture.engine.metrics().busy, 1);
    fixture.queues[0].take(&mut Vec::new());
    let published = fixture.engine.publish(0, keyed()).expect("the queue has capacity again");
    assert_eq!((published.id, published.is_duplicate), (id(1), false));
}

#[test]
fn a_log_expires_although_a_clock_was_ahead() {
    let fixture = Fixture::new(Retention { max_age_ms: 100, ..retention(9) }, 1, usize::MAX);
    let publish = |now_ms| fixture.publish(now_ms, &name(), "a");
    for now_ms in [1000, 1060, 1050, 1070] {
        publish(now_ms);
    }
    let times = |now_ms| {
        let page = fixture.engine.history(now_ms, &name(), HistoryQuery::Newest, 9);
        page.messages.iter().map(|message| message.time_ms).collect::<Vec<_>>()
    };
    assert_eq!(times(1099), [1000, 1060, 1060, 1070]);
    assert_eq!(times(1159), [1060, 1060, 1070]);
    assert_eq!(times(1160), [1070]);
}

#[test]
fn an_encoding_lasts_as_long_as_the_message_is_in_flight() {
    let fixture = Fixture::new(retention(9), 2, usize::MAX);
    let followed = [0, 1].map(|worker| fixture.follow(0, &name(), worker, StartAt::Live));
    fixture.publish(0, &name(), "a");
    let take = |worker: usize| {
        let mut notifications = Vec::new();
        fixture.queues[worker].take(&mut notifications);
        let Some(Notification::Message { message, .. }) = notifications.pop() else {
            panic!("no message")
        };
        message
    };
    let first = take(0);
    let encoded = first.encoding(0, |_| b"encoded".to_vec()).as_ptr();
    drop(first);
    let second = take(1);
    let again = second.encoding(0, |_| unreachable!("the other worker did it")).as_ptr();
    assert_eq!(encoded, again);
    let resume = || fixture.follow(0, &name(), 0, StartAt::Last(1)).backlog.remove(0);
    assert!(Arc::ptr_eq(&resume(), &second), "a resume shares the message in flight");
    drop(second);
    assert!(!resume().is_encoded());
    assert_eq!(followed[0].channel, followed[1].channel);
}

#[test]
fn followers_are_counted_per_worker() {
    let fixture = Fixture::new(retention(0), 3, usize::MAX);
    assert_eq!(fixture.engine.audience(&name()), Audience::default());
    let mut channel = None;
    for worker in [0, 1, 1, 2, 2, 2] {
        let followed = fixture.follow(0, &name(), worker, StartAt::Live);
        assert_eq!(followed.local, local(u32::from(worker) + 1));
        assert!(channel.is_none_or(|known| known == followed.channel));
        channel = Some(followed.channel);
    }
    let channel = channel.unwrap();
    assert_eq!(fixture.engine.audience(&name()).subscribers, 6);
    assert_eq!(fixture.publish(0, &name(), "a").subscribers, 6);
    assert!(
        (0..3).all(|worker| fixture.notifications(worker) == [(1, "a".to_owned())]),
        "one notification each"
    );
    for (worker, subscribers, workers) in
        [(2, 5, 3), (0, 4, 2), (2, 3, 2), (2, 2, 1), (1, 1, 1), (1, 0, 0)]
    {
        fixture.engine.unfollow(0, channel, WorkerId(worker));
        let audience = fixture.engine.audience(&name());
        assert_eq!((audience.subscribers, audience.workers.len()), (subscribers, workers));
    }
    assert_eq!(fixture.engine.metrics().channels, 0);
}

#[test]
fn names_are_those_of_followed_channels() {
    let fixture = Fixture::new(retention(0), 1, usize::MAX);
    let names: BTreeSet<_> = (0..300).map(|n| format!("c{n}")).collect();
    let follow =
        |name: &String| fixture.follow(0, &ChannelName::channel(name), 0, StartAt::Live).channel;
    let mut channels: Vec<_> = names.iter().map(follow).collect();
    let mut found = BTreeSet::new();
    fixture.engine.names(&mut channels, &mut |name| assert!(found.insert(name.name().to_owned())));
    assert_eq!(found, names);
    channels.iter().for_each(|&channel| fixture.engine.unfollow(0, channel, WorkerId(0)));
    fixture.engine.names(&mut channels, &mut |name| panic!("{name:?} is forgotten"));
}

#[test]
fn a_log_elsewhere_does_not_start_after_forgotten_channels() {
    let fixture = Fixture::new(retention(0), 1, usize::MAX);
    let follow = |number: u32, offset| {
        let channel = ChannelName::channel(&number.to_string());
        let (worker, local_if_new, start) = (WorkerId(0), local(1), StartAt::Live);
        let follow = Follow { channel: &channel, worker, local_if_new, start };
        let backlog = || Backlog {
            is_sparse: false,
            is_ended: false,
            head: id(offset),
            cursor: offset,
            are_offsets_consecutive: false,
            is_recovered: None,
            messages: Vec::new(),
        };
        let followed = fixture.engine.follow_elsewhere(0, &follow, backlog);
        (fixture.engine.followed_head(&channel), followed.channel)
    };
    // In all shards.
    for number in 0..1_000 {
        let (head, channel) = follow(number, 900);
        assert_eq!(head, Some(900));
        fixture.engine.unfollow(0, channel, WorkerId(0));
    }
    for number in 0..1_000 {
        assert_eq!(follow(number, 5).0, Some(5), "the journal has begun anew");
    }
}

#[test]
fn an_idempotency_key_is_its_publishers_own() {
    let fixture = Fixture::new(retention(9), 1, usize::MAX);
    let publish = |publisher| {
        let idempotency_key = Some(IdempotencyKey::new(publisher, "k"));
        let publication = Publication { idempotency_key, ..publication(&name(), "a") };
        fixture.engine.publish(0, publication).expect("the queue has capacity").is_duplicate
    };
    let publishers = [Publisher::Anonymous, Publisher::User("app"), Publisher::ServerKey("app")];
    assert_eq!(publishers.map(publish), [false; 3]);
    assert_eq!(publishers.map(publish), [true; 3]);
}

/// A cursor reaches 2^30 offsets back, so a value that nobody changes must not stay behind.
#[test]
fn an_old_value_is_published_again_before_it_is_out_of_reach() {
    const STEP: u64 = 1 << 22;
    let queues = vec![Arc::new(WorkerQueue::new(|| {}))];
    let rules = Arc::new(Rules::default());
    let engine =
        MemoryEngine::new(Epoch::numbered(1), rules, queues, 1 << 30).with_skipping_offsets(STEP);
    let channel = ChannelName::channel("prices");
    let set = |key: &str| {
        let attributes = crate::Attributes::of(&[(4, key.as_bytes())]).ok();
        let body = Body::Text(key.into());
        engine
            .publish(0, Publication { attributes, ..Publication::new(channel.clone(), body) })
            .expect("nobody follows")
    };
    set("still");
    for _ in 0..1_000 {
        set("moves");
    }
    let query = KeyQuery { limit: 9, ..KeyQuery::default() };
    let page = engine.keys(0, &channel, &query);
    let behind = page.messages.iter().map(|it| page.head.offset - it.id.offset).max().unwrap();
    assert_eq!(page.messages.len(), 2);
    assert!(page.head.offset > 1 << 31 && behind < 1 << 30, "{behind} of {}", page.head.offset);
}

fn end(fixture: &Fixture, now_ms: u64, name: &ChannelName) {
    let end = LogChange::end(name.clone(), None, &fixture.engine.state(name));
    fixture.engine.change(now_ms, end).expect("there is room");
}

#[test]
fn an_end_lasts_as_long_as_a_message() {
    let mut fixture = Fixture::new(retention(10), 1, usize::MAX);
    let followed = fixture.follow(0, &name(), 0, StartAt::Live);
    fixture.publish(5, &name(), "last");
    let before = fixture.engine.metrics().bytes;
    end(&fixture, 7, &name());
    let is_ended = |fixture: &Fixture| fixture.engine.state(&name()).is_ended();
    let least = size_of::<crate::log::Log>() as u64;
    assert!(fixture.engine.metrics().bytes > before + least, "its bytes count");
    for now_ms in [7, DAY_MS + 6] {
        fixture.freeze_and_thaw();
        fixture.tick_all(now_ms);
        assert!(is_ended(&fixture), "{now_ms}");
    }
    fixture.engine.unfollow(DAY_MS, followed.channel, WorkerId(0));
    fixture.tick_all(DAY_MS + 7);
    assert!(!is_ended(&fixture));
    let metrics = fixture.engine.metrics();
    assert_eq!((metrics.channels, metrics.bytes, metrics.ends_forgotten), (0, 0, 1));
    let next = fixture.publish(DAY_MS + 8, &name(), "the name is free");
    assert!(next.id.offset > 2, "and its offsets are not repeated");
}

#[test]
fn an_end_without_messages_is_kept_by_erasure_and_upgrade() {
    let mut fixture = Fixture::new(retention(10), 0, usize::MAX);
    fixture.publish(0, &name(), "last");
    end(&fixture, 1, &name());
    fixture.engine.erase(2, &name(), Erase::History);
    fixture.tick_all(DAY_MS);
    assert!(fixture.engine.state(&name()).is_ended());
    // Without its notice, its time begins anew.
    fixture.freeze_and_thaw();
    assert!(fixture.engine.state(&name()).is_ended());
    fixture.tick_all(crate::clock::now_ms() + DAY_MS);
    assert_eq!(fixture.engine.metrics().channels, 0);
}

#[test]
fn the_oldest_ends_are_forgotten_where_there_is_no_room() {
    let of = |n: u64| ChannelName::channel(&n.to_string());
    let max_bytes = 64 << 10;
    let fixture = Fixture::new(retention(10), 0, max_bytes);
    for n in 0..1_000 {
        end(&fixture, n, &of(n));
        assert!(fixture.engine.metrics().bytes <= max_bytes as u64);
    }
    let ended: Vec<_> = (0..1_000).filter(|n| fixture.engine.state(&of(*n)).is_ended()).collect();
    assert!(ended.len() > 50 && ended.last() == Some(&999), "{ended:?}");
    assert!(ended.is_sorted_by(|before, next| before + 1 == *next), "the newest ones: {ended:?}");
    fixture.tick_all(1_000);
    let metrics = fixture.engine.metrics();
    assert_eq!(metrics.channels, ended.len() as u64);
    assert_eq!(metrics.ends_forgotten, 1_000 - metrics.channels);
}
