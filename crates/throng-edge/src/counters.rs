//! The counters of each worker. To add one, add a row to the table below; `/metrics` shows all.
//!
//! Each set of counters has one writer, so that counting is a plain load and store. Any thread may
//! read them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use throng_core::Histogram;
use throng_wire::subscribe::{Request, Transport};

/// Declares [`Counter`]. A row gives a metric's name and help text, and its counter in braces; a
/// metric with a label has one counter for each value of the label.
macro_rules! counters {
    ($($metric:literal $help:literal $(by $label:ident)?
        { $($variant:ident $($value:literal)?),+ $(,)? })*) => {
        /// One thing that a worker counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $help] $variant,)+)* }

        impl Counter {
            /// All counters. The counters of a metric are consecutive.
            pub const ALL: &'static [Counter] = &[$($(Counter::$variant,)+)*];

            /// The metric's name, without the prefix `throng_`.
            pub fn metric(self) -> &'static str {
                match self { $($(Counter::$variant => $metric,)+)* }
            }

            /// The metric's help text.
            pub fn help(self) -> &'static str {
                match self { $($(Counter::$variant => $help,)+)* }
            }

            /// The name of the metric's label; `None` for a metric without one.
            pub fn label(self) -> Option<&'static str> {
                match self { $($(Counter::$variant)|+ => counters!(@label $($label)?),)* }
            }

            /// The value of the label; empty for a metric without one.
            pub fn label_value(self) -> &'static str {
                match self { $($(Counter::$variant => concat!($($value)?),)+)* }
            }
        }
    };
    (@label) => { None };
    (@label $label:ident) => { Some(stringify!($label)) };
}

counters! {
    "connections_accepted_total" "Connections accepted." { Accepted }
    "accept_failures_total"
        "Connections that could not be accepted because descriptors or memory were short."
        { AcceptFailed }
    "io_uring_failures_total"
        "Workers that stopped using io_uring because it failed: their fan-outs use Linux AIO, or a \
        system call for each subscriber."
        { IoUringFailed }
    "io_uring_sends_total" "Writes that went through io_uring, many in one system call."
        { IoUringSends }
    "connections_closed_total" "Connections closed, for any reason." { Closed }
    "handoffs_total" "Connections that a worker handed off, by recipient." by to {
        HandedOffToControl "control",
        HandedOffToWorker "worker",
    }
    "connections_subscribed_total" "Connections that subscribed, by transport." by transport {
        SubscribedWebSocket "websocket",
        SubscribedSse "sse",
        SubscribedStream "stream",
        SubscribedPoll "poll",
        SubscribedStatus "status",
    }
    "websockets_compressed_total" "WebSockets that negotiated permessage-deflate."
        { SubscribedDeflate }
    "websocket_messages_published_total" "Messages published over WebSockets." { MessagesPublished }
    "deliveries_total" "Messages written to subscribers." { Deliveries }
    "messages_compressed_total"
        "Messages compressed for WebSockets, once for all; those with an envelope count by \
        themselves."
        { MessagesCompressed }
    "messages_inflated_total" "Compressed messages of clients that were inflated."
        { MessagesInflated }
    "status_deliveries_total" "Samples written to viewers of the status page."
        { StatusDeliveries }
    "canary_deliveries_total" "Messages of the canary written to its own connections."
        { CanaryDeliveries }
    "sent_bytes_total" "Bytes written to subscribers." { SentBytes }
    "joined_frames_total" "Frames that were written with several messages." { JoinedFrames }
    "writes_blocked_total" "Writes that a socket did not take completely." { WritesBlocked }
    "deliveries_deferred_total"
        "Writes to one connection that were split so that other connections get their turn."
        { DeliveriesDeferred }
    "heartbeats_sent_total" "Heartbeats sent, without pings." { Heartbeats }
    "pings_sent_total" "Pings sent." { Pings }
    "gaps_total" "Gaps reported to subscribers." { Gaps }
    "messages_skipped_total"
        "Messages that a subscriber did not get because it exceeded its lag limit (policy skip)."
        { MessagesSkipped }
    "volatile_dropped_total"
        "Deliveries of volatile messages that were not made: the subscriber was behind, the worker \
        was, too many of the channel waited, or a new process took over."
        by reason {
        VolatileDroppedBehind "behind",
        VolatileDroppedBusy "busy",
        VolatileDroppedShare "share",
        VolatileDroppedUpgrade "upgrade",
    }
    "messages_conflated_total"
        "Messages that a slow subscriber skipped for newer ones, of the same key or by the lag \
        policy latest; over NATS, where nobody can count them, the notices of that."
        { MessagesConflated }
    "replay_messages_evicted_total"
        "Messages no longer buffered for slow subscribers because the replay buffers were full."
        { ReplayMessagesEvicted }
    "refused_total" "Connections and requests that a worker refused, by reason." by reason {
        RefusedHead "head",
        RefusedTooSlow "too_slow",
        RefusedOrigin "origin",
        RefusedHost "host",
        RefusedSubscribe "subscribe",
        RefusedUpgrade "upgrade",
        RefusedFull "full",
        RefusedBusy "busy",
        RefusedDraining "draining",
        RefusedCommand "command",
        RefusedProxy "proxy_header",
        RefusedLimit "limit",
        RefusedStorm "storm",
    }
    "waits_total"
        "Requests and commands that waited for a decision, or for another answer from elsewhere."
        { Waited }
    "waits_timed_out_total" "Requests and commands refused because no answer came in time."
        { WaitsTimedOut }
    "answers_unawaited_total"
        "Answers that came when their connections had gone, or had been refused."
        { UnawaitedAnswers }
    "late_notices_total"
        "Notices to clients that messages are late, or no longer late."
        { ToldLate }
    "subscriptions_revoked_total"
        "Subscriptions that ended because a newer token of their client does not grant them."
        { SubscriptionsRevoked }
    "disconnects_total" "Connections that ended, by reason." by reason {
        ClosedByPeer "peer",
        ClosedBySocketError "socket_error",
        ClosedForViolation "protocol_violation",
        ClosedLagging "lag",
        ClosedSlow "slow",
        ClosedMemory "memory",
        ClosedPingTimeout "ping_timeout",
        ClosedIdle "idle",
        ClosedDraining "draining",
        ClosedEnded "ended",
        ClosedOverload "overload",
        ClosedEvicted "evicted",
        ClosedUnanswered "unanswered",
        ClosedExpired "expired",
        ClosedRevoked "revoked",
        ClosedUnidentified "unidentified",
        ClosedDisconnected "disconnected",
        ClosedLimited "limit",
        ClosedBadAck "bad_ack",
        ClosedByTls "tls",
    }
    "tls_handshakes_total" "TLS handshakes that ended, by result." by result {
        TlsHandshakes "full",
        TlsHandshakesResumed "resumed",
        TlsHandshakesFailed "failed",
        TlsHandshakesAbandoned "abandoned",
        TlsHandshakesStalled "stalled",
        TlsNotSpoken "not_tls",
    }
    "tls_connections_established_total" "TLS connections after their handshakes, by cipher suite."
        by suite {
        Tls13Aes128 "tls13_aes_128_gcm",
        Tls13Aes256 "tls13_aes_256_gcm",
        Tls13ChaCha20 "tls13_chacha20_poly1305",
        Tls12Aes128 "tls12_aes_128_gcm",
        Tls12Aes256 "tls12_aes_256_gcm",
        Tls12ChaCha20 "tls12_chacha20_poly1305",
    }
    "tls_records_sealed_total" "TLS records with content that were written to clients."
        { TlsRecords }
    "tls_key_updates_total"
        "Key updates sent to clients, because they asked for them or a key was worn out."
        { TlsKeyUpdates }
    "tls_alerts_total" "TLS alerts except close_notify, by direction."
        by direction {
        TlsAlertsSent "sent",
        TlsAlertsReceived "received",
    }
    "tls_truncated_total"
        "TLS connections whose clients, or somebody between, ended them without saying so."
        { TlsTruncated }
}

