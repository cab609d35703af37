//! Journals against a real nats-server: what the model of the simulation takes for granted, and the
//! first faults. Runs with `--test server`, and needs what `scripts/setup` installs.

mod changes;
mod conformance;
mod ends;
mod lists;
mod nats_server;
mod node;

use std::collections::HashSet;
use std::time::Duration;

use nats_server::{NatsCluster, NatsServer};
use node::{Node, no_tls, publication, stream};
use throng_core::{AskerId, ChannelId};
use throng_nats::api::StreamSettings;
use throng_nats::client::{Login, NatsSession, ServerAddress};
use throng_nats::journal::{JournalEvent, Outcome, PublishRequest};

fn node(server: &NatsServer) -> Node {
    Node::start(server, stream(), Login::Anonymous)
}

#[tokio::test]
async fn nodes_get_the_same_messages_in_the_same_order() {
    let server = NatsServer::start("").await;
    let (mut first, mut second) = (node(&server), node(&server));
    first.open().await;
    second.open().await;
    assert_eq!(first.epoch, second.epoch);
    let channels = ["room.1", "room", "a b*>", "größe/%2E"];
    first.stored("room", "before").await;
    first.follow(&channels).await;
    second.follow(&channels).await;
    for index in 0..200 {
        let node = if index % 3 == 0 { &mut second } else { &mut first };
        node.publish(publication(channels[index % 4], &index.to_string(), None)).await;
    }
    for node in [&mut first, &mut second] {
        let count = |node: &Node| node.messages.values().map(Vec::len).sum::<usize>();
        node.until("all messages are here", |node| count(node) >= 200).await;
    }
    assert_eq!(first.messages, second.messages);
    assert!(first.messages.values().flatten().all(|(_, body)| body != "before"));
    let own: Vec<usize> = first.messages[&ChannelId(0)]
        .iter()
        .filter_map(|(_, body)| body.parse().ok())
        .filter(|index| index % 3 == 0)
        .collect();
    assert!(own.is_sorted(), "in the order of publication: {own:?}");
    assert_eq!((first.gaps, second.gaps), (0, 0));
}

/// Nodes that publish to one channel at the same time, each as a batch does.
#[tokio::test]
async fn nodes_share_a_hot_channel_in_one_order() {
    const EACH: usize = 1_500;
    let server = NatsServer::start("").await;
    let mut settings = stream();
    settings.retention.max_messages = 100_000;
    let start = || Node::start(&server, settings.clone(), Login::Anonymous);
    let mut nodes = [start(), start(), start()];
    for node in &mut nodes {
        node.open().await;
        node.follow(&["hot"]).await;
    }
    let mut tokens = [const { Vec::new() }; 3];
    for number in 0..EACH {
        for (index, node) in nodes.iter_mut().enumerate() {
            let body = format!("{index}:{number}");
            tokens[index].push(node.publish(publication("hot", &body, None)).await);
        }
    }
    let mut stored = Vec::new();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.until("all are stored", |node| node.outcomes.len() == EACH).await;
        node.until("all are here", |node| node.messages[&ChannelId(0)].len() == 3 * EACH).await;
        assert_eq!(node.gaps, 0, "each message names its predecessor");
        let sequence = |token| match node.outcomes[token] {
            Outcome::Stored { sequence, is_duplicate: false } => sequence,
            ref other => panic!("{other:?}"),
        };
        let own: Vec<u64> = tokens[index].iter().map(sequence).collect();
        assert!(own.is_sorted(), "a node's publications are stored in their order");
        let named = own.into_iter().zip((0..EACH).map(|number| format!("{index}:{number}")));
        stored.extend(named);
    }
    stored.sort();
    for node in &nodes {
        assert_eq!(node.messages[&ChannelId(0)], stored);
    }
}

#[tokio::test]
async fn a_key_publishes_once_on_all_nodes() {
    let server = NatsServer::start("").await;
    let (mut first, mut second) = (node(&server), node(&server));
    first.open().await;
    second.open().await;
    let Outcome::Stored { sequence, is_duplicate: false } =
        first.published(publication("room", "once", Some("key"))).await
    else {
        panic!("it is new");
    };
    let again = second.published(publication("room", "twice", Some("key"))).await;
    assert_eq!(again, Outcome::Stored { sequence, is_duplicate: true });
    let other = second.published(publication("other", "twice", Some("key"))).await;
    assert!(matches!(other, Outcome::Stored { is_duplicate: false, .. }), "{other:?}");
    let reading = second.read("room", 0).await;
    assert_eq!(reading.messages.len(), 1);
}

