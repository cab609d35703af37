//! Threads with a descriptor table of their own.
//!
//! `RLIMIT_NOFILE` counts per table, and a table shared by threads costs a lock for every socket
//! that is opened and a wait for all processors each time it doubles. Programs that hold more
//! connections than one table may have run them on such threads.
//!
//! # Why the `unsafe` calls are sound
//!
//! `unshare(CLONE_FILES)` touches no memory. Its danger is that a descriptor number then means
//! different files in different threads, so a number that crosses threads can name (or close)
//! another thread's file. The call is the first thing that a new thread does, and it copies the
//! table. So:
//!
//! - What the body captured was open when the thread began and is the same file in the copy.
//!   Dropped there, it is closed there; its entry in the table of the spawner stays until that
//!   table goes, because no value owns it any more: one descriptor for waking a thread.
//! - What is opened before or beside the thread is never closed by it: no value names it there.
//! - What is opened by the thread must not leave it, and nothing opened after its start must enter
//!   it: no descriptor is returned, and none goes over a channel or into a shared value. The
//!   compiler does not hold this rule; it is the contract of [`spawn`], and the callers in this
//!   workspace exchange only numbers and bytes.
//! - If the kernel refuses, the table is still shared and every number means what it meant.
//!
//! Copied entries keep their files open as long as the thread lives: a peer whose connection was
//! open at the start sees no end before the thread has ended. Start such threads first.
#![allow(unsafe_code)]

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Small, because hundreds of threads may be needed and none of them recurses.
const STACK_BYTES: usize = 512 * 1024;

/// Gives the calling thread a descriptor table of its own, a copy of the one that it had. If the
/// kernel refuses, the table is still shared.
///
/// Call it before the thread opens anything; the module's documentation says what must not cross
/// threads afterwards.
pub fn unshare() -> io::Result<()> {
    // SAFETY: the call touches no memory; callers keep the rules of the module's documentation.
    match unsafe { unshare_unsafe(UnshareFlags::FILES) } {
        Ok(()) => Ok(()),
        Err(_) => unshare_by_closing_nothing(),
    }
}

/// The same through close_range(2) with `CLOSE_RANGE_UNSHARE` and a range without descriptors:
/// container runtimes that refuse unshare(2), because it also makes namespaces, allow this.
fn unshare_by_closing_nothing() -> io::Result<()> {
    let (first, last, flags) = (u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: no descriptor has the number `u32::MAX`; for the rest see `unshare`.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts `body` on a thread whose descriptor table is private; `body` gets the error if the
/// kernel refused, and its table is then shared with the spawner's.
///
/// `body` must not return or send an open descriptor, nor be sent one.
pub fn spawn<F, T>(name: String, body: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce(io::Result<()>) -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || body(unshare()))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, read_link};
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_a_thread_opens_is_in_its_table_alone() {
        let opened = spawn("private".to_owned(), |unshared| {
            unshared.expect("the kernel allows it");
            let files: Vec<File> =
                (0..64).map(|_| File::open("/proc/self/stat").expect("opened")).collect();
            let last = files[63].as_raw_fd();
            let shared = read_link(format!("/proc/self/fd/{last}"));
            let own = read_link(format!("/proc/thread-self/fd/{last}"));
            (shared.is_ok_and(|path| path.ends_with("stat")), own.is_ok())
        });
        let (is_shared, is_own) = opened.expect("started").join().expect("ran");
        assert!(is_own);
        assert!(!is_shared);
    }

    #[test]
    fn either_call_gives_a_table_of_its_own() {
        for unshare in [unshare, unshare_by_closing_nothing] {
            let thread = std::thread::spawn(move || {
                unshare().expect("the kernel allows it");
                let files: Vec<File> =
                    (0..64).map(|_| File::open("/proc/self/stat").expect("opened")).collect();
                let last = files[63].as_raw_fd();
                let shared = read_link(format!("/proc/self/fd/{last}"));
                shared.is_ok_and(|path| path.ends_with("stat"))
            });
            assert!(!thread.join().expect("ran"));
        }
    }

    #[test]
    fn what_was_captured_is_the_same_file() {
        let mut file = File::open("/proc/self/comm").expect("opened");
        let text = spawn("captured".to_owned(), move |unshared| {
            unshared.expect("the kernel allows it");
            let mut text = String::new();
            file.read_to_string(&mut text).map(|_| text)
        });
        assert!(!text.expect("started").join().expect("ran").expect("read").is_empty());
    }
}
