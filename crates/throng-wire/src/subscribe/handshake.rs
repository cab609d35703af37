//! The opening handshake of RFC 6455, the server's side.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Transport;
use crate::error::{ErrorCode, ErrorResponse};
use crate::head::{Head, Version};

/// The bytes of `Sec-WebSocket-Accept`: base64 of a SHA-1.
pub const ACCEPT_BYTES: usize = 28;

/// The bytes of `Sec-WebSocket-Key` once decoded.
const KEY_BYTES: usize = 16;

/// What RFC 6455 appends to the key, so that only who knows the protocol can answer.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The name under which Throng's own protocol is offered.
const PROTOCOL_V1: &[u8] = b"throng.v1";

/// Reads the handshake of a request that has `Upgrade: websocket`.
pub(super) fn read(head: &Head<'_>) -> Result<Transport, ErrorResponse> {
    if head.version == Version::Http10 {
        return Err(bad_handshake("a WebSocket needs HTTP/1.1; this came as HTTP/1.0"));
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
        (Some(key), None) if is_key(key) => Ok(Transport::WebSocket {
            accept: accept_for(key),
            is_v1: head.items("sec-websocket-protocol").any(|item| item == PROTOCOL_V1),
        }),
        _ => Err(bad_handshake(
            "a WebSocket needs one header `Sec-WebSocket-Key`, 16 bytes in base64",
        )),
    }
}

/// The value of `Sec-WebSocket-Accept` that answers this key.
pub fn accept_for(key: &[u8]) -> [u8; ACCEPT_BYTES] {
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(KEY_SUFFIX);
    let mut accept = [0; ACCEPT_BYTES];
    let written = STANDARD.encode_slice(hash.digest().bytes(), &mut accept);
    debug_assert_eq!(written, Ok(ACCEPT_BYTES), "20 bytes are 28 in base64");
    accept
}

fn is_key(key: &[u8]) -> bool {
    // The decoder asks for room in whole groups of three.
    let mut decoded = [0; KEY_BYTES + 2];
    STANDARD.decode_slice(key, &mut decoded) == Ok(KEY_BYTES)
}

fn bad_handshake(message: &'static str) -> ErrorResponse {
    ErrorResponse::new(ErrorCode::BadHandshake, message)
}
