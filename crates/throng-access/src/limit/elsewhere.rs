//! Use of limits on other nodes, so that limits hold for all nodes together.
//!
//! Once a second each node reports the clients that use a considerable part of a limit. Of what a
//! client holds, such as connections, a report has the number; the other nodes add it to their own
//! when they decide, until the next report, or until the node is silent for [`SILENT_MS`]. Of
//! rates, it has what was used since the report before; the other nodes charge it to the client as
//! if it had been used there. So over a longer time all nodes together admit the rate of one.
//!
//! The error: with a limit of L, all nodes together may exceed it by what they admit between two
//! reports, and by less than a quarter of L of clients that use too little of it on a node to be
//! reported.
//!
//! # Format of a report
//!
//! The version (1); a check of the keys (8), by which nodes with other keys are told apart; and for
//! each client the limit (1: three bits of the quantity below the subject), its key (8) and the
//! amount (4). Numbers are little-endian.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::key::LimitKey;
use super::live::KEY_BITS;
use super::refusal::{Quantity, Subject};

/// The form of a report, with its number of bytes.
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 8;
const ENTRY_BYTES: usize = 1 + 8 + 4;

/// Clients that a report has, at most: those that use the largest part of a limit. 27 KB.
const CLIENTS_MAX: usize = 2_048;

/// Nodes whose reports are kept, at most, in 32 KiB each.
const NODES_MAX: usize = 64;

/// The reports of a node that was silent for this long count no longer.
pub(super) const SILENT_MS: u64 = 3_000;

/// A client is reported if it uses this part of a limit, divided by the number of nodes.
const PART: u64 = 4;

/// One client's use of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    limit: u8,
    key: u64,
    amount: u32,
}

impl Use {
    pub(super) fn of((subject, quantity): (Subject, Quantity), key: u64, amount: u32) -> Use {
        Use { limit: limit(subject, quantity), key, amount }
    }

    pub(super) fn key(&self) -> LimitKey {
        LimitKey(self.key)
    }

    /// The limit; `None` if this version does not have it.
    fn quantity(&self) -> Option<(Subject, Quantity)> {
        let subject = Subject::ALL.get(usize::from(self.limit >> 3))?;
        Some((*subject, *Quantity::ALL.get(usize::from(self.limit & 7))?))
    }
}

fn limit(subject: Subject, quantity: Quantity) -> u8 {
    (subject as u8) << 3 | quantity as u8
}

const _: () = assert!(Quantity::ALL.len() <= 8);

/// Collects a report.
pub(super) struct ReportWriter {
    nodes: u64,
    /// With the part of the limit that is used, in thousandths.
    uses: Vec<(u64, Use)>,
}

impl ReportWriter {
    /// An empty report. `nodes` counts all nodes, this one included.
    pub(super) fn new(nodes: usize) -> ReportWriter {
        ReportWriter { nodes: nodes.max(1) as u64, uses: Vec::new() }
    }

    /// The least amount of a limit that is reported.
    pub(super) fn least(nodes: usize, max: u32) -> u32 {
        (u64::from(max) / (PART * nodes.max(1) as u64)).max(1) as u32
    }

    pub(super) fn add(&mut self, used: Use, max: u32) {
        if used.amount < ReportWriter::least(self.nodes as usize, max) {
            return;
        }
        let part = u64::from(used.amount) * 1_000 / u64::from(max.max(1));
        self.uses.push((part, used));
        if self.uses.len() >= 2 * CLIENTS_MAX {
            self.keep_largest();
        }
    }

    fn keep_largest(&mut self) {
        if self.uses.len() > CLIENTS_MAX {
            self.uses.select_nth_unstable_by(CLIENTS_MAX, |one, other| other.cmp(one));
            self.uses.truncate(CLIENTS_MAX);
        }
    }

    pub(super) fn finish(mut self, check: u64) -> Vec<u8> {
        self.keep_largest();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.uses.len() * ENTRY_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&check.to_le_bytes());
        for (_, Use { limit, key, amount }) in &self.uses {
            bytes.push(*limit);
            bytes.extend_from_slice(&key.to_le_bytes());
            bytes.extend_from_slice(&amount.to_le_bytes());
        }
        bytes
    }
}

