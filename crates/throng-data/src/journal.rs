//! The thread that writes, and the queue before it.
//!
//! Everybody who publishes hands a publication over and goes on, and so does everybody who changes
//! other state. The thread takes all that waits, commits it as one, syncs once, and tells each what
//! became of it. So the more wait, the fewer syncs there are for each; nobody waits for others on
//! purpose.
//!
//! While the disk fails, what was taken last stays pending: it is committed again until it is
//! there, and then acknowledged. What waits behind it and what comes meanwhile is refused at once.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_core::{ChannelName, Histogram, Publication, Retention, Stamp};

use crate::logs::{Appended, Logs, Writer};
use crate::promise::Sync;
use crate::storage::{StorageError, Write};

/// Publications and changes that wait at most. Beyond it they are refused: the disk does not keep
/// up.
const WAITING_MAX: usize = 65_536;

/// Bytes of the bodies and entries that wait at most.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Publications and changes of one commit at most, so that the first one does not wait for the last
/// of many.
const GROUP_MAX: usize = 4_096;

/// A commit takes no more after this many bytes, for the same reason.
const GROUP_BYTES: usize = 8 << 20;

/// What an entry takes beside its key and value while it waits.
const WRITE_BYTES: usize = size_of::<Write>();

/// How often the thread looks for what has expired, and syncs with [`Sync::Interval`].
const TICK: Duration = Duration::from_millis(500);

/// How long the thread waits after a failure before it tries again.
const RETRY: Duration = Duration::from_millis(500);

/// Why a publication or change is refused: it is not on the disk, and never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// More wait than may.
    #[error("the disk does not keep up, so the message was not accepted; try again later")]
    Busy,
    /// The disk has no space.
    #[error("the disk of the data directory is full, so the message was not accepted")]
    Full,
    /// The disk fails.
    #[error("the disk of the data directory fails, so the message was not accepted")]
    Failed,
}

/// What is done once a publication is safe, or refused. Called on the thread, in the order of
/// offsets. Dropped without a call if the journal ends while it is not known whether the message is
/// on the disk.
pub type Done = Box<dyn FnOnce(Result<Appended, Refused>) + Send>;

/// The same for a change of other state, in the order of the calls.
pub type ChangeDone = Box<dyn FnOnce(Result<(), Refused>) + Send>;

enum Waiting {
    Publication(Publication, Retention, Done),
    Change(Vec<Write>, ChangeDone),
}

impl Waiting {
    fn bytes(&self) -> usize {
        match self {
            Waiting::Publication(publication, ..) => publication.body.bytes().len(),
            Waiting::Change(writes, _) => writes.iter().map(write_bytes).sum(),
        }
    }

    fn refuse(self, refused: Refused) {
        match self {
            Waiting::Publication(.., done) => done(Err(refused)),
            Waiting::Change(_, done) => done(Err(refused)),
        }
    }
}

fn write_bytes(write: &Write) -> usize {
    WRITE_BYTES + write.key.len() + write.value.as_ref().map_or(0, Vec::len)
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    is_ending: bool,
}

/// What others read about the thread.
#[derive(Debug, Default)]
struct Shared {
    /// How the disk is: see [`Journal::state`].
    state: AtomicU8,
    written: AtomicU64,
    syncs: Histogram,
}

const WORKS: u8 = 0;
const FULL: u8 = 1;
const FAILED: u8 = 2;

/// Settings of the thread, and what it needs of the server.
pub struct Setup {
    /// What is promised.
    pub sync: Sync,
    /// The clock, in milliseconds as `throng_core::clock` has it.
    pub now_ms: fn() -> u64,
    /// The place of the next message in the order of all messages.
    pub next_stamp: Box<dyn FnMut() -> Stamp + Send>,
    /// What is kept of a channel.
    pub retention_of: Box<dyn Fn(&ChannelName) -> Retention + Send>,
}

