//! This node's description of itself, and the descriptions of the others.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use crate::journal::Standing;

/// How often the other nodes are told anew, in milliseconds.
const DESCRIBE_MS: u64 = 1_000;

/// After this time without news of its own, the connection's thread is late itself.
const STANDING_MS: u64 = 2_000;

/// A node's description of itself. Every node has to read descriptions by other versions: fields
/// are added, and none is renamed or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// Where it is, for people: host and port.
    pub name: String,
    pub version: String,
    /// How long it has run, in milliseconds.
    pub up_ms: u64,
    /// The open connections of both planes.
    pub connections: u64,
    /// The state of the readiness probe, in a word.
    pub status: String,
    /// Why it is not ready: the words of the probe.
    pub reasons: Vec<String>,
    /// Channels and users that it follows in the stream.
    pub followed: u64,
    /// Followed channels that lack messages, or may lack some.
    pub behind: u64,
    /// How late messages are, in milliseconds.
    pub lag_ms: u64,
    /// Publications that have no answer yet.
    pub under_way: u64,
    /// How old what it knows of revocations may be, in milliseconds; `None` without keys.
    pub revocations_age_ms: Option<u64>,
    /// True if it can use the stream.
    pub is_open: bool,
    /// For how long that has been so, or not, in milliseconds.
    pub since_ms: u64,
    /// The epoch of the stream as it knows it; empty if it has never been open.
    pub epoch: String,
    /// The server that leads the stream as it knows it; empty with one server.
    pub leader: String,
}

/// Another node, as this one knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherNode {
    /// The name that it has since it started.
    pub id: String,
    /// For how long it was silent, in milliseconds.
    pub silent_ms: u64,
    /// Its last description of itself; `None` if it never sent one.
    pub facts: Option<NodeFacts>,
}

/// This node and the others that it knows: the answer to [`Question::Node`].
///
/// [`Question::Node`]: super::questions::Question::Node
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    /// The name that this node has since it started.
    pub id: String,
    pub facts: NodeFacts,
    /// The other nodes, by their names.
    pub others: Vec<OtherNode>,
}

/// Facts that the rest of the server knows about the node: name, version, connections and health.
pub(super) type OwnFacts = Box<dyn Fn() -> NodeFacts + Send + Sync>;

struct Heard {
    at_ms: u64,
    facts: Option<NodeFacts>,
}

#[derive(Default)]
struct SlotState {
    others: BTreeMap<Box<str>, Heard>,
    standing: Standing,
    standing_ms: u64,
    lag_ms: u64,
    described_ms: u64,
}

#[derive(Default)]
pub(super) struct Cluster {
    own: OnceLock<OwnFacts>,
    state: Mutex<SlotState>,
}

impl Cluster {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what the rest of the server knows. Called once.
    pub(super) fn set_own(&self, own: OwnFacts) {
        let is_first = self.own.set(own).is_ok();
        debug_assert!(is_first);
    }

    /// The facts from the rest of the server; `None` before it has given them.
    pub(super) fn own(&self) -> Option<NodeFacts> {
        self.own.get().map(|own| own())
    }

    /// True if the other nodes are to be told anew, now.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        let mut state = self.lock();
        let is_due = now_ms >= state.described_ms + DESCRIBE_MS && self.own.get().is_some();
        if is_due {
            state.described_ms = now_ms;
        }
        is_due
    }

    pub(super) fn heard(&self, now_ms: u64, node: Box<str>, description: &[u8]) {
        let facts = serde_json::from_slice(description).ok();
        let mut state = self.lock();
        let heard = state.others.entry(node).or_insert(Heard { at_ms: now_ms, facts: None });
        heard.at_ms = now_ms;
        // A node that says only that it is there has not changed.
        heard.facts = facts.or_else(|| heard.facts.take());
    }

    pub(super) fn gone(&self, node: &str) {
        self.lock().others.remove(node);
    }

    pub(super) fn stands(&self, now_ms: u64, standing: Standing) {
        let mut state = self.lock();
        (state.standing, state.standing_ms) = (standing, now_ms);
    }

    pub(super) fn lags(&self, lag_ms: u64) {
        self.lock().lag_ms = lag_ms;
    }

    /// How the journal stands, and how late messages are, in milliseconds, on a connection that is
    /// there since a time.
    pub(super) fn standing(&self, now_ms: u64, since_ms: u64) -> (Standing, u64) {
        let state = self.lock();
        // The thread of the connection delivers messages, too: while it waits, they do.
        let silent_ms = now_ms.saturating_sub(state.standing_ms.max(since_ms));
        let waits_ms = if silent_ms > STANDING_MS { silent_ms } else { 0 };
        let lag_ms = state.lag_ms.max(state.standing.behind_ms).max(waits_ms);
        (state.standing.clone(), lag_ms)
    }

    /// The connection is lost: what was said about it is over.
    pub(super) fn is_away(&self) {
        let mut state = self.lock();
        (state.standing, state.lag_ms) = (Standing::default(), 0);
    }

    /// The other nodes, by their names.
    pub(super) fn others(&self, now_ms: u64) -> Vec<OtherNode> {
        let state = self.lock();
        let others = state.others.iter().map(|(id, heard)| OtherNode {
            id: id.to_string(),
            silent_ms: now_ms.saturating_sub(heard.at_ms),
            facts: heard.facts.clone(),
        });
        others.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_by_other_versions_are_read() {
        let cluster = Cluster::default();
        cluster.heard(1_000, "later".into(), br#"{"name":"a:1","connections":7,"more":[]}"#);
        cluster.heard(1_000, "earlier".into(), b"");
        cluster.heard(2_000, "later".into(), b"");
        let others = cluster.others(2_300);
        assert_eq!(
            (&*others[0].id, others[0].silent_ms, &others[0].facts),
            ("earlier", 1_300, &None)
        );
        let facts = others[1].facts.as_ref().expect("what it said before");
        assert_eq!((&*facts.name, facts.connections, others[1].silent_ms), ("a:1", 7, 300));
        cluster.gone("later");
        assert_eq!(cluster.others(2_300).len(), 1);
    }

    #[test]
    fn messages_are_as_late_as_whatever_holds_them_up() {
        let cluster = Cluster::default();
        let lag_ms = |now_ms| cluster.standing(now_ms, 500).1;
        assert_eq!((lag_ms(1_000), lag_ms(4_000)), (0, 3_500), "the thread has never said a thing");
        cluster.stands(4_000, Standing { behind: 3, behind_ms: 70, ..Standing::default() });
        assert_eq!(lag_ms(4_100), 70);
        cluster.lags(900);
        assert_eq!((lag_ms(4_100), lag_ms(9_000)), (900, 5_000));
        cluster.is_away();
        assert_eq!(lag_ms(4_100), 0);
    }

    #[test]
    fn the_others_are_told_once_a_second() {
        let cluster = Cluster::default();
        assert!(!cluster.is_due(5_000), "nothing is known yet");
        cluster.set_own(Box::new(|| NodeFacts { connections: 7, ..NodeFacts::default() }));
        let due = [5_000, 5_300, 6_000].map(|now_ms| cluster.is_due(now_ms));
        assert_eq!(due, [true, false, true]);
        assert_eq!(cluster.own().map(|facts| facts.connections), Some(7));
    }
}
