//! Tells all nodes how much clients of each use, so that limits hold for all nodes together.
//!
//! A report goes to all nodes once a second, and sooner if a client has given up something. What is
//! in it is the limiter's business. A node that is cut off hears nothing, and soon counts alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a node reports, in milliseconds.
const REPORT_MS: u64 = 1_000;

/// Counts what clients use of limits, here and on other nodes.
pub trait NodeUse: Send + Sync {
    /// True if the others should be told soon.
    fn has_freed(&self) -> bool;

    /// The report of this node, to so many nodes with itself.
    fn report(&self, nodes: usize) -> Vec<u8>;

    /// The report of another node.
    fn heard(&self, node: &str, report: &[u8], now_ms: u64);

    /// A node has left.
    fn left(&self, node: &str);

    /// Forgets what nodes have reported that are silent now. Called about ten times a second.
    fn expire(&self, now_ms: u64);
}

/// The exchange of reports.
#[derive(Default)]
pub(super) struct UseExchange {
    /// Unset without limits.
    own: OnceLock<Box<dyn NodeUse>>,
    reported_ms: AtomicU64,
}

impl UseExchange {
    /// Call it once.
    pub(super) fn set(&self, own: Box<dyn NodeUse>) {
        let is_first = self.own.set(own).is_ok();
        debug_assert!(is_first);
    }

    /// The report that is due now, to so many nodes.
    pub(super) fn due(&self, now_ms: u64, nodes: usize) -> Option<Vec<u8>> {
        let own = self.own.get()?;
        let reported_ms = self.reported_ms.load(Ordering::Relaxed);
        let is_due = now_ms >= reported_ms + REPORT_MS || own.has_freed();
        is_due.then(|| {
            self.reported_ms.store(now_ms, Ordering::Relaxed);
            own.report(nodes)
        })
    }

    pub(super) fn expire(&self, now_ms: u64) {
        self.own.get().inspect(|own| own.expire(now_ms));
    }

    pub(super) fn heard(&self, node: &str, report: &[u8], now_ms: u64) {
        self.own.get().inspect(|own| own.heard(node, report, now_ms));
    }

    pub(super) fn left(&self, node: &str) {
        self.own.get().inspect(|own| own.left(node));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Freed(AtomicBool);

    impl NodeUse for Freed {
        fn has_freed(&self) -> bool {
            self.0.swap(false, Ordering::Relaxed)
        }

        fn report(&self, nodes: usize) -> Vec<u8> {
            vec![nodes as u8]
        }

        fn heard(&self, _: &str, _: &[u8], _: u64) {}

        fn left(&self, _: &str) {}

        fn expire(&self, _: u64) {}
    }

    #[test]
    fn reports_are_due_each_second_and_when_something_is_freed() {
        let exchange = UseExchange::default();
        assert_eq!(exchange.due(5_000, 3), None, "nothing is limited");
        exchange.set(Box::new(Freed(AtomicBool::new(false))));
        assert_eq!(exchange.due(5_000, 3), Some(vec![3]));
        assert_eq!((exchange.due(5_999, 3), exchange.due(6_000, 2)), (None, Some(vec![2])));
        let soon = UseExchange::default();
        soon.set(Box::new(Freed(AtomicBool::new(true))));
        assert!(soon.due(500, 3).is_some() && soon.due(600, 3).is_none());
    }
}
