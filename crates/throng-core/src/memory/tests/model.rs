//! The engine against a model that keeps everything.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::attributes::Erasure;

const NAMES: usize = 5;
const WORKERS: u16 = 3;

#[derive(Debug, Clone)]
struct Sent {
    offset: u64,
    stamp: Stamp,
    at_ms: u64,
    text: String,
    expires_ms: Option<u64>,
    /// The weight of its attributes, if it is a notice.
    notice_bytes: Option<usize>,
}

impl Sent {
    fn weight_bytes(&self, topic: usize, is_expired: bool) -> usize {
        let text = if is_expired { "" } else { &self.text };
        let notice = self.notice_bytes.filter(|_| !is_expired).unwrap_or(0);
        weight_bytes(&World::name(topic), text) + notice
    }

    fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }
}

#[derive(Debug, Default)]
struct Topic {
    name: usize,
    /// All messages since the engine certainly forgot the topic.
    messages: Vec<Sent>,
    /// The number of the oldest messages that the engine dropped when a newer one came.
    dropped: usize,
    highest: u64,
    followers: BTreeMap<u16, u32>,
    channel: Option<ChannelId>,
    /// The notifications that each worker must get.
    notifications: BTreeMap<u16, Vec<(u64, String)>>,
}

impl Topic {
    /// The messages that the retention covers.
    fn retained(&self, retention: &Retention, now_ms: u64) -> &[Sent] {
        let mut from = self.messages.len();
        let (mut bytes, mut messages, mut blanks) = (0, 0, 0);
        while from > self.dropped {
            let message = &self.messages[from - 1];
            let is_expired = message.is_expired(now_ms);
            let is_blank = is_expired || message.notice_bytes.is_some();
            *(if is_blank { &mut blanks } else { &mut messages }) += 1;
            bytes += message.weight_bytes(self.name, is_expired);
            let is_old = message.at_ms + retention.max_age_ms <= now_ms;
            let is_beyond =
                messages > retention.max_messages || blanks > 3 * retention.max_messages;
            if is_beyond || bytes > retention.max_bytes || is_old {
                break;
            }
            from -= 1;
        }
        &self.messages[from..]
    }
}

struct World {
    fixture: Fixture,
    retention: Retention,
    /// The largest distance between the offsets of consecutive messages.
    max_step: u64,
    topics: Vec<Topic>,
    now_ms: u64,
}

impl World {
    fn name(topic: usize) -> ChannelName {
        ChannelName::channel(&format!("topic-{topic}"))
    }

    fn step(&mut self, [kind, topic, worker, how]: [u8; 4]) {
        let count = usize::from(worker % 5);
        let topic = usize::from(topic) % NAMES;
        let worker = u16::from(worker) % WORKERS;
        match kind % 10 {
            0..=2 => self.publish(topic, usize::from(how), count),
            3 => self.follow(topic, worker, how),
            4 if how % 4 == 0 => self.unfollow_all(worker),
            4 => self.unfollow(topic, worker),
            5 => self.now_ms += u64::from(how) * 4,
            6 => self.engine().tick(self.now_ms),
            7 => {
                if how % 3 > 0 {
                    self.fixture.seal();
                }
                if how % 3 > 1 {
                    // Nobody takes over.
                    self.engine().end_sealing();
                }
                if how % 5 > 0 {
                    self.freeze_and_thaw();
                }
            }
            8 => self.erase(topic, how),
            _ => self.read(topic, count, how),
        }
    }

    /// Erases a message, which may have been dropped or erased before, or all.
    fn erase(&mut self, at: usize, how: u8) {
        let id = self.some_id(at, how);
        if !how.is_multiple_of(8) && how.is_multiple_of(2) {
            let notice = LogChange::notice(World::name(at), Erasure::of(id.offset));
            let attributes = notice.messages[0].attributes.as_ref();
            let notice_bytes = attributes.map(|attributes| attributes.weight_bytes());
            let changed = self.engine().change(self.now_ms, notice).expect("there is room");
            self.sent(at, changed.ids[0].offset, ("", None, notice_bytes));
        }
        let what = if how.is_multiple_of(8) { Erase::History } else { Erase::Message(id) };
        let erased = self.engine().erase(self.now_ms, &World::name(at), what);
        let topic = &mut self.topics[at];
        let retained = topic.retained(&self.retention, self.now_ms).len();
        let first = topic.messages.len() - retained;
        let readable = topic.messages[first..].iter_mut();
        let readable = readable.filter(|message| !message.is_expired(self.now_ms));
        let readable = readable.filter(|it| what == Erase::History || it.offset == id.offset);
        // As if it had expired long ago.
        // Notices of an erased history do not count.
        let is_counted = |it: &Sent| it.notice_bytes.is_none() || what != Erase::History;
        let erased_here = readable.filter_map(|message| {
            message.expires_ms = Some(0);
            is_counted(message).then_some(())
        });
        assert_eq!(erased.messages, Some(erased_here.count() as u64));
        if what == Erase::History {
            topic.dropped = topic.messages.len();
        }
    }

