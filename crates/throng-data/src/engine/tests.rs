//! The tests that every journal passes, and those of a disk alone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use throng_core::later::ask;
use throng_core::{
    Attributes, Body, Channels, Content, Epoch, Follow, Followed, JournalId, LocalId, MemoryEngine,
    Message, MessageId, Notification, QueueLimits, Receipt, Rule, Rules, Stamp, StartAt,
    StateLimits, WorkerId, WorkerQueue, conformance,
};

use super::*;
use crate::journal::JournalServer;
use crate::journal::JournalSetup;
use crate::logs::Logs;
use crate::storage::Storage;
use crate::storage::disk::DiskStorage;
use crate::storage::memory::{Fault, MemoryStorage};
use crate::sync_policy::SyncPolicy;

const PROFILE: conformance::Profile =
    conformance::Profile { keeps_states: true, ..conformance::Profile::JOURNAL };

/// The time of the conformance tests.
const NOW_MS: u64 = 1_700_000_000_000;

/// A server whose clock is that of the newest call.
struct StandingServer(AnswerDelivery);

impl JournalServer for StandingServer {
    fn now_ms(&self) -> u64 {
        self.0.shared().called_ms.load(Ordering::Relaxed).max(NOW_MS)
    }

    fn state_limits(&self, channel: &ChannelName) -> StateLimits {
        self.0.state_limits(channel)
    }

    fn retention_of(&self, channel: &ChannelName) -> Option<Retention> {
        self.0.retention_of(channel)
    }

    fn retention(&self) -> String {
        self.0.retention()
    }

    fn begin_group(&self) {
        self.0.begin_group();
    }

    fn next_stamp(&self) -> Stamp {
        self.0.next_stamp()
    }

    fn deliver(&self, content: &Arc<Content>, receipt: Option<&Arc<Receipt>>) -> u64 {
        self.0.deliver(content, receipt)
    }

    fn end_group(&self) {
        self.0.end_group();
    }

    fn newest_stamp(&self) -> Stamp {
        self.0.newest_stamp()
    }
}

fn engine(
    storage: Arc<dyn Storage>,
    sync: SyncPolicy,
    rules: Arc<Rules>,
    queues: Vec<Arc<WorkerQueue>>,
) -> (Channels, Arc<DiskJournal>) {
    let (logs, opened) = Logs::open(storage, "boot").expect("it opens");
    let logs = Arc::new(logs);
    let memory = MemoryEngine::new(Epoch::random(), rules, queues, usize::MAX)
        .with_positions(opened.epoch, opened.stamps);
    let memory = Arc::new(memory);
    let delivery = AnswerDelivery::new(Arc::clone(&memory), Arc::clone(&logs));
    let server = Arc::new(StandingServer(delivery.clone()));
    let setup = JournalSetup { sync, max_bytes: u64::MAX, server };
    let journal = Arc::new(DiskJournal::start(&logs, setup).expect("it starts"));
    let durable = DurableLogs::start(&delivery, Arc::clone(&journal)).expect("it starts");
    (Channels::new(memory, vec![Arc::new(durable)]), journal)
}

#[test]
fn a_journal_in_memory_conforms() {
    for sync in [SyncPolicy::Always, SyncPolicy::Interval, SyncPolicy::Never] {
        conformance::run_with(PROFILE, |rules, queues| {
            engine(Arc::new(MemoryStorage::default()), sync, rules, queues).0
        });
    }
}

#[test]
fn a_journal_on_a_disk_conforms() {
    let folder = tempfile::tempdir().expect("a directory");
    let number = std::cell::Cell::new(0);
    conformance::run_with(PROFILE, |rules, queues| {
        number.set(number.get() + 1);
        let path = folder.path().join(number.get().to_string());
        let storage = DiskStorage::open(&path, 1 << 20).expect("it opens");
        engine(Arc::new(storage), SyncPolicy::Never, rules, queues).0
    });
}

#[test]
fn a_server_whose_channels_are_not_durable_conforms() {
    conformance::run(|rules, queues| {
        engine(Arc::new(MemoryStorage::default()), SyncPolicy::Always, rules, queues).0
    });
}

/// Messages that each channel of these tests keeps and lags at most.
const RETAINED: usize = 1_000_000;

