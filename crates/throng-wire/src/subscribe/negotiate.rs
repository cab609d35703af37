//! Transport negotiation: the query parameter, otherwise the headers, in the order of the
//! reference.

use super::handshake::{self, Subprotocol, WebSocketHandshake};
use super::options::ConnectionOption;
use super::query::{NamedTransport, Query, WAIT_S_MAX};
use crate::error::{ErrorCode, ErrorResponse};
use crate::head::Head;
use crate::prefer;
use crate::websocket::ACCEPT_BYTES;
use crate::websocket::extension::Deflate;

/// How long a long-poll waits unless the client says, in milliseconds: less than the idle timeout
/// of common proxies, one minute.
pub(super) const WAIT_MS_DEFAULT: u32 = 30_000;

/// How messages arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Frames of a WebSocket.
    WebSocket {
        /// The value of `Sec-WebSocket-Accept`.
        accept: [u8; ACCEPT_BYTES],
        /// The selected sub-protocol, if the client offers one that the server knows.
        subprotocol: Option<Subprotocol>,
        /// The offer of `permessage-deflate` to accept, if the server compresses.
        deflate: Option<Deflate>,
    },
    Sse,
    /// An endless chunked body, one message per line.
    Stream,
    /// One response, once there is a message.
    LongPoll {
        /// How long to wait for a message, in milliseconds.
        wait_ms: u32,
    },
}

impl Transport {
    /// True if it is a WebSocket with the commands of `throng.v1`.
    pub fn is_v1(&self) -> bool {
        matches!(self, Transport::WebSocket { subprotocol: Some(Subprotocol::V1), .. })
    }
}

pub(super) fn transport(head: &Head<'_>, query: &Query<'_>) -> Result<Transport, ErrorResponse> {
    let is_upgrade = || head.has_item("upgrade", "websocket");
    let websocket = |head| websocket(head, query);
    let preferred_ms = || prefer::wait_ms(head.items("prefer"), WAIT_S_MAX * 1000);
    let wait_ms = || query.wait_ms.or_else(preferred_ms);
    match query.transport {
        Some(NamedTransport::WebSocket) if is_upgrade() => websocket(head),
        Some(NamedTransport::WebSocket) => Err(ErrorResponse::new(
            ErrorCode::UpgradeRequired,
            "`transport=websocket` needs `Upgrade: websocket` and `Connection: Upgrade`",
        )),
        Some(NamedTransport::Sse) => Ok(Transport::Sse),
        Some(NamedTransport::Stream) => Ok(Transport::Stream),
        Some(NamedTransport::LongPoll) => {
            Ok(Transport::LongPoll { wait_ms: wait_ms().unwrap_or(WAIT_MS_DEFAULT) })
        }
        None if is_upgrade() => websocket(head),
        None if head.header("sec-websocket-key").is_some() => Err(ErrorResponse::new(
            ErrorCode::UpgradeRequired,
            "a proxy has removed the header `Upgrade: websocket` from this WebSocket handshake; it \
             must pass `Upgrade` and `Connection: Upgrade` on",
        )),
        None if accepts_events(head) => Ok(Transport::Sse),
        None => Ok(wait_ms().map_or(Transport::Stream, |wait_ms| Transport::LongPoll { wait_ms })),
    }
}

fn websocket(head: &Head<'_>, query: &Query<'_>) -> Result<Transport, ErrorResponse> {
    let WebSocketHandshake { accept, subprotocol, deflate } = handshake::read(head)?;
    let deflate = deflate.filter(|_| query.options.get(ConnectionOption::NoCompression).is_none());
    Ok(Transport::WebSocket { accept, subprotocol, deflate })
}

fn accepts_events(head: &Head<'_>) -> bool {
    head.items("accept").any(|range| before(range, b';').eq_ignore_ascii_case(b"text/event-stream"))
}

/// The part before the first `end` byte, trimmed.
fn before(text: &[u8], end: u8) -> &[u8] {
    text.split(|&byte| byte == end).next().unwrap_or_default().trim_ascii()
}
