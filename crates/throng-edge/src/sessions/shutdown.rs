//! How far a worker's shutdown has come: it stops accepting, later drains, then ends.
//!
//! A drain passes over the table of connections again and again, a slice at a time, until all are
//! closed or its time is over.
//!
//! A long-poll's client is between two polls again and again, and messages that were accepted
//! meanwhile are in the log only, which ends with the server. So while such clients may be about,
//! for the length of the window at most, the worker goes on to take connections: a poll for which
//! messages wait is answered, and one for which none wait is told when to come back.

use std::ops::Range;
use std::time::Duration;

use super::pace::Pace;
use crate::sockets::TICKS_PER_S;

/// Connections closed in one slice.
const DRAINED_PER_SLICE: u32 = 512;

/// However late the drain begins, messages under way have this long, in ticks.
const LATE_DRAIN_TICKS: u32 = TICKS_PER_S;

/// After the drain timeout, closing connections have this long, in ticks.
const LAST_TICKS: u32 = 3 * TICKS_PER_S;

/// The state of a worker's shutdown. All times are ticks.
#[derive(Debug, Default)]
pub(crate) struct Shutdown {
    /// When accepting stopped; `None` while accepting.
    stopped_accepting: Option<u32>,
    /// The time over which clients come back; `None` while accepting.
    return_window: Option<Duration>,
    /// The pace at which clients are asked to leave before the drain; `None` while they may stay.
    leave: Option<Pace>,
    drain: Option<Drain>,
}

#[derive(Debug)]
struct Drain {
    /// Messages that are not delivered by then are given up.
    deadline: u32,
    /// The index of the next connection to close in this pass over the table; `None` between two
    /// passes.
    next_index: Option<u32>,
    /// A pass before this tick would find nothing new.
    next_pass: u32,
    /// Clients that are between two long-polls are awaited until then.
    polls_until: u32,
    /// A client whose long-poll ended since then may come back on another connection.
    polls_since: u32,
    is_ended: bool,
}

/// Clients that may be between two long-polls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Polls {
    /// True if connections that were served a long-poll and wait for nothing are open.
    pub(crate) has_idle: bool,
    /// When a client last had an answer that it follows up on another connection.
    pub(crate) ended: Option<u32>,
}

/// Inputs of a drain, beside its own state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainInputs {
    pub(crate) tick: u32,
    pub(crate) polls: Polls,
    /// True if everything that was accepted has been offered to every subscriber.
    pub(crate) is_delivered: bool,
    /// All connections have indices below this; 0 if there are none.
    pub(crate) extent: u32,
}

/// The step of a drain in a slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DrainStep {
    /// There is nothing to do now.
    Wait,
    /// The connections with these indices are closed. If `is_late`, even those that lack messages;
    /// unless `awaits_polls`, even those whose clients may ask for something.
    Close {
        indices: Range<u32>,
        is_late: bool,
        awaits_polls: bool,
    },
    End,
}

impl Shutdown {
    /// Refuses new subscriptions for good, unless it did before. Clients come back within
    /// `return_window`.
    pub(crate) fn stop_accepting(&mut self, tick: u32, return_window: Duration) {
        self.stopped_accepting.get_or_insert(tick);
        self.return_window.get_or_insert(return_window);
    }

    /// The time over which clients come back; `None` before the shutdown.
    pub(crate) fn return_window(&self) -> Option<Duration> {
        self.return_window
    }

    pub(crate) fn has_stopped_accepting(&self) -> bool {
        self.stopped_accepting.is_some() || self.leave.is_some()
    }

    /// True if the worker is about to end, which nothing takes back.
    pub(crate) fn is_ending(&self) -> bool {
        self.stopped_accepting.is_some()
    }

    /// Refuses new subscriptions, and asks this many clients to leave within `over` ticks. A second
    /// call begins anew, with the new time.
    pub(crate) fn leave(&mut self, tick: u32, over: u32, clients: u32) {
        self.leave = Some(Pace::new(tick, over, clients));
    }