    fn engine(&self) -> &MemoryEngine {
        &self.fixture.engine
    }

    fn publish(&mut self, at: usize, bytes: usize, count: usize) {
        let text = "x".repeat(bytes);
        let expires_in_ms = (count > 2).then_some(bytes as u64 * 4 + 1);
        let publication = Publication { expires_in_ms, ..publication(&World::name(at), &text) };
        let published = if !bytes.is_multiple_of(3) {
            self.engine().publish(self.now_ms, publication)
        } else {
            let subscribers = self.engine().audience(&World::name(at)).subscribers;
            let change = LogChange::append(World::name(at), vec![publication]);
            let changed = self.engine().change(self.now_ms, change).expect("there is room");
            Ok(crate::publication::Published {
                id: changed.ids[0],
                subscribers,
                is_duplicate: false,
            })
        };
        let published = published.expect("there is room");
        let expires_ms = expires_in_ms.map(|expires_in_ms| self.now_ms + expires_in_ms);
        assert_eq!(
            published.subscribers,
            self.topics[at].followers.values().map(|&n| u64::from(n)).sum::<u64>()
        );
        self.sent(at, published.id.offset, (&text, expires_ms, None));
    }

    fn sent(
        &mut self,
        at: usize,
        offset: u64,
        (text, expires_ms, notice_bytes): (&str, Option<u64>, Option<usize>),
    ) {
        let topic = &mut self.topics[at];
        assert!(offset > topic.highest, "an offset was repeated");
        if !topic.followers.is_empty() && topic.highest > 0 {
            assert!(offset - topic.highest <= self.max_step);
        }
        topic.highest = offset;
        let stamp = self.fixture.engine.watermark().stamp;
        assert!(topic.messages.last().is_none_or(|last| last.stamp < stamp));
        let (at_ms, text) = (self.now_ms, text.to_owned());
        let sent = Sent { offset, stamp, at_ms, text: text.clone(), expires_ms, notice_bytes };
        topic.messages.push(sent);
        let retained = topic.retained(&self.retention, self.now_ms).len();
        topic.dropped = topic.messages.len() - retained;
        for worker in topic.followers.keys() {
            topic.notifications.entry(*worker).or_default().push((offset, text.clone()));
        }
    }

    fn follow(&mut self, at: usize, worker: u16, how: u8) {
        let start = match how % 5 {
            0 => StartAt::Live,
            4 => StartAt::From(self.some_time(at, how)),
            1 => StartAt::Last(usize::from(how / 4 % 6)),
            2 => StartAt::Since(self.some_position(how)),
            _ => StartAt::After(self.some_id(at, how)),
        };
        self.look_ahead(worker);
        let followed = self.fixture.follow(self.now_ms, &World::name(at), worker, start);
        let topic = &mut self.topics[at];
        let retained = topic.retained(&self.retention, self.now_ms);
        let is_expired = |message: &Sent| message.is_expired(self.now_ms);
        let expected = match start {
            StartAt::Live | StartAt::State => &[],
            StartAt::From(time_ms) => {
                &retained[retained.partition_point(|message| message.at_ms < time_ms)..]
            }
            StartAt::Last(0) => &[],
            StartAt::Last(count) => {
                let readable = retained.iter().enumerate().rev();
                let mut readable = readable
                    .filter(|(_, message)| !is_expired(message) && message.notice_bytes.is_none());
                &retained[readable.nth(count - 1).map_or(0, |(at, _)| at)..]
            }
            StartAt::Since(position) => {
                let later = retained.partition_point(|message| message.stamp <= position.stamp);
                if followed.is_recovered == Some(true) {
                    let lost = topic.messages.len() - retained.len();
                    let lost = topic.messages[..lost].iter();
                    assert!(lost.filter(|lost| lost.stamp > position.stamp).count() == 0);
                    &retained[later..]
                } else {
                    retained
                }
            }
            StartAt::After(id) => {
                let later = retained.partition_point(|message| message.offset <= id.offset);
                if followed.is_recovered == Some(true) {
                    let lost = topic.messages.len() - retained.len();
                    let lost = topic.messages[..lost].iter();
                    assert!(lost.filter(|lost| lost.offset > id.offset).count() == 0);
                    &retained[later..]
                } else {
                    retained
                }
            }
        };
        let expected: Vec<_> =
            expected.iter().map(|message| (message.offset, is_expired(message))).collect();
        let found = followed.backlog.iter();
        let found: Vec<_> =
            found.map(|message| (message.id.offset, message.is_expired(self.now_ms))).collect();
        assert_eq!(found, expected);
        assert!(followed.head.offset >= topic.highest);
        assert!(topic.followers.is_empty() || topic.channel == Some(followed.channel));
        topic.highest = followed.head.offset;
        topic.channel = Some(followed.channel);
        *topic.followers.entry(worker).or_default() += 1;
    }

