//! Lists of several nodes over real servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::journal::Journal as _;
use throng_core::later::ask;
use throng_core::{
    Body, ChannelName, Channels, JournalId, Kind, ListPart, ListPosition, ListQuery, ListedChannel,
    LogRecord, OtherNodes, Publication, RecordChange, Retention, Rule, Rules, clock,
};
use throng_nats::client::Login;
use throng_nats::engine::NatsJournal;
use throng_nats::journal::{
    CountedLog, JournalEvent, LastOfLog, LogEdit, LogOutcome, LogRequest, NamedLog,
};

use crate::conformance::{NOW_MS, node, publish};
use crate::nats_server::{NatsCluster, NatsServer, PATIENCE};
use crate::node::{Node, stream};

/// Channels whose names begin with `own:` are in the memory of each node.
fn rules() -> Arc<Rules> {
    let retention = Retention { max_messages: 5, max_bytes: 1 << 20, max_age_ms: 3_600_000 };
    let stream = Rule { retention, journal: Some(JournalId(0)), ..Rule::default() };
    let own = Rule { pattern: "own:*".into(), retention, journal: None, ..Rule::default() };
    Arc::new(Rules::new(vec![own], stream))
}

/// Nodes over one stream, which know each other and answer each other's questions for lists.
fn nodes(addresses: &[String], replicas: u8, count: usize) -> Vec<Arc<Channels>> {
    let begin = |_| node(addresses, ("lists".into(), replicas), &rules(), Vec::new());
    let nodes: Vec<_> = (0..count).map(begin).collect();
    let until = Instant::now() + PATIENCE;
    while nodes.iter().any(|node| node.figures().nodes != count as u64 - 1) {
        assert!(Instant::now() < until, "they do not know each other");
        nodes.iter().for_each(|node| node.tick(clock::now_ms(), false));
        std::thread::sleep(Duration::from_millis(5));
    }
    let serve = |node: Arc<NatsJournal>| {
        let channels = Arc::new(Channels::new(Arc::clone(node.memory()), vec![node.clone() as _]));
        let listed = Arc::downgrade(&channels);
        node.set_list_part(move |query| {
            listed.upgrade().map(|own| own.list_part(NOW_MS, query)).unwrap_or_default()
        });
        channels
    };
    nodes.into_iter().map(serve).collect()
}

fn publication(channel: &str) -> Publication {
    Publication::new(ChannelName::channel(channel), Body::Text("x".into()))
}

/// A page, and whether it lacks nothing.
fn page(node: &Channels, query: &ListQuery) -> (ListPart, bool) {
    let stored = ask(|later| node.list_stored(query, later)).recv().expect("it is answered");
    let others = ask(|later| node.list_elsewhere(query, later)).recv().expect("it is answered");
    let none = OtherNodes { found: Vec::new(), is_complete: false };
    let OtherNodes { found, is_complete } = others.unwrap_or(none);
    let is_whole = is_complete && stored.is_some();
    let parts = found.into_iter().chain([node.list_part(NOW_MS, query)]).chain(stored).collect();
    (ListPart::merge(parts, query.limit, |_| true), is_whole)
}

fn query(limit: usize, after: Option<ListPosition>) -> ListQuery {
    ListQuery { kind: Kind::Channel, after, pattern: None, limit }
}

/// A list whose pages are asked of the nodes in turn.
fn list(nodes: &[Arc<Channels>], limit: usize) -> Vec<ListedChannel> {
    let (mut all, mut after) = (Vec::new(), None);
    for node in nodes.iter().cycle() {
        let (page, is_whole) = page(node, &query(limit, after));
        assert!(is_whole && page.channels.len() <= limit);
        all.extend(page.channels);
        after = page.reached;
        if after.is_none() {
            break;
        }
    }
    all.sort_by(|one, other| one.name.key().cmp(other.name.key()));
    all
}

fn described(listed: &[ListedChannel]) -> Vec<(&str, usize)> {
    listed.iter().map(|one| (one.name.name(), one.messages)).collect()
}

