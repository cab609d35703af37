//! Logs that come before the pause: most messages go into memory that both processes map.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::{io, mem};

use anyhow::{Context as _, Result};
use throng_core::{MemoryEngine, MemoryThaw, SegmentSink, SharedBytes};
use throng_edge::{SealedMemory, SealedWriter};
use throng_handover::channel::{Channel, ChannelError};
use throng_handover::message::Kind;

/// Free memory goes back to the kernel when messages of this many bytes, and of this part of all,
/// have left the heap: that takes the allocator's locks.
const FREED_BYTES_MIN: usize = 8 << 20;
const FREED_PART: usize = 8;

/// Memory that a process which takes over must be able to get. An idle one uses a tenth of it, but
/// the heap of a further thread reserves 64 MiB of addresses (glibc's `HEAP_MAX_SIZE`): where these
/// are limited, less room is gone at once.
const ROOM_BYTES_MIN: usize = 64 << 20;

/// Why a segment was not sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    /// The other process goes on without it.
    #[error("memory that both processes share cannot be made: {0}")]
    Memory(#[from] io::Error),
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Sends most messages of the logs, while the server goes on. Without shared memory they come in
/// the pause.
pub(super) fn send(memory: &MemoryEngine, channel: &Channel) -> Result<(), ChannelError> {
    let freed_max = (memory.log_bytes() as usize / FREED_PART).max(FREED_BYTES_MIN);
    let mut sink = Sink { channel, writer: None, freed: 0, freed_max };
    match memory.seal(&mut sink) {
        Ok(()) => {}
        Err(Unsent::Channel(error)) => return Err(error),
        Err(unsent @ Unsent::Memory(_)) => {
            tracing::warn!("{unsent}; the logs are handed over in the pause, and are there twice");
        }
    }
    sink.return_freed();
    channel.send_with(Kind::Ahead, &[], &[])
}

/// Takes a segment that another process has sent. Returns its bytes.
pub(super) fn take(thaw: &mut MemoryThaw, memory: BorrowedFd<'_>) -> Result<usize> {
    let memory = SealedMemory::map(memory).context("memory with logs cannot be mapped")?;
    let bytes = memory.as_ref().len();
    thaw.segment(Box::new(memory)).context("the logs")?;
    Ok(bytes)
}

/// Checks that messages in this many bytes of segments can go back to the heap, and that there is
/// some memory for what comes: a process that serves and has none ends.
pub(super) fn check_room(bytes: usize) -> Result<()> {
    let mut room = Vec::<u8>::new();
    let reserved = room.try_reserve_exact(bytes.saturating_add(ROOM_BYTES_MIN));
    // Otherwise the compiler may do without it.
    std::hint::black_box(&mut room);
    reserved.context("there is too little memory to continue")
}

/// Sends each segment once it is written.
struct Sink<'c> {
    channel: &'c Channel,
    /// The segment that is being written; `None` before its first byte.
    writer: Option<SealedWriter>,
    /// Bytes that have left the heap since memory was returned.
    freed: usize,
    freed_max: usize,
}

impl Sink<'_> {
    fn return_freed(&mut self) {
        if mem::take(&mut self.freed) > 0 {
            throng_edge::release_unused_memory();
        }
    }
}

impl SegmentSink for Sink<'_> {
    type Error = Unsent;

    fn append(&mut self, bytes: &[u8]) -> Result<(), Unsent> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(SealedWriter::new()?),
        };
        Ok(writer.append(bytes)?)
    }

    fn seal(&mut self) -> Result<SharedBytes, Unsent> {
        let writer = self.writer.take().ok_or(io::ErrorKind::UnexpectedEof);
        let memory = writer.map_err(io::Error::from)?.seal()?;
        let mapped = SealedMemory::map(memory.as_fd())?;
        self.channel.send_with(Kind::Ahead, &[], &[memory.as_fd()])?;
        Ok(Box::new(mapped))
    }

    fn freed(&mut self, bytes: usize) {
        self.freed += bytes;
        if self.freed >= self.freed_max {
            self.return_freed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_no_process_has_is_missed_before_it_is_needed() {
        check_room(0).unwrap();
        check_room(usize::MAX).unwrap_err();
        check_room(isize::MAX as usize - ROOM_BYTES_MIN).unwrap_err();
    }
}