fn world(storage: &MemoryStorage) -> (Channels, Arc<WorkerQueue>) {
    let (channels, _, queue) = world_with_journal(storage);
    (channels, queue)
}

fn world_with_journal(storage: &MemoryStorage) -> (Channels, Arc<DiskJournal>, Arc<WorkerQueue>) {
    world_keeping(storage, RETAINED)
}

/// Channels of which so many messages are kept.
fn world_of(storage: &MemoryStorage, max_messages: usize) -> (Channels, Arc<WorkerQueue>) {
    let (channels, _, queue) = world_keeping(storage, max_messages);
    (channels, queue)
}

fn world_keeping(
    storage: &MemoryStorage,
    max_messages: usize,
) -> (Channels, Arc<DiskJournal>, Arc<WorkerQueue>) {
    let limits = QueueLimits { max_messages: RETAINED, ..QueueLimits::default() };
    let queue = Arc::new(WorkerQueue::with_limits(limits, || {}));
    let max_bytes = 1 << 30;
    let rule = Rule {
        retention: Retention { max_messages, max_bytes, max_age_ms: u64::MAX },
        max_lag_messages: RETAINED,
        max_lag_bytes: max_bytes,
        ..Rule::default()
    };
    let durable =
        Rule { kind: None, pattern: "kept*".into(), journal: Some(JournalId(0)), ..rule.clone() };
    let rules = Arc::new(Rules::new(vec![durable], rule));
    let queues = vec![Arc::clone(&queue)];
    let (channels, journal) = engine(Arc::new(storage.clone()), SyncPolicy::Always, rules, queues);
    (channels, journal, queue)
}

fn publish(engine: &Channels, channel: &ChannelName, text: &str) -> Outcome {
    let publication = Publication::new(channel.clone(), Body::Text(text.into()));
    let answer = ask(|later| engine.publish(NOW_MS, publication, later)).recv();
    answer.expect("it is answered").expect("it is known")
}

fn fetch(engine: &Channels, channel: &ChannelName, start: StartAt) -> Fetched {
    let reading = Reading::Start(start);
    let fetched = ask(|later| engine.fetch(NOW_MS, channel, reading, later)).recv();
    fetched.expect("it is answered").expect("the storage can be read")
}

fn follow(engine: &Channels, channel: &ChannelName, start: StartAt) -> Followed {
    let local_if_new = LocalId(std::num::NonZeroU32::MIN);
    engine.follow(NOW_MS, Follow { channel, worker: WorkerId(0), local_if_new, start })
}

fn kept() -> ChannelName {
    ChannelName::channel("kept")
}

fn offsets(messages: &[Arc<Message>]) -> Vec<u64> {
    messages.iter().map(|message| message.id.offset).collect()
}

#[test]
fn what_is_published_after_the_fetch_is_in_the_backlog() {
    let (engine, _queue) = world(&MemoryStorage::default());
    let first = publish(&engine, &kept(), "0").expect("it is published").id;
    publish(&engine, &kept(), "1").expect("it is published");
    let starts =
        [(StartAt::After(first), vec![2, 3], Some(true)), (StartAt::Last(1), vec![3, 4], None)];
    for (start, expected, is_recovered) in starts {
        let held = fetch(&engine, &kept(), start);
        publish(&engine, &kept(), "meanwhile").expect("it is published");
        let followed = follow(&engine, &kept(), start);
        drop(held);
        assert_eq!(offsets(&followed.backlog), expected, "{start:?}");
        assert_eq!(Some(&followed.head.offset), expected.last());
        assert_eq!(
            (followed.cursor.offset, followed.is_recovered),
            (expected[0] - 1, is_recovered)
        );
        engine.unfollow(NOW_MS, followed.channel, WorkerId(0));
    }
}

