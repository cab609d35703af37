//! The findings, as text for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use throng_units::format::{bytes, count, counted, seconds};
use throng_units::paint::{Ink, Paint, sanitized};

use super::found::{ClusterFound, NodeFound, StreamFound};

/// A verdict, the stream, and a line for each node, with what is suspect below it.
pub(super) fn shown(found: &ClusterFound, paint: Paint) -> String {
    let nodes = found.nodes.len() as u64;
    let connections = found.nodes.iter().filter_map(|node| node.facts.as_ref());
    let connections = connections.map(|facts| facts.connections).fold(0, u64::saturating_add);
    let suspects = found.suspect.len() as u64;
    let (ink, verdict) = match suspects {
        0 => (Ink::GOOD, "nothing is suspect".to_owned()),
        1 => (Ink::WARNING, "1 thing is suspect".to_owned()),
        _ => (Ink::WARNING, format!("{} things are suspect", count(suspects))),
    };
    let verb = if nodes == 1 { "has" } else { "have" };
    let mut text = format!(
        "{}\n",
        paint.ink(
            ink,
            format!(
                "{} {verb} {}; {verdict}",
                counted(nodes, "node", "nodes"),
                counted(connections, "connection", "connections")
            )
        )
    );
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    let stream =
        format!("{}; NATS {} at {}", stream(&found.stream), found.server_version, found.server);
    line(paint.ink(Ink::Dim, sanitized(&stream)).to_string());
    versions(found).into_iter().for_each(|said| line(paint.ink(Ink::Dim, said).to_string()));
    line(String::new());
    let width = found.nodes.iter().map(|node| sanitized(node.name()).chars().count()).max();
    let width = width.unwrap_or(0).max("node".len());
    let head = format!(
        "{:10} {:width$} {:>9} {:>14} {:>11} {:>11} {:>9}",
        "", "node", "version", "up", "connections", "lag", "behind"
    );
    line(paint.ink(Ink::Dim, head).to_string());
    for node in &found.nodes {
        line(row(node, width, paint));
        for fault in &node.suspect {
            line(paint.ink(Ink::WARNING, sanitized(&format!("           {fault}"))).to_string());
        }
    }
    let of_nodes = found.nodes.iter().map(|node| node.suspect.len()).sum();
    for fault in found.suspect.iter().skip(of_nodes) {
        line(paint.ink(Ink::WARNING, sanitized(fault)).to_string());
    }
    text
}

fn stream(stream: &StreamFound) -> String {
    let StreamFound { name, messages, bytes: size, leader, replicas, .. } = stream;
    let held = format!(
        "stream {name}: {} in {}",
        counted(*messages, "message", "messages"),
        bytes(*size as f64)
    );
    let copies: Vec<&str> = replicas.iter().map(|peer| peer.name.as_str()).collect();
    match leader {
        Some(leader) if copies.is_empty() => format!("{held}, on {leader}"),
        Some(leader) => format!("{held}, led by {leader}, with copies on {}", copies.join(", ")),
        None => held,
    }
}

/// How many nodes have which version, if they differ.
fn versions(found: &ClusterFound) -> Option<String> {
    let mut versions = BTreeMap::<&str, u64>::new();
    for facts in found.nodes.iter().filter_map(|node| node.facts.as_ref()) {
        *versions.entry(&facts.version).or_default() += 1;
    }
    let of = |(version, number): (&&str, &u64)| {
        format!("{} on {}", sanitized(version), counted(*number, "node", "nodes"))
    };
    let said: Vec<String> = versions.iter().map(of).collect();
    (said.len() > 1).then(|| format!("versions differ: {}", said.join(", ")))
}

fn row(node: &NodeFound, width: usize, paint: Paint) -> String {
    let facts = node.facts.clone().unwrap_or_default();
    let (ink, status) = match facts.status.as_str() {
        _ if !node.answered => (Ink::BAD, "silent"),
        "ready" if node.suspect.is_empty() => (Ink::GOOD, "ready"),
        "" => (Ink::WARNING, "unknown"),
        status => (Ink::WARNING, status),
    };
    let status = paint.ink(ink, format!("{:10}", sanitized(status)));
    let (name, version) = (sanitized(node.name()), sanitized(&facts.version));
    format!(
        "{status} {name:width$} {version:>9} {:>14} {:>11} {:>11} {:>9}",
        seconds(facts.up_ms as f64 / 1e3),
        count(facts.connections),
        lag(facts.lag_ms),
        count(facts.behind),
    )
}

/// Servers answer in whole milliseconds.
fn lag(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { seconds(ms as f64 / 1e3) }
}

#[cfg(test)]
mod tests {
    use throng_nats::engine::{ClusterView, NodeFacts, OtherNode};

    use super::*;

    #[test]
    fn nodes_may_say_any_number() {
        let view = |id: &str| ClusterView {
            id: id.into(),
            facts: NodeFacts { connections: u64::MAX, ..NodeFacts::default() },
            others: Vec::new(),
        };
        let views = vec![view("a"), view("b")];
        let found = ClusterFound::new(Default::default(), views, StreamFound::default());
        let text = shown(&found, Paint::plain());
        assert!(text.starts_with("2 nodes have 18,446,744,073,709,551,615 connections"), "{text}");
    }

    #[test]
    fn nodes_are_rows_and_what_is_suspect_is_below_them() {
        let facts = |name: &str, version: &str, connections| NodeFacts {
            name: name.into(),
            version: version.into(),
            up_ms: 7_500_000,
            connections,
            status: "ready".into(),
            is_open: true,
            lag_ms: 2,
            ..NodeFacts::default()
        };
        let other = OtherNode {
            id: "x".into(),
            silent_ms: 4_100,
            facts: Some(facts("web-b:8080", "0.2.0", 5)),
        };
        let view = ClusterView {
            id: "a".into(),
            facts: facts("web-a:8080", "0.1.0", 12_340),
            others: vec![other],
        };
        let server = ("nats://n1:4222".into(), "2.15.2".into());
        let stream = StreamFound::of("throng-channels".into(), &serde_json::Value::Null);
        let found = ClusterFound::new(server, vec![view], stream);
        let expected = "\
2 nodes have 12,345 connections; 1 thing is suspect
stream throng-channels: 0 messages in 0 B; NATS 2.15.2 at nats://n1:4222
versions differ: 0.1.0 on 1 node, 0.2.0 on 1 node

           node         version             up connections         lag    behind
ready      web-a:8080     0.1.0     2 h 05 min      12,340        2 ms         0
silent     web-b:8080     0.2.0     2 h 05 min           5        2 ms         0
           does not answer; others heard it 4.10 s ago
";
        assert_eq!(shown(&found, Paint::plain()), expected);
    }
}
