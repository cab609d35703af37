//! Facts about nodes and stream, with suspicions. It is also the report for programs: new versions
//! add fields and never rename one.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use throng_nats::engine::{ClusterView, NodeFacts};
use throng_units::format::seconds;

use crate::journals::nats::{NatsPeer, epoch_of_most, suspicions};

/// A node that runs for less than this need not be known to all others yet, in milliseconds.
const YOUNG_MS: u64 = 3_000;

#[derive(Debug, Serialize)]
pub(super) struct ClusterFound {
    /// The server that was asked, and its version.
    pub(super) server: String,
    pub(super) server_version: String,
    pub(super) nodes: Vec<NodeFound>,
    pub(super) stream: StreamFound,
    /// Faults, a sentence each.
    pub(super) suspect: Vec<String>,
}

/// A node that has answered, or that another one knows.
#[derive(Debug, Serialize)]
pub(super) struct NodeFound {
    pub(super) id: String,
    /// True if it has answered. Otherwise others say what it has said last.
    pub(super) answered: bool,
    /// For how long the others have not heard it, if it has not answered.
    pub(super) silent_ms: u64,
    /// `None` if nobody knows.
    #[serde(flatten)]
    pub(super) facts: Option<NodeFacts>,
    /// Faults, a sentence each.
    pub(super) suspect: Vec<String>,
}

impl NodeFound {
    /// Its name, for people.
    pub(super) fn name(&self) -> &str {
        self.facts.as_ref().map_or(&self.id, |facts| &facts.name)
    }
}

/// The stream, as its leader describes it.
#[derive(Debug, Default, Serialize)]
pub(super) struct StreamFound {
    pub(super) name: String,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// `None` with one server.
    pub(super) leader: Option<String>,
    /// The other servers that have a copy.
    pub(super) replicas: Vec<NatsPeer>,
    #[serde(skip)]
    faults: Vec<String>,
}

impl StreamFound {
    /// Nobody answers for it.
    pub(super) fn silent(name: String) -> StreamFound {
        let fault = format!(
            "no server answers for the stream {name}: it has no leader, or JetStream is not \
             enabled; `throng doctor --nats` says which"
        );
        StreamFound { name, faults: vec![fault], ..StreamFound::default() }
    }

    /// The stream as its leader describes it.
    pub(super) fn of(name: String, answer: &Value) -> StreamFound {
        if let Some(error) = answer.get("error") {
            let said = error["description"].as_str().unwrap_or("an error");
            let fault = format!("the stream {name} cannot be used: {said}");
            return StreamFound { name, faults: vec![fault], ..StreamFound::default() };
        }
        let number = |key: &str| answer["state"][key].as_u64().unwrap_or(0);
        let leader = answer["cluster"]["leader"].as_str().unwrap_or_default();
        let replicas = NatsPeer::all(answer);
        let faults = replicas.iter().filter_map(NatsPeer::fault);
        StreamFound {
            messages: number("messages"),
            bytes: number("bytes"),
            leader: Some(leader.to_owned()).filter(|leader| !leader.is_empty()),
            faults: faults.map(|fault| format!("of the servers of {name}, {fault}")).collect(),
            replicas,
            name,
        }
    }
}

