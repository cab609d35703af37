//! The journal at rest, while another process has the storage.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use super::{DiskJournal, JournalRefused, Pause, Thread, WORKS, fail, lock, wait_to_retry};
use crate::storage::StorageError;

/// How long the disk may take to write what waits.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

impl DiskJournal {
    /// True if nothing waits, is written, or is to be answered.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue.0);
        let is_written = queue.waiting.is_empty() && !queue.is_writing;
        is_written && self.unanswered.load(Ordering::SeqCst) == 0
    }

    /// Writes what waits, and notes that nothing is lost. Then the thread writes nothing before
    /// [`DiskJournal::go_on`]; call that also after an error.
    ///
    /// # Errors
    ///
    /// The disk fails, or is too slow ([`JournalRefused::Busy`]).
    pub fn pause(&self) -> Result<(), JournalRefused> {
        if self.shared.state.load(Ordering::Relaxed) != WORKS {
            return Err(JournalRefused::Failed);
        }
        let (sender, paused) = mpsc::channel();
        lock(&self.queue.0).pause = Pause::Asked(sender);
        self.queue.1.notify_one();
        paused.recv_timeout(PAUSE_TIMEOUT).unwrap_or(Err(JournalRefused::Busy))
    }

    /// Goes on after [`DiskJournal::pause`], or begins after [`DiskJournal::start_paused`].
    pub fn go_on(&self) {
        lock(&self.queue.0).pause = Pause::No;
        self.queue.1.notify_one();
    }
}

impl Thread {
    /// Pauses if that is asked for. Returns whether the thread goes on: not if it is to end
    /// meanwhile.
    pub(super) fn rest(&mut self) -> bool {
        let mut queue = lock(&self.queue.0);
        queue.is_writing = false;
        match &queue.pause {
            Pause::No if self.is_noted => return true,
            Pause::Asked(_) if !queue.waiting.is_empty() => return true,
            Pause::No | Pause::Asked(_) | Pause::Begun => {}
        }
        if let Pause::Asked(sender) = &queue.pause {
            let sender = sender.clone();
            queue.pause = Pause::Begun;
            drop(queue);
            self.answers.wait();
            let works = self.shared.state.load(Ordering::Relaxed) == WORKS;
            let is_clean = works && self.writer.end_run().is_ok();
            self.is_noted = false;
            let outcome = match is_clean {
                // The storage cannot be closed.
                _ if self.writer.is_rewriting() => Err(JournalRefused::Busy),
                true => Ok(()),
                false => Err(JournalRefused::Failed),
            };
            // Fails only if nobody waits any more.
            let _ = sender.send(outcome);
            queue = lock(&self.queue.0);
        }
        while matches!(queue.pause, Pause::Begun) && !queue.is_ending {
            queue = self.queue.1.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let is_ending = matches!(queue.pause, Pause::Begun);
        drop(queue);
        !is_ending && self.begin_again()
    }

    /// Notes that the run goes on, as soon as the disk takes that. Returns whether the thread does:
    /// not if it is to end before.
    fn begin_again(&mut self) -> bool {
        while let Err(error) = self.note() {
            fail(&self.queue, &self.shared, &error);
            if wait_to_retry(&self.queue) {
                return false;
            }
            let server = &*self.setup.server;
            // Nothing is pending, so that there is nothing to stamp. If it fails, so does the note.
            let _ = self.writer.retry(&mut || server.newest_stamp());
        }
        self.shared.state.store(WORKS, Ordering::Relaxed);
        self.is_noted = true;
        true
    }

    fn note(&mut self) -> Result<(), StorageError> {
        let server = &*self.setup.server;
        self.writer.begin_run(server.newest_stamp())?;
        self.writer.apply_retention(&server.retention())?;
        self.writer.each_mortal(&mut |name| server.note_mortal(name))
    }
}
