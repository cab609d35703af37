//! What the measurements need from the machine, checked before they start.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use throng_machine::sysctl;

use crate::net::CONNECTIONS_PER_SOURCE_MAX;

/// Descriptors of a thread beside its connections: standard streams, pipes to children, epoll.
const DESCRIPTORS_SLACK: usize = 128;

/// What `--apply` sets where less is found.
const QUEUE_APPLIED: usize = 65_535;
const PORT_RANGE_APPLIED: &str = "32768 60999";

/// A kernel setting that is too small.
#[derive(Debug, PartialEq)]
pub struct Shortage {
    /// Its name.
    pub name: &'static str,
    /// What would do.
    pub value: String,
    /// One sentence: what is wrong, and what would help.
    pub advice: String,
}

/// Raises the descriptor limit as far as it may be; returns how many connections a thread can
/// hold.
pub fn connections_per_thread() -> Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the descriptor limit")?;
    let limit =
        limit.maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    ensure!(
        limit > DESCRIPTORS_SLACK * 2,
        "a process may have only {limit} descriptors: raise the hard limit (ulimit -Hn 20000)"
    );
    Ok(limit - DESCRIPTORS_SLACK)
}

/// The kernel settings that are too small for `connections` over `listeners`.
pub fn shortages(connections: usize, listeners: usize) -> Vec<Shortage> {
    let setting = |name| sysctl::read(name).unwrap_or_default();
    let queue = setting("net.core.somaxconn").parse().unwrap_or(usize::MAX);
    let reserved = setting("net.ipv4.ip_local_reserved_ports");
    let ports = port_range_len(&setting("net.ipv4.ip_local_port_range"))
        .map_or(usize::MAX, |ports| ports.saturating_sub(reserved_len(&reserved)));
    short_queue(queue, connections.div_ceil(listeners))
        .into_iter()
        .chain(short_ports(ports))
        .collect()
}

/// Makes up for a shortage.
pub fn apply(shortage: &Shortage) -> Result<()> {
    let Shortage { name, value, .. } = shortage;
    sysctl::set(name, value).with_context(|| format!("cannot set {name} to {value}"))
}

/// The raw loop's clients are connected before they are accepted, so all may be waiting at once;
/// beyond the queue a connection is tried again only after a second.
fn short_queue(queue: usize, waiting: usize) -> Option<Shortage> {
    (queue < waiting).then(|| Shortage {
        name: "net.core.somaxconn",
        value: QUEUE_APPLIED.to_string(),
        advice: format!(
            "A listener's queue holds {queue} connections and {waiting} may be waiting, which can \
             spoil the connect rate: `sysctl -w net.core.somaxconn={QUEUE_APPLIED}` (or --apply) \
             helps."
        ),
    })
}

/// With twice as many ports as a source address needs, finding a free one is quick.
fn short_ports(ports: usize) -> Option<Shortage> {
    let needed = CONNECTIONS_PER_SOURCE_MAX * 2;
    (ports < needed).then(|| Shortage {
        name: "net.ipv4.ip_local_port_range",
        value: PORT_RANGE_APPLIED.to_owned(),
        advice: format!(
            "There are {ports} local ports that are not reserved and {needed} are wanted: \
             `sysctl -w net.ipv4.ip_local_port_range=\"{PORT_RANGE_APPLIED}\"` (or --apply) helps."
        ),
    })
}

/// Ports in a range such as `32768 60999`.
fn port_range_len(text: &str) -> Option<usize> {
    let mut bounds = text.split_whitespace().map(str::parse::<usize>);
    let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    (high + 1).checked_sub(low)
}

/// Ports in a list such as `8080,28000-28199`.
fn reserved_len(text: &str) -> usize {
    text.split(',').filter_map(|part| port_range_len(&range(part))).sum()
}

/// `28000-28199` as `28000 28199`, `8080` as `8080 8080`.
fn range(part: &str) -> String {
    match part.split_once('-') {
        Some((low, high)) => format!("{low} {high}"),
        None => format!("{part} {part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_counted() {
        assert_eq!(port_range_len("32768\t60999"), Some(28_232));
        assert_eq!(port_range_len("60999 32768"), None);
        assert_eq!(port_range_len(""), None);
        assert_eq!(reserved_len("8080,28000-28199"), 201);
        assert_eq!(reserved_len(""), 0);
    }

    #[test]
    fn only_what_is_too_small_is_named() {
        assert_eq!(short_queue(4096, 4096), None);
        let shortage = short_queue(4096, 7500).expect("too small");
        assert_eq!(shortage.name, "net.core.somaxconn");
        assert!(shortage.advice.contains("7500"));
        assert_eq!(short_ports(28_232), None);
        assert!(short_ports(1000).is_some());
    }
}
