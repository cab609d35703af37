//! Who is in a channel.
//!
//! Nothing is kept for it: the workers that follow the channel look through their subscriptions
//! when somebody asks, and whoever answers last completes the answer.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Presence {
    /// Connections that follow the channel.
    pub connections: usize,
    /// The users they belong to, each once, in order.
    pub users: Vec<Box<str>>,
    /// Whether there are more users than were asked for.
    pub is_cut: bool,
}

type Done = Box<dyn FnOnce(Presence) + Send>;

/// A question on its way through the workers.
pub struct PresenceQuestion {
    users_max: usize,
    connections: usize,
    found: Mutex<(BTreeSet<Box<str>>, bool)>,
    unanswered: AtomicUsize,
    done: Mutex<Option<Done>>,
}

impl std::fmt::Debug for PresenceQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PresenceQuestion")
            .field("users_max", &self.users_max)
            .finish_non_exhaustive()
    }
}

impl PresenceQuestion {
    /// A question to `workers` workers; `done` gets the answer on the thread that completes it.
    pub fn new(
        users_max: usize,
        connections: usize,
        workers: usize,
        done: impl FnOnce(Presence) + Send + 'static,
    ) -> PresenceQuestion {
        PresenceQuestion {
            users_max,
            connections,
            found: Mutex::default(),
            unanswered: AtomicUsize::new(workers),
            done: Mutex::new(Some(Box::new(done))),
        }
    }

    /// The most users worth naming.
    pub fn users_max(&self) -> usize {
        self.users_max
    }

    /// One worker's answer: the users that it found, `is_cut` if it stopped looking.
    pub fn answer(&self, users: impl IntoIterator<Item = Box<str>>, is_cut: bool) {
        {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.0.extend(users);
            found.1 |= is_cut;
        }
        if self.unanswered.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    /// Completes the answer. Called by whoever answers last, or at once if nobody is asked.
    pub fn finish(&self) {
        let Some(done) = self.done.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let (users, is_cut) =
            std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        let is_cut = is_cut || users.len() > self.users_max;
        let users = users.into_iter().take(self.users_max).collect();
        done(Presence { connections: self.connections, users, is_cut });
    }
}
