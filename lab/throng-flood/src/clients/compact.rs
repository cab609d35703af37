//! Compact frames of `throng.v1`: `[A,[number,offset,data],…]`, with the messages of all channels
//! that are due. `A` is 1 if the server waits for word that they were handled.

use memchr::{memmem, memrchr};

/// How a frame begins that is to be acknowledged.
const ASKING: &[u8] = b"[1,";

/// Acknowledges one such frame.
pub(super) const ACKNOWLEDGEMENT: &[u8] = br#"{"type":"ack","frames":1}"#;

/// True if the server waits for an acknowledgement of this frame.
pub(super) fn is_to_be_acknowledged(frame: &[u8]) -> bool {
    frame.starts_with(ASKING)
}

/// True if an item `[number,-count]` comes before a message: the server has skipped as many of its
/// channel for it. `before` are the bytes of the frame in front of its payload.
pub(super) fn follows_skipped(before: &[u8]) -> bool {
    let Some(end) = memmem::rfind(before, b"],[") else { return false };
    let Some(start) = memrchr(b'[', &before[..end]) else { return false };
    let mut fields = before[start + 1..end].split(|&byte| byte == b',');
    let is_number = |field: &[u8]| !field.is_empty() && field.iter().all(u8::is_ascii_digit);
    let number = fields.next().is_some_and(is_number);
    let count = fields.next().and_then(|field| field.strip_prefix(b"-")).is_some_and(is_number);
    number && count && fields.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_skipped_messages_of_the_same_item_are_told() {
        assert!(follows_skipped(br#"[0,[17,-3],[17,5,""#));
        assert!(follows_skipped(br#"xx"],[4,9,"xx"],[17,-12],[17,5,{"a":""#));
        assert!(!follows_skipped(br#"[0,[17,5,""#));
        assert!(!follows_skipped(br#"[0,[17,-3],[17,5,"xx"],[18,5,""#));
        assert!(!follows_skipped(br#"[0,[17,5,-3],[17,6,""#));
        assert!(!follows_skipped(br#"xx"],[17,6,""#));
        assert!(!follows_skipped(b""));
    }

    #[test]
    fn a_frame_says_whether_it_is_to_be_acknowledged() {
        assert!(is_to_be_acknowledged(br#"[1,[17,5,"a"]]"#));
        assert!(!is_to_be_acknowledged(br#"[0,[1,5,"a"]]"#));
        assert!(!is_to_be_acknowledged(br#"{"type":"message","data":[1,2]}"#));
    }
}
