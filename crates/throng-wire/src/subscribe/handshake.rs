//! The server's side of the WebSocket handshake (RFC 6455, section 4.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::{ErrorCode, ErrorResponse};
use crate::head::{Head, Version};
use crate::websocket::{ACCEPT_BYTES, accept_key};

/// The length of a decoded `Sec-WebSocket-Key`.
const KEY_BYTES: usize = 16;

/// The sub-protocol, as `Sec-WebSocket-Protocol` names it.
const PROTOCOL_V1: &[u8] = b"throng.v1";

/// A valid handshake.
pub(super) struct Handshake {
    /// The value of `Sec-WebSocket-Accept`.
    pub accept: [u8; ACCEPT_BYTES],
    /// Whether the client offers `throng.v1`.
    pub is_v1: bool,
}

/// Checks the handshake of a request with `Upgrade: websocket`.
pub(super) fn read(head: &Head<'_>) -> Result<Handshake, ErrorResponse> {
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
        (Some(key), None) if is_key(key) => Ok(Handshake {
            accept: accept_key(key),
            is_v1: head.items("sec-websocket-protocol").any(|item| item == PROTOCOL_V1),
        }),
        _ => Err(bad_handshake(
            "a WebSocket needs one header `Sec-WebSocket-Key`, 16 bytes in base64",
        )),
    }
}

fn is_key(key: &[u8]) -> bool {
    // The decoder needs capacity in whole groups of three bytes.
    let mut decoded = [0; KEY_BYTES + 2];
    STANDARD.decode_slice(key, &mut decoded) == Ok(KEY_BYTES)
}

fn bad_handshake(message: &'static str) -> ErrorResponse {
    ErrorResponse::new(ErrorCode::BadHandshake, message)
}
