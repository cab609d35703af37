//! The journal of a node passes the tests that every journal passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use throng_core::conformance::{self, Profile};
use throng_core::later::ask;
use throng_core::{
    ChannelName, Channels, Epoch, Follow, JournalId, LocalId, MemoryEngine, MessageId, NodeTag,
    Notification, Publication, PublishError, QueueLimits, Reading, Retention, Rule, Rules, StartAt,
    VolatilePublication, WorkerId, WorkerQueue, clock,
};
use throng_nats::api::StreamSettings;
use throng_nats::api::table::{TableKind, TableSettings};
use throng_nats::client::{Login, NatsClientSettings, ServerAddress};
use throng_nats::engine::{LinkState, NatsJournal, NodeSettings, NodeStarting, TableId};
use throng_nats::journal::JournalSettings;

use crate::nats_server::{NatsCluster, NatsServer, PATIENCE};
use crate::node::{no_tls, publication, stream};

/// The time of the conformance tests.
pub(crate) const NOW_MS: u64 = 1_700_000_000_000;

/// A number that no other stream or node has.
fn number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Channels over the stream of this prefix on so many servers, once it is open.
fn engine(
    addresses: &[String],
    stream: (String, u8),
    rules: &Arc<Rules>,
    queues: Vec<Arc<WorkerQueue>>,
) -> Channels {
    let node = node(addresses, stream, rules, queues);
    Channels::new(Arc::clone(node.memory()), vec![node])
}

/// A node over the stream of this prefix on so many servers, once that is open.
pub(crate) fn node(
    addresses: &[String],
    (prefix, replicas): (String, u8),
    rules: &Arc<Rules>,
    queues: Vec<Arc<WorkerQueue>>,
) -> Arc<NatsJournal> {
    let retention = rules.get(rules.find(&ChannelName::channel("any"))).retention;
    let settings = NodeSettings {
        client: NatsClientSettings {
            servers: addresses.iter().flat_map(|one| ServerAddress::parse(one)).collect(),
            login: Login::Anonymous.into(),
            tls: no_tls(),
            name: "throng test".into(),
            now_ms: clock::now_ms,
        },
        journal: JournalSettings {
            stream: StreamSettings {
                prefix,
                replicas,
                retention,
                // A server reserves it.
                bytes_max: 16 << 20,
                ..stream()
            },
            nonce: format!("conformance{}x{}", std::process::id(), number()),
            successor_of: None,
            publish_ms: 30_000,
            tables: vec![TableSettings {
                name: "markers".into(),
                kind: TableKind::OnDemand,
                max_age_ms: 0,
                // A server reserves it, and each check has a table of its own.
                bytes_max: 1 << 20,
                entry_bytes_max: 1 << 10,
            }],
        },
        markers: Some(TableId(0)),
        keys: None,
        workers: queues.len(),
        max_cached_bytes: usize::MAX,
        max_read_bytes: usize::MAX,
        from_wall_ms: |_| NOW_MS,
    };
    let node = NodeStarting::connect(settings, None).expect("a thread can be started");
    let memory = MemoryEngine::new(Epoch::random(), Arc::clone(rules), queues, usize::MAX);
    let memory = Arc::new(node.beneath(memory, JournalId(0)));
    let beginning = node.journal(memory, None).expect("nothing is thawed");
    let engine = Arc::clone(beginning.journal());
    beginning.begin();
    let until = Instant::now() + PATIENCE;
    while engine.state() != LinkState::Open {
        assert!(Instant::now() < until, "{:?}", engine.state());
        std::thread::sleep(Duration::from_millis(5));
    }
    engine
}