#[tokio::test]
async fn a_reader_is_told_whether_it_is_whole() {
    let server = NatsServer::start("").await;
    let mut small = stream();
    small.retention.max_messages = 3;
    let mut node = Node::start(&server, small, Login::Anonymous);
    node.open().await;
    let mut sequences = Vec::new();
    for index in 0..6 {
        node.stored("other", "between").await;
        sequences.push(node.stored("room", &index.to_string()).await);
    }
    // One more message is kept than the channel has history: 2, 3, 4, 5.
    for (after, is_whole, count) in [
        (sequences[0], false, 4),
        (sequences[1], false, 4),
        (sequences[2], true, 3),
        (sequences[5], true, 0),
        (sequences[3] + 1, true, 2),
    ] {
        let reading = node.read("room", after).await;
        let found = (reading.is_whole, reading.messages.len(), reading.left);
        assert_eq!(found, (is_whole, count, 0), "after {after} of {sequences:?}");
        assert!(reading.messages.iter().all(|message| message.wall_ms > 1_700_000_000_000));
    }
    let nothing = node.read("never heard of", 0).await;
    assert!(nothing.messages.is_empty());
}

#[tokio::test]
async fn many_channels_are_followed_in_batches() {
    let server = NatsServer::start("").await;
    let mut node = node(&server);
    node.open().await;
    let names: Vec<String> = (0..2_500).map(|index| format!("room.{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let last = node.stored(names[2_400], "before").await;
    node.follow(&names).await;
    assert_eq!(node.heads[&ChannelId(2_400)], [last]);
    for at in [0, 999, 1_000, 2_499] {
        node.stored(names[at], "after").await;
    }
    node.until("all messages are here", |node| node.messages.len() == 4).await;
    assert_eq!(node.gaps, 0);
}

#[tokio::test]
async fn a_stream_that_differs_is_refused_and_not_changed() {
    let server = NatsServer::start("").await;
    let mut first = node(&server);
    first.open().await;
    first.stored("room", "1").await;
    let mut settings = stream();
    settings.retention.max_messages = 5;
    let mut other = Node::start(&server, settings, Login::Anonymous);
    other.until("it is refused", |node| !node.refusals.is_empty()).await;
    let said = "max_msgs_per_subject is 1001, but should be 6";
    assert!(other.refusals[0].contains(said), "{:?}", other.refusals);
    assert_eq!(other.published(publication("room", "2", None)).await, Outcome::Away);
    first.stored("room", "3").await;
}

#[tokio::test]
async fn a_node_that_may_not_use_streams_says_so() {
    let permissions = "authorization { users: [ { user: \"node\", password: \"s3\", \
        permissions: { publish: { deny: \"$JS.API.>\" } } } ] }";
    let server = NatsServer::start(permissions).await;
    let login = Login::User { user: "node".into(), password: "s3".into() };
    let mut node = Node::start(&server, stream(), login);
    node.until("it is told", |node| !node.troubles.is_empty()).await;
    let said = "Permissions Violation for Publish to \"$JS.API.STREAM.INFO";
    assert!(node.troubles[0].starts_with(said), "{:?}", node.troubles);
    assert!(node.troubles[0].contains("lists the permissions"), "{:?}", node.troubles);
}

#[tokio::test]
async fn a_node_logs_in_and_is_told_when_it_may_not() {
    let server = NatsServer::start("authorization { user: \"node\", password: \"s3\" }").await;
    let login = |password: &str| Login::User { user: "node".into(), password: password.into() };
    let mut node = Node::start(&server, stream(), login("s3"));
    node.open().await;
    let mut stranger = Node::start(&server, stream(), login("wrong"));
    stranger.until("it is turned away", |node| !node.troubles.is_empty()).await;
    let said = stranger.troubles[0].to_lowercase();
    assert!(said.contains("authorization violation"), "{said}");
}

/// Publications of a node that follow each other at once.
const BURST: usize = 20;

/// Publishes on two nodes without a pause, while a fault happens and until both can publish again
/// after it. Returns the bodies with their outcomes.
async fn publish_during(
    nodes: &mut [Node; 2],
    fault: impl AsyncFnOnce(&mut [Node; 2]),
) -> Vec<(String, Outcome)> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let publishers = nodes.each_ref().map(|node| node.events.clone());
    let publishing = tokio::spawn(async move {
        let mut receiver = receiver;
        let mut count = 0;
        loop {
            // Several in each channel are under way at a time.
            let bursts = publishers.iter().enumerate().cycle().take(2 * BURST);
            for (node, events) in bursts {
                count += 1;
                // Tokens of both nodes in one series.
                let key = (count % 4 == 0).then(|| count.to_string());
                let body = format!("{node}:{count}");
                let publication =
                    publication(&format!("room.{}", count % 7), &body, key.as_deref());
                let (token, asker) = (1_000_000 + count, AskerId::of_connection(0));
                let request =
                    PublishRequest { token, publication, asker, may_end: false, state: None };
                let event = JournalEvent::Publish(request);
                events.send(event).expect("the client runs");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            if receiver.try_recv().is_ok() {
                return count;
            }
        }
    });
    more_messages(nodes).await;
    fault(nodes).await;
    for node in &mut *nodes {
        // As it is open again, what is published from now on is stored.
        loop {
            match node.published(publication("after", "again", None)).await {
                Outcome::Stored { .. } => break,
                Outcome::Away => tokio::time::sleep(Duration::from_millis(20)).await,
                other => panic!("{other:?}"),
            }
        }
    }
    sender.send(()).expect("it publishes");
    let count = publishing.await.expect("it only publishes");
    let mut all = Vec::new();
    for number in 1..=count {
        let index = (number as usize + 1) % 2;
        let (node, token) = (&mut nodes[index], 1_000_000 + number);
        node.until("all have an outcome", |node| node.outcomes.contains_key(&token)).await;
        all.push((format!("{index}:{number}"), node.outcomes[&token].clone()));
    }
    all
}

/// Waits until both nodes have got messages that they had not.
async fn more_messages(nodes: &mut [Node; 2]) {
    let count = |node: &Node| node.messages.values().map(Vec::len).sum::<usize>();
    for node in nodes {
        let before = count(node);
        node.until("messages go on", |node| count(node) > before + 20).await;
    }
}

/// Waits until both nodes have noticed that the server is away.
async fn noticed(nodes: &mut [Node; 2], times: usize) {
    for node in nodes {
        node.until("it is noticed", |node| node.aways >= times).await;
    }
}

/// Whether all that was acknowledged came to both nodes, once and in the same order, and nothing
/// that was refused.
async fn audit(nodes: &mut [Node; 2], published: &[(String, Outcome)]) {
    let stored: HashSet<&str> = published
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Stored { .. }))
        .map(|(body, _)| &**body)
        .collect();
    let refused: HashSet<&str> = published
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Away | Outcome::Busy))
        .map(|(body, _)| &**body)
        .collect();
    assert!(!stored.is_empty());
    for node in &mut *nodes {
        let bodies = |node: &Node| {
            let messages = node.messages.values().flatten();
            messages.map(|(_, body)| body.clone()).collect::<Vec<_>>()
        };
        let is_here = |node: &Node| {
            let here: HashSet<_> = bodies(node).into_iter().collect();
            stored.iter().all(|body| here.contains(*body))
        };
        node.until("all that was acknowledged is here", is_here).await;
        let here = bodies(node);
        let different: HashSet<_> = here.iter().collect();
        assert_eq!(here.len(), different.len(), "some came twice");
        assert!(!here.iter().any(|body| refused.contains(&**body)), "some were refused");
        assert!(node.messages.values().all(|of| of.is_sorted()), "out of order");
        for publisher in ["0:", "1:"] {
            let own = |of: &[(u64, String)]| {
                let stored = of.iter().filter(|(_, body)| stored.contains(&**body));
                let numbers = stored.filter_map(|(_, body)| body.strip_prefix(publisher));
                numbers.map(|number| number.parse::<u64>().expect("as above")).collect::<Vec<_>>()
            };
            let are_sorted = node.messages.values().all(|of| own(of).is_sorted());
            assert!(are_sorted, "the publications of a node are in another order");
        }
        assert_eq!(node.gaps, 0);
    }
    assert_eq!(nodes[0].messages, nodes[1].messages);
}