fn check(addresses: &[String], replicas: u8) {
    const ROOMS: usize = 2_500;
    let name = |nth: usize| format!("room.{nth:04}");
    let first = nodes(addresses, replicas, 2);
    for nth in 0..ROOMS {
        publish(&first[nth % 2], publication(&name(nth)));
    }
    // Those nodes are gone: only the stream has these messages.
    drop(first);
    let nodes = nodes(addresses, replicas, 3);
    let mut expected: Vec<_> = (0..ROOMS).map(|nth| (name(nth), 1)).collect();
    let described_as = |all: &[(String, usize)], limit| {
        let listed = list(&nodes, limit);
        let all: Vec<_> = all.iter().map(|(name, count)| (&**name, *count)).collect();
        assert_eq!(described(&listed), all);
        listed
    };
    described_as(&expected, 700);
    // What is published anywhere is in the next list of each, and counted as far as it is kept.
    for (nth, name) in ["a", "b", "b", "c"].into_iter().enumerate() {
        publish(&nodes[nth % 3], publication(name));
    }
    let ids: Vec<_> = (0..9).map(|_| publish(&nodes[1], publication("room.0007"))).collect();
    for node in &nodes {
        publish(node, publication("own:x"));
    }
    expected[7].1 = 5;
    let own = ("own:x".to_owned(), 3);
    let more = [("a".into(), 1), ("b".into(), 2), ("c".into(), 1), own];
    expected.splice(0..0, more);
    for limit in [1_000, 90] {
        let listed = described_as(&expected, limit);
        assert_eq!(Some(&listed[11].head), ids.last());
    }
    let query = ListQuery { pattern: Some("*.000*".into()), ..query(1_000, None) };
    let found = nodes.iter().map(|node| page(node, &query).0.channels.len());
    assert_eq!(found.collect::<Vec<_>>(), [10, 10, 10]);
    let users = ListQuery { kind: Kind::User, ..query };
    assert_eq!(page(&nodes[0], &users), (ListPart::default(), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_list_what_only_the_stream_has() {
    let server = NatsServer::start("").await;
    let addresses = [server.address.clone()];
    tokio::task::spawn_blocking(move || check(&addresses, 1)).await.expect("it is listed");
}

#[test]
fn nodes_list_what_only_the_streams_copies_have() {
    let cluster = NatsCluster::start();
    check(&cluster.addresses, 3);
}

impl Node {
    /// The channels whose last entries were not told before, by name.
    async fn named(&mut self, token: u64, is_anew: bool) -> Vec<(String, LastOfLog)> {
        self.send(JournalEvent::Name { token, kind: Kind::Channel, is_anew }).await;
        self.until("they are named", |node| node.named.contains_key(&token)).await;
        let told = self.named.remove(&token).expect("it is there");
        let named = |NamedLog { channel, last, .. }: NamedLog| (channel.name().to_owned(), last);
        told.into_iter().map(named).collect()
    }

    /// How many messages each of these channels has that are not older.
    async fn counted(&mut self, token: u64, logs: &[(&str, u64)]) -> Vec<(u64, bool)> {
        let log = |(name, max_age_ms): &(&str, u64)| CountedLog {
            channel: ChannelName::channel(name),
            max_age_ms: *max_age_ms,
            may_be_kept: true,
        };
        let logs = logs.iter().map(log).collect();
        self.send(JournalEvent::Count { token, logs }).await;
        self.until("they are counted", |node| node.counted.contains_key(&token)).await;
        let counts = self.counted.remove(&token).expect("it is there");
        counts.into_iter().map(|count| (count.messages, count.is_kept)).collect()
    }
}

#[tokio::test]
async fn old_messages_do_not_count_and_records_do() {
    let server = NatsServer::start("").await;
    let mut node = Node::start(&server, stream(), Login::Anonymous);
    node.open().await;
    node.stored("a", "1").await;
    node.stored("a", "2").await;
    let brief = Publication { expires_in_ms: Some(1), ..publication("b") };
    node.published(brief).await;
    let record = LogRecord::of(&[(1, b"here")]).expect("it is short");
    let edit = LogEdit {
        head: None,
        record_version: None,
        key: None,
        messages: Vec::new(),
        record: RecordChange::Write(record),
        may_end: false,
    };
    let written = node.ask_log("c", LogRequest::Change(Box::new(edit))).await;
    assert!(matches!(node.log_outcome(written).await, LogOutcome::Changed { .. }));
    let mut named = node.named(1, true).await;
    named.sort_by(|one, other| one.0.cmp(&other.0));
    let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
    let (message, record) = (LastOfLog::Message, LastOfLog::Beside);
    assert_eq!(named, [(a.clone(), message), (b, message), (c.clone(), record)]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.stored("a", "3").await;
    assert_eq!(node.named(2, false).await, [(a, message)]);
    let counted = node.counted(3, &[("a", 60_000), ("a", 1_000), ("b", 60_000)]).await;
    assert_eq!(counted, [(3, false), (1, false), (0, false)]);
    assert_eq!(node.counted(4, &[("c", 60_000), ("none", 60_000)]).await, [(0, true), (0, false)]);
    let erased =
        node.ask_log("c", LogRequest::EraseHistory { with_record: true, up_to: None }).await;
    assert!(matches!(node.log_outcome(erased).await, LogOutcome::Erased(_)));
    let named = node.named(5, false).await;
    assert!(named.iter().all(|last| *last == (c.clone(), record)), "{named:?}");
    assert_eq!(node.counted(6, &[("c", 60_000)]).await, [(0, false)]);
}
