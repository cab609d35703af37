//! Channels that nobody follows any more, until it is time to cease following them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::ChannelName;
use throng_core::events::{Event, EventSink};

/// For how long a channel stays followed without subscribers: people come back.
const STAY_MS: u64 = 10_000;

/// Channels without subscribers, the first that lost its last one first. Stands before the
/// application's sink of events.
#[derive(Debug)]
pub(super) struct Vacancies {
    queue: Mutex<VecDeque<(u64, ChannelName)>>,
    next: Option<Arc<dyn EventSink>>,
}

impl Vacancies {
    /// `next` gets all events, too.
    pub(super) fn new(next: Option<Arc<dyn EventSink>>) -> Vacancies {
        Vacancies { queue: Mutex::default(), next }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, ChannelName)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody follows this channel, as far as the caller knows.
    pub(super) fn add(&self, now_ms: u64, channel: &ChannelName) {
        self.lock().push_back((now_ms + STAY_MS, channel.clone()));
    }

    /// The next channel that was without subscribers for long enough; they may have come back.
    pub(super) fn due(&self, now_ms: u64) -> Option<ChannelName> {
        let mut queue = self.lock();
        let is_due = queue.front().is_some_and(|(due_ms, _)| *due_ms <= now_ms);
        if is_due { queue.pop_front().map(|(_, name)| name) } else { None }
    }
}

impl EventSink for Vacancies {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        if let Event::Vacated(channel) = event {
            self.add(now_ms, channel);
        }
        if let Some(next) = &self.next {
            next.notify(now_ms, event);
        }
    }

    fn next(&self) -> Option<&dyn EventSink> {
        self.next.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_due_some_time_after_its_last_subscriber() {
        let vacancies = Vacancies::new(None);
        let room = ChannelName::channel("room");
        vacancies.notify(5, Event::Occupied(&room));
        vacancies.notify(7, Event::Vacated(&room));
        assert_eq!(vacancies.due(7 + STAY_MS - 1), None);
        assert_eq!(vacancies.due(7 + STAY_MS), Some(room));
        assert_eq!(vacancies.due(u64::MAX), None);
    }
}