/// Reads a report of a node with the same keys; `None` if it has others, or another version.
fn read(bytes: &[u8], check: u64) -> Option<Vec<Use>> {
    let (&[VERSION], rest) = bytes.split_first_chunk()? else { return None };
    let (keys, rest) = rest.split_first_chunk()?;
    let (entries, []) = rest.as_chunks::<ENTRY_BYTES>() else { return None };
    if u64::from_le_bytes(*keys) != check || entries.len() > CLIENTS_MAX {
        return None;
    }
    let entry = |entry: &[u8; ENTRY_BYTES]| {
        let (limit, rest) = entry.split_first()?;
        let (key, amount) = rest.split_first_chunk()?;
        let amount = u32::from_le_bytes(amount.try_into().ok()?);
        Some(Use { limit: *limit, key: u64::from_le_bytes(*key), amount })
    };
    let mut uses: Vec<Use> = entries.iter().filter_map(entry).collect();
    uses.sort_unstable();
    Some(uses)
}

/// The last report of a node.
#[derive(Debug)]
struct NodeReport {
    node: Box<str>,
    at_ms: u64,
    /// Sorted.
    uses: Vec<Use>,
}

impl NodeReport {
    fn amount(&self, limit: u8, key: u64) -> u32 {
        let at = self.uses.partition_point(|other| (other.limit, other.key) < (limit, key));
        let found = self.uses.get(at).filter(|other| (other.limit, other.key) == (limit, key));
        found.map_or(0, |found| found.amount)
    }
}

/// The reports of other nodes.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// True once this is one of several nodes.
    is_shared: AtomicBool,
    reports: ArcSwap<Vec<Arc<NodeReport>>>,
    /// Held while reports are replaced.
    replacing: Mutex<()>,
    /// The number of nodes of the last report by this one.
    nodes: AtomicU64,
    /// True if a client that was reported uses less than that.
    has_freed: AtomicBool,
}

