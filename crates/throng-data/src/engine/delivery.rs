//! Delivers what the journal has written.

use std::sync::Arc;

use throng_core::{ChannelName, Content, MemoryEngine, Receipt, Retention, Stamp, clock};

use super::shared::Shared;
use crate::journal::Server;
use crate::logs::Logs;

/// What the thread `journal-answers` needs of the server. Clones are the same.
#[derive(Clone)]
pub struct Delivery(Arc<Shared>);

impl Delivery {
    /// Delivers what is in `logs` to the followers that `memory` knows. `memory` has the positions
    /// of the logs ([`MemoryEngine::with_positions`]).
    pub fn new(memory: Arc<MemoryEngine>, logs: Arc<Logs>) -> Delivery {
        Delivery(Arc::new(Shared { memory, logs, parts: Arc::default() }))
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.0)
    }
}

impl Server for Delivery {
    fn now_ms(&self) -> u64 {
        clock::now_ms()
    }

    fn retention_of(&self, channel: &ChannelName) -> Option<Retention> {
        self.0.durable(channel).map(|rule| rule.retention)
    }

    fn retention(&self) -> String {
        self.0.memory.rules().durable_retention()
    }

    fn begin_group(&self) {
        self.0.memory.begin_group();
    }

    fn next_stamp(&self) -> Stamp {
        self.0.memory.next_stamp()
    }

    fn deliver(&self, content: &Arc<Content>, receipt: Option<&Arc<Receipt>>) -> u64 {
        self.0.memory.deliver(content, receipt, || self.0.parts.append(content))
    }

    fn end_group(&self) {
        self.0.memory.end_group();
    }

    fn newest_stamp(&self) -> Stamp {
        self.0.memory.newest_stamp()
    }
}
