//! Limits that hold for several nodes together: what this one reports, and what it hears.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::super::elsewhere::{ReportWriter, Use};
use super::super::key::LimitKey;
use super::{Limiter, Quantity, Subject};

/// All limits of what clients hold.
fn held() -> impl Iterator<Item = (Subject, Quantity)> {
    let of = |subject| {
        let quantities = [Quantity::Connections, Quantity::Subscriptions];
        quantities.into_iter().map(move |quantity| (subject, quantity))
    };
    let questions = (Subject::Address, Quantity::Questions);
    Subject::ALL.into_iter().flat_map(of).chain([questions])
}

impl Limiter {
    /// Begins to count for several nodes together: this one is to [report](Limiter::report), and
    /// to hear the reports of the others.
    pub fn share(&self) {
        self.elsewhere.begin();
    }

    /// True if this counts for several nodes.
    pub fn is_shared(&self) -> bool {
        self.elsewhere.is_shared()
    }

    /// True if something is limited, so that there may be something to report.
    pub fn limits_anything(&self) -> bool {
        !self.shards.is_empty()
    }

    /// The report for the other nodes, of so many together with this one. Call it once a second,
    /// and sooner if [`Limiter::has_freed`].
    pub fn report(&self, nodes: usize) -> Vec<u8> {
        self.elsewhere.reports_to(nodes);
        let mut writer = ReportWriter::new(nodes);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (subject, quantity, used) in shard.used.take() {
                writer.add(used, self.limit(subject, quantity, used.key()));
            }
            for (subject, quantity) in held() {
                for (key, count) in shard.counts_mut(subject, quantity).iter() {
                    let max = self.limit(subject, quantity, LimitKey(key));
                    writer.add(Use::of((subject, quantity), key, count), max);
                }
            }
        }
        writer.finish(self.keys.check())
    }

    /// True if a client has given up something since the last report that was in it: another node
    /// may have to admit it.
    pub fn has_freed(&self) -> bool {
        self.elsewhere.has_freed()
    }

    /// Another node has reported.
    pub fn heard(&self, node: &str, report: &[u8], now_ms: u64) {
        if self.shards.is_empty() {
            return;
        }
        let used = self.elsewhere.heard(node, report, (self.keys.check(), now_ms));
        for (subject, quantity, key, units) in used {
            if let Some(rate) = self.shard(key).rate_mut((subject, quantity), key) {
                rate.charge(key, units, now_ms);
            }
        }
    }

    /// Another node has left, with its clients.
    pub fn left(&self, node: &str) {
        self.elsewhere.left(node);
    }

    /// Forgets reports of nodes that are silent. Call it about ten times a second.
    pub fn expire_elsewhere(&self, now_ms: u64) {
        self.elsewhere.expire(now_ms);
    }

    /// The number of other nodes whose use counts here.
    pub fn heard_nodes(&self) -> usize {
        self.elsewhere.heard_nodes()
    }

    /// How often clients were refused for this limit because of their use on other nodes.
    pub fn refused_elsewhere(&self, subject: Subject, quantity: Quantity) -> u64 {
        self.refused_elsewhere[subject as usize][quantity as usize].load(Ordering::Relaxed)
    }

    /// Charges one rate, of which other nodes are told.
    pub(super) fn charge_rate(
        &self,
        (subject, quantity): (Subject, Quantity),
        key: LimitKey,
        (units, now_ms): (u32, u64),
    ) {
        let mut shard = self.shard(key);
        let Some(rate) = shard.rate_mut((subject, quantity), key) else { return };
        rate.charge(key, units, now_ms);
        if self.elsewhere.is_shared() {
            shard.used.note((subject, quantity), key, units);
        }
    }
}