/// The thread that writes. Ends it when it is dropped, after all that waits.
pub struct Journal {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// What the storage or the system reports.
    pub fn start(logs: &Arc<Logs>, setup: Setup) -> io::Result<Journal> {
        let writer = logs.writer(setup.sync).map_err(io::Error::other)?;
        let queue = Arc::<(Mutex<Queue>, Condvar)>::default();
        let shared = Arc::<Shared>::default();
        let (of_thread, shared_of_thread) = (Arc::clone(&queue), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
            Thread { writer, setup, queue: of_thread, shared: shared_of_thread }.run();
        })?;
        Ok(Journal { queue, shared, thread: Some(thread) })
    }

    /// Publishes a message. Publications to a channel get their offsets in the order of the calls.
    /// `done` is made only if the publication is taken, and called then.
    ///
    /// # Errors
    ///
    /// Why it is refused at once.
    pub fn publish(
        &self,
        publication: Publication,
        retention: Retention,
        done: impl FnOnce() -> Done,
    ) -> Result<(), Refused> {
        let bytes = publication.body.bytes().len();
        self.push(bytes, || Waiting::Publication(publication, retention, done()))
    }

    /// Makes all of `writes` or none, as [`Journal::publish`] does with a message.
    ///
    /// # Errors
    ///
    /// Why it is refused at once.
    pub fn change(
        &self,
        writes: Vec<Write>,
        done: impl FnOnce() -> ChangeDone,
    ) -> Result<(), Refused> {
        let bytes = writes.iter().map(write_bytes).sum();
        self.push(bytes, || Waiting::Change(writes, done()))
    }

    fn push(&self, bytes: usize, waiting: impl FnOnce() -> Waiting) -> Result<(), Refused> {
        if let Some(refused) = self.state() {
            return Err(refused);
        }
        let mut queue = lock(&self.queue.0);
        if queue.waiting.len() >= WAITING_MAX || queue.bytes + bytes > WAITING_BYTES_MAX {
            return Err(Refused::Busy);
        }
        queue.bytes += bytes;
        let was_empty = queue.waiting.is_empty();
        queue.waiting.push_back(waiting());
        drop(queue);
        if was_empty {
            self.queue.1.notify_one();
        }
        Ok(())
    }

    /// Why publications are refused; `None` while the disk works.
    pub fn state(&self) -> Option<Refused> {
        match self.shared.state.load(Ordering::Relaxed) {
            FULL => Some(Refused::Full),
            FAILED => Some(Refused::Failed),
            _ => None,
        }
    }

    /// Messages written since the start.
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        lock(&self.queue.0).is_ending = true;
        self.queue.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // It panics only with the process.
            let _ = thread.join();
        }
    }
}

struct Thread {
    writer: Writer,
    setup: Setup,
    queue: Arc<(Mutex<Queue>, Condvar)>,
    shared: Arc<Shared>,
}

impl Thread {
    fn run(mut self) {
        let mut next_tick = Instant::now() + TICK;
        loop {
            let (group, is_ending) = self.take(next_tick);
            if group.is_empty() && is_ending {
                break;
            }
            if !group.is_empty() && !self.write(group) {
                break;
            }
            if Instant::now() >= next_tick {
                let has_more = self.tick();
                // What waits is written between two steps of it.
                next_tick = Instant::now() + if has_more { Duration::ZERO } else { TICK };
            }
        }
        if self.shared.state.load(Ordering::Relaxed) == WORKS {
            // Otherwise the next start finds an end that was not clean, which it can deal with.
            drop(self.writer.end_run());
        }
    }

