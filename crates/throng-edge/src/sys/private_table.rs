//! A descriptor table for one thread.
//!
//! With `unshare(CLONE_FILES)` a thread leaves the process's descriptor table for a copy of its
//! own: no lock is shared, growing it stalls nobody, and the descriptor limit holds per thread.
//!
//! # Why `unsafe`
//!
//! Afterwards a descriptor number means one thing in this thread and another elsewhere: an
//! `OwnedFd` that moved here from another thread, or from here to another, would close a stranger's
//! file. What keeps it sound: a worker thread calls this before it opens anything; the descriptors
//! that it uses and did not open itself (mailbox events, hand-over sockets) were open before, are
//! shared by `Arc` and never closed while any worker runs, so that their numbers mean the same in
//! every table; and sockets cross threads only as messages of `hand_over`, which the kernel
//! translates.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread a descriptor table of its own.
pub(crate) fn unshare() -> io::Result<()> {
    // SAFETY: see the module's doc.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    Ok(())
}
