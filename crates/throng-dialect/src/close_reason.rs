//! The reasons for which a connection is closed, and the close frame of each in our own dialects.

use std::borrow::Cow;

use throng_wire::ErrorCode;
use throng_wire::websocket::{Violation, close_code};

/// The reason for which a connection closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// Its last response is written. If that was an error, the error is counted, not the close.
    Complete,
    /// The client has closed it, or is gone.
    Peer,
    /// The kernel cannot watch the socket.
    SocketError,
    /// The client sent no request in time.
    Idle,
    PingTimeout,
    /// Messages that the client has not read are gone, and the lag policy is to close.
    Lagging,
    /// The client has been behind for longer than its channel allows.
    Slow,
    /// The server is short of memory, and the client holds much of it by not reading.
    Memory,
    Draining,
    /// It buffers too much, or delivery does not keep up.
    Overload,
    /// All channels that it followed have ended.
    Ended,
    /// An answer that a message of it needs did not come in time.
    Unanswered,
    /// The time until which the access policy allowed it has come.
    Expired,
    TokenExpired,
    /// Its client had to show who it is, and has not in time.
    Unidentified,
    Revoked,
    /// The application has closed it, with this close code.
    Disconnected(u16),
    /// Its request head is incomplete and another connection needs the place.
    Evicted,
    /// It does not begin with the PROXY header that its listener expects.
    ProxyHeader,
    /// Its handshake failed, or what came was no record that it may send.
    TlsFailed,
    /// Its client is beyond a limit.
    Limited,
    /// More pipelined input than one request head may have.
    Pipelining,
    /// A frame that breaks RFC 6455 or is too large.
    Violation(Violation),
    /// It acknowledges frames that it was not sent.
    BadAck,
    /// A binary frame on `throng.v1`.
    BinaryCommand,
    /// A frame's request is refused. A plain WebSocket has no other way to say so.
    Refused(ErrorCode),
}

impl CloseReason {
    /// The code and the text of the close frame; `None` for a reason that is closed without one.
    pub(crate) fn close_frame(self) -> Option<(u16, &'static str)> {
        let of_error = |code: ErrorCode| code.close_code().map(|close| (close, code.message()));
        match self {
            CloseReason::PingTimeout => {
                Some((close_code::PING_TIMEOUT, "a ping was not answered in time"))
            }
            CloseReason::Expired => {
                Some((close_code::EXPIRED, "the permission of this connection has expired"))
            }
            CloseReason::TokenExpired => of_error(ErrorCode::TokenExpired),
            CloseReason::Unidentified => {
                let code = ErrorCode::Unauthorized.close_code();
                code.map(|code| (code, "the client has not shown who it is in time"))
            }
            CloseReason::Revoked => of_error(ErrorCode::TokenRevoked),
            CloseReason::Disconnected(code) => Some((code, "")),
            CloseReason::Lagging => {
                // Fits a close frame, whose reason has at most 123 bytes (RFC 6455 section 5.5).
                let message =
                    "lag limit exceeded: unread messages are gone; resume with the last id";
                Some((close_code::LAGGING, message))
            }
            CloseReason::Slow => {
                let message = "unread messages have waited for too long; resume with the last id";
                Some((close_code::LAGGING, message))
            }
            CloseReason::BadAck => {
                Some((close_code::BAD_ACK, "frames were acknowledged that had not been sent"))
            }
            CloseReason::Ended => Some((close_code::NORMAL, "the channel has ended")),
            CloseReason::Draining => of_error(ErrorCode::Draining),
            CloseReason::Overload | CloseReason::Unanswered => of_error(ErrorCode::Busy),
            CloseReason::Violation(violation) => {
                Some((violation.close_code(), violation.message()))
            }
            CloseReason::BinaryCommand => {
                Some((close_code::UNSUPPORTED_DATA, "throng.v1 has text frames only"))
            }
            CloseReason::Refused(code) => of_error(code),
            CloseReason::Limited => of_error(ErrorCode::TooManyRequests),
            CloseReason::Complete
            | CloseReason::Peer
            | CloseReason::SocketError
            | CloseReason::Idle
            | CloseReason::Memory
            | CloseReason::Evicted
            | CloseReason::ProxyHeader
            | CloseReason::TlsFailed
            | CloseReason::Pipelining => None,
        }
    }

