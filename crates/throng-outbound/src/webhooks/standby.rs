//! What concerns all of several nodes, and is not sent here so far.

use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::events::{Dropped, Event, Standby};

use super::happened::Happened;

/// The events of an application on a node that may not be the one that sends them.
#[derive(Debug)]
pub(super) struct OnStandby {
    events: Mutex<Standby<Happened>>,
    most: usize,
}

impl OnStandby {
    /// At most so many events.
    pub(super) fn new(most: usize) -> OnStandby {
        OnStandby { events: Mutex::default(), most }
    }

    fn lock(&self) -> MutexGuard<'_, Standby<Happened>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Standby::take`].
    pub(super) fn take(
        &self,
        now_ms: u64,
        happened: Happened,
    ) -> Result<Option<Happened>, Dropped<Happened>> {
        self.lock().take(now_ms, happened, self.most)
    }

    /// As [`Standby::forget`]: all of before a time that names a user.
    pub(super) fn forget_user(&self, [user, channel]: [&str; 2], before_ms: u64) -> u64 {
        self.lock().forget(|happened| happened.at_ms < before_ms && happened.names(user, channel))
    }

    /// Which node leads is known, or not any more. `send` sends what is to be sent now.
    pub(super) fn follow(&self, now_ms: u64, event: Event<'_>, send: impl Fn(Happened)) {
        // Under the lock, so that nothing that happens meanwhile is sent before.
        let mut events = self.lock();
        match event {
            Event::Leads(up_to_ms) => events.leads(up_to_ms).into_iter().for_each(send),
            _ => events.follows(now_ms),
        }
    }

    /// As [`Standby::end`].
    pub(super) fn end(&self) -> Vec<Happened> {
        self.lock().end()
    }
}