impl Elsewhere {
    pub(super) fn begin(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// A report is made, to so many nodes.
    pub(super) fn reports_to(&self, nodes: usize) {
        self.nodes.store(nodes as u64, Ordering::Relaxed);
        self.has_freed.store(false, Ordering::Relaxed);
    }

    /// A client gives up some of the `held` that it may have `max` of.
    pub(super) fn frees(&self, held: u32, max: u32) {
        let nodes = self.nodes.load(Ordering::Relaxed) as usize;
        if held >= ReportWriter::least(nodes, max) && self.is_shared() {
            self.has_freed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_freed(&self) -> bool {
        self.has_freed.load(Ordering::Relaxed)
    }

    /// How much of a limit a client uses on other nodes.
    pub(super) fn amount(&self, subject: Subject, quantity: Quantity, key: LimitKey) -> u32 {
        if !self.is_shared() {
            return 0;
        }
        let limit = limit(subject, quantity);
        let key = if is_held(quantity) { key.0 & KEY_BITS } else { key.0 };
        let reports = self.reports.load();
        let amounts = reports.iter().map(|report| report.amount(limit, key));
        amounts.fold(0, u32::saturating_add)
    }

    /// A node has reported. Returns what it has used of rates.
    pub(super) fn heard(
        &self,
        node: &str,
        report: &[u8],
        (check, now_ms): (u64, u64),
    ) -> Vec<(Subject, Quantity, LimitKey, u32)> {
        let Some(uses) = read(report, check) else { return Vec::new() };
        let rates = uses.iter().filter_map(|used| {
            let (subject, quantity) = used.quantity()?;
            (!is_held(quantity)).then_some((subject, quantity, LimitKey(used.key), used.amount))
        });
        let rates = rates.collect();
        let report = Arc::new(NodeReport { node: node.into(), at_ms: now_ms, uses });
        self.replace(|reports| {
            reports.retain(|other| *other.node != *node);
            if reports.len() < NODES_MAX {
                reports.push(report);
            }
        });
        rates
    }

    /// A node has left.
    pub(super) fn left(&self, node: &str) {
        self.replace(|reports| reports.retain(|report| *report.node != *node));
    }

    /// Forgets the reports of silent nodes.
    pub(super) fn expire(&self, now_ms: u64) {
        let is_silent = |report: &Arc<NodeReport>| now_ms.saturating_sub(report.at_ms) > SILENT_MS;
        if self.reports.load().iter().any(is_silent) {
            self.replace(|reports| reports.retain(|report| !is_silent(report)));
        }
    }

    /// The number of nodes whose reports count.
    pub(super) fn heard_nodes(&self) -> usize {
        self.reports.load().len()
    }

    fn replace(&self, change: impl FnOnce(&mut Vec<Arc<NodeReport>>)) {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reports = Vec::clone(&self.reports.load());
        change(&mut reports);
        self.reports.store(Arc::new(reports));
    }
}

/// True of what clients hold; false of rates.
fn is_held(quantity: Quantity) -> bool {
    matches!(quantity, Quantity::Connections | Quantity::Subscriptions | Quantity::Questions)
}

/// The rates that clients of a shard have used since the last report.
#[derive(Debug, Default)]
pub(super) struct UsedHere(HashMap<(u8, u64), u32, foldhash::fast::RandomState>);

/// The maximum number of clients of a shard whose use is noted. Further clients are not reported.
const USED_MAX: usize = 1_024;

impl UsedHere {
    pub(super) fn note(&mut self, limited: (Subject, Quantity), key: LimitKey, units: u32) {
        let place = (limit(limited.0, limited.1), key.0);
        if self.0.len() < USED_MAX || self.0.contains_key(&place) {
            let used = self.0.entry(place).or_default();
            *used = used.saturating_add(units);
        }
    }

    /// Takes all of it.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Subject, Quantity, Use)> {
        std::mem::take(&mut self.0).into_iter().filter_map(|((limit, key), amount)| {
            let used = Use { limit, key, amount };
            used.quantity().map(|(subject, quantity)| (subject, quantity, used))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClientKeys, ClientLimits, LimitKeys, LimitSettings, Limiter};
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn node(user: ClientLimits) -> Limiter {
        let settings = LimitSettings { user, ..LimitSettings::default() };
        let limiter = Limiter::new(settings).with_keys(LimitKeys::with_secret([7; 32]));
        limiter.share();
        limiter
    }

    fn nodes(user: ClientLimits) -> [Limiter; 3] {
        [node(user), node(user), node(user)]
    }

    /// Each node hears the reports of the others.
    fn exchange(nodes: &[Limiter], now_ms: u64) {
        let reports: Vec<_> = nodes.iter().map(|node| node.report(nodes.len())).collect();
        for (at, node) in nodes.iter().enumerate() {
            for (of, report) in reports.iter().enumerate().filter(|(of, _)| *of != at) {
                node.heard(&of.to_string(), report, now_ms);
            }
        }
    }

    fn ann(limiter: &Limiter) -> ClientKeys {
        limiter.user(Some(7))
    }

    #[test]
    fn connections_on_all_nodes_count() {
        let nodes = nodes(ClientLimits { connections: 12, ..ClientLimits::default() });
        for (node, count) in nodes.iter().zip([5, 4, 0]) {
            (0..count).for_each(|_| node.hold_connection(ann(node)).unwrap());
        }
        exchange(&nodes, NOW_MS);
        (0..3).for_each(|_| nodes[2].hold_connection(ann(&nodes[2])).unwrap());
        assert!(nodes[2].hold_connection(ann(&nodes[2])).is_err());
        assert!(nodes[2].admit_connection(ann(&nodes[2]), false, NOW_MS).is_err());
        assert_eq!(nodes[2].refused_elsewhere(Subject::User, Quantity::Connections), 2);
        assert_eq!(nodes[2].refused(Subject::User, Quantity::Connections), 2);
        nodes[2].hold_connection(nodes[2].user(Some(8))).unwrap();
        exchange(&nodes, NOW_MS);
        assert!(nodes[0].hold_connection(ann(&nodes[0])).is_err());
        // Another node has more room at once.
        assert!(!nodes[1].has_freed());
        nodes[1].disconnect(ann(&nodes[1]));
        assert!(nodes[1].has_freed());
        exchange(&nodes, NOW_MS);
        nodes[0].hold_connection(ann(&nodes[0])).unwrap();
        assert!(nodes[0].hold_connection(ann(&nodes[0])).is_err());
    }

    #[test]
    fn a_node_that_is_silent_or_has_left_counts_no_more() {
        let nodes = nodes(ClientLimits { connections: 2, ..ClientLimits::default() });
        for node in &nodes[..2] {
            node.hold_connection(ann(node)).unwrap();
        }
        exchange(&nodes, NOW_MS);
        assert_eq!(nodes[2].heard_nodes(), 2);
        assert!(nodes[2].hold_connection(ann(&nodes[2])).is_err());
        nodes[2].expire_elsewhere(NOW_MS + SILENT_MS);
        assert!(nodes[2].hold_connection(ann(&nodes[2])).is_err());
        nodes[2].left("1");
        nodes[2].hold_connection(ann(&nodes[2])).unwrap();
        assert!(nodes[2].hold_connection(ann(&nodes[2])).is_err());
        nodes[2].expire_elsewhere(NOW_MS + SILENT_MS + 1);
        nodes[2].hold_connection(ann(&nodes[2])).unwrap();
        assert_eq!(nodes[2].heard_nodes(), 0);
    }

    #[test]
    fn all_nodes_together_admit_the_rate_of_one() {
        let nodes = nodes(ClientLimits { publishes_per_s: 20, ..ClientLimits::default() });
        let (mut admitted, seconds) = (0, 60);
        for ms in (0..seconds * 1_000).step_by(10) {
            let now_ms = NOW_MS + ms;
            for node in &nodes {
                admitted += u64::from(node.publish(ann(node), 1, 0, now_ms).is_ok());
            }
            if ms % 1_000 == 0 {
                exchange(&nodes, now_ms);
            }
        }
        // Each node has a burst, and a second before it hears of the others.
        let least = 20 * seconds - 20;
        assert!((least..=least + 3 * 40).contains(&admitted), "{admitted}");
        let refused = nodes[0].refused_elsewhere(Subject::User, Quantity::Publishes);
        assert!(refused > 0 && refused <= nodes[0].refused(Subject::User, Quantity::Publishes));
    }

    #[test]
    fn who_waits_as_told_is_admitted_on_any_node() {
        let nodes = nodes(ClientLimits { publishes_per_s: 10, ..ClientLimits::default() });
        for node in &nodes[..2] {
            (0..10).for_each(|_| node.publish(ann(node), 1, 0, NOW_MS).unwrap());
        }
        exchange(&nodes, NOW_MS);
        let refusal = nodes[2].publish(ann(&nodes[2]), 1, 0, NOW_MS).unwrap_err();
        assert_eq!(refusal.after_ms, Some(1_100), "20 messages, of which 10 may come at once");
        nodes[2].publish(ann(&nodes[2]), 1, 0, NOW_MS + 1_100).unwrap();
    }

    #[test]
    fn reports_have_those_who_use_most() {
        let nodes = nodes(ClientLimits { connections: 120, ..ClientLimits::default() });
        for tag in 1..=9 {
            (0..tag + 1).for_each(|_| nodes[0].hold_connection(nodes[0].user(Some(tag))).unwrap());
        }
        // A quarter of the limit, divided by three nodes, is ten.
        assert_eq!(nodes[0].report(3).len(), HEAD_BYTES + ENTRY_BYTES);
        assert_eq!(nodes[0].report(1).len(), HEAD_BYTES);
        let mut writer = ReportWriter::new(1);
        for key in 0..10 * CLIENTS_MAX as u64 {
            let limited = (Subject::User, Quantity::Connections);
            writer.add(Use::of(limited, key << 20, key as u32 % 100 + 1), 100);
        }
        let report = read(&writer.finish(5), 5).expect("it is read");
        assert_eq!(report.len(), CLIENTS_MAX);
        assert!(report.iter().all(|used| used.amount > 89));
    }

    #[test]
    fn reports_with_other_keys_or_of_another_version_do_not_count() {
        let settings = ClientLimits { connections: 1, ..ClientLimits::default() };
        let (one, other) = (node(settings), node(settings));
        one.hold_connection(ann(&one)).unwrap();
        let report = one.report(2);
        let strange = Limiter::new(LimitSettings { user: settings, ..LimitSettings::default() });
        strange.share();
        strange.heard("one", &report, NOW_MS);
        let mut later = report.clone();
        later[0] = 2;
        for bad in [&later[..], &report[..report.len() - 1], &[]] {
            other.heard("one", bad, NOW_MS);
        }
        assert_eq!((strange.heard_nodes(), other.heard_nodes()), (0, 0));
        other.heard("one", &report, NOW_MS);
        assert_eq!(other.heard_nodes(), 1);
        // A limit that this version does not have.
        let mut unknown = report;
        unknown[HEAD_BYTES] = 0xff;
        other.heard("one", &unknown, NOW_MS);
        other.hold_connection(ann(&other)).unwrap();
    }
}
