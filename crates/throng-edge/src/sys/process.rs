//! The process's own resources: a descriptor table for one thread, and freed memory.
//!
//! With `unshare(CLONE_FILES)` a thread leaves the process's descriptor table for a copy of its
//! own: no lock is shared, growing it stalls nobody, and the descriptor limit holds per thread.
//!
//! # Why `unsafe`
//!
//! With a table of its own, a descriptor number means one thing in this thread and another
//! elsewhere: an `OwnedFd` that moved here from another thread, or from here to another, would
//! close an unrelated file. What keeps it sound: a worker thread calls [`unshare`] before it opens
//! anything; the descriptors that it uses and did not open itself (queue events, handoff sockets)
//! were open before, are shared by `Arc` and never closed while any worker runs, so that their
//! numbers mean the same in every table; and sockets cross threads only as messages of `handoff`,
//! which the kernel translates.
//!
//! malloc_trim(3) is a foreign function; it takes no pointer and touches only free memory.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread a descriptor table of its own.
pub(crate) fn unshare() -> io::Result<()> {
    // SAFETY: see the module's doc.
    match unsafe { unshare_unsafe(UnshareFlags::FILES) } {
        Ok(()) => Ok(()),
        Err(_) => unshare_by_closing_nothing(),
    }
}

/// The same through close_range(2) with `CLOSE_RANGE_UNSHARE` and a range without descriptors:
/// container runtimes that refuse unshare(2), because it also makes namespaces, allow this.
fn unshare_by_closing_nothing() -> io::Result<()> {
    let (first, last, flags) = (u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: no descriptor has the number `u32::MAX`; for the rest see the module's doc.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the pages of freed memory to the system. It holds the allocator's locks meanwhile, up to
/// some tenths of a second after gigabytes were freed: call it only then.
pub fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn either_way_gives_a_table_of_its_own() {
        for unshare in [unshare, unshare_by_closing_nothing] {
            let (opened, numbers) = std::sync::mpsc::channel();
            let (done, ended) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                unshare().unwrap();
                let there =
                    rustix::io::fcntl_dupfd_cloexec(std::io::stderr().as_fd(), 900).unwrap();
                opened.send(std::os::fd::AsRawFd::as_raw_fd(&there)).unwrap();
                let _ = ended.recv();
            });
            let number = numbers.recv().unwrap();
            assert!(!std::path::Path::new(&format!("/proc/self/fd/{number}")).exists());
            drop(done);
            thread.join().unwrap();
        }
    }
}