#[test]
fn nothing_is_read_for_an_asker_that_has_gone() {
    let (engine, _queue) = world(&MemoryStorage::default());
    let first = publish(&engine, &kept(), "0").expect("it is published").id;
    publish(&engine, &kept(), "1").expect("it is published");
    for is_gone in [false, true] {
        let (sender, answers) = std::sync::mpsc::channel();
        let asker = Arc::new(());
        let kept_asker = (!is_gone).then(|| Arc::clone(&asker));
        let mut asker = Some(asker);
        let mut issue = || {
            let sender = sender.clone();
            let ticket = Ticket::new(move |answer: Option<Fetched>| {
                sender.send(answer.is_some()).expect("the test waits");
            });
            ticket.for_asker(asker.take().map(|asker| Arc::downgrade(&asker)).unwrap_or_default())
        };
        let reading = Reading::Start(StartAt::After(first));
        let answer = engine.fetch(NOW_MS, &kept(), reading, Later::new(&mut issue));
        assert!(matches!(answer, Answer::Later(_)));
        assert_eq!(answers.recv(), Ok(!is_gone));
        drop(kept_asker);
    }
}

#[test]
fn a_live_subscription_starts_with_the_next_message() {
    let (engine, _queue) = world(&MemoryStorage::default());
    publish(&engine, &kept(), "before").expect("it is published");
    let _held = fetch(&engine, &kept(), StartAt::Live);
    let head = publish(&engine, &kept(), "meanwhile").expect("it is published").id;
    let followed = follow(&engine, &kept(), StartAt::Live);
    assert_eq!((followed.head, followed.cursor, followed.backlog.len()), (head, head, 0));
}

/// One thread publishes, another one follows and leaves all the time, and resumes after the last
/// message that it has.
#[test]
fn whoever_resumes_while_others_publish_misses_nothing() {
    const MESSAGES: u64 = 3_000;
    let (engine, queue) = world(&MemoryStorage::default());
    let mut last = publish(&engine, &kept(), "first").expect("it is published").id;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..MESSAGES {
                publish(&engine, &kept(), &n.to_string()).expect("it is published");
            }
        });
        let mut turn = 0;
        while last.offset < MESSAGES {
            turn += 1;
            let start = StartAt::After(last);
            let held = fetch(&engine, &kept(), start);
            let followed = follow(&engine, &kept(), start);
            drop(held);
            assert_eq!(followed.is_recovered, Some(true), "after {last}");
            for message in &followed.backlog {
                assert_eq!(message.previous, last.offset);
                last = message.id;
            }
            // Some turns stay for live messages.
            for _ in 0..turn % 3 {
                std::thread::yield_now();
                let mut notifications = Vec::new();
                queue.take(&mut notifications);
                for notification in notifications {
                    let Notification::Message { message, .. } = notification else { continue };
                    if message.id.offset > last.offset {
                        assert_eq!(message.previous, last.offset);
                        last = message.id;
                    }
                }
            }
            engine.unfollow(NOW_MS, followed.channel, WorkerId(0));
            queue.take(&mut Vec::new());
        }
    });
}

/// A message that sets a key, or removes it.
fn keyed(key: &str, text: Option<&str>) -> Publication {
    let Some(text) = text else { return Publication::tombstone(kept(), key) };
    let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
    Publication { attributes, ..Publication::new(kept(), Body::Text(text.into())) }
}

type State = BTreeMap<String, String>;

/// The state after one more message, which sets a key or removes it.
fn apply(state: &mut State, key: &str, text: Option<String>) {
    match text {
        Some(text) => drop(state.insert(key.into(), text)),
        None => drop(state.remove(key)),
    }
}

fn apply_all(state: &mut State, messages: &[Arc<Message>]) {
    for message in messages {
        let Some(key) = message.key() else { continue };
        let text = String::from_utf8_lossy(message.body.bytes()).into_owned();
        apply(state, key, Some(text).filter(|_| !message.removes_key()));
    }
}

