//! Limits per client that hold for all nodes: they tell each other what clients use.

use std::sync::Arc;

use throng_access::Clients;
use throng_nats::engine::{NatsJournal, NodeUse};

/// Has the node exchange what its clients use of limits, if there are any.
pub(super) fn share(node: &NatsJournal, clients: &Arc<Clients>) {
    if clients.limiter.limits_anything() {
        clients.limiter.share();
        node.share_use(Box::new(UsedLimits(Arc::clone(clients))));
    }
}

struct UsedLimits(Arc<Clients>);

impl NodeUse for UsedLimits {
    fn has_freed(&self) -> bool {
        self.0.limiter.has_freed()
    }

    fn report(&self, nodes: usize) -> Vec<u8> {
        self.0.limiter.report(nodes)
    }

    fn heard(&self, node: &str, report: &[u8], now_ms: u64) {
        self.0.limiter.heard(node, report, now_ms);
    }

    fn left(&self, node: &str) {
        self.0.limiter.left(node);
    }

    fn expire(&self, now_ms: u64) {
        self.0.limiter.expire_elsewhere(now_ms);
    }
}
