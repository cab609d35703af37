//! Counts of publishers.

use std::collections::BTreeMap;
use std::fmt;

use crate::failure::Failure;
use crate::protocol::refusal::{self, Reason};
use crate::sums::{Nanoseconds, TimeSpan, sums};

/// Why a message was not published, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PublishFailure {
    /// The connection failed, or the server rejected the message.
    Connection(Failure),
    /// The response did not come in time.
    Unanswered,
    /// Too many messages were waiting to be sent.
    Behind,
    /// The phase ended before it was sent.
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
            PublishFailure::Behind => f.write_str("not sent: too many messages were waiting"),
            PublishFailure::Unsent => f.write_str("not sent before the phase was over"),
        }
    }
}

sums! {
    /// Counts since the last request for them.
    #[derive(Debug, Default)]
    pub(crate) struct PublishCounts {
        /// Messages that were due.
        pub due: u64,
        /// Messages that were sent.
        pub sent: u64,
        /// Messages that the server accepted; over a WebSocket, the kernel.
        pub published: u64,
        /// Messages that were not published, by reason.
        pub failures: BTreeMap<PublishFailure, u64>,
        /// Failed messages that the server may have accepted: sent, but not answered.
        pub unsure: u64,
        /// From the scheduled to the actual time of each send.
        pub lateness: Nanoseconds,
        /// From each send to its response.
        pub answer: Nanoseconds,
        /// From the first send to the last.
        pub sending: TimeSpan,
    }
}

impl PublishCounts {
    /// Counts a message that is sent now.
    pub(crate) fn send(&mut self, intended_ns: u64, now_ns: u64) {
        self.sent += 1;
        self.lateness.record(now_ns.saturating_sub(intended_ns));
        self.sending.note(now_ns);
    }

    /// Counts messages that were not published.
    pub(crate) fn fail(&mut self, failure: PublishFailure, count: u64) {
        if count > 0 {
            refusal::count(&mut self.failures, failure, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let (mut one, mut other) = (PublishCounts::default(), PublishCounts::default());
        one.send(100, 150);
        one.fail(PublishFailure::Unanswered, 1);
        other.send(100, 120);
        other.send(200, 190);
        other.fail(PublishFailure::Unanswered, 2);
        other.fail(PublishFailure::Behind, 0);
        one += &other;
        assert_eq!(
            (one.sent, one.sending.first_ns(), one.sending.last_ns()),
            (3, Some(120), Some(190))
        );
        assert_eq!(one.failures, BTreeMap::from([(PublishFailure::Unanswered, 3)]));
        assert_eq!((one.lateness.len(), one.lateness.max()), (3, 50));
    }
}
