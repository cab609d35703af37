//! Compact frames of `throng.v1`: `[A,[number,offset,data],…]`, with the messages of all channels
//! that are due. `A` is 1 if the server waits for word that they were handled.

use std::str::FromStr;

use memchr::{memmem, memrchr, memrchr_iter};

/// How a frame begins that is to be acknowledged.
const ASKING: &[u8] = b"[1,";

/// Acknowledges one such frame.
pub(super) const ACKNOWLEDGEMENT: &[u8] = br#"{"type":"ack","frames":1}"#;

/// True if the server waits for an acknowledgement of this frame.
pub(super) fn is_to_be_acknowledged(frame: &[u8]) -> bool {
    frame.starts_with(ASKING)
}

/// True if a frame is compact.
pub(super) fn is_compact(frame: &[u8]) -> bool {
    frame.starts_with(ASKING) || frame.starts_with(b"[0,")
}

/// The channels, by their numbers, of which a part of a frame says that the server has skipped
/// messages: items `[number,-count]`. The next message of the channel may come much later.
pub(super) fn skipped(part: &[u8]) -> impl Iterator<Item = u32> {
    memmem::find_iter(part, b",-").filter_map(|at| {
        let digits = part[at + 2..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_item = digits > 0 && part.get(at + 2 + digits) == Some(&b']');
        if is_item { first_number(&part[..at]) } else { None }
    })
}

/// The number of the channel of a message, of which `before` has the bytes in front of its mark.
pub(super) fn number(before: &[u8]) -> Option<u32> {
    memrchr_iter(b'[', before).find_map(|start| {
        let mut fields = before[start + 1..].splitn(3, |&byte| byte == b',');
        let (number, offset) = (read_number(fields.next()?)?, fields.next()?);
        read_number::<u64>(offset)?;
        fields.next().map(|_| number)
    })
}

/// The first field of an item of which no more is there.
fn first_number(item: &[u8]) -> Option<u32> {
    let start = memrchr(b'[', item)?;
    read_number(&item[start + 1..])
}

fn read_number<N: FromStr>(field: &[u8]) -> Option<N> {
    // A sign is no part of it.
    let is_number = field.iter().all(u8::is_ascii_digit);
    if is_number { str::from_utf8(field).ok()?.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_messages_are_told_by_channel() {
        let told = |part: &[u8]| skipped(part).collect::<Vec<u32>>();
        assert_eq!(told(br#"[0,[17,-3],[17,5,""#), [17]);
        assert_eq!(told(br#"xx"],[4,9,"xx"],[17,-12],[4,-1],[17,5,{"a":""#), [17, 4]);
        assert_eq!(told(br#"xx"],[17,-12]]"#), [17]);
        assert_eq!(told(br#"[0,[17,5,-3],[17,6,"a,-"],["a",-3],[17,-],[17,-3"#), [0; 0]);
    }

    #[test]
    fn a_message_has_the_number_of_its_channel() {
        assert_eq!(number(br#"[0,[17,-3],[18,5,""#), Some(18));
        assert_eq!(number(br#"xx"],[17,4294967296123,{"a":[1,""#), Some(17));
        assert_eq!(number(br#"[0,[17,-3],""#), None);
        assert_eq!(number(b""), None);
    }

    #[test]
    fn a_frame_says_whether_it_is_to_be_acknowledged() {
        assert!(is_to_be_acknowledged(br#"[1,[17,5,"a"]]"#));
        assert!(is_compact(br#"[1,[17,5,"a"]]"#) && is_compact(br#"[0,[1,5,"a"]]"#));
        assert!(!is_compact(br#"{"type":"message","data":[1,2]}"#));
        assert!(!is_to_be_acknowledged(br#"[0,[1,5,"a"]]"#));
        assert!(!is_to_be_acknowledged(br#"{"type":"message","data":[1,2]}"#));
    }
}
