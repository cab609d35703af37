//! What has happened to an application's channels, and is not delivered yet.
//!
//! What is being sent stays here until it has arrived, so that what names a user who is erased can
//! be removed between two attempts.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::clock;
use tokio::sync::Notify;

use super::happened::{Happened, What};
use super::pending::Pending;
use super::repeats::Repeats;
use crate::delivery::DeliveryMetrics;

/// The most bytes of events that wait for one application. Clients choose the data of theirs.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// The most events and bytes of a request.
pub(super) const BATCH_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 256 << 10;

/// The time between two lines of the log about events that are dropped.
const OVERFLOW_QUIET_MS: u64 = 60_000;

#[derive(Debug, Default)]
struct State {
    /// Departures that wait for a return.
    pending: Pending,
    repeats: Repeats,
    /// What the application can be told now, in its order.
    ready: Vec<Happened>,
    /// The first ones of that, which are being sent.
    sending: usize,
    /// The bytes of all.
    bytes: usize,
    is_closed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Waiting {
    state: Mutex<State>,
    /// The most events that wait, beside those that are being sent; and the most departures.
    max: usize,
    changed: Notify,
    overflow: Overflow,
    metrics: Arc<DeliveryMetrics>,
}

/// Tells the operator of events that are dropped.
#[derive(Debug)]
struct Overflow {
    /// Whose events they are, for the log.
    of: String,
    state: Mutex<OverflowState>,
}

#[derive(Debug, Default)]
struct OverflowState {
    /// When it was logged last, in milliseconds.
    logged_ms: Option<u64>,
    /// Those that were dropped since.
    dropped: u64,
}

impl OverflowState {
    /// An event is dropped. Returns how many are since the last line, if there is to be another.
    fn count(&mut self, now_ms: u64) -> Option<u64> {
        self.dropped += 1;
        if self.logged_ms.is_some_and(|logged_ms| now_ms < logged_ms + OVERFLOW_QUIET_MS) {
            return None;
        }
        self.logged_ms = Some(now_ms);
        Some(std::mem::take(&mut self.dropped))
    }
}

/// What there is to deliver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outlook {
    /// How many are ready.
    pub(super) ready: usize,
    /// When a departure is due, in milliseconds since 1970.
    pub(super) next_ms: Option<u64>,
    /// True if nothing more will come.
    pub(super) is_closed: bool,
}