    /// Writes the engine down, and goes on with one that is made from the bytes.
    fn freeze_and_thaw(&mut self) {
        let workers = |engine: &MemoryEngine, at: usize| {
            let mut workers = engine.audience(&World::name(at)).workers;
            workers.sort_unstable_by_key(|(worker, ..)| *worker);
            workers
        };
        let before: Vec<_> = (0..NAMES).map(|at| workers(self.engine(), at)).collect();
        // Expired messages are counted when they are noticed.
        self.fixture.tick_all(self.now_ms);
        let metrics = self.engine().metrics();
        self.fixture.freeze_and_thaw();
        let engine = std::mem::replace(&mut self.fixture.engine, Fixture::empty());
        self.fixture.engine = engine.with_skipping_offsets(self.max_step);
        let after = self.engine().metrics();
        assert!(after.channels <= metrics.channels, "unused channels are left out");
        assert_eq!(
            // Pages of before are not counted on.
            EngineMetrics { channels: 0, visited: 0, ..after },
            EngineMetrics { channels: 0, visited: 0, ..metrics }
        );
        for (at, before) in before.into_iter().enumerate() {
            let after = workers(self.engine(), at);
            let followers = |workers: &[(WorkerId, LocalId, ChannelId)]| -> Vec<_> {
                workers.iter().map(|&(worker, local, _)| (worker, local)).collect()
            };
            assert_eq!(followers(&before), followers(&after));
            self.topics[at].channel = after.first().map(|&(_, _, channel)| channel);
        }
    }

    /// The position of a client of any age, or one that was never given out.
    fn some_position(&self, how: u8) -> Watermark {
        let now = self.fixture.engine.watermark();
        let stamp = Stamp((now.stamp.0 + 1).saturating_sub(u64::from(how / 4)));
        Watermark { stamp, ..now }
    }

    fn some_id(&self, at: usize, how: u8) -> MessageId {
        let topic = &self.topics[at];
        let nth = usize::from(how / 3) % (topic.messages.len() + 1);
        let offset = topic.messages.get(nth).map_or(topic.highest + 1, |message| message.offset);
        MessageId { epoch: Epoch::numbered(7), offset }
    }

    /// The time of a message or next to it, or one to come.
    fn some_time(&self, at: usize, how: u8) -> u64 {
        let messages = &self.topics[at].messages;
        let nth = usize::from(how / 4) % (messages.len() + 1);
        let time_ms = messages.get(nth).map_or(self.now_ms + 1, |message| message.at_ms);
        (time_ms + u64::from(how % 3)).saturating_sub(1)
    }

    fn unfollow(&mut self, at: usize, worker: u16) {
        let topic = &mut self.topics[at];
        let Some(count) = topic.followers.get_mut(&worker) else { return };
        *count -= 1;
        if *count == 0 {
            topic.followers.remove(&worker);
        }
        let channel = topic.channel.expect("it is followed");
        self.fixture.engine.unfollow(self.now_ms, channel, WorkerId(worker));
    }

    /// Ends a subscription of each topic that the worker follows.
    fn unfollow_all(&mut self, worker: u16) {
        let mut channels = Vec::new();
        for topic in &mut self.topics {
            let Some(count) = topic.followers.get_mut(&worker) else { continue };
            *count -= 1;
            if *count == 0 {
                topic.followers.remove(&worker);
            }
            channels.push(topic.channel.expect("it is followed"));
        }
        self.fixture.engine.unfollow_all(self.now_ms, &channels, WorkerId(worker));
    }

    /// Prefetching aside, the given ids are the worker's own.
    fn look_ahead(&self, worker: u16) {
        let names: Vec<_> = (0..NAMES).map(World::name).collect();
        let mut found = Vec::new();
        self.engine().look_ahead(&names, WorkerId(worker), &mut |local| found.push(local));
        let all = (0..NAMES).flat_map(|at| self.engine().audience(&World::name(at)).workers);
        let own = all.filter(|(follower, ..)| *follower == WorkerId(worker));
        let own: Vec<_> = own.map(|(_, local, _)| local).collect();
        assert!(found.iter().all(|local| own.contains(local)), "{found:?} of {own:?}");
    }

