//! The mark in each published payload: identifies the message and its scheduled time.
//!
//! `~thr1.RRRRRRRR.SSSSSSSS.QQQQQQQQ.TTTTTTTTTTTTTTTT~`: run, stream, sequence and the scheduled
//! time in nanoseconds of `CLOCK_MONOTONIC`, in lower-case hexadecimal. JSON and URLs escape none
//! of its characters, so it is found in anything that a server wraps around messages.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a mark, and of the smallest payload.
pub(crate) const MARK_BYTES: usize = 50;

/// The start of a mark; the number is the version of the format.
const START: &[u8] = b"~thr1.";

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(START));

/// A message of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The number of the run.
    pub run: u32,
    /// The stream of the message.
    pub stream: u32,
    /// The sequence of the message in its stream, from 1 on.
    pub sequence: u32,
    /// The scheduled time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub intended_ns: u64,
}

/// `CLOCK_MONOTONIC`, which all processes of a machine share.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The machine has neither started in the future nor run for 500 years.
    (time.tv_sec * 1_000_000_000 + time.tv_nsec) as u64
}

/// A number for a run. Two runs on one machine do not start in the same nanosecond.
pub(crate) fn new_run() -> u32 {
    (now_ns() ^ u64::from(std::process::id()) << 16) as u32
}

impl Mark {
    /// The first mark in `bytes`, and the bytes after it.
    pub fn find(bytes: &[u8]) -> Option<(Mark, &[u8])> {
        let mut rest = bytes;
        loop {
            let start = FINDER.find(rest)?;
            rest = &rest[start + START.len()..];
            let (fields, after) = rest.split_first_chunk::<{ MARK_BYTES - START.len() }>()?;
            if let Some(mark) = Mark::parse(fields) {
                return Some((mark, after));
            }
        }
    }

    fn parse(fields: &[u8; MARK_BYTES - START.len()]) -> Option<Mark> {
        let are_parted =
            fields[8] == b'.' && fields[17] == b'.' && fields[26] == b'.' && fields[43] == b'~';
        let number = |from: usize, to: usize| fields[from..to].iter().try_fold(0_u64, digit);
        are_parted.then_some(())?;
        Some(Mark {
            // Eight digits are 32 bits.
            run: number(0, 8)? as u32,
            stream: number(9, 17)? as u32,
            sequence: number(18, 26)? as u32,
            intended_ns: number(27, 43)?,
        })
    }

    /// Appends a payload of `size` bytes, at least [`MARK_BYTES`], that starts with the mark.
    pub fn write_payload(&self, size: usize, to: &mut Vec<u8>) {
        let end = to.len() + size.max(MARK_BYTES);
        to.reserve(size.max(MARK_BYTES));
        to.extend_from_slice(START);
        write_hex(u64::from(self.run), 8, to);
        to.push(b'.');
        write_hex(u64::from(self.stream), 8, to);
        to.push(b'.');
        write_hex(u64::from(self.sequence), 8, to);
        to.push(b'.');
        write_hex(self.intended_ns, 16, to);
        to.push(b'~');
        to.resize(end, b'x');
    }
}

fn digit(number: u64, byte: &u8) -> Option<u64> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        _ => return None,
    };
    Some(number << 4 | u64::from(digit))
}

fn write_hex(number: u64, digits: u32, to: &mut Vec<u8>) {
    for digit in (0..digits).rev() {
        to.push(b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark {
        run: 0xdead_beef,
        stream: 7,
        sequence: u32::MAX,
        intended_ns: 0x0123_4567_89ab_cdef,
    };

    fn payload(size: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        MARK.write_payload(size, &mut payload);
        payload
    }

    #[test]
    fn a_payload_has_its_size_and_a_mark() {
        for size in [0, MARK_BYTES, MARK_BYTES + 1, 1000] {
            let payload = payload(size);
            assert_eq!(payload.len(), size.max(MARK_BYTES));
            let (mark, after) = Mark::find(&payload).expect("a mark");
            assert_eq!((mark, after.len()), (MARK, payload.len() - MARK_BYTES));
        }
        let text = String::from_utf8(payload(0)).expect("ASCII");
        assert_eq!(text, "~thr1.deadbeef.00000007.ffffffff.0123456789abcdef~");
    }

    #[test]
    fn all_marks_are_found_in_order() {
        let both = [b"{\"a\":\"".to_vec(), payload(70), b"\"}\n~thr1.".to_vec(), payload(50)];
        let both = both.concat();
        let (_, rest) = Mark::find(&both).expect("the first");
        let (_, rest) = Mark::find(rest).expect("the second");
        assert!(Mark::find(rest).is_none());
    }

    #[test]
    fn a_partial_mark_is_not_found() {
        let payload = payload(MARK_BYTES);
        assert!((0..MARK_BYTES).all(|end| Mark::find(&payload[..end]).is_none()));
        for position in START.len()..MARK_BYTES {
            let mut broken = payload.clone();
            broken[position] = b'G';
            assert!(Mark::find(&broken).is_none(), "{position}");
        }
    }
}
