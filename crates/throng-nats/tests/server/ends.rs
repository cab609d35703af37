//! Channels that end while several nodes publish, and outlive what their stream drops.

use std::time::Duration;

use throng_core::{Epoch, LogChange, LogState, MessageId, Publication, Retention};
use throng_nats::api::StreamSettings;
use throng_nats::client::Login;
use throng_nats::journal::{LogEdit, LogOutcome, LogRequest, Outcome};

use crate::nats_server::{NatsCluster, NatsServer};
use crate::node::{Node, publication, stream};

/// How often the channel ends and is opened again.
const ROUNDS: usize = 10;

/// Publications of each node between two of these.
const EACH: usize = 25;

impl Node {
    async fn log_state(&mut self) -> LogState {
        let token = self.ask_log("a", LogRequest::State).await;
        match self.log_outcome(token).await {
            LogOutcome::State(facts) => {
                let head = MessageId { epoch: Epoch::numbered(1), offset: facts.head };
                LogState { head, record: facts.record }
            }
            other => panic!("{other:?}"),
        }
    }

    async fn make(&mut self, change: LogChange) -> LogOutcome {
        let LogChange { condition, messages, record, .. } = change;
        let record_version = condition.record;
        let edit =
            LogEdit { head: None, record_version, key: None, messages, record, may_end: true };
        let token = self.ask_log("a", LogRequest::Change(Box::new(edit))).await;
        self.log_outcome(token).await
    }

    /// Ends the channel, with a last message. Returns the sequence of the notice.
    async fn end(&mut self, last: Option<Publication>) -> u64 {
        let before = self.log_state().await;
        let (channel, count) = (publication("a", "", None).channel, u64::from(last.is_some()));
        match self.make(LogChange::end(channel, last, &before)).await {
            LogOutcome::Changed { first, .. } => first + count,
            other => panic!("{other:?}"),
        }
    }

    /// Opens it again. Returns the sequence from which on it is open.
    async fn reopen(&mut self) -> u64 {
        let before = self.log_state().await;
        let channel = publication("a", "", None).channel;
        let open = LogChange::open(channel, &before).expect("it has ended");
        match self.make(open).await {
            LogOutcome::Changed { first, .. } => first,
            other => panic!("{other:?}"),
        }
    }
}

/// Several nodes publish to a channel without a pause while it ends and is opened again: none of
/// their messages is stored while it has ended, and each outcome says what became of it.
async fn storm(addresses: &[String], replicas: u8) {
    let settings = StreamSettings { replicas, ..stream() };
    let settings = StreamSettings {
        retention: Retention { max_messages: 5_000, ..stream().retention },
        ..settings
    };
    let start = |()| Node::start_at(addresses, settings.clone(), Login::Anonymous);
    let mut nodes = [(); 3].map(start);
    for node in &mut nodes {
        node.may_end = true;
        node.open().await;
    }
    let (mut ended, mut all) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (at, node) in nodes.iter_mut().enumerate() {
            for number in 0..EACH {
                let body = format!("{round} {at} {number}");
                let token = node.publish(publication("a", &body, None)).await;
                all.push((at, token, body));
            }
        }
        let end = nodes[round % 3].end(Some(publication("a", "last", None))).await;
        for (at, node) in nodes.iter_mut().enumerate() {
            let late = node.published(publication("a", "late", None)).await;
            assert_eq!(late, Outcome::Ended, "on node {at} in round {round}");
        }
        let open = nodes[(round + 1) % 3].reopen().await;
        ended.push(end..open);
    }
    let mut stored = 0;
    let read = {
        for (at, token, _) in &all {
            let is_there = |node: &Node| node.outcomes.contains_key(token);
            nodes[*at].until("it has an outcome", is_there).await;
        }
        nodes[0].read("a", 0).await
    };
    for message in &read.messages {
        let is_late = ended
            .iter()
            .any(|ended| ended.contains(&message.sequence) && message.sequence != ended.start);
        assert!(!is_late, "{} is stored after the end: {ended:?}", message.sequence);
    }
    for (at, token, body) in &all {
        let found = read.messages.iter().find(|message| message.body.bytes() == body.as_bytes());
        match nodes[*at].outcomes[token] {
            Outcome::Stored { sequence, .. } => {
                assert_eq!(found.map(|message| message.sequence), Some(sequence), "{body}");
                stored += 1;
            }
            Outcome::Ended => assert_eq!(found, None, "{body}"),
            ref other => panic!("{body}: {other:?}"),
        }
    }
    assert!(stored > 0 && nodes.iter().all(|node| node.gaps == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stored_after_the_end() {
    let server = NatsServer::start("").await;
    storm(std::slice::from_ref(&server.address), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stored_after_the_end_on_three_servers() {
    let cluster = NatsCluster::start();
    storm(&cluster.addresses, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_nodes_one_ends_a_channel() {
    let server = NatsServer::start("").await;
    let mut nodes = [(); 2].map(|()| Node::start(&server, stream(), Login::Anonymous));
    for node in &mut nodes {
        node.may_end = true;
        node.open().await;
    }
    let before = nodes[0].log_state().await;
    let mut tokens = Vec::new();
    for at in 0..6 {
        let last = Some(publication("a", &at.to_string(), None));
        let change = LogChange::end(publication("a", "", None).channel, last, &before);
        let LogChange { condition, messages, record, .. } = change;
        let record_version = condition.record;
        let edit =
            LogEdit { head: None, record_version, key: None, messages, record, may_end: true };
        let request = LogRequest::Change(Box::new(edit));
        tokens.push((at % 2, nodes[at % 2].ask_log("a", request).await));
    }
    let mut made = 0;
    for (at, token) in tokens {
        match nodes[at].log_outcome(token).await {
            LogOutcome::Changed { .. } => made += 1,
            LogOutcome::Conflict(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let read = nodes[1].read("a", 0).await;
    assert_eq!((made, read.messages.len()), (1, 2));
    assert_eq!(read.ended_at, read.messages.last().map(|notice| notice.sequence));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_outlives_its_notice() {
    let server = NatsServer::start("").await;
    let retention = Retention { max_age_ms: 4_000, ..stream().retention };
    let settings = StreamSettings { retention, duplicate_window_ms: 1_000, ..stream() };
    let mut nodes = [(); 2].map(|()| Node::start(&server, settings.clone(), Login::Anonymous));
    for node in &mut nodes {
        node.may_end = true;
        node.open().await;
    }
    nodes[0].stored("a", "first").await;
    nodes[0].end(None).await;
    // Its messages expire, and its record is written anew.
    loop {
        let read = nodes[1].read("a", 0).await;
        let last = read.messages.last().map_or(0, |last| last.sequence);
        // The record is read behind the messages, and may be written anew in between.
        assert!([Some(last), Some(0)].contains(&read.ended_at), "{:?}", read.ended_at);
        if read.messages.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for node in &mut nodes {
        assert_eq!(node.published(publication("a", "late", None)).await, Outcome::Ended);
    }
    // Nor does an erased history open it, and an erased channel is open.
    let history = |with_record| LogRequest::EraseHistory { with_record, up_to: None };
    let token = nodes[0].ask_log("a", history(false)).await;
    nodes[0].log_outcome(token).await;
    assert_eq!(nodes[1].published(publication("a", "late", None)).await, Outcome::Ended);
    let token = nodes[0].ask_log("a", history(true)).await;
    nodes[0].log_outcome(token).await;
    nodes[1].stored("a", "begins anew").await;
    assert_eq!(nodes[0].read("a", 0).await.ended_at, None);
}