    fn read(&mut self, at: usize, limit: usize, how: u8) {
        let query = match how % 4 {
            0 => HistoryQuery::Newest,
            1 => HistoryQuery::Before(self.some_id(at, how)),
            2 => HistoryQuery::From(self.some_time(at, how)),
            _ => HistoryQuery::After(self.some_id(at, how)),
        };
        let page = self.engine().history(self.now_ms, &World::name(at), query, limit);
        let topic = &self.topics[at];
        let retained = topic.retained(&self.retention, self.now_ms).iter();
        let readable = retained.filter(|message| !message.is_expired(self.now_ms));
        let retained: Vec<Sent> = readable.cloned().collect();
        let (expected, has_more) = match query {
            HistoryQuery::After(id) => {
                let from = match page.is_recovered {
                    Some(true) => retained.partition_point(|message| message.offset <= id.offset),
                    _ => 0,
                };
                let to = retained.len().min(from + limit);
                (&retained[from..to], to < retained.len())
            }
            HistoryQuery::From(time_ms) => {
                let from = retained.partition_point(|message| message.at_ms < time_ms);
                let to = retained.len().min(from + limit);
                (&retained[from..to], to < retained.len())
            }
            _ => {
                let to = match query {
                    HistoryQuery::Before(id) => {
                        retained.partition_point(|message| message.offset < id.offset)
                    }
                    _ => retained.len(),
                };
                let from = to.saturating_sub(limit);
                (&retained[from..to], from > 0)
            }
        };
        let expected: Vec<_> =
            expected.iter().map(|sent| (sent.offset, sent.text.clone())).collect();
        let found: Vec<_> = page.messages.iter().map(|message| offset_and_text(message)).collect();
        assert_eq!((found, page.has_more), (expected, has_more));
        assert!(page.head.offset >= topic.highest);
    }

    /// Each worker got exactly its notifications, in order.
    fn check_notifications(&mut self) {
        for worker in 0..WORKERS {
            let mut notifications = Vec::new();
            self.fixture.queues[usize::from(worker)].take(&mut notifications);
            let mut found: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
            for notification in notifications {
                let Notification::Message { message, .. } = notification else {
                    panic!("only messages")
                };
                found
                    .entry(message.channel.name().into())
                    .or_default()
                    .push(offset_and_text(&message));
            }
            for (at, topic) in self.topics.iter_mut().enumerate() {
                let expected = topic.notifications.remove(&worker).unwrap_or_default();
                let found = found.remove(World::name(at).name()).unwrap_or_default();
                assert_eq!(found, expected);
            }
        }
    }

    /// Once all followers have left and all messages are old, the engine keeps nothing.
    fn finish(mut self) {
        for topic in 0..NAMES {
            for worker in 0..WORKERS {
                while self.topics[topic].followers.contains_key(&worker) {
                    self.unfollow(topic, worker);
                }
            }
        }
        self.fixture.tick_all(self.now_ms + self.retention.max_age_ms);
        let metrics = self.engine().metrics();
        assert_eq!((metrics.channels, metrics.messages, metrics.bytes), (0, 0, 0));
    }
}

fn any_retention() -> impl Strategy<Value = Retention> {
    let bytes = prop_oneof![Just(usize::MAX), Just(0), 300usize..3000];
    (0usize..7, bytes, 1u64..3000).prop_map(|(max_messages, max_bytes, max_age_ms)| Retention {
        max_messages,
        max_bytes,
        max_age_ms,
    })
}

proptest! {
    #[test]
    fn behaves_like_a_log_that_forgets(
        retention in any_retention(),
        max_step in prop::sample::select(vec![1, 1, 3, 1 << 33]),
        steps in prop::collection::vec(any::<[u8; 4]>(), 0..200),
    ) {
        let mut fixture = Fixture::new(retention, usize::from(WORKERS), usize::MAX);
        fixture.engine = fixture.engine.with_skipping_offsets(max_step);
        let topics = (0..NAMES).map(|name| Topic { name, ..Topic::default() }).collect();
        // A message that expires in the first millisecond of 1970 counts as expired from the start.
        let mut world = World { fixture, retention, max_step, topics, now_ms: 1 };
        for step in steps {
            world.step(step);
            if step[0] % 3 == 0 {
                world.check_notifications();
            }
        }
        world.check_notifications();
        world.finish();
    }
}
