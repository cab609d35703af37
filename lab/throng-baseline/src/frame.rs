//! WebSocket frames (RFC 6455, section 5.2). Deliveries are counted in bytes, so that heartbeats
//! are the only frames parsed: pings, which the client must answer, and pongs.

const TEXT_FINAL: u8 = 0x81;
const PING_FINAL: u8 = 0x89;
const PONG_FINAL: u8 = 0x8a;
const MASKED: u8 = 0x80;

/// The longest payload of a control frame, and of any frame with a length of one byte.
const SHORT_MAX: usize = 125;

/// A server's text frame with `payload`, which has at most 64 KiB - 1.
pub(crate) fn text(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    debug_assert!(usize::from(length) == payload.len(), "the payload is short");
    if payload.len() <= SHORT_MAX {
        return [&[TEXT_FINAL, length as u8], payload].concat();
    }
    [&[TEXT_FINAL, 126], &length.to_be_bytes()[..], payload].concat()
}

/// The text of a message.
pub(crate) fn payload(bytes: usize) -> Vec<u8> {
    vec![b'x'; bytes]
}

/// The pongs that answer all pings in `received`, and the number of heartbeats. The pongs are
/// masked with zeros, so that their payload stays the same. `None` if `received` has anything but
/// complete heartbeats.
pub(crate) fn pongs(mut received: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut answer, mut count) = (Vec::new(), 0);
    while let [first, length, rest @ ..] = received {
        let is_heartbeat = matches!(*first, PING_FINAL | PONG_FINAL);
        if !is_heartbeat || usize::from(*length) > SHORT_MAX {
            return None;
        }
        let (payload, after) = rest.split_at_checked((*length).into())?;
        if *first == PING_FINAL {
            answer.extend_from_slice(&[PONG_FINAL, MASKED | length, 0, 0, 0, 0]);
            answer.extend_from_slice(payload);
        }
        count += 1;
        received = after;
    }
    received.is_empty().then_some((answer, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_takes_one_byte_or_three() {
        assert_eq!((&text(&payload(64))[..2], text(&payload(64)).len()), (&[0x81, 64][..], 66));
        assert_eq!(text(&payload(126))[..4], [0x81, 126, 0, 126]);
        assert_eq!(text(&payload(1024)).len(), 1028);
    }

    #[test]
    fn pings_are_answered_and_pongs_counted() {
        let (answer, count) = pongs(&[0x89, 0, 0x8a, 1, b'x', 0x89, 1, b'h']).expect("heartbeats");
        assert_eq!(count, 3);
        assert_eq!(answer, [0x8a, 0x80, 0, 0, 0, 0, 0x8a, 0x81, 0, 0, 0, 0, b'h']);
    }

    #[test]
    fn anything_else_is_refused() {
        for bytes in [&text(b"hello")[..], &[0x89], &[0x89, 2, b'h'], &[0x89, 0, 0x88, 0]] {
            assert!(pongs(bytes).is_none(), "{bytes:?}");
        }
    }
}
