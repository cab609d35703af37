//! The answer to `Sec-WebSocket-Key`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The GUID of RFC 6455, section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The value of `Sec-WebSocket-Accept` for the client's key, which is taken as it stands.
pub fn accept_key(key: &[u8]) -> [u8; 28] {
    let mut sha1 = sha1_smol::Sha1::new();
    sha1.update(key);
    sha1.update(GUID);
    let mut accept = [0; 28];
    // 20 bytes are 28 in base64, so the slice always has room.
    let written = STANDARD.encode_slice(sha1.digest().bytes(), &mut accept);
    debug_assert_eq!(written, Ok(28));
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
