//! A node's description of itself for the others, and suspicions about theirs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use throng_control::Control;
use throng_nats::engine::{NatsJournal, NodeFacts};
use throng_units::format::{counted, seconds};

use super::tables;

/// Beyond this age something is wrong with revocations: they are read each second.
pub(super) const OLD_MS: u64 = 10_000;

/// Messages that are later than this are late.
pub(super) const LATE_MS: u64 = 2_000;

/// A node says once a second that it is there.
const SILENT_MS: u64 = 2_500;

/// Gives the node its description: name, address and state. `port` is its public listener's.
pub(super) fn describe(node: &Arc<NatsJournal>, control: &Arc<Control>, port: u16) {
    // The node must not keep the control plane, which has the node.
    let (control, began, name) = (Arc::downgrade(control), Instant::now(), name(port));
    let own = Arc::downgrade(node);
    node.set_facts(move || {
        let condition = control.upgrade().map(|control| control.condition());
        let (status, reasons, connections) = condition
            .map_or(("stopping", Vec::new(), 0), |found| {
                (found.status, found.reasons, found.connections)
            });
        NodeFacts {
            name: name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            up_ms: began.elapsed().as_millis() as u64,
            connections,
            status: status.into(),
            reasons: reasons.into_iter().map(String::from).collect(),
            revocations_age_ms: own.upgrade().and_then(|own| tables::revocations_age_ms(&own)),
            ..NodeFacts::default()
        }
    });
}

/// The name of this machine, as the kernel has it, and the port.
fn name(port: u16) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}:{port}", if host.is_empty() { "localhost" } else { host })
}

/// The epoch that most nodes know.
pub(crate) fn epoch_of_most<'a>(nodes: impl Iterator<Item = &'a NodeFacts>) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for facts in nodes.filter(|facts| !facts.epoch.is_empty()) {
        *counts.entry(&facts.epoch).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map_or_else(String::new, |(epoch, _)| epoch.to_owned())
}

/// Faults of a node that was last heard some time ago: a sentence each, without its name. `epoch`
/// is the one that most nodes know.
pub(crate) fn suspicions(facts: Option<&NodeFacts>, silent_ms: u64, epoch: &str) -> Vec<String> {
    let mut said = Vec::new();
    let time = |ms: u64| seconds(ms as f64 / 1e3);
    if silent_ms >= SILENT_MS {
        said.push(format!("was heard {} ago", time(silent_ms)));
    }
    let Some(facts) = facts else {
        said.push("does not say how it is".into());
        return said;
    };
    if !facts.is_open {
        said.push(format!("cannot use the stream, for {}", time(facts.since_ms)));
    }
    // The reason about NATS below says more.
    let reasons = facts.reasons.iter().filter(|reason| !reason.starts_with("nats_"));
    let reasons: Vec<&str> = reasons.map(String::as_str).collect();
    match facts.status.as_str() {
        "degraded" if !reasons.is_empty() => {
            said.push(format!("is degraded: {}", reasons.join(", ")));
        }
        // That it cannot use the stream was said above.
        "ready" | "degraded" | "starting" => {}
        status => said.push(format!("is {status}")),
    }
    if facts.lag_ms >= LATE_MS {
        let behind = if facts.behind > 0 {
            format!(", in {}", counted(facts.behind, "channel", "channels"))
        } else {
            String::new()
        };
        said.push(format!("gets messages {} late{behind}", time(facts.lag_ms)));
    }
    if let Some(age_ms) = facts.revocations_age_ms.filter(|age_ms| *age_ms >= OLD_MS) {
        said.push(format!("knows revocations of {} ago", time(age_ms)));
    }
    if facts.is_open && !facts.epoch.is_empty() && facts.epoch != epoch {
        said.push("knows another epoch of the stream than most".into());
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NodeFacts {
        NodeFacts {
            name: "a:1".into(),
            status: "ready".into(),
            is_open: true,
            epoch: "e".into(),
            lag_ms: 3,
            revocations_age_ms: Some(900),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn what_is_suspect_is_said_and_nothing_else() {
        let of = |facts: NodeFacts| suspicions(Some(&facts), 1_100, "e");
        assert_eq!(of(facts()), [""; 0]);
        assert_eq!(
            suspicions(None, 3_000, "e"),
            ["was heard 3.00 s ago", "does not say how it is"]
        );
        let reasons = vec!["nats_late".into(), "full".into(), "memory".into()];
        let bad = NodeFacts {
            status: "degraded".into(),
            reasons,
            lag_ms: 4_500,
            behind: 7,
            revocations_age_ms: Some(71_000),
            epoch: "other".into(),
            ..facts()
        };
        let expected = [
            "is degraded: full, memory",
            "gets messages 4.50 s late, in 7 channels",
            "knows revocations of 71.0 s ago",
            "knows another epoch of the stream than most",
        ];
        assert_eq!(of(bad), expected);
        let away = NodeFacts { is_open: false, since_ms: 12_000, ..facts() };
        assert_eq!(of(away), ["cannot use the stream, for 12.0 s"]);
        assert_eq!(of(NodeFacts { status: "draining".into(), ..facts() }), ["is draining"]);
    }

    #[test]
    fn the_epoch_of_most_is_the_right_one() {
        let of = |epoch: &str| NodeFacts { epoch: epoch.into(), ..NodeFacts::default() };
        let nodes = [of("a"), of("b"), of(""), of(""), of(""), of("b")];
        assert_eq!(epoch_of_most(nodes.iter()), "b");
        assert_eq!(epoch_of_most([of("")].iter()), "");
    }
}
