//! Bytes to be written to a server.

/// Written bytes are removed once there are at least this many, and at least as many as unwritten
/// ones: so each byte is moved once at most, on average, and written bytes take no more memory than
/// waiting ones.
const WRITTEN_BYTES_MIN: usize = 64 << 10;

/// A buffer without contents keeps this much memory at most.
const CAPACITY_MAX: usize = 256 << 10;

/// Bytes in the order in which they are written.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    bytes: Vec<u8>,
    /// How many of the first ones are written.
    written: usize,
}

impl Unwritten {
    /// Where more is appended.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes that wait to be written.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// The first `count` bytes that wait are written.
    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.bytes.len() {
            self.clear();
        } else if self.written >= WRITTEN_BYTES_MIN.max(self.bytes.len() - self.written) {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Forgets what waits.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(CAPACITY_MAX);
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes less than what comes, as long as the owner has room for more.
    #[test]
    fn what_was_written_takes_no_more_than_what_waits() {
        const LIMIT: usize = 1 << 20;
        let mut unwritten = Unwritten::default();
        let (mut appended, mut taken) = (0u64, 0u64);
        for step in 0..100_000 {
            if unwritten.bytes().len() < LIMIT {
                for _ in 0..300 {
                    unwritten.end().push(appended as u8);
                    appended += 1;
                }
            }
            let count = unwritten.bytes().len().min(1 + step % 250);
            for byte in &unwritten.bytes()[..count] {
                assert_eq!(*byte, taken as u8);
                taken += 1;
            }
            unwritten.wrote(count);
            let waiting = unwritten.bytes().len();
            assert_eq!(waiting as u64, appended - taken);
            assert!(unwritten.bytes.len() <= waiting + waiting.max(WRITTEN_BYTES_MIN));
        }
        assert!(taken > 10 * LIMIT as u64, "the server has taken {taken}");
    }

    #[test]
    fn an_empty_buffer_returns_its_memory() {
        let mut unwritten = Unwritten::default();
        unwritten.end().resize(4 << 20, 7);
        unwritten.wrote(4 << 20);
        assert!(unwritten.bytes().is_empty());
        assert!(unwritten.bytes.capacity() <= CAPACITY_MAX);
        unwritten.end().push(8);
        unwritten.clear();
        assert!(unwritten.bytes().is_empty());
    }
}
