//! The nodes, for the status page.

use serde::Serialize;

/// How many nodes a sample has at most: it goes to each viewer once a second.
pub(crate) const NODES_MAX: usize = 50;

/// How a node of several stands, and what it knows of the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterStatus {
    /// True if it can use the stream.
    pub open: bool,
    /// Since when that is so, in milliseconds since 1970.
    pub since_ms: u64,
    /// Why it cannot; `None` if it can, or if nothing was found out yet.
    pub trouble: Option<String>,
    /// The server that leads the stream; `None` with one server, or if it is not known.
    pub leader: Option<String>,
    /// Channels and users that it follows in the stream.
    pub followed: u64,
    /// Publications that have no answer yet.
    pub under_way: u64,
    /// How old what it knows of revocations may be, in milliseconds; `None` without keys.
    pub revocations_age_ms: Option<u64>,
    /// The nodes: this one first.
    pub nodes: Vec<NodeStatus>,
    /// How many of them a sample leaves out.
    pub left_out: usize,
}

/// The state of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Where it is: host and port.
    pub name: String,
    /// The name that it has since it started.
    pub id: String,
    /// The version of the server; empty if it is not known.
    pub version: String,
    /// How long it has run, in milliseconds.
    pub up_ms: u64,
    /// The open connections of both planes.
    pub connections: u64,
    /// The answer of its readiness probe; empty if unknown.
    pub status: String,
    /// How late messages reach it, in milliseconds.
    pub lag_ms: u64,
    /// Channels that it follows and may lack messages of.
    pub behind: u64,
    /// For how long nothing was heard of it, in milliseconds.
    pub silent_ms: u64,
    /// Its problems, a sentence each.
    pub suspect: Vec<String>,
}

impl ClusterStatus {
    /// The nodes of a sample: this node first, then the suspect ones, by name.
    pub(crate) fn shortened(mut self) -> ClusterStatus {
        if let Some((_, others)) = self.nodes.split_first_mut() {
            others.sort_by(|one, other| {
                let key = |node: &NodeStatus| (node.suspect.is_empty(), node.name.clone());
                key(one).cmp(&key(other))
            });
        }
        self.left_out += self.nodes.len().saturating_sub(NODES_MAX);
        self.nodes.truncate(NODES_MAX);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_this_node_and_the_suspect_ones_are_shown() {
        let node = |number: u64, suspect: &[&str]| NodeStatus {
            name: format!("n{number:02}"),
            id: String::new(),
            version: String::new(),
            up_ms: 0,
            connections: number,
            status: "ready".into(),
            lag_ms: 0,
            behind: 0,
            silent_ms: 0,
            suspect: suspect.iter().copied().map(String::from).collect(),
        };
        let mut nodes: Vec<_> = (0..60).rev().map(|number| node(number, &[])).collect();
        nodes[3].suspect.push("silent".into());
        let all = ClusterStatus {
            open: true,
            since_ms: 0,
            trouble: None,
            leader: None,
            followed: 0,
            under_way: 0,
            revocations_age_ms: None,
            nodes,
            left_out: 0,
        };
        let shown = all.shortened();
        let names: Vec<&str> = shown.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(
            (names.len(), &names[..3], shown.left_out),
            (50, &["n59", "n56", "n00"][..], 10)
        );
    }
}