const ROOMS: [&str; 7] = ["room.0", "room.1", "room.2", "room.3", "room.4", "room.5", "room.6"];

async fn following(server: &NatsServer, settings: &StreamSettings) -> [Node; 2] {
    let mut nodes = [0, 1].map(|_| Node::start(server, settings.clone(), Login::Anonymous));
    for node in &mut nodes {
        node.open().await;
        node.follow(&ROOMS).await;
    }
    nodes
}

#[tokio::test]
async fn a_killed_server_loses_and_repeats_nothing() {
    let mut server = NatsServer::start("").await;
    let mut settings = stream();
    settings.retention.max_messages = 100_000;
    let mut nodes = following(&server, &settings).await;
    let epoch = nodes[0].epoch;
    let published = publish_during(&mut nodes, async |nodes| {
        for times in 1..=2 {
            server.kill();
            noticed(nodes, times).await;
            server.launch().await;
            more_messages(nodes).await;
        }
    })
    .await;
    audit(&mut nodes, &published).await;
    for node in &nodes {
        assert_eq!(node.epoch, epoch);
        assert!(node.heads.values().all(|heads| heads.len() == 1));
    }
}

#[tokio::test]
async fn a_silent_server_loses_and_repeats_nothing() {
    let server = NatsServer::start("").await;
    let mut settings = stream();
    settings.retention.max_messages = 100_000;
    let mut nodes = following(&server, &settings).await;
    let published = publish_during(&mut nodes, async |nodes| {
        server.cut(true);
        noticed(nodes, 1).await;
        server.cut(false);
    })
    .await;
    audit(&mut nodes, &published).await;
}

