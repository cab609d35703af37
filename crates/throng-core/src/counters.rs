//! What each worker counts.
//!
//! Each set has one writer, so that counting is a plain load and store; anybody may read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::Histogram;

macro_rules! counters {
    ($($variant:ident $name:literal $help:literal,)*) => {
        /// One thing that is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $(#[doc = $help] $variant,)* }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// The name under which it is published, without prefix. What stands in braces are
            /// labels.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// One sentence about it.
            pub fn help(self) -> &'static str {
                match self { $(Counter::$variant => $help,)* }
            }
        }
    };
}

counters! {
    Accepted "connections_accepted_total" "Connections accepted.",
    AcceptFailed "accept_failures_total"
        "Times that no connection could be accepted for want of descriptors or memory.",
    RingFailed "io_uring_failures_total"
        "Workers whose io_uring failed: their fan-outs take a call for each subscriber since.",
    RingSends "io_uring_sends_total" "Writes that went through io_uring, many in one call.",
    Closed "connections_closed_total" "Connections closed, for whatever reason.",
    HandedToControl "connections_handed_to_control_total"
        "Connections handed to the control plane.",
    HandedToWorker "connections_handed_to_worker_total"
        "Connections handed to another worker for want of room.",
    SubscribedWebSocket "subscriptions_total{transport=\"websocket\"}"
        "Connections parked, by transport.",
    SubscribedSse "subscriptions_total{transport=\"sse\"}" "Connections parked, by transport.",
    SubscribedStream "subscriptions_total{transport=\"stream\"}"
        "Connections parked, by transport.",
    SubscribedPoll "subscriptions_total{transport=\"poll\"}" "Connections parked, by transport.",
    SubscribedStatus "subscriptions_total{transport=\"status\"}"
        "Connections parked, by transport.",
    Published "messages_published_total" "Messages accepted from connections of this worker.",
    Deliveries "deliveries_total" "Messages written to subscribers.",
    StatusDeliveries "status_deliveries_total" "Samples written to viewers of the status page.",
    SentBytes "sent_bytes_total" "Bytes written to subscribers.",
    Blocked "writes_blocked_total" "Writes that the socket did not take whole.",
    Postponed "turns_postponed_total"
        "Times that a connection was to be written more than others could wait for.",
    Heartbeats "heartbeats_total" "Heartbeats sent, without pings.",
    Pings "pings_total" "Pings sent, which want an answer.",
    Gaps "gaps_total" "Resumes or subscribers that were told of a gap.",
    MissedMessages "messages_missed_total"
        "Messages that a subscriber behind did not get (policy skip).",
    DroppedForRoom "messages_dropped_for_room_total"
        "Messages no longer held for subscribers that do not read, as those took too much in all.",
    RefusedHead "refused_total{reason=\"head\"}" "Connections or requests refused, by reason.",
    RefusedSlowHead "refused_total{reason=\"too_slow\"}"
        "Connections or requests refused, by reason.",
    RefusedOrigin "refused_total{reason=\"origin\"}" "Connections or requests refused, by reason.",
    RefusedHost "refused_total{reason=\"host\"}" "Connections or requests refused, by reason.",
    RefusedSubscribe "refused_total{reason=\"subscribe\"}"
        "Connections or requests refused, by reason.",
    RefusedFull "refused_total{reason=\"full\"}" "Connections or requests refused, by reason.",
    RefusedBusy "refused_total{reason=\"busy\"}" "Connections or requests refused, by reason.",
    RefusedDraining "refused_total{reason=\"draining\"}"
        "Connections or requests refused, by reason.",
    RefusedCommand "refused_total{reason=\"command\"}"
        "Connections or requests refused, by reason.",
    ClosedByPeer "closed_total{reason=\"peer\"}" "Connections closed, by reason.",
    ClosedByError "closed_total{reason=\"socket_error\"}" "Connections closed, by reason.",
    ClosedForViolation "closed_total{reason=\"protocol_violation\"}"
        "Connections closed, by reason.",
    ClosedBehind "closed_total{reason=\"behind\"}" "Connections closed, by reason.",
    ClosedSilent "closed_total{reason=\"silent\"}" "Connections closed, by reason.",
    ClosedIdle "closed_total{reason=\"idle\"}" "Connections closed, by reason.",
    ClosedDraining "closed_total{reason=\"draining\"}" "Connections closed, by reason.",
    ClosedOverload "closed_total{reason=\"overload\"}" "Connections closed, by reason.",
    ClosedForRoom "closed_total{reason=\"room\"}" "Connections closed, by reason.",
}

/// How many there are.
pub const COUNTERS: usize = Counter::ALL.len();

/// How a parked connection gets its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Parked {
    /// A WebSocket.
    WebSocket,
    /// Server-sent events.
    Sse,
    /// A chunked stream.
    Stream,
    /// A long-poll that waits for its answer.
    Poll,
    /// A viewer of the status page.
    Status,
}

impl Parked {
    /// All of them.
    pub const ALL: [Parked; 5] =
        [Parked::WebSocket, Parked::Sse, Parked::Stream, Parked::Poll, Parked::Status];

    /// The word for it, as in `transport="websocket"`.
    pub fn name(self) -> &'static str {
        match self {
            Parked::WebSocket => "websocket",
            Parked::Sse => "sse",
            Parked::Stream => "stream",
            Parked::Poll => "poll",
            Parked::Status => "status",
        }
    }
}

/// One writer's counts.
#[derive(Debug)]
pub struct Counters {
    counts: [AtomicU64; COUNTERS],
    parked: [AtomicU64; Parked::ALL.len()],
    /// Of messages whose last write was this worker's: the time since they were accepted.
    pub latency: Histogram,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            parked: Default::default(),
            latency: Histogram::default(),
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

    /// The count so far.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// One more parked connection. Only one thread may call this.
    pub fn park(&self, parked: Parked) {
        let cell = &self.parked[parked as usize];
        cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// One parked connection less. Only one thread may call this.
    pub fn unpark(&self, parked: Parked) {
        let cell = &self.parked[parked as usize];
        cell.store(cell.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Connections that are parked now.
    pub fn parked(&self, parked: Parked) -> u64 {
        self.parked[parked as usize].load(Ordering::Relaxed)
    }
}
