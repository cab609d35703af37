//! What publishers count.

use std::collections::BTreeMap;
use std::fmt;

use rustix::io::Errno;

use crate::refusal::{self, Reason};
use crate::tally::{Failure, Nanoseconds, nanoseconds};

/// Why a message was not published, or is not known to have been.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PublishFailure {
    /// The connection failed, or the server's answer is a refusal.
    Connection(Failure),
    /// No answer in time.
    Unanswered,
    /// Too many messages were already waiting for their turn.
    Behind,
    /// It waited for its turn until the phase was over.
    Unsent,
}

impl Reason for PublishFailure {
    fn failure(&self) -> Option<&Failure> {
        match self {
            PublishFailure::Connection(failure) => Some(failure),
            _ => None,
        }
    }

    fn of(failure: Failure) -> PublishFailure {
        PublishFailure::Connection(failure)
    }
}

impl fmt::Display for PublishFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishFailure::Connection(failure) => failure.fmt(f),
            PublishFailure::Unanswered => f.write_str("no answer in time"),
            PublishFailure::Behind => f.write_str("not sent: too many waited for their turn"),
            PublishFailure::Unsent => f.write_str("not sent before the phase was over"),
        }
    }
}

/// What publishers have seen since they were last asked.
#[derive(Debug)]
pub struct PublishTally {
    /// Messages whose time has come.
    pub due: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that the server took; over a WebSocket, that the kernel took.
    pub published: u64,
    /// Messages that were not published, by reason.
    pub failures: BTreeMap<PublishFailure, u64>,
    /// Of these, messages of which nobody knows whether the server took them: sent, but not
    /// answered.
    pub unsure: u64,
    /// From the intended to the actual time of each send.
    pub lateness: Nanoseconds,
    /// From each send to its answer.
    pub answer: Nanoseconds,
    /// The time of the first send.
    pub first_sent_ns: Option<u64>,
    /// The time of the last send.
    pub last_sent_ns: Option<u64>,
}

impl Default for PublishTally {
    fn default() -> PublishTally {
        PublishTally {
            due: 0,
            sent: 0,
            published: 0,
            failures: BTreeMap::new(),
            unsure: 0,
            lateness: nanoseconds(),
            answer: nanoseconds(),
            first_sent_ns: None,
            last_sent_ns: None,
        }
    }
}

impl PublishTally {
    /// Counts a message that goes out now.
    pub fn send(&mut self, intended_ns: u64, now_ns: u64) {
        self.sent += 1;
        record(&mut self.lateness, now_ns.saturating_sub(intended_ns));
        self.first_sent_ns.get_or_insert(now_ns);
        self.last_sent_ns = Some(now_ns);
    }

    /// Counts messages that were not published.
    pub fn fail(&mut self, failure: PublishFailure, count: u64) {
        if count > 0 {
            refusal::count(&mut self.failures, failure, count);
        }
    }

    /// Adds what another thread, or the same one later, has seen.
    pub fn merge(&mut self, other: &PublishTally) {
        self.due += other.due;
        self.sent += other.sent;
        self.published += other.published;
        for (failure, count) in &other.failures {
            self.fail(failure.clone(), *count);
        }
        self.unsure += other.unsure;
        // Both grow as they must, so that adding cannot fail.
        let _ = self.lateness.add(&other.lateness);
        let _ = self.answer.add(&other.answer);
        let first = self.first_sent_ns.into_iter().chain(other.first_sent_ns).min();
        self.first_sent_ns = first;
        self.last_sent_ns = self.last_sent_ns.max(other.last_sent_ns);
    }
}

/// Adds a value to a histogram that grows as it must, so that it cannot fail. (What saturates does
/// not grow.)
pub fn record(histogram: &mut Nanoseconds, value_ns: u64) {
    let _ = histogram.record(value_ns);
}

/// What an error of a socket means.
pub fn failure_of(error: Errno) -> Failure {
    match error {
        Errno::CONNREFUSED => Failure::Refused,
        Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => Failure::Reset,
        Errno::TIMEDOUT => Failure::ConnectTimeout,
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => Failure::NoPorts,
        Errno::MFILE | Errno::NFILE => Failure::NoDescriptors,
        error => Failure::Os(error.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let (mut one, mut other) = (PublishTally::default(), PublishTally::default());
        one.send(100, 150);
        one.fail(PublishFailure::Unanswered, 1);
        other.send(100, 120);
        other.send(200, 190);
        other.fail(PublishFailure::Unanswered, 2);
        other.fail(PublishFailure::Behind, 0);
        one.merge(&other);
        assert_eq!((one.sent, one.first_sent_ns, one.last_sent_ns), (3, Some(120), Some(190)));
        assert_eq!(one.failures, BTreeMap::from([(PublishFailure::Unanswered, 3)]));
        assert_eq!((one.lateness.len(), one.lateness.max()), (3, 50));
    }
}
