//! The few bytes of WebSocket (RFC 6455) that the probe writes and reads itself.
//!
//! Deliveries are counted by bytes, so the only frames ever looked into are heartbeats: pings,
//! which the server must see answered, and pongs, which want no answer.

const TEXT_FINAL: u8 = 0x81;
const PING_FINAL: u8 = 0x89;
const PONG_FINAL: u8 = 0x8a;
const MASKED: u8 = 0x80;

/// The longest payload that fits the short form of a length, and of any control frame.
const SHORT_LENGTH_MAX: usize = 125;

/// The unmasked text frame, as a server sends it, around `payload` (at most 64 KiB).
pub fn text(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![TEXT_FINAL];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(short), _) if usize::from(short) <= SHORT_LENGTH_MAX => frame.push(short),
        (_, Ok(medium)) => {
            frame.push(126);
            frame.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

/// A message of `bytes` bytes of text.
pub fn payload(bytes: usize) -> Vec<u8> {
    vec![b'x'; bytes]
}

/// Answers every ping in `received`: the pongs (masked with a key of zeros, so the payload stays
/// as it is), and how many heartbeats there were. `None` if there is anything but whole heartbeats.
pub fn pongs(mut received: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut answer, mut count) = (Vec::new(), 0);
    while let [first, length, rest @ ..] = received {
        let length_bytes = usize::from(*length);
        let is_heartbeat = matches!(*first, PING_FINAL | PONG_FINAL);
        if !is_heartbeat || length_bytes > SHORT_LENGTH_MAX || length_bytes > rest.len() {
            return None;
        }
        let (payload, after) = rest.split_at(length_bytes);
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
    fn lengths_take_the_shortest_form() {
        assert_eq!(text(&payload(64))[..2], [0x81, 64]);
        assert_eq!(text(&payload(64)).len(), 66);
        assert_eq!(text(&payload(125)).len(), 127);
        assert_eq!(text(&payload(126))[..4], [0x81, 126, 0, 126]);
        assert_eq!(text(&payload(1024)).len(), 1028);
        assert_eq!(text(&payload(65_536))[..10], [0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn each_ping_is_answered_with_its_payload() {
        let (answer, count) = pongs(&[0x89, 0, 0x89, 2, b'h', b'i']).expect("two pings");
        assert_eq!(count, 2);
        assert_eq!(answer, [0x8a, 0x80, 0, 0, 0, 0, 0x8a, 0x82, 0, 0, 0, 0, b'h', b'i']);
    }

    #[test]
    fn a_pong_is_a_heartbeat_and_gets_no_answer() {
        assert_eq!(pongs(&[0x8a, 0, 0x8a, 1, b'x']), Some((Vec::new(), 2)));
        let (answer, count) = pongs(&[0x8a, 0, 0x89, 0]).expect("two heartbeats");
        assert_eq!((&answer[..], count), (&[0x8a, 0x80, 0, 0, 0, 0][..], 2));
    }

    #[test]
    fn anything_but_whole_heartbeats_is_refused() {
        assert!(pongs(&text(b"hello")).is_none());
        assert!(pongs(&[0x89]).is_none());
        assert!(pongs(&[0x89, 2, b'h']).is_none());
        assert!(pongs(&[0x89, 0, 0x88, 0]).is_none());
    }
}
