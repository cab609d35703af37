//! Delivers what the journal has written.

use std::sync::Arc;

use throng_core::parts::{OPEN_BYTES_MAX, Parts};
use throng_core::{
    ChannelName, Content, JournalId, MemoryEngine, Receipt, Retention, Stamp, StateLimits, clock,
};

use super::expired_runs::ExpiredRuns;
use super::shared::EngineShared;
use crate::journal::{Answering, JournalServer};
use crate::logs::Logs;

/// Where many publishers are answered at once.
type AnswerAt = dyn Fn(Answering) + Send + Sync;

/// The parts of the server that the thread `journal-answers` needs. Clones are the same.
#[derive(Clone)]
pub struct AnswerDelivery {
    shared: Arc<EngineShared>,
    answer_at: Arc<AnswerAt>,
}

impl AnswerDelivery {
    /// Delivers what is in `logs` to the followers that `memory` knows, as the first journal of its
    /// rules. `memory` has the positions of the logs ([`MemoryEngine::with_positions`]).
    pub fn new(memory: Arc<MemoryEngine>, logs: Arc<Logs>) -> AnswerDelivery {
        AnswerDelivery::with_parts(JournalId(0), memory, logs, OPEN_BYTES_MAX)
    }

    /// The same, as this journal of the rules. Its parts of logs that wait for clients take this
    /// many bytes at most.
    pub fn with_parts(
        id: JournalId,
        memory: Arc<MemoryEngine>,
        logs: Arc<Logs>,
        max_bytes: usize,
    ) -> AnswerDelivery {
        logs.use_holder_seed(memory.holder_seed());
        let (parts, expired) = (Arc::new(Parts::new(max_bytes)), ExpiredRuns::default());
        let shared = EngineShared {
            memory,
            id,
            logs,
            parts,
            expired,
            #[cfg(test)]
            called_ms: Default::default(),
        };
        let shared = Arc::new(shared);
        AnswerDelivery { shared, answer_at: Arc::new(|answers| answers()) }
    }

    /// The same, which has many publishers answered by `answer_at`: see [`JournalServer::answer`].
    #[must_use]
    pub fn answering_at(
        self,
        answer_at: impl Fn(Answering) + Send + Sync + 'static,
    ) -> AnswerDelivery {
        AnswerDelivery { answer_at: Arc::new(answer_at), ..self }
    }

    pub(super) fn shared(&self) -> Arc<EngineShared> {
        Arc::clone(&self.shared)
    }
}

impl JournalServer for AnswerDelivery {
    fn now_ms(&self) -> u64 {
        clock::now_ms()
    }

    fn retention_of(&self, channel: &ChannelName) -> Option<Retention> {
        self.shared.durable(channel).map(|rule| rule.retention)
    }

    fn state_limits(&self, channel: &ChannelName) -> StateLimits {
        self.shared.memory.rule(channel).state
    }

    fn retention(&self) -> String {
        self.shared.memory.rules().kept_by(self.shared.id)
    }

    fn begin_group(&self) {
        self.shared.memory.begin_group();
    }

    fn next_stamp(&self) -> Stamp {
        self.shared.memory.next_stamp()
    }

    fn deliver(&self, content: &Arc<Content>, receipt: Option<&Arc<Receipt>>) -> u64 {
        self.shared.memory.deliver(content, receipt, || self.shared.parts.append(content))
    }

    fn followed_head(&self, channel: &ChannelName) -> Option<u64> {
        self.shared.memory.followed_head(channel)
    }

    fn end_group(&self) {
        self.shared.memory.end_group();
    }

    fn note_mortal(&self, channel: &ChannelName) {
        self.shared.memory.note_mortal(channel);
    }

    fn newest_stamp(&self) -> Stamp {
        self.shared.memory.newest_stamp()
    }

    fn unreadable(&self, what: &str) {
        tracing::error!("an entry of the data directory cannot be read: {what}");
    }

    fn answer(&self, answers: Answering) {
        (self.answer_at)(answers);
    }
}