impl Waiting {
    /// `of` says whose events they are, for the log.
    pub(super) fn new(of: String, max: usize, metrics: Arc<DeliveryMetrics>) -> Waiting {
        let (state, changed) = (Mutex::default(), Notify::new());
        let overflow = Overflow { of, state: Mutex::default() };
        Waiting { state, max, changed, overflow, metrics }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event for which there is no room, and tells the operator once a minute.
    pub(super) fn drop_event(&self) {
        self.metrics.events.count("overflow");
        let mut state = self.overflow.state.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = state.count(clock::machine_ms());
        drop(state);
        if let Some(dropped) = dropped {
            tracing::warn!(
                "{} come faster than it takes them: {dropped} dropped",
                self.overflow.of
            );
        }
    }

    /// Takes what has happened, if there is room and it is news.
    pub(super) fn push(&self, happened: Happened) {
        let mut state = self.lock();
        if state.repeats.take(&happened) {
            return;
        }
        let is_full = state.ready.len() - state.sending >= self.max
            || state.bytes + happened.bytes() > BYTES_MAX;
        if state.is_closed || is_full {
            drop(state);
            return self.drop_event();
        }
        state.repeats.waits(&happened);
        self.take(&mut state, happened);
        drop(state);
        self.changed.notify_one();
    }

    fn take(&self, state: &mut State, happened: Happened) {
        state.bytes += happened.bytes();
        self.metrics.waiting.add(1);
        let State { pending, ready, sending, .. } = state;
        let gone = pending.take(happened, self.max, (ready, *sending));
        self.release(state, gone.into_iter().flatten());
    }

    /// These wait no longer.
    fn release(&self, state: &mut State, gone: impl IntoIterator<Item = Happened>) -> u64 {
        let (mut count, now_ms) = (0, clock::machine_ms());
        for happened in gone {
            state.bytes -= happened.bytes();
            count += 1;
            state.repeats.is_gone(now_ms, happened);
        }
        self.metrics.waiting.subtract(count);
        count
    }

    /// Takes these whatever room there is, and nothing after them. Nobody comes back any more.
    pub(super) fn close(&self, last: Vec<Happened>) {
        let mut state = self.lock();
        last.into_iter().for_each(|happened| self.take(&mut state, happened));
        let State { pending, ready, .. } = &mut *state;
        pending.until(u64::MAX, ready);
        state.is_closed = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a change: one may be told of already.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What there is to deliver now, with the departures that are due.
    pub(super) fn outlook(&self) -> Outlook {
        let mut state = self.lock();
        let State { pending, ready, .. } = &mut *state;
        pending.until(clock::machine_ms(), ready);
        let (ready, next_ms) = (ready.len(), pending.next_ms());
        Outlook { ready, next_ms, is_closed: state.is_closed }
    }

    /// The first ones are being sent. False if there are none.
    pub(super) fn begin_batch(&self) -> bool {
        let mut state = self.lock();
        let mut bytes = 0;
        let fits = |happened: &&Happened| {
            let fits = bytes < BATCH_BYTES_MAX;
            bytes += happened.bytes();
            fits
        };
        let State { ready, sending, repeats, .. } = &mut *state;
        *sending = ready.iter().take(BATCH_MAX).take_while(fits).count();
        ready[..*sending].iter().for_each(|happened| repeats.is_sent(happened));
        *sending > 0
    }

    /// Has `read` look at those that are being sent.
    pub(super) fn sending<T>(&self, read: impl FnOnce(&[Happened]) -> T) -> T {
        let state = self.lock();
        read(&state.ready[..state.sending])
    }

    /// Those that were being sent have arrived, or are given up.
    pub(super) fn end_batch(&self) {
        let mut state = self.lock();
        let count = std::mem::take(&mut state.sending);
        let sent: Vec<_> = state.ready.drain(..count).collect();
        self.release(&mut state, sent);
    }

    /// Drops what names a user, by the application's name of the user and of the user's channel,
    /// and happened before a time in milliseconds since 1970. Departures stay, as they say that the
    /// user is gone, unless the application has not been told before that the user is there.
    /// Returns how many are dropped. An attempt that is under way may still deliver them.
    pub(super) fn forget_user(&self, [user, channel]: [&str; 2], before_ms: u64) -> u64 {
        let mut state = self.lock();
        let mut untold = HashSet::<Box<str>>::new();
        let mut goes = |happened: &Happened| {
            if happened.at_ms >= before_ms || !happened.names(user, channel) {
                return false;
            }
            match happened.what {
                What::MemberAdded(_) | What::Occupied => {
                    untold.insert(happened.channel.clone());
                    true
                }
                What::MemberRemoved(_) | What::Vacated => untold.remove(&happened.channel),
                What::ClientEvent(_) | What::CacheMiss | What::Count(_) => true,
            }
        };
        let State { pending, ready, sending, .. } = &mut *state;
        let (mut kept, mut gone, of_batch) = (Vec::new(), Vec::new(), *sending);
        for (at, happened) in std::mem::take(ready).into_iter().enumerate() {
            if goes(&happened) {
                *sending -= usize::from(at < of_batch);
                gone.push(happened);
            } else {
                kept.push(happened);
            }
        }
        *ready = kept;
        gone.extend(pending.forget(goes));
        self.release(&mut state, gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_is_told_of_dropped_events_once_a_minute() {
        let mut state = OverflowState::default();
        let told = [5, 6, 60_004, 60_005, 60_006, 200_000].map(|now_ms| state.count(now_ms));
        assert_eq!(told, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
