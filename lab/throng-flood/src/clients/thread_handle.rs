//! Starts a client thread, and sends it commands.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use throng_host::private_table;

use super::error::ClientPoolError;
use super::shared::Shared;
use super::thread::{ClientThread, ThreadCommand};

/// A client thread, and the way to command it.
pub(super) struct ThreadHandle {
    commands: Option<Sender<ThreadCommand>>,
    wake: OwnedFd,
    handle: Option<JoinHandle<()>>,
}

impl ThreadHandle {
    /// Starts thread `index` of the pool, with room for `capacity` clients. Returns once the thread
    /// has its own descriptor table.
    pub(super) fn start(
        shared: &Arc<Shared>,
        index: usize,
        capacity: usize,
    ) -> Result<ThreadHandle, ClientPoolError> {
        let shared = Arc::clone(shared);
        let name = if shared.publisher.is_some() { "publisher" } else { "clients" };
        let (commands, commanded) = channel();
        let (started, start) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(ClientPoolError::thread)?;
        // Captured before the thread starts, as private descriptor tables require.
        let own = wake.try_clone().map_err(ClientPoolError::thread)?;
        let handle = private_table::spawn(format!("{name}-{index}"), move |unshared| {
            let thread = unshared
                .map_err(ClientPoolError::thread)
                .and_then(|()| ClientThread::new(shared, index, capacity, own));
            match thread {
                Ok(thread) => {
                    let _ = started.send(Ok(()));
                    thread.run(&commanded);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let handle = handle.map_err(ClientPoolError::thread)?;
        let gone = |gone| Err(ClientPoolError::thread(gone));
        start.recv().unwrap_or_else(gone)?;
        Ok(ThreadHandle { commands: Some(commands), wake, handle: Some(handle) })
    }

    /// Sends a command, and wakes the thread for it.
    pub(super) fn command(&self, command: ThreadCommand) {
        // A thread that has panicked takes no commands; see `ClientPool::ask`.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
        self.wake();
    }

    /// Makes the thread reset its connections and end.
    pub(super) fn disconnect(&mut self) {
        self.commands = None;
        self.wake();
    }

    /// Waits for the end of the thread. The error is its panic.
    pub(super) fn join(&mut self) -> std::thread::Result<()> {
        self.handle.take().map_or(Ok(()), JoinHandle::join)
    }

    fn wake(&self) {
        // The count cannot overflow, because each wake-up resets it.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