    /// The sentence for people, where the place of the close knows no better one.
    pub fn message(self) -> &'static str {
        self.close_frame().map_or("", |(_, message)| message)
    }

    /// `message` as the reason of the close frame. One that ends the connection for good begins
    /// with its error's code, by which clients tell this server's close from a proxy's.
    pub fn named(self, message: &str) -> Cow<'_, str> {
        let error = match self {
            CloseReason::Violation(violation) => violation.error(),
            CloseReason::BinaryCommand => ErrorCode::BadRequest,
            CloseReason::Refused(code) => code,
            _ => return message.into(),
        };
        match self.close_frame() {
            // The other codes of our own say it themselves.
            Some((code, _))
                if code < close_code::LAGGING || code == close_code::BAD_COMPRESSION =>
            {
                format!("{error}: {message}").into()
            }
            _ => message.into(),
        }
    }

    /// The word for it in the last event of a stream that the server ends.
    pub fn word(self) -> &'static str {
        match self {
            CloseReason::TokenExpired => ErrorCode::TokenExpired.name(),
            CloseReason::Revoked => ErrorCode::TokenRevoked.name(),
            _ => "disconnected",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_frame_has_the_close_code_of_its_error() {
        for &code in ErrorCode::ALL {
            let sent = CloseReason::Refused(code).close_frame().map(|(close_code, _)| close_code);
            assert_eq!(sent, code.close_code(), "{code}");
        }
    }

    #[test]
    fn a_close_for_good_begins_with_its_error() {
        for (reason, begins) in [
            (CloseReason::Violation(Violation::Masking), "bad_request: the frame"),
            (CloseReason::Violation(Violation::NotUtf8), "bad_utf8: "),
            (CloseReason::Violation(Violation::TooLarge), "too_large: "),
            (CloseReason::Violation(Violation::NotDeflate), "bad_compression: "),
            (CloseReason::BinaryCommand, "bad_request: "),
            (CloseReason::Refused(ErrorCode::Forbidden), "forbidden: "),
            (CloseReason::Refused(ErrorCode::TooSlow), "too_slow: "),
            (CloseReason::Refused(ErrorCode::TokenExpired), "the token"),
            (CloseReason::Lagging, "lag limit"),
        ] {
            let (_, message) = reason.close_frame().expect("a close frame");
            let named = reason.named(message);
            assert!(named.starts_with(begins), "{named}");
            assert!(named.len() <= 123 && named.ends_with(message), "{named}");
        }
    }

    #[test]
    fn every_close_code_is_in_the_list() {
        let reasons = [
            CloseReason::PingTimeout,
            CloseReason::Lagging,
            CloseReason::Ended,
            CloseReason::Draining,
            CloseReason::Overload,
            CloseReason::Expired,
            CloseReason::BadAck,
            CloseReason::BinaryCommand,
            CloseReason::Violation(Violation::Masking),
            CloseReason::Violation(Violation::NotUtf8),
            CloseReason::Violation(Violation::NotDeflate),
            CloseReason::Violation(Violation::TooLarge),
            CloseReason::Refused(ErrorCode::Forbidden),
            CloseReason::Refused(ErrorCode::TooSlow),
            CloseReason::Refused(ErrorCode::Unauthorized),
            CloseReason::Refused(ErrorCode::TokenRevoked),
            CloseReason::Refused(ErrorCode::TooManyRequests),
        ];
        let mut sent: Vec<u16> =
            reasons.iter().filter_map(|reason| Some(reason.close_frame()?.0)).collect();
        sent.extend(ErrorCode::Forbidden.subscription_close_code());
        sent.sort_unstable();
        assert_eq!(sent, close_code::ALL);
    }
}
