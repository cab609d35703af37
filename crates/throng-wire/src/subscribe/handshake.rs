//! The server's side of the WebSocket handshake (RFC 6455, section 4.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::{ErrorCode, ErrorResponse};
use crate::head::{Head, Version};
use crate::websocket::extension::{self, Deflate};
use crate::websocket::{ACCEPT_BYTES, accept_key};

/// The length of a decoded `Sec-WebSocket-Key`.
const KEY_BYTES: usize = 16;

/// The protocol of a WebSocket that the client offers in `Sec-WebSocket-Protocol` and the server
/// selects. Without one it is plain too, but a browser closes a WebSocket whose page offers
/// something, such as a token, and gets nothing selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subprotocol {
    /// The bodies of messages, `throng.plain`.
    Plain,
    /// Commands and envelopes, `throng.v1`.
    V1,
}

impl Subprotocol {
    /// From the preferred one.
    const ALL: [Subprotocol; 2] = [Subprotocol::V1, Subprotocol::Plain];

    /// The name in `Sec-WebSocket-Protocol`, case-sensitive.
    pub fn name(self) -> &'static str {
        match self {
            Subprotocol::Plain => "throng.plain",
            Subprotocol::V1 => "throng.v1",
        }
    }

    fn selected(head: &Head<'_>) -> Option<Subprotocol> {
        let is_offered = |subprotocol: &Subprotocol| {
            let name = subprotocol.name().as_bytes();
            head.items("sec-websocket-protocol").any(|item| item == name)
        };
        Subprotocol::ALL.into_iter().find(is_offered)
    }
}

/// A valid handshake.
pub(super) struct WebSocketHandshake {
    /// The value of `Sec-WebSocket-Accept`.
    pub accept: [u8; ACCEPT_BYTES],
    /// The selected one.
    pub subprotocol: Option<Subprotocol>,
    /// The offer of compression that the server can accept.
    pub deflate: Option<Deflate>,
}

/// Checks the handshake of a request with `Upgrade: websocket`.
pub(super) fn read(head: &Head<'_>) -> Result<WebSocketHandshake, ErrorResponse> {
    if head.version == Version::Http10 {
        return Err(bad_handshake("a WebSocket needs HTTP/1.1; the request is HTTP/1.0"));
    }
    if !head.has_item("connection", "upgrade") {
        return Err(bad_handshake("a WebSocket needs the header `Connection: Upgrade`"));
    }
    if head.header("sec-websocket-version") != Some(b"13") {
        let message = "a WebSocket needs the header `Sec-WebSocket-Version: 13`";
        return Err(ErrorResponse::new(ErrorCode::UpgradeRequired, message));
    }
    let mut keys = head.headers("sec-websocket-key");
    match (keys.next(), keys.next()) {
        (Some(key), None) if is_key(key) => Ok(WebSocketHandshake {
            accept: accept_key(key),
            subprotocol: Subprotocol::selected(head),
            deflate: deflate(head)?,
        }),
        _ => Err(bad_handshake(
            "a WebSocket needs one header `Sec-WebSocket-Key`, 16 bytes in base64",
        )),
    }
}

fn deflate(head: &Head<'_>) -> Result<Option<Deflate>, ErrorResponse> {
    extension::negotiate(head.headers("sec-websocket-extensions")).map_err(|_| {
        bad_handshake("the header `Sec-WebSocket-Extensions` is no list of extensions")
    })
}

fn is_key(key: &[u8]) -> bool {
    // The decoder needs capacity in whole groups of three bytes.
    let mut decoded = [0; KEY_BYTES + 2];
    STANDARD.decode_slice(key, &mut decoded) == Ok(KEY_BYTES)
}

fn bad_handshake(message: &'static str) -> ErrorResponse {
    ErrorResponse::new(ErrorCode::BadHandshake, message)
}
