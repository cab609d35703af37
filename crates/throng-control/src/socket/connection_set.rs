//! The connections of the control plane, and which of them gives way when there is no room.
//!
//! A connection on which the client has the next word, because its next request has not come whole
//! or because it does not take its answer, costs its client nothing. Were it to keep its place, a
//! few of them would keep everybody else out. So the one that has been silent for longest is closed
//! for a new one.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Connections looked at for one that gives way, at most: the next search goes on from there.
const LOOKS_MAX: usize = 256;

/// Shorter queues are not worth looking through.
const SWEEP_MIN: usize = 128;

/// What a connection tells about itself.
#[derive(Debug)]
pub(crate) struct Activity(AtomicU64);

impl Activity {
    /// Of one that has not had its first turn: its request, which is here, waits for us.
    fn new() -> Activity {
        let activity = Activity(AtomicU64::new(0));
        activity.tell(0, true);
        activity
    }

    /// Records the connection's activity. `progress` changes whenever bytes come or go; `is_ours`
    /// is set while the client waits for the server.
    pub(crate) fn tell(&self, progress: u64, is_ours: bool) {
        self.0.store(progress << 1 | u64::from(is_ours), Ordering::Relaxed);
    }
}

/// Told by none: a connection that was never looked at is not silent.
const UNSEEN: u64 = u64::MAX;

/// One connection in the queue.
#[derive(Debug)]
struct Guest {
    task: AbortHandle,
    activity: Arc<Activity>,
    /// What it told when it was looked at last.
    seen: u64,
}

impl Guest {
    /// Whether nothing has come or gone since the last look, and the client has the next word.
    fn is_silent(&mut self) -> bool {
        let told = self.activity.0.load(Ordering::Relaxed);
        let is_ours = told & 1 == 1;
        std::mem::replace(&mut self.seen, told) == told && !is_ours
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    tasks: JoinSet<()>,
    /// Those that were looked at last come last.
    queue: VecDeque<Guest>,
}

impl Guests {
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Takes a connection in.
    pub(crate) fn spawn<F>(&mut self, serve: impl FnOnce(Arc<Activity>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.queue.len() >= SWEEP_MIN.max(2 * self.tasks.len()) {
            self.queue.retain(|guest| !guest.task.is_finished());
        }
        let activity = Arc::new(Activity::new());
        let task = self.tasks.spawn(serve(Arc::clone(&activity)));
        self.queue.push_back(Guest { task, activity, seen: UNSEEN });
    }

    /// Closes the connection that has been silent for longest. Returns whether there is one.
    pub(crate) fn make_way(&mut self) -> bool {
        for _ in 0..LOOKS_MAX.min(2 * self.queue.len()) {
            let Some(mut guest) = self.queue.pop_front() else { break };
            if guest.task.is_finished() {
                continue;
            }
            if guest.is_silent() {
                guest.task.abort();
                return true;
            }
            self.queue.push_back(guest);
        }
        false
    }

    /// Waits for one to end; `None` if there is none.
    pub(crate) async fn join_next(&mut self) -> Option<()> {
        self.tasks.join_next().await.map(drop)
    }

    pub(crate) fn abort_all(&mut self) {
        self.tasks.abort_all();
    }

    /// Ends all of them.
    pub(crate) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that never end, and what each of them tells.
    fn guests(count: usize) -> (Guests, Vec<Arc<Activity>>) {
        let mut guests = Guests::default();
        let mut told = Vec::new();
        for _ in 0..count {
            guests.spawn(|activity| {
                told.push(activity);
                std::future::pending()
            });
        }
        (guests, told)
    }

    #[tokio::test]
    async fn the_one_that_has_been_silent_for_longest_gives_way() {
        let (mut guests, told) = guests(3);
        told.iter().for_each(|activity| activity.tell(0, false));
        told[0].tell(5, false);
        assert!(guests.make_way());
        guests.join_next().await;
        assert_eq!(Arc::strong_count(&told[0]), 1, "all were silent since the first look");
        told[1].tell(7, false);
        assert!(guests.make_way());
        guests.join_next().await;
        assert_eq!(Arc::strong_count(&told[2]), 1);
    }

    #[tokio::test]
    async fn one_that_waits_for_us_stays() {
        let (mut guests, told) = guests(2);
        told.iter().for_each(|activity| activity.tell(1, true));
        assert!(!guests.make_way());
        told[1].tell(2, false);
        assert!(guests.make_way());
        guests.join_next().await;
        assert_eq!((guests.len(), Arc::strong_count(&told[0])), (1, 2));
    }

    #[tokio::test]
    async fn one_that_has_not_had_its_first_turn_stays() {
        let (mut guests, told) = guests(2);
        told[0].tell(1, true);
        assert!(!guests.make_way());
        told[1].tell(0, false);
        assert!(guests.make_way());
    }

    #[tokio::test]
    async fn those_that_have_ended_do_not_pile_up() {
        let mut guests = Guests::default();
        for _ in 0..1000 {
            guests.spawn(|_| std::future::ready(()));
            guests.join_next().await;
            assert!(guests.queue.len() <= SWEEP_MIN);
        }
        assert!(!guests.make_way());
    }
}
