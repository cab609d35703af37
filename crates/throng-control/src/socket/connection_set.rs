//! The open connections of a listener, and which of them is evicted when a new one needs its place.
//!
//! A connection that waits for its client, because the next request has not arrived completely or
//! because the client does not read the response, costs the client nothing. If such connections
//! kept their places, a few clients could keep all others out. So the one that has made no progress
//! for longest is closed for a new connection.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of connections that one search for an idle connection checks. The next search
/// continues with the next connection.
const CHECKS_MAX: usize = 256;

/// Below this length the queue is not searched for tasks that have ended.
const COMPACT_MIN: usize = 128;

/// The progress that a connection reports, by which idle ones are found.
#[derive(Debug)]
pub(crate) struct Activity(AtomicU64);

impl Activity {
    /// The activity of a connection whose task has not run yet: its request is here and waits for
    /// the server.
    fn new() -> Activity {
        let activity = Activity(AtomicU64::new(0));
        activity.report(0, true);
        activity
    }

    /// Reports the connection's state. `progress` changes whenever bytes are read or written;
    /// `is_busy` is set while the client waits for the server.
    pub(crate) fn report(&self, progress: u64, is_busy: bool) {
        self.0.store(progress << 1 | u64::from(is_busy), Ordering::Relaxed);
    }
}

/// No connection reports this value, so a connection is never idle at its first check.
const UNCHECKED: u64 = u64::MAX;

#[derive(Debug)]
struct QueuedConnection {
    task: AbortHandle,
    activity: Arc<Activity>,
    /// The report at the last check.
    last_report: u64,
}

impl QueuedConnection {
    /// True if the connection waits for its client and has made no progress since the last check.
    fn is_idle(&mut self) -> bool {
        let report = self.activity.0.load(Ordering::Relaxed);
        let is_busy = report & 1 == 1;
        std::mem::replace(&mut self.last_report, report) == report && !is_busy
    }
}

/// The tasks of the open connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSet {
    tasks: JoinSet<()>,
    /// In the order of their last check, the longest ago first. May contain tasks that have ended.
    queue: VecDeque<QueuedConnection>,
}

impl ConnectionSet {
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds a connection, which `serve` serves until it ends.
    pub(crate) fn spawn<F>(&mut self, serve: impl FnOnce(Arc<Activity>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.queue.len() >= COMPACT_MIN.max(2 * self.tasks.len()) {
            self.queue.retain(|entry| !entry.task.is_finished());
        }
        let activity = Arc::new(Activity::new());
        let task = self.tasks.spawn(serve(Arc::clone(&activity)));
        self.queue.push_back(QueuedConnection { task, activity, last_report: UNCHECKED });
    }

    /// Closes the connection that has been idle for longest. Returns whether there is one.
    pub(crate) fn evict_idle(&mut self) -> bool {
        // Twice around, because the first check of a connection only records its state.
        for _ in 0..CHECKS_MAX.min(2 * self.queue.len()) {
            let Some(mut entry) = self.queue.pop_front() else { break };
            if entry.task.is_finished() {
                continue;
            }
            if entry.is_idle() {
                entry.task.abort();
                return true;
            }
            self.queue.push_back(entry);
        }
        false
    }

    /// Waits until a connection ends; `None` if there is none.
    pub(crate) async fn join_next(&mut self) -> Option<()> {
        self.tasks.join_next().await.map(drop)
    }

    /// Closes all connections without waiting for their tasks.
    pub(crate) fn abort_all(&mut self) {
        self.tasks.abort_all();
    }

    /// Closes all connections and waits for their tasks.
    pub(crate) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that never end, and the activity of each.
    fn connections(count: usize) -> (ConnectionSet, Vec<Arc<Activity>>) {
        let mut set = ConnectionSet::default();
        let mut activities = Vec::new();
        for _ in 0..count {
            set.spawn(|activity| {
                activities.push(activity);
                std::future::pending()
            });
        }
        (set, activities)
    }

    #[tokio::test]
    async fn the_connection_idle_for_longest_is_evicted() {
        let (mut set, activities) = connections(3);
        activities.iter().for_each(|activity| activity.report(0, false));
        activities[0].report(5, false);
        assert!(set.evict_idle());
        set.join_next().await;
        assert_eq!(Arc::strong_count(&activities[0]), 1, "all are idle since the first check");
        activities[1].report(7, false);
        assert!(set.evict_idle());
        set.join_next().await;
        assert_eq!(Arc::strong_count(&activities[2]), 1);
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_the_server_is_kept() {
        let (mut set, activities) = connections(2);
        activities.iter().for_each(|activity| activity.report(1, true));
        assert!(!set.evict_idle());
        activities[1].report(2, false);
        assert!(set.evict_idle());
        set.join_next().await;
        assert_eq!((set.len(), Arc::strong_count(&activities[0])), (1, 2));
    }

    #[tokio::test]
    async fn a_connection_whose_task_has_not_run_is_kept() {
        let (mut set, activities) = connections(2);
        activities[0].report(1, true);
        assert!(!set.evict_idle());
        activities[1].report(0, false);
        assert!(set.evict_idle());
    }

    #[tokio::test]
    async fn ended_connections_do_not_accumulate_in_the_queue() {
        let mut set = ConnectionSet::default();
        for _ in 0..1000 {
            set.spawn(|_| std::future::ready(()));
            set.join_next().await;
            assert!(set.queue.len() <= COMPACT_MIN);
        }
        assert!(!set.evict_idle());
    }
}
