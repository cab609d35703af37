//! The one thread of a server that signals reach.
//!
//! A signal that is sent to a process runs its handler on any thread that does not block it. Here
//! all threads do but this one, which is started before them. So a process that is about to be
//! [replaced](crate::upgrade::parent) by its own execution can block them in all threads: from then
//! on they wait, also through the execution, until they are read.

use std::io;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

/// The thread runs nothing but handlers.
const STACK_BYTES: usize = 128 << 10;

/// The signals that a server acts on.
pub(crate) fn signals() -> SigSet {
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR2].into_iter().collect()
}

/// Blocks signals in all threads when it is told to.
#[derive(Debug, Clone)]
pub(crate) struct SignalThread(SyncSender<SyncSender<()>>);

impl SignalThread {
    /// Starts it. Threads that this one starts from now on leave the signals to it, and so must
    /// all others: call it first.
    pub(crate) fn start() -> io::Result<SignalThread> {
        let (sender, asked) = mpsc::sync_channel::<SyncSender<()>>(1);
        signals().thread_block()?;
        let builder = thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
        builder.spawn(move || {
            // Fails only for a signal that does not exist.
            let _ = signals().thread_unblock();
            // Nobody can ask any more once the other end has gone; handlers go on to run.
            if let Ok(blocked) = asked.recv() {
                let _ = signals().thread_block();
                let _ = blocked.send(());
            }
            loop {
                thread::park();
            }
        })?;
        Ok(SignalThread(sender))
    }

    /// Blocks the signals in all threads. When this returns, no handler runs, and none will.
    pub(crate) fn block(&self) {
        let (blocked, is_blocked) = mpsc::sync_channel(1);
        if self.0.send(blocked).is_ok() {
            let _ = is_blocked.recv();
        }
    }
}

/// Starts something that must not have the signals blocked: a process, which would keep that.
pub(crate) fn unblocked<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let before = SigSet::thread_get_mask()?;
    signals().thread_unblock()?;
    let started = start();
    before.thread_set_mask()?;
    Ok(started)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The signals that a thread of this process blocks, as the kernel shows them.
    fn blocked(thread: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    fn own() -> String {
        std::fs::read_link("/proc/thread-self").unwrap().file_name().unwrap().display().to_string()
    }

    #[test]
    fn signals_reach_its_thread_until_they_are_blocked() {
        const USR2: u64 = 1 << (Signal::SIGUSR2 as u64 - 1);
        // Another thread of the tests, so that they go on as they were.
        thread::spawn(|| {
            let signals = SignalThread::start().unwrap();
            assert_eq!(blocked(&own()) & USR2, USR2);
            assert_eq!(unblocked(|| blocked(&own()) & USR2).unwrap(), 0);
            assert_eq!(blocked(&own()) & USR2, USR2);
            let count = Arc::new(AtomicUsize::new(0));
            let started = Arc::clone(&count);
            thread::spawn(move || started.store(blocked(&own()) as usize, Ordering::Relaxed))
                .join()
                .unwrap();
            assert_eq!(count.load(Ordering::Relaxed) as u64 & USR2, USR2);
            signals.block();
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.map(|task| task.unwrap().file_name().display().to_string());
            let own = names.filter(|task| {
                let name = std::fs::read_to_string(format!("/proc/self/task/{task}/comm"));
                name.is_ok_and(|name| name.trim() == "signals")
            });
            assert!(own.map(|task| blocked(&task)).any(|blocked| blocked & USR2 == USR2));
        })
        .join()
        .unwrap();
    }
}
