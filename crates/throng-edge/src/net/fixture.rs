//! A [`Net`] for unit tests of a worker's objects.

use std::io::IoSlice;

use throng_core::WorkerId;

use super::{HandoffHeader, Net, Read, Transfer};
use crate::connection::Token;

/// Sockets that are one: what is written to any of them is written here.
#[derive(Debug)]
pub(crate) struct OneNet {
    /// The bytes that a write takes at most.
    pub(crate) takes: usize,
    pub(crate) written: Vec<u8>,
    /// The next input.
    pub(crate) input: Vec<u8>,
    /// How many sockets were shut down, and how many closed.
    pub(crate) finished: usize,
    pub(crate) closed: usize,
}

impl OneNet {
    pub(crate) fn taking(takes: usize) -> OneNet {
        OneNet { takes, written: Vec::new(), input: Vec::new(), finished: 0, closed: 0 }
    }

    /// The text that was written since the last call.
    pub(crate) fn take_written(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.written)).into_owned()
    }
}

impl Net for OneNet {
    type Socket = ();

    fn read(&mut self, (): &(), buffer: &mut [u8]) -> Read {
        if self.input.is_empty() {
            return Read::Blocked;
        }
        let input = std::mem::take(&mut self.input);
        buffer[..input.len()].copy_from_slice(&input);
        Read::Bytes(input.len())
    }

    fn write(&mut self, (): &(), slices: &[IoSlice<'_>]) -> Transfer {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        if self.takes == 0 {
            return Transfer::Blocked;
        }
        let count = bytes.len().min(self.takes);
        self.written.extend_from_slice(&bytes[..count]);
        Transfer::Bytes(count)
    }

    fn watch(&mut self, (): &(), _: Token) -> bool {
        true
    }

    fn watch_writable(&mut self, (): &(), _: Token) -> bool {
        true
    }

    fn unacknowledged_bytes(&self, (): &()) -> usize {
        0
    }

    fn keep_alive(&mut self, (): &()) {}

    fn bound_unread(&mut self, (): &()) {}

    fn resume(&mut self, (): &()) {}

    fn reset(&mut self, (): &()) {}

    fn finish(&mut self, (): &()) {
        self.finished += 1;
    }

    fn close(&mut self, (): ()) {
        self.closed += 1;
    }

    fn to_control(&mut self, _: HandoffHeader, (): (), _: &[u8]) -> Result<(), ()> {
        Err(())
    }

    fn to_worker(&mut self, _: WorkerId, _: HandoffHeader, (): (), _: &[u8]) -> Result<(), ()> {
        Err(())
    }
}
