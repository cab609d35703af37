//! Counts of a thread's clients or publishing connections. The counts of all threads are added up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use crate::failure::Failure;
use crate::protocol::refusal;
use crate::sums::{LongestNs, Nanoseconds, Sum, TimeSpan, sums};
use crate::tls::TlsCounts;

sums! {
    /// Counts of one thread since the last request for them. States are added, too: add counts of
    /// different threads at one time, or set the states afterwards.
    #[derive(Debug, Default, Serialize, Deserialize)]
    pub struct ClientCounts {
        /// The current states of its clients.
        pub states: States,
        /// The current ages of clients that follow several channels.
        #[serde(default)]
        pub readers: Vec<ReaderAge>,
        /// Connects that were started.
        pub attempts: u64,
        /// Clients that became subscribed.
        pub subscribed: u64,
        /// Clients closed on purpose.
        pub ended: u64,
        /// Clients that the server told when to come back, and that did.
        pub told: u64,
        /// Failures by reason.
        #[serde(serialize_with = "by_text")]
        pub failures: BTreeMap<Failure, u64>,
        /// Messages with a mark.
        pub received: u64,
        /// Messages sent before the client was subscribed; not in `received`.
        pub early: u64,
        /// Messages of a stream that the client does not follow; not in `received`.
        pub stray: u64,
        /// Messages without a mark: welcomes, notices, replies of protocols.
        pub unmarked: u64,
        /// Bytes that were received.
        pub received_bytes: u64,
        /// Answered pings, of WebSocket and of protocols.
        pub pings: u64,
        /// Heartbeats that need no answer: pongs, comments of an event stream, empty lines of a
        /// stream.
        pub heartbeats: u64,
        /// From the start of the first connect to the last subscription. Other machines have other
        /// clocks, here and below.
        #[serde(skip)]
        pub connecting: TimeSpan,
        /// From the first message to the last, with or without a mark.
        #[serde(skip)]
        pub arriving: TimeSpan,
        /// From the start of a connect to the subscription.
        pub connect: Nanoseconds,
        /// From the scheduled time of a message to each delivery.
        pub delivery: Nanoseconds,
        /// The longest time between two polls for events. Receive timestamps are late by up to
        /// this.
        pub lag_ns: LongestNs,
        /// Tunnel packets lost or retransmitted by either side.
        pub repeated: u64,
        /// TLS handshakes that succeeded.
        pub(crate) tls: TlsCounts,
        /// Counts of publishing connections, which agents have none of.
        #[serde(skip)]
        pub(crate) publishes: PublishCounts,
    }
}

sums! {
    /// Messages of publishing connections.
    #[derive(Debug, Default)]
    pub(crate) struct PublishCounts {
        /// Messages that were due.
        pub(crate) due: u64,
        /// Messages that were sent.
        pub(crate) sent: u64,
        /// Messages that the server accepted; over a WebSocket, the kernel.
        pub(crate) published: u64,
        /// Messages that were not published, by reason.
        pub(crate) failures: BTreeMap<Failure, u64>,
        /// Failed messages that the server may have accepted: sent, but not answered.
        pub(crate) unsure: u64,
        /// From the scheduled to the actual time of each send.
        pub(crate) lateness: Nanoseconds,
        /// From each send to its response.
        pub(crate) answer: Nanoseconds,
        /// From the first send to the last.
        pub(crate) sending: TimeSpan,
    }
}

sums! {
    /// Clients by state.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct States {
        /// Clients that are connecting, or waiting for the confirmation of the subscription.
        pub connecting: u64,
        /// Clients that are subscribed.
        pub active: u64,
        /// Clients that were closed by either side, and are not reconnecting.
        pub closed: u64,
    }
}

/// How old the messages were that a client has handled so far, and how far it is behind now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderAge {
    /// The median age of a message when the client handled it.
    pub(crate) p50_us: u64,
    /// The 99th percentile.
    pub(crate) p99_us: u64,
    /// The highest.
    pub(crate) max_us: u64,
    /// For how long it has missed the next message of a channel, of the one that is most behind.
    pub(crate) behind_us: u64,
}

impl Sum for Vec<ReaderAge> {
    fn add(&mut self, other: &Vec<ReaderAge>) {
        self.extend(other);
    }
}

impl ClientCounts {
    /// Counts a failure.
    pub fn fail(&mut self, failure: Failure) {
        refusal::count(&mut self.failures, failure, 1);
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
    pub(crate) fn fail(&mut self, failure: &Failure, count: usize) {
        if count > 0 {
            refusal::count(&mut self.failures, failure.clone(), count as u64);
        }
    }
}

/// Serializes failures by their texts, of which several failures may have the same.
fn by_text<S: Serializer>(failures: &BTreeMap<Failure, u64>, to: S) -> Result<S::Ok, S::Error> {
    let mut texts = BTreeMap::<String, u64>::new();
    for (failure, count) in failures {
        *texts.entry(failure.to_string()).or_default() += count;
    }
    texts.serialize(to)
}

#[cfg(test)]
mod tests {
    use throng_tls::Suite;

    use super::*;

    #[test]
    fn publishes_add_up() {
        let (mut one, mut other) = (PublishCounts::default(), PublishCounts::default());
        one.send(100, 150);
        one.fail(&Failure::Unanswered, 1);
        other.send(100, 120);
        other.send(200, 190);
        other.fail(&Failure::Unanswered, 2);
        other.fail(&Failure::Behind, 0);
        one += &other;
        assert_eq!(
            (one.sent, one.sending.first_ns(), one.sending.last_ns()),
            (3, Some(120), Some(190))
        );
        assert_eq!(one.failures, BTreeMap::from([(Failure::Unanswered, 3)]));
        assert_eq!((one.lateness.len(), one.lateness.max()), (3, 50));
    }

    #[test]
    fn counts_survive_the_round_trip() {
        let mut counts = ClientCounts {
            attempts: 5,
            received: 3,
            lag_ns: LongestNs(9),
            repeated: 4,
            ..ClientCounts::default()
        };
        counts.states = States { connecting: 1, active: 2, closed: 3 };
        counts.tls.add(Suite::Tls12Aes256Gcm, true, 7_000);
        counts.fail(Failure::Handshake("no upgrade"));
        counts.fail(Failure::Status(503));
        counts.delivery.record_n(1_234_567, 3).unwrap();
        let json = serde_json::to_string(&counts).unwrap();
        let back: ClientCounts = serde_json::from_str(&json).unwrap();
        assert_eq!((back.states, back.attempts, back.received), (counts.states, 5, 3));
        assert_eq!(
            (&back.delivery, back.lag_ns, back.repeated),
            (&counts.delivery, LongestNs(9), 4)
        );
        assert_eq!((back.tls.kinds, back.tls.resumed()), (counts.tls.kinds, 1));
        assert_eq!(back.tls.time, counts.tls.time);
        let words: Vec<String> = back.failures.keys().map(ToString::to_string).collect();
        assert_eq!(words, ["handshake: no upgrade", "status 503"]);
    }
}
