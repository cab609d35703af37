//! How a node stands to NATS: what the probes and the status page say of it.

use throng_control::{Ailment, ClusterStatus, NodeStatus};
use throng_core::clock;
use throng_nats::client::version;
use throng_nats::engine::{ClusterView, LinkState, NatsJournal, NodeFacts};

use super::facts::{LATE_MS, OLD_MS, epoch_of_most, suspicions};
use super::tables;

/// Reasons for which the node cannot do all that it is for, as probes and pages say them.
pub(super) fn ailments(node: &NatsJournal) -> Vec<Ailment> {
    let ailment = match node.state() {
        LinkState::Open => None,
        // Strangers may read it: the log has what was said.
        LinkState::Away { .. } => Some(Ailment::new(
            "nats_away",
            "NATS cannot be reached: no messages are accepted, and none come from other nodes",
        )),
        LinkState::Old { version } => {
            Some(Ailment::new("nats_version", version::sentence(&version)))
        }
        LinkState::Refused { limit, .. } => {
            let limit = limit.map(|limit| format!(" because of a limit ({})", limit.word()));
            let limit = limit.unwrap_or_default();
            Some(Ailment::new(
                "nats_refused",
                format!(
                    "the stream in NATS cannot be used{limit}, the log says why: no messages are \
                     accepted, and none come from other nodes"
                ),
            ))
        }
    };
    // A node that never could use NATS may have wrong settings: others had better go on.
    let was_open = node.figures().was_open;
    let ailment = ailment.map(|ailment| if was_open { ailment } else { ailment.at_start() });
    let is_open = node.state() == LinkState::Open;
    let is_old = tables::revocations_age_ms(node).is_some_and(|age| age > OLD_MS);
    let revocations = (is_open && is_old).then(|| {
        Ailment::new(
            "nats_revocations",
            "revocations in NATS cannot be read, see the log: revocations made on other nodes \
             have no effect here",
        )
    });
    let is_old = node.table_age_ms(tables::SUBSCRIPTIONS) > OLD_MS;
    let subscriptions = (is_open && is_old).then(|| {
        Ailment::new(
            "nats_subscriptions",
            "kept subscriptions in NATS cannot be read, see the log: changes made on other \
             nodes have no effect here",
        )
    });
    let is_late = is_open && node.lag_ms() >= LATE_MS;
    let late =
        is_late.then(|| Ailment::new("nats_late", "messages from NATS reach this node late"));
    let stalled = node.is_stalled().then(|| {
        Ailment::new(
            "nats_stalled",
            "NATS answers and stores no messages, because most of its servers are away, say: \
             no messages are accepted",
        )
    });
    let polls = node.figures().polled > 0;
    let polled = polls.then(|| {
        Ailment::new(
            "nats_limit",
            "NATS allows this node no more subscriptions: messages of some channels are late",
        )
    });
    ailment
        .into_iter()
        .chain(stalled)
        .chain(polled)
        .chain(revocations)
        .chain(subscriptions)
        .chain(late)
        .collect()
}

/// All nodes as this one knows them, itself first.
pub(super) fn nodes(view: ClusterView) -> Vec<NodeStatus> {
    let all = view.others.iter().filter_map(|other| other.facts.as_ref());
    let epoch = epoch_of_most(all.chain([&view.facts]));
    let node = |id: String, silent_ms, facts: Option<NodeFacts>| {
        let suspect = suspicions(facts.as_ref(), silent_ms, &epoch);
        let facts = facts.unwrap_or_default();
        let NodeFacts { name, version, up_ms, connections, status, lag_ms, behind, .. } = facts;
        NodeStatus {
            name,
            id,
            version,
            up_ms,
            connections,
            status,
            lag_ms,
            behind,
            silent_ms,
            suspect,
        }
    };
    let others = view.others.into_iter().map(|other| node(other.id, other.silent_ms, other.facts));
    let others: Vec<_> = others.collect();
    std::iter::once(node(view.id, 0, Some(view.facts))).chain(others).collect()
}

/// The state of all nodes, and of this one's connection to NATS.
pub(super) fn cluster(node: &NatsJournal, view: ClusterView) -> ClusterStatus {
    let facts = view.facts.clone();
    let trouble = match node.state() {
        LinkState::Open => None,
        LinkState::Away { trouble } => trouble,
        LinkState::Old { version } => Some(version::sentence(&version)),
        LinkState::Refused { reason, .. } => Some(reason),
    };
    ClusterStatus {
        open: facts.is_open,
        since_ms: clock::now_ms().saturating_sub(facts.since_ms),
        trouble,
        leader: Some(facts.leader).filter(|leader| !leader.is_empty()),
        followed: facts.followed,
        under_way: facts.under_way,
        revocations_age_ms: facts.revocations_age_ms,
        nodes: nodes(view),
        left_out: 0,
    }
}
