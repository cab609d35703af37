//! Changes of logs and erasure, with what a stream drops and keeps beside them.

use std::time::Duration;

use serde_json::{Value, json};
use throng_core::{
    Attributes, KnownRecord, LogRecord, Publication, RecordChange, Retention, StateLimits,
};
use throng_nats::api::StreamSettings;
use throng_nats::client::{Login, NatsSession, ServerAddress};
use throng_nats::journal::{LogEdit, LogFacts, LogOutcome, LogRequest, Outcome};

use crate::nats_server::NatsServer;
use crate::node::{Node, no_tls, publication, stream};

fn few_messages() -> StreamSettings {
    StreamSettings { retention: Retention { max_messages: 4, ..stream().retention }, ..stream() }
}

fn edit(
    head: Option<u64>,
    version: Option<u64>,
    texts: &[&str],
    record: RecordChange,
) -> LogRequest {
    let messages = texts.iter().map(|text| publication("a", text, None)).collect();
    let edit =
        LogEdit { head, record_version: version, key: None, messages, record, may_end: false };
    LogRequest::Change(Box::new(edit))
}

fn record(text: &[u8]) -> LogRecord {
    LogRecord::of(&[(1, text)]).expect("it is short")
}

impl Node {
    async fn log(&mut self, request: LogRequest) -> LogOutcome {
        let token = self.ask_log("a", request).await;
        self.log_outcome(token).await
    }