/// One thread sets and removes keys, and another one begins with the state all the time, or
/// resumes.
#[test]
fn whoever_begins_with_a_state_while_others_change_it_has_it() {
    const KEYS: usize = 40;
    const MESSAGES: usize = 2_500;
    // What is published, and the state after each.
    let (mut messages, mut states) = (Vec::new(), vec![State::new()]);
    for n in 0..MESSAGES {
        let (key, mut state) = ((n * 7 % KEYS).to_string(), states[n].clone());
        let text = (n % 5 > 0 || !state.contains_key(&key)).then(|| n.to_string());
        apply(&mut state, &key, text.clone());
        messages.push((key, text));
        states.push(state);
    }
    let (engine, queue) = world_of(&MemoryStorage::default(), 30);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (key, text) in &messages {
                let publication = keyed(key, text.as_deref());
                let answer = ask(|later| engine.publish(NOW_MS, publication, later)).recv();
                answer.expect("it is answered").expect("it is known").expect("it is published");
            }
        });
        let (mut last, mut own, mut resumed) = (None::<MessageId>, State::new(), 0);
        while last.is_none_or(|last| last.offset < MESSAGES as u64) {
            let start = match last.filter(|last| last.offset % 3 > 0) {
                Some(last) => StartAt::After(last),
                None => StartAt::State,
            };
            let held = fetch(&engine, &kept(), start);
            let followed = follow(&engine, &kept(), start);
            drop(held);
            let mut state = match followed.is_recovered {
                Some(true) => own,
                Some(false) | None => State::new(),
            };
            resumed += usize::from(followed.is_recovered == Some(true));
            apply_all(&mut state, &followed.backlog);
            assert_eq!(state, states[followed.head.offset as usize], "{start:?}");
            engine.unfollow(NOW_MS, followed.channel, WorkerId(0));
            queue.take(&mut Vec::new());
            let query = KeyQuery { prefix: "".into(), after: None, limit: KEYS, is_of_one: false };
            let page = ask(|later| engine.keys(NOW_MS, &kept(), query, later)).recv();
            let page = page.expect("it is answered").expect("it is known").expect("it is read");
            let offset = |message: &Arc<Message>| message.id.offset;
            let newest = page.messages.iter().map(offset).max().unwrap_or(0);
            // Each is a value that its key has had meanwhile.
            let head = page.head.offset as usize;
            let between = &states[head..=(newest as usize).max(head)];
            for message in &page.messages {
                let (key, text) = (message.key().expect("it has one"), message.body.bytes());
                let is_it = |state: &State| state.get(key).is_some_and(|it| it.as_bytes() == text);
                assert!(between.iter().any(is_it), "{key}");
            }
            (last, own) = (Some(followed.head), state);
        }
        assert!(resumed > 0);
    });
}

#[test]
fn whoever_begins_with_a_state_while_its_first_keys_come_has_it() {
    const KEYS: u64 = 10;
    let (engine, queue) = world_of(&MemoryStorage::default(), 30);
    for n in 0..500 {
        let channel = ChannelName::channel(&format!("kept-{n}"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for key in 0..KEYS {
                    let keyed = keyed(&key.to_string(), Some("value"));
                    let publication = Publication { channel: channel.clone(), ..keyed };
                    let answer = ask(|later| engine.publish(NOW_MS, publication, later)).recv();
                    answer.expect("it is answered").expect("it is known").expect("it is published");
                }
            });
            let mut has_all = false;
            while !has_all {
                let held = fetch(&engine, &channel, StartAt::State);
                let followed = follow(&engine, &channel, StartAt::State);
                drop(held);
                assert_eq!(followed.backlog.len() as u64, followed.head.offset);
                has_all = followed.head.offset == KEYS;
                engine.unfollow(NOW_MS, followed.channel, WorkerId(0));
                queue.take(&mut Vec::new());
            }
        });
    }
}

#[test]
fn a_disk_that_fails_refuses_durable_publications_only() {
    for (fault, refused) in
        [(Fault::CommitLost(true), PublishError::DiskFull), (Fault::Sync, PublishError::Away)]
    {
        let storage = MemoryStorage::default();
        let (engine, journal, _queue) = world_with_journal(&storage);
        let before = publish(&engine, &kept(), "before").expect("it is published").id;
        storage.fail(fault, 0);
        let other = ChannelName::channel("other");
        let mut refusals = 0;
        std::thread::scope(|scope| {
            let under_way = scope.spawn(|| publish(&engine, &kept(), "under way"));
            while !under_way.is_finished() {
                publish(&engine, &other, "alone").expect("memory has room");
                // Not by a publication: it might be the one that waits until the disk works.
                if let Some(state) = journal.state() {
                    assert_eq!(PublishError::from(state), refused);
                    refusals += 1;
                }
            }
            let outcome = under_way.join().expect("it ends");
            assert_eq!(outcome.expect("it is there").id.offset, before.offset + 1);
        });
        assert!(refusals > 0);
    }
}