    /// All that waits, up to a limit. Waits for it until `deadline`.
    fn take(&self, deadline: Instant) -> (Vec<Waiting>, bool) {
        let mut queue = lock(&self.queue.0);
        while queue.waiting.is_empty() && !queue.is_ending {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            let waited = self.queue.1.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while group.len() < GROUP_MAX
            && bytes < GROUP_BYTES
            && let Some(waiting) = queue.waiting.pop_front()
        {
            bytes += waiting.bytes();
            group.push(waiting);
        }
        queue.bytes -= bytes;
        (group, queue.is_ending)
    }

    /// Writes a group, and reports what became of it. Returns whether the thread goes on:
    /// not if it is to end while the disk fails.
    fn write(&mut self, group: Vec<Waiting>) -> bool {
        let (mut publications, mut done) = (Vec::new(), Vec::new());
        let (mut changes, mut changed) = (Vec::new(), Vec::new());
        for waiting in group {
            match waiting {
                Waiting::Publication(publication, retention, each) => {
                    publications.push((publication, retention));
                    done.push(each);
                }
                Waiting::Change(writes, each) => {
                    changes.extend(writes);
                    changed.push(each);
                }
            }
        }
        let began = Instant::now();
        let now_ms = (self.setup.now_ms)();
        let mut result = self.append(now_ms, &publications, &changes);
        while let Err(error) = result {
            self.fail(&error);
            if self.wait_to_retry() {
                return false;
            }
            result = match self.writer.retry() {
                Ok(appended) if appended.len() == done.len() => Ok(appended),
                // The error came before anything was pending.
                Ok(_) => self.append(now_ms, &publications, &changes),
                Err(error) => Err(error),
            };
        }
        self.shared.state.store(WORKS, Ordering::Relaxed);
        self.shared.syncs.record(began.elapsed().as_micros() as u64);
        let Ok(appended) = result else { return false };
        self.shared.written.fetch_add(appended.len() as u64, Ordering::Relaxed);
        for (appended, done) in appended.into_iter().zip(done) {
            done(Ok(appended));
        }
        changed.into_iter().for_each(|done| done(Ok(())));
        true
    }

    fn append(
        &mut self,
        now_ms: u64,
        publications: &[(Publication, Retention)],
        changes: &[Write],
    ) -> Result<Vec<Appended>, StorageError> {
        let next_stamp = &mut self.setup.next_stamp;
        self.writer.append(now_ms, publications, changes.to_vec(), next_stamp)
    }

    /// Waits before the next attempt. Returns whether the journal is to end.
    fn wait_to_retry(&self) -> bool {
        let wait = |queue| {
            self.queue.1.wait_timeout_while(queue, RETRY, |queue: &mut Queue| !queue.is_ending)
        };
        wait(lock(&self.queue.0)).unwrap_or_else(PoisonError::into_inner).0.is_ending
    }

    /// Syncs what waits for no sync, and drops what has expired. Returns whether more of that is
    /// left.
    fn tick(&mut self) -> bool {
        let result = match self.setup.sync {
            Sync::Interval => self.writer.sync(),
            Sync::Always | Sync::Never => Ok(()),
        };
        let now_ms = (self.setup.now_ms)();
        let expired = result.and_then(|()| self.writer.expire(now_ms, &*self.setup.retention_of));
        match expired {
            Ok(has_more) => {
                self.shared.state.store(WORKS, Ordering::Relaxed);
                has_more
            }
            Err(error) => {
                self.fail(&error);
                if self.writer.retry().is_ok() {
                    self.shared.state.store(WORKS, Ordering::Relaxed);
                }
                false
            }
        }
    }

    /// Refuses what waits and what comes, until the disk works again.
    fn fail(&self, error: &StorageError) {
        let (state, refused) = match error {
            StorageError::Full => (FULL, Refused::Full),
            StorageError::Failed(_) => (FAILED, Refused::Failed),
        };
        self.shared.state.store(state, Ordering::Relaxed);
        let mut queue = lock(&self.queue.0);
        let waiting = std::mem::take(&mut queue.waiting);
        queue.bytes = 0;
        drop(queue);
        waiting.into_iter().for_each(|waiting| waiting.refuse(refused));
    }
}
