//! The tests that every journal passes, and those of a disk alone.

use throng_core::later::ask;
use throng_core::{
    Body, Channels, Content, Epoch, Follow, Followed, JournalId, LocalId, MemoryEngine, Message,
    Notification, QueueLimits, Receipt, Rule, Rules, Stamp, StartAt, WorkerId, WorkerQueue,
    conformance,
};

use super::*;
use crate::journal::JournalServer;
use crate::journal::JournalSetup;
use crate::logs::Logs;
use crate::storage::Storage;
use crate::storage::disk::DiskStorage;
use crate::storage::memory::{Fault, MemoryStorage};
use crate::sync_policy::SyncPolicy;

/// The time of the conformance tests.
const NOW_MS: u64 = 1_700_000_000_000;

/// A server whose clock stands still.
struct StandingServer(AnswerDelivery);

impl JournalServer for StandingServer {
    fn now_ms(&self) -> u64 {
        NOW_MS
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
        conformance::run_with(conformance::Profile::JOURNAL, |rules, queues| {
            engine(Arc::new(MemoryStorage::default()), sync, rules, queues).0
        });
    }
}

#[test]
fn a_journal_on_a_disk_conforms() {
    let folder = tempfile::tempdir().expect("a directory");
    let number = std::cell::Cell::new(0);
    conformance::run_with(conformance::Profile::JOURNAL, |rules, queues| {
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
    let limits = QueueLimits { max_messages: RETAINED, ..QueueLimits::default() };
    let queue = Arc::new(WorkerQueue::with_limits(limits, || {}));
    let max_bytes = 1 << 30;
    let rule = Rule {
        retention: Retention { max_messages: RETAINED, max_bytes, max_age_ms: u64::MAX },
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
