//! The value of `Sec-WebSocket-Accept`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The length of `Sec-WebSocket-Accept`: a SHA-1 in base64.
pub(crate) const ACCEPT_BYTES: usize = 28;

/// RFC 6455, section 1.3: appended to the key, so that only a WebSocket server answers right.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The value of `Sec-WebSocket-Accept` that answers a client's `Sec-WebSocket-Key`.
pub fn accept_key(key: &[u8]) -> [u8; ACCEPT_BYTES] {
    let mut sha1 = sha1_smol::Sha1::new();
    sha1.update(key);
    sha1.update(GUID);
    let mut accept = [0; ACCEPT_BYTES];
    let written = STANDARD.encode_slice(sha1.digest().bytes(), &mut accept);
    debug_assert_eq!(written, Ok(ACCEPT_BYTES), "20 bytes are 28 in base64");
    accept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_the_key_of_the_rfc() {
        assert_eq!(&accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
