//! Threads with a descriptor table of their own.
//!
//! `RLIMIT_NOFILE` counts per table, and a table shared by threads costs a lock for every socket
//! that is opened. Both ends of a measurement therefore run on such threads: the senders of
//! [`raw_server`](crate::raw_server) and the threads of [`client`](crate::client).
//!
//! # Why the one `unsafe` call is sound
//!
//! `unshare(CLONE_FILES)` touches no memory. Its danger is that a descriptor number then means
//! different files in different threads, so a number that crosses threads can name (or close)
//! somebody else's file. Here it cannot cross: the call is the first thing that a new thread
//! does, the two callers above open every descriptor they use after it and keep them in values
//! that never leave the thread, and they exchange only numbers and bytes over channels. What the
//! table held before is copied, so standard error and the like stay valid.
#![allow(unsafe_code)]

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Small, because a measurement may need hundreds of threads and none of them recurses.
const STACK_BYTES: usize = 256 * 1024;

/// Starts `body` on a thread whose descriptor table is private; `body` gets the error if the
/// kernel refused, and must then open nothing.
///
/// `body` must not capture, return or send an open descriptor.
pub fn spawn<F>(name: String, body: F) -> io::Result<JoinHandle<()>>
where
    F: FnOnce(io::Result<()>) + Send + 'static,
{
    Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
        // SAFETY: nothing has been opened by this thread yet, and nothing it opens from here on
        // leaves it (see the module's documentation).
        let unshared = unsafe { unshare_unsafe(UnshareFlags::FILES) };
        body(unshared.map_err(io::Error::from));
    })
}