/// The first of a cluster's servers, to ask it what only operators ask.
async fn session(cluster: &NatsCluster) -> NatsSession {
    let address = ServerAddress::parse(&cluster.addresses[0]).expect("it is an address");
    let login = (&Login::Anonymous.into(), &no_tls());
    NatsSession::open(&address, login, "operator", "operator").await.expect("it listens")
}

#[tokio::test]
async fn leaders_that_step_down_lose_and_repeat_nothing() {
    let cluster = NatsCluster::start();
    let mut settings = StreamSettings { replicas: 3, ..stream() };
    settings.retention.max_messages = 100_000;
    let mut addresses = cluster.addresses.clone();
    let mut nodes = [0, 1].map(|_| {
        addresses.rotate_left(1);
        Node::start_at(&addresses, settings.clone(), Login::Anonymous)
    });
    for node in &mut nodes {
        node.open().await;
        node.follow(&ROOMS).await;
    }
    let mut operator = session(&cluster).await;
    let published = publish_during(&mut nodes, async |nodes| {
        for _ in 0..4 {
            let subject = "$JS.API.STREAM.LEADER.STEPDOWN.throng-default";
            // Without a leader, nobody answers.
            while operator.request(subject, b"", b"").await.expect("it is connected").is_none() {}
            more_messages(nodes).await;
        }
    })
    .await;
    audit(&mut nodes, &published).await;
}

#[tokio::test]
async fn a_stream_that_was_lost_is_made_again_with_a_new_epoch() {
    let mut server = NatsServer::start("").await;
    let settings = StreamSettings { is_in_memory: true, ..stream() };
    let mut nodes = following(&server, &settings).await;
    let epoch = nodes[0].epoch;
    nodes[0].stored(ROOMS[0], "1").await;
    server.kill();
    server.launch().await;
    for node in &mut nodes {
        node.until("there is a new epoch", |node| node.epoch != epoch).await;
        node.until("all are followed again", |node| node.heads.values().all(|of| of.len() == 2))
            .await;
    }
    assert_eq!(nodes[0].epoch, nodes[1].epoch);
    let sequence = nodes[1].stored(ROOMS[0], "2").await;
    let last = (sequence, "2".to_owned());
    nodes[0]
        .until("it is here", |node| {
            node.messages.get(&ChannelId(0)).and_then(|messages| messages.last()) == Some(&last)
        })
        .await;
}

/// A copy of a directory, as a backup has it.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("it can be made");
    for entry in std::fs::read_dir(from).expect("it is there").map(|entry| entry.expect("as above"))
    {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}

#[tokio::test]
async fn a_stream_whose_last_sequence_fell_has_a_new_epoch() {
    let mut server = NatsServer::start("").await;
    let mut nodes = following(&server, &stream()).await;
    let epoch = nodes[0].epoch;
    nodes[0].stored(ROOMS[0], "kept").await;
    server.kill();
    let backup = server.store().with_extension("backup");
    copy(&server.store(), &backup);
    server.launch().await;
    let published = publish_during(&mut nodes, async |_| {}).await;
    audit(&mut nodes, &published).await;
    assert!(nodes.iter().all(|node| node.epoch == epoch));

    server.kill();
    std::fs::remove_dir_all(server.store()).expect("nobody uses it");
    copy(&backup, &server.store());
    server.launch().await;
    for node in &mut nodes {
        node.until("there is a new epoch", |node| node.epoch != epoch).await;
    }
    let kept = nodes[1].read(ROOMS[0], 0).await;
    assert_eq!(kept.messages.len(), 1);
    // A node that knows nothing joins.
    let mut third = node(&server);
    third.open().await;
    assert!(nodes[0].epoch == third.epoch && nodes[1].epoch == third.epoch);
}
