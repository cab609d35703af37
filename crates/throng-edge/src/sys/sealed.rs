//! Memory that two processes share and that nobody can write to: a memfd (memfd_create(2)) with
//! seals (fcntl(2), "File Sealing").
//!
//! # Why `unsafe`
//!
//! mmap(2) is a foreign function, and the mapping is read as a slice. The slice is valid because
//! the file has the mapped length and can neither shrink nor change: its seals say so, which are
//! checked before it is mapped and cannot be taken away. The mapping is private, which kernels
//! before 6.7 ask of a sealed file; nobody writes to it, so that it shares its pages with the
//! file, and they count once.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use throng_handover::memory::create;

/// The seals without which memory is not mapped.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory that is written, and then sealed.
#[derive(Debug)]
pub struct SealedWriter(File);

impl SealedWriter {
    /// Memory without bytes.
    pub fn new() -> io::Result<SealedWriter> {
        Ok(SealedWriter(create("throng-logs")?))
    }

    /// Appends bytes to what was written before.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Makes what was written all there will ever be.
    pub fn seal(self) -> io::Result<OwnedFd> {
        fcntl_add_seals(&self.0, SEALS)?;
        Ok(self.0.into())
    }
}

/// Sealed memory, mapped.
#[derive(Debug)]
pub struct SealedMemory {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: nobody can write to the memory, and any thread may unmap it.
unsafe impl Send for SealedMemory {}
// SAFETY: as above.
unsafe impl Sync for SealedMemory {}

impl SealedMemory {
    /// Maps sealed memory, and leaves the descriptor to the caller.
    ///
    /// # Errors
    ///
    /// It is not sealed, it is empty, or the kernel refuses.
    pub fn map(memory: BorrowedFd<'_>) -> io::Result<SealedMemory> {
        // Fails for a descriptor of anything else.
        if !fcntl_get_seals(memory)?.contains(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "memory is not sealed"));
        }
        let length = usize::try_from(fstat(memory)?.st_size).unwrap_or_default();
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "memory is empty"));
        }
        let (access, descriptor) = (libc::PROT_READ, memory.as_raw_fd());
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_PRIVATE, descriptor, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).expect("a mapping is not at 0");
        Ok(SealedMemory { address, length })
    }
}

impl AsRef<[u8]> for SealedMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the file is as long as the mapping, and the seals keep it so and unchanged; the
        // mapping lives as long as this value.
        unsafe { NonNull::slice_from_raw_parts(self.address, self.length).as_ref() }
    }
}

impl Drop for SealedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, with its length; no reference to it outlives this value.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_is_sealed_is_read_and_stays() {
        let mut writer = SealedWriter::new().unwrap();
        writer.append(b"some ").unwrap();
        writer.append(b"messages").unwrap();
        let descriptor = writer.seal().unwrap();
        let [one, other] = [(); 2].map(|()| SealedMemory::map(descriptor.as_fd()).unwrap());
        let mut file = File::from(descriptor);
        file.write_all(b"!").unwrap_err();
        file.set_len(0).unwrap_err();
        drop(file);
        assert_eq!(one.as_ref(), b"some messages");
        drop(one);
        assert_eq!(other.as_ref(), b"some messages");
    }

    #[test]
    fn what_could_change_is_not_mapped() {
        let mut writer = SealedWriter::new().unwrap();
        writer.append(b"messages").unwrap();
        fcntl_add_seals(&writer.0, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        SealedMemory::map(writer.0.as_fd()).unwrap_err();
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        SealedMemory::map(socket.as_fd()).unwrap_err();
        SealedMemory::map(SealedWriter::new().unwrap().seal().unwrap().as_fd()).unwrap_err();
    }
}