    async fn facts(&mut self) -> LogFacts {
        match self.log(LogRequest::State).await {
            LogOutcome::State(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    async fn erase(&mut self, sequence: u64) {
        let outcome = self.log(LogRequest::EraseMessage(sequence)).await;
        assert_eq!(outcome, LogOutcome::Erased(None), "{sequence}");
    }

    /// What a reader after this gets, and whether it lacks nothing.
    async fn after(&mut self, sequence: u64) -> (Vec<u64>, bool) {
        let read = self.read("a", sequence).await;
        let found = read.messages.iter().map(|message| message.sequence);
        (found.filter(|found| *found > sequence).collect(), read.is_whole)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erased_messages_are_no_gap_and_dropped_ones_are() {
    let server = NatsServer::start("").await;
    // The stream keeps five.
    let mut node = Node::start(&server, few_messages(), Login::Anonymous);
    node.open().await;
    let mut sent = Vec::new();
    for text in ["0", "1", "2", "3"] {
        sent.push(node.stored("a", text).await);
    }
    let empty = sent[0] - 1;
    assert_eq!(node.after(empty).await, (sent.clone(), true));
    // The first, one in the middle, the last.
    for at in [0, 2, 3] {
        node.erase(sent[at]).await;
        let gone = node.log(LogRequest::EraseMessage(sent[at])).await;
        assert_eq!(gone, LogOutcome::Erased(Some(0)));
    }
    for (at, after) in [empty, sent[0], sent[1], sent[2], sent[3]].into_iter().enumerate() {
        let left = if at < 2 { vec![sent[1]] } else { vec![] };
        assert_eq!(node.after(after).await, (left, true), "after {after}");
    }
    assert_eq!(node.facts().await.head, sent[3], "the head stays");
    // With three erased, four more messages fit, and the next one drops the second.
    for text in ["4", "5", "6", "7"] {
        sent.push(node.stored("a", text).await);
    }
    assert_eq!(node.after(sent[0]).await.0, [sent[1], sent[4], sent[5], sent[6], sent[7]]);
    sent.push(node.stored("a", "8").await);
    for after in [empty, sent[0]] {
        assert_eq!(node.after(after).await, (sent[4..].to_vec(), false), "the second is lost");
    }
    // With one of those that are left erased, fewer than the stream keeps are there.
    node.erase(sent[5]).await;
    for (after, is_whole) in [(sent[0], false), (sent[4], true), (sent[5], true)] {
        let later = [4, 6, 7, 8].map(|at| sent[at]).into_iter().filter(|it| *it > after).collect();
        assert_eq!(node.after(after).await, (later, is_whole), "after {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_edits_replaces_a_message() {
    let server = NatsServer::start("").await;
    let mut nodes = [(); 2].map(|()| Node::start(&server, stream(), Login::Anonymous));
    for node in &mut nodes {
        node.open().await;
    }
    let limits = StateLimits { max_keys: 10, max_bytes: 1 << 20, forgets_soon: false };
    for state in [None, Some(limits)] {
        let first = nodes[0].stored("a", "first").await;
        let replacing = |text: String| {
            let attributes = Some(Attributes::replacing(None, first));
            let messages = vec![Publication { attributes, ..publication("a", &text, None) }];
            let (head, key, record) = (None, None, RecordChange::Keep);
            let (record_version, may_end) = (None, false);
            let edit = LogEdit { head, record_version, key, messages, record, may_end };
            LogRequest::Change(Box::new(edit))
        };
        let mut tokens = Vec::new();
        for at in 0..10 {
            let node = &mut nodes[at % 2];
            let token = node.ask_log_with("a", replacing(at.to_string()), state).await;
            tokens.push((at % 2, token));
        }
        let mut made = Vec::new();
        for (at, token) in tokens {
            match nodes[at].log_outcome(token).await {
                LogOutcome::Changed { first, .. } => made.push(first),
                LogOutcome::Conflict(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(made.len(), 1, "{made:?}");
        // The old one is there until it is erased, and nobody replaces it any more.
        assert_eq!(nodes[1].after(first - 1).await, (vec![first, made[0]], true));
        nodes[1].erase(first).await;
        let token = nodes[0].ask_log_with("a", replacing("late".to_owned()), state).await;
        let late = nodes[0].log_outcome(token).await;
        assert!(matches!(late, LogOutcome::Conflict(_)), "{late:?}");
        assert_eq!(nodes[0].after(first - 1).await, (made, true));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_history_is_a_gap_also_without_messages() {
    let server = NatsServer::start("").await;
    let mut node = Node::start(&server, stream(), Login::Anonymous);
    node.open().await;
    let elsewhere = node.stored("elsewhere", "stays").await;
    let first = node.stored("a", "first").await;
    let last = node.stored("a", "last").await;
    let whole = LogRequest::EraseHistory { with_record: false, up_to: None };
    assert_eq!(node.log(whole).await, LogOutcome::Erased(None));
    for (after, is_whole) in [(elsewhere, false), (first, false), (last, true)] {
        assert_eq!(node.after(after).await, (vec![], is_whole), "after {after}");
    }
    assert_eq!(node.facts().await.head, last);
    // The next one may come only if the head is still that.
    let next = node.log(edit(Some(last), None, &["next"], RecordChange::Keep)).await;
    let LogOutcome::Changed { first: next, record: 0 } = next else { panic!("{next:?}") };
    for (after, is_whole) in [(first, false), (last, true)] {
        assert_eq!(node.after(after).await, (vec![next], is_whole), "after {after}");
    }
    let refused = node.log(edit(Some(last), None, &["never"], RecordChange::Keep)).await;
    assert_eq!(refused, LogOutcome::Conflict(LogFacts { head: next, record: None }));
    let stays = node.read("elsewhere", elsewhere - 1).await;
    assert_eq!(stays.messages.len(), 1, "another channel");
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_do_not_miss_an_erased_message_anywhere() {
    let server = NatsServer::start("").await;
    let mut node = Node::start(&server, stream(), Login::Anonymous);
    let mut other = Node::start(&server, stream(), Login::Anonymous);
    node.open().await;
    other.open().await;
    other.follow(&["a"]).await;
    let id = throng_core::ChannelId(0);
    for round in 0..3 {
        let mut sent = Vec::new();
        for text in ["a", "b"] {
            sent.push(node.stored("a", text).await);
        }
        // One that is there still, and the last one.
        node.erase(sent[round % 2]).await;
        other.until("it hears of it", |node| node.erased.len() == round + 1).await;
        assert_eq!(other.erased[round], ("a".to_owned(), sent[round % 2], sent[round % 2]));
        let last = node.stored("a", "last").await;
        let has_last = |node: &Node| node.messages[&id].last().is_some_and(|it| it.0 == last);
        other.until("the next one has come", has_last).await;
    }
    assert_eq!((other.messages[&id].len(), other.gaps), (9, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_body_is_not_on_the_disk() {
    let server = NatsServer::start("").await;
    let mut node = Node::start(&server, stream(), Login::Anonymous);
    node.open().await;
    let has = |text: &str| {
        let messages = server.store().join("jetstream/$G/streams/throng-default/msgs");
        let files = std::fs::read_dir(messages).expect("it is there");
        let mut bytes = files.flat_map(|file| std::fs::read(file.expect("it is there").path()));
        bytes.any(|bytes| bytes.windows(text.len()).any(|at| at == text.as_bytes()))
    };
    let secret = node.stored("a", "a secret that is erased").await;
    node.stored("a", "something that stays").await;
    while !has("a secret that is erased") || !has("something that stays") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.erase(secret).await;
    assert!(has("something that stays") && !has("a secret that is erased"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_waits_for_earlier_publications_and_later_ones_for_it() {
    let server = NatsServer::start("").await;
    let mut node = Node::start(&server, stream(), Login::Anonymous);
    node.open().await;
    for round in 0..20u64 {
        let mut tokens = Vec::new();
        for text in ["1", "2", "3"] {
            tokens.push(node.publish(publication("a", text, None)).await);
        }
        let change = edit(None, None, &["4", "5"], RecordChange::Write(record(b"r")));
        let changed = node.ask_log("a", change).await;
        for text in ["8", "9"] {
            tokens.push(node.publish(publication("a", text, None)).await);
        }
        let LogOutcome::Changed { first, record } = node.log_outcome(changed).await else {
            panic!("it is changed")
        };
        assert_eq!(record, first + 2);
        let last = *tokens.last().expect("there are some");
        node.until("all are stored", |node| node.outcomes.contains_key(&last)).await;
        let at = |token: &u64| match node.outcomes[token] {
            Outcome::Stored { sequence, .. } => sequence,
            ref other => panic!("{other:?}"),
        };
        let places: Vec<_> = tokens.iter().map(at).collect();
        assert!(places.is_sorted() && places[2] < first && first + 1 < places[3], "{round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_changes_at_once_under_one_condition_one_is_made() {
    let server = NatsServer::start("").await;
    let mut nodes = [(); 2].map(|()| Node::start(&server, stream(), Login::Anonymous));
    for node in &mut nodes {
        node.open().await;
    }
    let mut version = 0;
    for round in 0..10 {
        let mut tokens = Vec::new();
        for (at, node) in (0..8).map(|at| (at, at % 2)) {
            let write = RecordChange::Write(record(format!("{round} {at}").as_bytes()));
            let change = edit(None, Some(version), &["x", "y"], write);
            tokens.push((node, nodes[node].ask_log("a", change).await));
        }
        let mut made = Vec::new();
        for (node, token) in tokens {
            match nodes[node].log_outcome(token).await {
                LogOutcome::Changed { record, .. } => made.push(record),
                LogOutcome::Conflict(facts) => assert!(facts.record.is_some()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(made.len(), 1, "{round}");
        version = made[0];
    }
    let read = nodes[0].read("a", 0).await;
    assert_eq!(read.messages.len(), 20, "two for each that was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_outlives_the_age_limit_and_keeps_its_version() {
    let server = NatsServer::start("").await;
    let retention = Retention { max_age_ms: 4_000, ..stream().retention };
    let settings = StreamSettings { retention, duplicate_window_ms: 1_000, ..stream() };
    let mut node = Node::start(&server, settings, Login::Anonymous);
    node.open().await;
    let write = edit(None, Some(0), &["goes"], RecordChange::Write(record(b"stays")));
    let LogOutcome::Changed { first, record: version } = node.log(write).await else {
        panic!("it is written")
    };
    let until = tokio::time::Instant::now() + Duration::from_millis(9_000);
    while tokio::time::Instant::now() < until {
        let facts = node.facts().await;
        assert_eq!(facts.record, Some(KnownRecord { version, record: record(b"stays") }));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(node.after(first - 1).await, (vec![], false), "the message has expired");
    let next = edit(None, Some(version), &[], RecordChange::Remove);
    let changed = node.log(next).await;
    assert!(matches!(changed, LogOutcome::Changed { record: 0, .. }), "{changed:?}");
}

/// Makes the stream as nodes before erasure did.
async fn old_stream(server: &NatsServer, settings: &StreamSettings) {
    let mut config = throng_nats::api::stream::config(settings);
    for (option, value) in [
        ("allow_atomic", Value::Null),
        ("allow_rollup_hdrs", json!(false)),
        ("deny_delete", json!(true)),
        ("deny_purge", json!(true)),
    ] {
        config[option] = value;
    }
    let name = settings.name();
    let address = ServerAddress::parse(&server.address).expect("it is an address");
    let login = (&Login::Anonymous.into(), &no_tls());
    let mut session = NatsSession::open(&address, login, "old", "old").await.expect("it listens");
    let (subject, payload) = (format!("$JS.API.STREAM.CREATE.{name}"), config.to_string());
    let answer = session.request(&subject, b"", payload.as_bytes()).await.expect("it listens");
    let answer = answer.expect("it is answered").payload;
    assert!(!String::from_utf8_lossy(&answer).contains("error"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_made_before_is_used_for_what_it_allows() {
    let server = NatsServer::start("").await;
    old_stream(&server, &stream()).await;
    let mut node = Node::start(&server, stream(), Login::Anonymous);
    node.open().await;
    let first = node.stored("a", "first").await;
    assert_eq!(first, 1, "nothing is beside the messages");
    let one = node.log(edit(Some(first), None, &["second"], RecordChange::Keep)).await;
    assert_eq!(one, LogOutcome::Changed { first: 2, record: 0 });
    let refused = node.log(edit(Some(first), None, &["third"], RecordChange::Keep)).await;
    assert_eq!(refused, LogOutcome::Conflict(LogFacts { head: 2, record: None }));
    for request in [
        edit(None, None, &["third", "fourth"], RecordChange::Keep),
        edit(None, None, &[], RecordChange::Write(record(b"r"))),
        edit(None, Some(0), &["third"], RecordChange::Keep),
        LogRequest::EraseMessage(first),
        LogRequest::EraseHistory { with_record: true, up_to: None },
    ] {
        let outcome = node.log(request).await;
        assert!(matches!(outcome, LogOutcome::Unsupported(_)), "{outcome:?}");
    }
    assert_eq!(node.after(0).await, (vec![1, 2], true));
    assert_eq!(node.refusals, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_not_erase_says_so_and_reads_on() {
    let denied = ["MSG.GET", "MSG.DELETE", "PURGE"]
        .map(|what| format!("\"$JS.API.STREAM.{what}.throng-default\""));
    let login = format!(
        "authorization {{ users: [{{ user: node, password: x, permissions: {{ publish: {{ deny: \
         [{}] }} }} }}] }}",
        denied.join(", ")
    );
    let server = NatsServer::start(&login).await;
    let user = Login::User { user: "node".into(), password: "x".into() };
    let mut node = Node::start(&server, stream(), user);
    node.open().await;
    let first = node.stored("a", "first").await;
    let refused = node.log(LogRequest::EraseMessage(first)).await;
    let LogOutcome::Failed(Outcome::Refused { reason, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("$JS.API.STREAM.MSG.GET.throng-default"), "{reason}");
    assert_eq!(node.after(first).await, (vec![], true));
    // Whether something after it was erased is not known.
    assert_eq!(node.after(first - 1).await, (vec![first], false));
    node.stored("a", "second").await;
}