    /// Serves as before [`Shutdown::leave`]. What has ended stays ended.
    pub(crate) fn stay(&mut self) {
        self.leave = None;
    }

    /// The next connection whose client is asked to leave now, if it can be; `None` at the end of
    /// the slice, and once the drain has begun, which closes all. All connections have indices
    /// below `extent`.
    pub(crate) fn next_to_leave(&mut self, tick: u32, extent: u32) -> Option<u32> {
        let pace = self.leave.as_mut().filter(|_| self.drain.is_none())?;
        pace.next(tick, extent)
    }

    /// The client of the last connection is asked to leave.
    pub(crate) fn note_asked_to_leave(&mut self) {
        self.leave.iter_mut().for_each(Pace::note_asked);
    }

    /// Starts the drain of a worker that takes no more subscriptions, unless it has been started.
    /// The time since accepting stopped counts towards the `timeout`. Clients between two
    /// long-polls are awaited for the `window`.
    pub(crate) fn start_drain(&mut self, tick: u32, timeout: u32, window: u32) {
        let stopped = self.stopped_accepting.unwrap_or(tick);
        let deadline = stopped.saturating_add(timeout).max(tick.saturating_add(LATE_DRAIN_TICKS));
        self.drain.get_or_insert(Drain {
            deadline,
            next_index: None,
            next_pass: 0,
            polls_until: tick.saturating_add(window).min(deadline),
            polls_since: tick.saturating_sub(window),
            is_ended: false,
        });
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.is_ended)
    }

    /// True if there is a slice to do at once.
    pub(crate) fn has_work(&self) -> bool {
        let has_more = self.leave.as_ref().is_some_and(Pace::has_more);
        match &self.drain {
            Some(drain) => drain.next_index.is_some() && !drain.is_ended,
            None => has_more,
        }
    }

    /// True if the worker drains and clients may be between two long-polls.
    pub(crate) fn awaits_polls(&self, tick: u32, polls: Polls) -> bool {
        // The worker does not drain.
        let Some(drain) = &self.drain else { return false };
        let has_left = polls.ended.is_some_and(|ended| ended >= drain.polls_since);
        tick < drain.polls_until && (polls.has_idle || has_left)
    }

    /// The drain's next step. A slice that closes connections ends a pass with the last one; the
    /// next pass begins in a later tick.
    pub(crate) fn next_step(&mut self, inputs: DrainInputs) -> DrainStep {
        let DrainInputs { tick, polls, is_delivered, extent } = inputs;
        let awaits_polls = self.awaits_polls(tick, polls);
        // The worker does not drain.
        let Some(drain) = &mut self.drain else { return DrainStep::Wait };
        if !awaits_polls {
            // The listener is closed now: no poll can come later.
            drain.polls_until = tick;
        }
        let is_over = tick >= drain.deadline.saturating_add(LAST_TICKS);
        if is_over || (extent == 0 && !awaits_polls) {
            drain.is_ended = true;
            return DrainStep::End;
        }
        let is_late = tick >= drain.deadline;
        let first = match drain.next_index {
            // Messages accepted before the drain are delivered first, while there is time.
            _ if !is_delivered && !is_late => return DrainStep::Wait,
            Some(index) => index,
            None if tick >= drain.next_pass => 0,
            None => return DrainStep::Wait,
        };
        let end = extent.min(first.saturating_add(DRAINED_PER_SLICE));
        drain.next_index = (end < extent).then_some(end);
        drain.next_pass = tick + 1;
        DrainStep::Close { indices: first..end, is_late, awaits_polls }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker of which everything is delivered, with connections below this index.
    fn inputs(tick: u32, extent: u32) -> DrainInputs {
        DrainInputs { tick, polls: Polls::default(), is_delivered: true, extent }
    }

    fn closing(indices: Range<u32>) -> DrainStep {
        DrainStep::Close { indices, is_late: false, awaits_polls: false }
    }

    #[test]
    fn the_drain_timeout_counts_from_the_end_of_accepting() {
        let deadline = |stopped, started| {
            let mut shutdown = Shutdown::default();
            shutdown.stop_accepting(stopped, Duration::ZERO);
            shutdown.start_drain(started, 100, 50);
            shutdown.start_drain(started + 70, 100, 50);
            shutdown.drain.map(|drain| drain.deadline)
        };
        assert_eq!(deadline(0, 0), Some(100));
        assert_eq!(deadline(0, 60), Some(100));
        assert_eq!(deadline(0, 200), Some(200 + LATE_DRAIN_TICKS), "a moment is left in any case");
    }

    #[test]
    fn a_drain_awaits_returning_polls_for_its_window() {
        let mut shutdown = Shutdown::default();
        let ended = |tick| Polls { ended: Some(tick), has_idle: false };
        let idle = Polls { has_idle: true, ended: Some(900) };
        assert!(!shutdown.awaits_polls(1000, idle), "it does not drain");
        shutdown.start_drain(1000, 100, 50);
        assert!(shutdown.awaits_polls(1049, ended(960)));
        assert!(!shutdown.awaits_polls(1050, ended(960)));
        assert!(!shutdown.awaits_polls(1001, ended(900)), "its client has come back long ago");
        assert!(shutdown.awaits_polls(1001, idle), "a client has kept its connection");
    }

    #[test]
    fn a_worker_that_does_not_drain_has_nothing_to_do() {
        let mut shutdown = Shutdown::default();
        shutdown.stop_accepting(0, Duration::ZERO);
        assert_eq!(shutdown.next_step(inputs(1000, 5)), DrainStep::Wait);
        assert!(shutdown.has_stopped_accepting() && !shutdown.has_work() && !shutdown.is_ended());
    }

    #[test]
    fn a_pass_closes_all_connections_once_a_tick() {
        let mut shutdown = Shutdown::default();
        shutdown.start_drain(0, 100, 50);
        let extent = DRAINED_PER_SLICE + 10;
        assert_eq!(shutdown.next_step(inputs(1, extent)), closing(0..DRAINED_PER_SLICE));
        assert!(shutdown.has_work());
        assert_eq!(shutdown.next_step(inputs(1, extent)), closing(DRAINED_PER_SLICE..extent));
        assert!(!shutdown.has_work());
        assert_eq!(shutdown.next_step(inputs(1, 10)), DrainStep::Wait);
        assert_eq!(shutdown.next_step(inputs(2, 10)), closing(0..10));
        assert_eq!(shutdown.next_step(inputs(3, 0)), DrainStep::End);
        assert!(shutdown.is_ended());
    }

    #[test]
    fn undelivered_messages_are_awaited_until_the_deadline() {
        let mut shutdown = Shutdown::default();
        shutdown.start_drain(0, 100, 50);
        let mut step =
            |tick| shutdown.next_step(DrainInputs { is_delivered: false, ..inputs(tick, 10) });
        assert_eq!(step(99), DrainStep::Wait);
        let late = DrainStep::Close { indices: 0..10, is_late: true, awaits_polls: false };
        assert_eq!(step(100), late);
        assert_eq!(step(100 + LAST_TICKS), DrainStep::End, "although connections are left");
    }

    #[test]
    fn no_poll_is_awaited_once_none_was() {
        let mut shutdown = Shutdown::default();
        shutdown.start_drain(0, 100, 50);
        assert_eq!(shutdown.next_step(inputs(1, 10)), closing(0..10));
        let polls = Polls { has_idle: true, ended: None };
        let idle = DrainInputs { polls, ..inputs(2, 10) };
        assert_eq!(shutdown.next_step(idle), closing(0..10), "the listener is closed since");
    }
}