impl ClusterFound {
    /// The nodes as they describe themselves and each other.
    pub(super) fn new(
        (server, server_version): (String, String),
        views: Vec<ClusterView>,
        stream: StreamFound,
    ) -> ClusterFound {
        let mut nodes = BTreeMap::new();
        for view in &views {
            let (id, facts) = (view.id.clone(), Some(view.facts.clone()));
            let node = NodeFound { id, answered: true, silent_ms: 0, facts, suspect: Vec::new() };
            nodes.insert(view.id.clone(), node);
        }
        for other in views.iter().flat_map(|view| &view.others) {
            let node = nodes.entry(other.id.clone()).or_insert_with(|| NodeFound {
                id: other.id.clone(),
                answered: false,
                silent_ms: other.silent_ms,
                facts: other.facts.clone(),
                suspect: Vec::new(),
            });
            node.silent_ms = node.silent_ms.min(other.silent_ms);
        }
        let epoch = epoch_of_most(nodes.values().filter_map(|node| node.facts.as_ref()));
        for node in nodes.values_mut() {
            node.suspect = suspicions(node.facts.as_ref(), node.silent_ms, &epoch);
            if !node.answered {
                let heard = seconds(node.silent_ms as f64 / 1e3);
                node.suspect = vec![format!("does not answer; others heard it {heard} ago")];
            }
        }
        for view in &views {
            let is_known = |id: &str| view.others.iter().any(|other| other.id == id);
            for node in nodes.values_mut().filter(|node| node.answered && node.id != view.id) {
                let is_young = node.facts.as_ref().is_some_and(|facts| facts.up_ms < YOUNG_MS);
                if !is_young && view.facts.up_ms >= YOUNG_MS && !is_known(&node.id) {
                    node.suspect.push(format!("is not heard by {}", view.facts.name));
                }
            }
        }
        let mut nodes: Vec<NodeFound> = nodes.into_values().collect();
        nodes.sort_by(|one, other| (one.name(), &one.id).cmp(&(other.name(), &other.id)));
        let of_nodes = nodes.iter().flat_map(|node| {
            node.suspect.iter().map(move |fault| format!("{} {fault}", node.name()))
        });
        let suspect = of_nodes.chain(stream.faults.iter().cloned()).collect();
        ClusterFound { server, server_version, nodes, stream, suspect }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use throng_nats::engine::OtherNode;

    use super::*;

    fn facts(name: &str, up_ms: u64) -> NodeFacts {
        let status = "ready".into();
        NodeFacts { name: name.into(), up_ms, status, is_open: true, ..NodeFacts::default() }
    }

    fn view(id: &str, up_ms: u64, others: &[(&str, u64)]) -> ClusterView {
        let other = |(id, silent_ms): &(&str, u64)| OtherNode {
            id: (*id).into(),
            silent_ms: *silent_ms,
            facts: Some(facts(&format!("host-{id}"), 1_000_000)),
        };
        let others = others.iter().map(other).collect();
        ClusterView { id: id.into(), facts: facts(&format!("host-{id}"), up_ms), others }
    }

    fn suspect(views: Vec<ClusterView>, stream: StreamFound) -> Vec<String> {
        ClusterFound::new((String::new(), String::new()), views, stream).suspect
    }

    #[test]
    fn nodes_that_know_each_other_are_not_suspect() {
        let views = vec![
            view("a", 60_000, &[("b", 700)]),
            view("b", 60_000, &[("a", 900)]),
            view("c", 1_000, &[("a", 100)]),
        ];
        assert_eq!(suspect(views, StreamFound::default()), [""; 0], "c has only just started");
    }

    #[test]
    fn who_is_silent_or_not_heard_is_named() {
        let views = vec![
            view("a", 60_000, &[("b", 700), ("x", 4_000)]),
            view("b", 60_000, &[("x", 3_100)]),
        ];
        let expected =
            ["host-a is not heard by host-b", "host-x does not answer; others heard it 3.10 s ago"];
        assert_eq!(suspect(views, StreamFound::default()), expected);
    }

    #[test]
    fn a_stream_is_as_its_leader_says() {
        let found = StreamFound::of(
            "s".into(),
            &json!({
                "state": { "messages": 7, "bytes": 1_300 },
                "cluster": {
                    "leader": "n1",
                    "replicas": [
                        { "name": "n2", "current": true },
                        { "name": "n3", "current": false, "offline": true, "lag": 5 },
                    ],
                },
            }),
        );
        let expected = (7, 1_300, Some("n1"), 2);
        let leader = found.leader.as_deref();
        assert_eq!((found.messages, found.bytes, leader, found.replicas.len()), expected);
        let said = suspect(vec![view("a", 9_000, &[])], found);
        assert_eq!(said, ["of the servers of s, n3 is offline, 5 behind"]);
        let missing = json!({ "error": { "code": 404, "description": "stream not found" } });
        let said = suspect(vec![view("a", 9_000, &[])], StreamFound::of("s".into(), &missing));
        assert_eq!(said, ["the stream s cannot be used: stream not found"]);
    }
}