const COUNTERS: usize = Counter::ALL.len();

/// How a parked connection receives its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Parked {
    WebSocket,
    Sse,
    Stream,
    /// A long poll that waits for its response.
    Poll,
    /// A viewer of the status page.
    Status,
    /// A connection of the server's own canary, over any transport.
    Canary,
}

impl Parked {
    /// All variants, in the order of their counts.
    pub const ALL: [Parked; 6] = [
        Parked::WebSocket,
        Parked::Sse,
        Parked::Stream,
        Parked::Poll,
        Parked::Status,
        Parked::Canary,
    ];
}

/// The counters of one worker, which is their only writer.
#[derive(Debug)]
pub struct Counters {
    counts: [AtomicU64; COUNTERS],
    parked: [AtomicU64; Parked::ALL.len()],
    /// TLS handshakes that are under way now.
    pub(crate) handshakes: AtomicU32,
    /// The time from accepting a message to its last write, of messages whose last write was this
    /// worker's.
    pub latency: Histogram,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            parked: Default::default(),
            handshakes: AtomicU32::new(0),
            latency: Histogram::default(),
        }
    }
}

impl Counter {
    /// The counter of subscriptions like this one.
    pub(crate) fn of_subscription(request: &Request) -> Counter {
        match request.transport {
            _ if request.is_status() => Counter::SubscribedStatus,
            Transport::WebSocket { .. } => Counter::SubscribedWebSocket,
            Transport::Sse => Counter::SubscribedSse,
            Transport::Stream => Counter::SubscribedStream,
            Transport::LongPoll { .. } => Counter::SubscribedPoll,
        }
    }
}

impl Counters {
    /// Adds `amount`. Only one thread may call this.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.counts[counter as usize];
        cell.store(cell.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    /// The counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// The TLS handshakes that have ended, whatever their result.
    pub fn handshakes_ended(&self) -> u64 {
        let all = [
            Counter::TlsHandshakes,
            Counter::TlsHandshakesResumed,
            Counter::TlsHandshakesFailed,
            Counter::TlsHandshakesAbandoned,
            Counter::TlsHandshakesStalled,
        ];
        all.into_iter().map(|counter| self.get(counter)).sum()
    }

    /// Counts a connection that was parked. Only one thread may call this.
    pub fn park(&self, parked: Parked) {
        let cell = &self.parked[parked as usize];
        cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a connection that is parked no longer. Only one thread may call this.
    pub(crate) fn unpark(&self, parked: Parked) {
        let cell = &self.parked[parked as usize];
        cell.store(cell.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Connections that are parked now.
    pub fn parked(&self, parked: Parked) -> u64 {
        self.parked[parked as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_metric_are_consecutive_and_distinct() {
        let mut metrics: Vec<&str> = Vec::new();
        for (index, counter) in Counter::ALL.iter().enumerate() {
            if metrics.last() != Some(&counter.metric()) {
                assert!(!metrics.contains(&counter.metric()), "{counter:?}");
                metrics.push(counter.metric());
            }
            let twin = |other: &&Counter| {
                (other.metric(), other.label_value()) == (counter.metric(), counter.label_value())
            };
            assert_eq!(Counter::ALL[..index].iter().find(twin), None);
            assert_eq!(counter.label().is_some(), !counter.label_value().is_empty());
        }
    }
}
