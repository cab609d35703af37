//! Frozen state in memory that two processes share: a memfd (memfd_create(2)).
//!
//! The process that freezes writes it; both processes can read it any number of times. The last
//! reader returns each piece to the kernel once it has read it, so that the state and what is made
//! of it never take memory at the same time. The memory has no name and is mapped by no process: it
//! is read and written as a file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_get_seals, fstat, memfd_create};
use rustix::io::Errno;

use crate::message::Malformed;

/// Memory is given back in pieces of this many bytes: whole pages of all machines.
const PIECE_BYTES: u64 = 64 << 10;

/// Makes memory without bytes that a process can share, and seal. The name is only shown.
pub fn create(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems refuse memory that could be executed (`vm.memfd_noexec`), and kernels before
    // 6.3 do not know how to say that this cannot.
    let memory = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        created => created,
    };
    Ok(File::from(memory?))
}

/// Memory with frozen state.
#[derive(Debug)]
pub struct StateMemory {
    file: File,
    length: u64,
    /// Bytes at the beginning that were given back.
    released: u64,
}

impl StateMemory {
    /// Memory without bytes.
    pub fn new() -> io::Result<StateMemory> {
        Ok(StateMemory { file: create("throng-state")?, length: 0, released: 0 })
    }

    /// The memory that another process has written this many bytes to.
    pub fn passed(memory: OwnedFd, length: u64) -> Result<StateMemory, Malformed> {
        // Fails for a descriptor of anything else.
        let is_memory = fcntl_get_seals(&memory).is_ok();
        let size = fstat(&memory).map_or(0, |stat| stat.st_size);
        if !is_memory || u64::try_from(size).unwrap_or_default() < length {
            return Err(Malformed("memory with state"));
        }
        Ok(StateMemory { file: File::from(memory), length, released: 0 })
    }

    /// Appends all of the bytes, or none.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Bytes that were written.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends the next `count` bytes from `at` on to `bytes`, fewer at the end.
    pub fn read(&self, at: u64, count: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let before = bytes.len();
        bytes.resize(before + count.min(left), 0);
        self.file.read_exact_at(&mut bytes[before..], at)
    }

    /// Returns the memory before `end` to the kernel, in whole pieces. It cannot be read again.
    pub fn release(&mut self, end: u64) {
        let end = end.min(self.length) / PIECE_BYTES * PIECE_BYTES;
        if end > self.released {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Memory that cannot be given back now goes with the last descriptor.
            let _ = fallocate(&self.file, flags, self.released, end - self.released);
            self.released = end;
        }
    }
}

impl AsFd for StateMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(memory: &StateMemory) -> i64 {
        fstat(memory).unwrap().st_blocks
    }

    #[test]
    fn what_one_process_writes_another_reads_and_gives_back() {
        let mut written = StateMemory::new().unwrap();
        let pieces: Vec<Vec<u8>> = (0..8u8).map(|n| vec![n; PIECE_BYTES as usize + 5]).collect();
        pieces.iter().for_each(|piece| written.append(piece).unwrap());
        let copy = written.as_fd().try_clone_to_owned().unwrap();
        let mut read = StateMemory::passed(copy, written.len()).unwrap();
        let (mut at, whole) = (0, blocks(&read));
        for piece in &pieces {
            let mut bytes = Vec::new();
            read.read(at, piece.len(), &mut bytes).unwrap();
            assert_eq!(&bytes, piece);
            at += bytes.len() as u64;
            read.release(at);
        }
        assert!(blocks(&written) < whole / 4, "{} of {whole} blocks are left", blocks(&written));
        let mut bytes = Vec::new();
        read.read(at, 9, &mut bytes).unwrap();
        assert!(bytes.is_empty(), "nothing is behind the end");
    }

    #[test]
    fn what_is_no_memory_or_too_short_is_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        StateMemory::passed(socket.into(), 0).unwrap_err();
        let mut memory = StateMemory::new().unwrap();
        memory.append(b"state").unwrap();
        let copy = memory.as_fd().try_clone_to_owned().unwrap();
        StateMemory::passed(copy, 6).unwrap_err();
    }
}
