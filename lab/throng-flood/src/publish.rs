//! Publishes in an open loop. Each message has a scheduled time before the first one is sent, and
//! carries it in its mark. A server that is slow to respond makes messages late, and pays for it:
//! latencies count from the scheduled time.
//!
//! [`schedule`] says when each message is sent, and to which stream, whatever the server does. The
//! connections are a [`ClientPool`] of their own; see `clients/publisher.rs`.

pub(crate) mod schedule;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clients::{ClientCommand, ClientPool, ClientPoolError, ClientSet as _};
use crate::counts::PublishCounts;
use crate::plan::{Plan, Target};
use crate::streams::StreamCounters;
use schedule::Schedule;

const POLL_STEP: Duration = Duration::from_millis(2);

/// The settings of a run's publishers.
pub(crate) struct PublisherSettings<'a> {
    /// The server, and how to speak to it.
    pub target: &'a Target,
    /// The number of the run, for the marks.
    pub run: u32,
    /// The counters that tell clients what is published.
    pub counters: Arc<StreamCounters>,
    /// The most clients at any time.
    pub max_clients: usize,
    /// The highest rate of all phases.
    pub max_rate: f64,
}

/// All publishing connections. Dropping it closes them.
pub(crate) struct Publishers {
    pool: ClientPool,
    connections: usize,
}

impl Publishers {
    /// Starts the threads, if the plan publishes; nothing connects yet.
    pub(crate) fn of_plan(
        plan: &Plan,
        run: u32,
        counters: &Arc<StreamCounters>,
    ) -> Result<Option<Publishers>, ClientPoolError> {
        let settings = |max_rate| PublisherSettings {
            target: &plan.target,
            run,
            counters: Arc::clone(counters),
            max_clients: plan.max_clients(),
            max_rate,
        };
        plan.max_rate().map(|max_rate| Publishers::start(&settings(max_rate))).transpose()
    }

    /// Starts the threads; nothing connects yet.
    pub(crate) fn start(settings: &PublisherSettings<'_>) -> Result<Publishers, ClientPoolError> {
        let publish =
            settings.target.publish.as_ref().ok_or_else(ClientPoolError::no_publish_target)?;
        let connections = publish.connections.max(1);
        Ok(Publishers { pool: ClientPool::start_publishers(settings, connections)?, connections })
    }

    /// Opens the connections, and waits until all are ready or have failed, or for `timeout`.
    /// Later errors show up as failed messages.
    pub(crate) fn open(&self, timeout: Duration) {
        let (to, rate) = (self.connections, None);
        // Each thread opens all that it has at once.
        self.pool.command(ClientCommand::Ramp { to, rate, in_flight: to * to });
        let deadline = Instant::now() + timeout;
        while self.pool.ask(|thread| thread.is_opening()).contains(&true)
            && Instant::now() < deadline
        {
            std::thread::sleep(POLL_STEP);
        }
    }

    /// Starts to publish. The rest of an earlier schedule is dropped.
    pub(crate) fn begin(&self, schedule: Schedule, size: usize) {
        self.pool.ask(move |thread| thread.publish(schedule, size));
    }

    /// Ends the schedule. Messages that are due are still sent.
    pub(crate) fn end(&self) {
        self.pool.ask(|thread| thread.end_publishing());
    }

    /// Gives up all messages that are not published.
    pub(crate) fn abandon(&self) {
        self.pool.ask(|thread| thread.abandon());
    }

    /// Whether every message is sent and answered, or given up.
    pub(crate) fn is_idle(&self) -> bool {
        !self.pool.ask(|thread| thread.has_published()).contains(&false)
    }

    /// The counts since the last call.
    pub(crate) fn counts(&self) -> PublishCounts {
        self.pool.counts().publishes
    }
}

/// The last sequence of each stream, for the audit.
pub(crate) fn sent(counters: &StreamCounters) -> Arc<[u64]> {
    (0..counters.streams()).map(|stream| u64::from(counters.last_published(stream))).collect()
}
