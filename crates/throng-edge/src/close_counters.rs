//! The counters of the reasons for which connections are closed.

use throng_dialect::CloseReason;

use crate::counters::Counter;

/// The counter of a reason. [`Counter::Closed`] counts every connection beside it.
pub(crate) fn counter_of(reason: CloseReason) -> Option<Counter> {
    match reason {
        CloseReason::Complete => None,
        CloseReason::Peer => Some(Counter::ClosedByPeer),
        CloseReason::SocketError => Some(Counter::ClosedBySocketError),
        CloseReason::Idle => Some(Counter::ClosedIdle),
        CloseReason::PingTimeout => Some(Counter::ClosedPingTimeout),
        CloseReason::Lagging => Some(Counter::ClosedLagging),
        CloseReason::Slow => Some(Counter::ClosedSlow),
        CloseReason::Memory => Some(Counter::ClosedMemory),
        CloseReason::Draining => Some(Counter::ClosedDraining),
        CloseReason::Ended => Some(Counter::ClosedEnded),
        CloseReason::Overload => Some(Counter::ClosedOverload),
        CloseReason::Unanswered => Some(Counter::ClosedUnanswered),
        CloseReason::Expired | CloseReason::TokenExpired => Some(Counter::ClosedExpired),
        CloseReason::Unidentified => Some(Counter::ClosedUnidentified),
        CloseReason::Revoked => Some(Counter::ClosedRevoked),
        CloseReason::Disconnected(_) => Some(Counter::ClosedDisconnected),
        CloseReason::Evicted => Some(Counter::ClosedEvicted),
        CloseReason::ProxyHeader => Some(Counter::RefusedProxy),
        CloseReason::TlsFailed => Some(Counter::ClosedByTls),
        CloseReason::Limited => Some(Counter::ClosedLimited),
        CloseReason::BadAck => Some(Counter::ClosedBadAck),
        CloseReason::Pipelining
        | CloseReason::Violation(_)
        | CloseReason::BinaryCommand
        | CloseReason::Refused(_) => Some(Counter::ClosedForViolation),
    }
}

/// The word for a reason in metrics, events and the log.
pub(crate) fn label_of(reason: CloseReason) -> &'static str {
    counter_of(reason).map_or("complete", |counter| counter.label_value())
}
