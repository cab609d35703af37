//! A scan of all connections of a worker, and how far it has come.

use std::sync::Arc;

use throng_core::{ConnectionScan, FoundConnection, ScanAction};

use crate::connection::ConnectionId;

/// A scan that is under way.
#[derive(Debug)]
pub(in crate::worker) struct RunningScan {
    scan: Arc<ConnectionScan>,
    /// The place that comes next.
    next: u32,
    /// The newest generation when the scan began: it is not about clients that came later, or came
    /// back.
    newest_generation: u32,
    count: u64,
    found: Vec<FoundConnection>,
}

impl RunningScan {
    /// A scan from the first place on.
    pub(in crate::worker) fn new(scan: Arc<ConnectionScan>, newest_generation: u32) -> RunningScan {
        RunningScan { scan, next: 0, newest_generation, count: 0, found: Vec::new() }
    }

    /// What is scanned for.
    pub(in crate::worker) fn scan(&self) -> &Arc<ConnectionScan> {
        &self.scan
    }

    /// The next of `extent` places; `None` if all were passed.
    pub(in crate::worker) fn next_place(&mut self, extent: u32) -> Option<ConnectionId> {
        let place = self.next;
        (place < extent).then(|| {
            self.next += 1;
            ConnectionId::new(place)
        })
    }

    /// Whether a connection of this generation was there when the scan began.
    pub(in crate::worker) fn is_about(&self, generation: u32) -> bool {
        // Generations wrap around, and no connection is half a round old.
        self.newest_generation.wrapping_sub(generation) < u32::MAX / 2
    }

    /// Counts a connection.
    pub(in crate::worker) fn count(&mut self) {
        self.count += 1;
    }

    /// Lists a connection, if the scan lists any, up to its limit.
    pub(in crate::worker) fn list(&mut self, found: impl FnOnce() -> FoundConnection) {
        if let ScanAction::List { limit } = self.scan.action
            && self.found.len() < limit
        {
            self.found.push(found());
        }
    }

    /// Answers with what was found.
    pub(in crate::worker) fn finish(self) {
        self.scan.answer(self.count, self.found);
    }
}