/// Runs all checks with streams on so many servers.
fn check(addresses: &[String], replicas: u8) {
    let profile = Profile {
        counts_notices: true,
        has_many_channels: replicas == 1,
        keeps_states: true,
        ..Profile::JOURNAL
    };
    conformance::run_with(profile, |rules, queues| {
        // Nobody else uses its stream.
        let stream = (format!("conformance{}", number()), replicas);
        engine(addresses, stream, &rules, queues)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_over_one_server_conforms() {
    let server = NatsServer::start("").await;
    let addresses = [server.address.clone()];
    let checks = tokio::task::spawn_blocking(move || check(&addresses, 1));
    checks.await.expect("it conforms");
}

#[test]
fn an_engine_over_three_servers_conforms() {
    let cluster = NatsCluster::start();
    check(&cluster.addresses, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_names_begin_with_their_nodes_tag() {
    let server = NatsServer::start("").await;
    let addresses = [server.address.clone()];
    let tags = tokio::task::spawn_blocking(move || {
        let rules = Arc::new(Rules::new(Vec::new(), Rule::default()));
        [(); 3].map(|()| engine(&addresses, ("tags".into(), 1), &rules, Vec::new()).node())
    });
    let [first, second, third] = tags.await.expect("they are open");
    assert!(first != second && second != third && third != first);
    assert!([first, second, third].iter().all(|&tag| tag != NodeTag::ALONE));
}

/// Follows a channel from now on.
fn follow(engine: &Channels, channel: &ChannelName) {
    let start = StartAt::Live;
    let held = loop {
        let fetched = ask(|later| engine.fetch(NOW_MS, channel, Reading::Start(start), later));
        match fetched.recv().expect("it is answered") {
            Some(held) => break held,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let (worker, local_if_new) = (WorkerId(0), LocalId(std::num::NonZeroU32::MIN));
    engine.follow(NOW_MS, Follow { channel, worker, local_if_new, start });
    drop(held);
}

/// The texts of the messages that have come to a worker, up to a kept one with this text.
fn texts_until(queue: &WorkerQueue, last: &str) -> Vec<(bool, String)> {
    let until = Instant::now() + PATIENCE;
    let mut texts = Vec::new();
    while texts.last().is_none_or(|(_, text)| text != last) {
        assert!(Instant::now() < until, "{texts:?}");
        std::thread::yield_now();
        let mut notifications = Vec::new();
        queue.take(&mut notifications);
        for notification in notifications {
            let Notification::Message { message, .. } = notification else { continue };
            let text = String::from_utf8_lossy(message.body.bytes()).into_owned();
            texts.push((message.is_volatile(), text));
        }
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volatile_message_reaches_each_node_once() {
    let server = NatsServer::start("").await;
    let addresses = [server.address.clone()];
    let test = move || {
        let rules = Arc::new(Rules::new(
            Vec::new(),
            Rule { journal: Some(JournalId(0)), ..Rule::default() },
        ));
        let nodes = [(); 3].map(|()| {
            let queue = Arc::new(WorkerQueue::new(|| {}));
            let stream = ("volatile".into(), 1);
            (engine(&addresses, stream, &rules, vec![Arc::clone(&queue)]), queue)
        });
        let channel = ChannelName::channel("a.room");
        let others = ChannelName::channel("other");
        nodes[..2].iter().for_each(|(engine, _)| follow(engine, &channel));
        follow(&nodes[2].0, &others);
        for ((sender, _), (text, own)) in nodes.iter().zip([("1", 1), ("2", 1), ("3", 0)]) {
            let publication =
                VolatilePublication::new(channel.clone(), throng_core::Body::Text(text.into()));
            assert_eq!(sender.publish_volatile(NOW_MS, publication), Ok(own));
            let kept = format!("after {text}");
            publish(sender, self::publication("a.room", &kept, None));
            for (_, queue) in &nodes[..2] {
                let expected = [(true, text.to_owned()), (false, kept.clone())];
                assert_eq!(texts_until(queue, &kept), expected, "from {text}");
            }
        }
        publish(&nodes[0].0, publication("other", "end", None));
        assert_eq!(texts_until(&nodes[2].1, "end"), [(false, "end".to_owned())]);
    };
    tokio::task::spawn_blocking(test).await.expect("each comes once");
}

/// Messages of the test below.
const MESSAGES: u64 = 1_000;

/// Publishes. On a machine that is busy enough, the connection counts as lost now and then.
pub(crate) fn publish(engine: &Channels, publication: Publication) -> MessageId {
    loop {
        let outcome = ask(|later| engine.publish(NOW_MS, publication.clone(), later)).recv();
        match outcome.ok().flatten().expect("it is answered") {
            Ok(published) => return published.id,
            Err(PublishError::Away) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Follows and leaves all the time, and resumes after the last message, until it has all.
fn resume_again_and_again(engine: &Channels, queue: &WorkerQueue, first: MessageId) -> usize {
    let channel = ChannelName::channel("room");
    let (mut last, mut count, mut turn) = (first, 0, 0);
    let mut take = |last: &mut MessageId, previous: u64, id: MessageId| {
        assert_eq!(previous, last.offset, "before {id}");
        *last = id;
        count += 1;
        count
    };
    loop {
        turn += 1;
        let start = StartAt::After(last);
        let fetched = ask(|later| engine.fetch(NOW_MS, &channel, Reading::Start(start), later));
        let Some(held) = fetched.recv().expect("it is answered") else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let local_if_new = LocalId(std::num::NonZeroU32::MIN);
        let follow = Follow { channel: &channel, worker: WorkerId(0), local_if_new, start };
        let followed = engine.follow(NOW_MS, follow);
        drop(held);
        assert_eq!(followed.is_recovered, Some(true), "after {last}");
        let mut seen = 0;
        for message in &followed.backlog {
            seen = take(&mut last, message.previous, message.id);
        }
        // Some turns stay for live messages.
        for _ in 0..turn % 3 {
            std::thread::yield_now();
            let mut notifications = Vec::new();
            queue.take(&mut notifications);
            for notification in notifications {
                let Notification::Message { message, .. } = notification else { continue };
                if message.id.offset > last.offset {
                    seen = take(&mut last, message.previous, message.id);
                }
            }
        }
        engine.unfollow(NOW_MS, followed.channel, WorkerId(0));
        queue.take(&mut Vec::new());
        if seen as u64 == MESSAGES {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_on_any_node_misses_nothing() {
    let server = NatsServer::start("").await;
    let addresses = [server.address.clone()];
    let test = move || {
        let max_bytes = 1 << 30;
        let rule = Rule {
            retention: Retention { max_messages: 5_000, max_bytes, max_age_ms: 3_600_000 },
            max_lag_messages: 5_000,
            max_lag_bytes: max_bytes,
            journal: Some(JournalId(0)),
            ..Rule::default()
        };
        let rules = Arc::new(Rules::new(Vec::new(), rule));
        let limits = QueueLimits { max_messages: 5_000, ..QueueLimits::default() };
        let nodes = [(), ()].map(|()| {
            let queue = Arc::new(WorkerQueue::with_limits(limits, || {}));
            let queues = vec![Arc::clone(&queue)];
            (engine(&addresses, ("resume".into(), 1), &rules, queues), queue)
        });
        let first = publish(&nodes[0].0, publication("room", "first", None));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..MESSAGES {
                    // Others share the stream, so that sequences skip.
                    publish(&nodes[0].0, publication("other", "x", None));
                    publish(&nodes[n as usize % 2].0, publication("room", "x", None));
                }
            });
            for (engine, queue) in &nodes {
                scope.spawn(move || resume_again_and_again(engine, queue, first));
            }
        });
    };
    tokio::task::spawn_blocking(test).await.expect("nothing is missed");
}
