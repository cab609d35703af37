//! The thread that writes, and the queue before it.
//!
//! Everybody who publishes hands a publication over and goes on, and so does everybody who changes
//! other state. The thread takes all that waits, commits it as one, syncs once, and tells each what
//! became of it. So the more wait, the fewer syncs there are for each; nobody waits for others on
//! purpose. A second thread delivers and answers while the next group is written.
//!
//! While the disk fails, the last group stays pending: it is committed again until it is there, and
//! then acknowledged. Everything behind it and everything that comes meanwhile is refused at once.

mod answers;
mod figures;
mod outcome;
mod pause;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{VecDeque, vec_deque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_core::{ChannelName, Stamp};

use answers::{AnswerThread, Safe};
use figures::EngineShared;
pub use figures::JournalFigures;
pub use outcome::{ChangeDone, JournalRefused, JournalWritten, WhenDone};
pub use server::{Answering, JournalServer};

use crate::logs::{AllStates, Appended, Entry, Logs, NameIndex, Unreadable, Writer};
use crate::storage::{StorageError, Write};
use crate::sync_policy::SyncPolicy;

/// Messages and changes that wait at most. Beyond it they are refused: the disk does not keep
/// up.
const WAITING_MAX: usize = 65_536;

/// Bytes of the bodies and entries that wait at most.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Messages and changes of one commit at most, so that the first one does not wait for the last
/// of many.
const GROUP_MAX: usize = 4_096;

/// A commit takes no more after this many bytes, for the same reason.
const GROUP_BYTES: usize = 8 << 20;

/// Size of a waiting entry besides its key and value.
const WRITE_BYTES: usize = size_of::<Write>();

/// How often the thread looks for what has expired, and syncs with [`SyncPolicy::Interval`].
const TICK: Duration = Duration::from_millis(500);

/// How often it is told at most what could not be read.
const TELL_UNREADABLE: Duration = Duration::from_secs(60);

/// The part of the directory that all states may take: they are not dropped for others' messages.
const STATES_PART: u64 = 2;

/// How long the thread waits after a failure before it tries again.
const RETRY: Duration = Duration::from_millis(500);

enum Waiting {
    Entry(Entry, WhenDone),
    Change(Vec<Write>, ChangeDone),
}

impl Waiting {
    fn count(&self) -> usize {
        match self {
            Waiting::Entry(entry, _) => entry.count(),
            Waiting::Change(..) => 1,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Waiting::Entry(entry, _) => entry.bytes(),
            Waiting::Change(writes, _) => writes.iter().map(write_bytes).sum(),
        }
    }

    fn refuse(self, refused: JournalRefused) {
        match self {
            Waiting::Entry(_, done) => done(Err(refused)),
            Waiting::Change(_, done) => done(Err(refused)),
        }
    }
}

/// The content of one commit, and the parties to tell.
#[derive(Default)]
struct Group {
    entries: Vec<Entry>,
    done: Vec<WhenDone>,
    changes: Vec<Write>,
    changed: Vec<ChangeDone>,
}

impl Group {
    fn of(waiting: vec_deque::Drain<'_, Waiting>) -> Group {
        let mut group = Group::default();
        group.entries.reserve(waiting.len());
        group.done.reserve(waiting.len());
        for waiting in waiting {
            match waiting {
                Waiting::Entry(entry, done) => {
                    group.entries.push(entry);
                    group.done.push(done);
                }
                Waiting::Change(writes, done) => {
                    group.changes.extend(writes);
                    group.changed.push(done);
                }
            }
        }
        group
    }
}

fn write_bytes(write: &Write) -> usize {
    WRITE_BYTES + write.key.len() + write.value.as_ref().map_or(0, |value| value.len())
}

/// Whether the thread writes.
#[derive(Default)]
enum Pause {
    #[default]
    No,
    /// It is to stop once nothing waits, and to say so.
    Asked(Sender<Result<(), JournalRefused>>),
    /// Another process may have the storage.
    Begun,
}

impl Pause {
    fn is_no(&self) -> bool {
        matches!(self, Pause::No)
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Messages and changes in them.
    count: usize,
    bytes: usize,
    /// True if the thread writes what it took last.
    is_writing: bool,
    is_ending: bool,
    pause: Pause,
}

const WORKS: u8 = 0;
const FULL: u8 = 1;
const FAILED: u8 = 2;

/// Settings of the thread, and the server.
pub struct JournalSetup {
    pub sync: SyncPolicy,
    /// Bytes on the disk beyond which everything but erasures is refused. Entries that wait when
    /// the thread notices are still written.
    pub max_bytes: u64,
    /// The clock, the stamps and the followers.
    pub server: Arc<dyn JournalServer>,
}

/// The stamps of one group, which begins with the first of them: before that nobody has to wait.
struct GroupStamps<'a> {
    server: &'a dyn JournalServer,
    answers: &'a AnswerThread,
    has_begun: bool,
}

impl GroupStamps<'_> {
    fn next(&mut self) -> Stamp {
        if !self.has_begun {
            self.server.begin_group();
            self.has_begun = true;
        }
        self.server.next_stamp()
    }

    /// Ends the group, which is not safe, after those before it.
    fn end(&mut self) {
        if self.leave() {
            self.answers.wait();
            self.server.end_group();
        }
    }

    /// Leaves the end to others. Returns whether there is a group.
    fn leave(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }
}

impl Drop for GroupStamps<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread that writes. Ends it when it is dropped, after all that waits.
pub struct DiskJournal {
    queue: Arc<SharedQueue>,
    shared: Arc<EngineShared>,
    /// Groups that are safe, and not answered.
    unanswered: Arc<AtomicUsize>,
    max_bytes: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskJournal {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// An error of the storage or the system.
    pub fn start(logs: &Arc<Logs>, setup: JournalSetup) -> io::Result<DiskJournal> {
        let newest = setup.server.newest_stamp();
        let mut writer = Writer::begin(logs, setup.sync, newest).map_err(io::Error::other)?;
        writer.apply_retention(&setup.server.retention()).map_err(io::Error::other)?;
        let mut each = |name: &_| setup.server.note_mortal(name);
        logs.each_mortal(&mut each).map_err(io::Error::other)?;
        DiskJournal::spawn(writer, setup, Pause::No)
    }

    /// Starts the thread, which writes nothing before [`DiskJournal::go_on`].
    ///
    /// # Errors
    ///
    /// An error of the storage or the system.
    pub fn start_paused(logs: &Arc<Logs>, setup: JournalSetup) -> io::Result<DiskJournal> {
        let writer = Writer::prepare(logs, setup.sync).map_err(io::Error::other)?;
        DiskJournal::spawn(writer, setup, Pause::Begun)
    }

    fn spawn(writer: Writer, setup: JournalSetup, pause: Pause) -> io::Result<DiskJournal> {
        let is_noted = pause.is_no();
        let server = Arc::clone(&setup.server);
        let writer = writer.with_followers(Box::new(move |name| server.followed_head(name)));
        let server = Arc::clone(&setup.server);
        let limits_of = Box::new(move |name: &ChannelName| server.state_limits(name));
        let writer = writer.with_state_limits(limits_of, setup.max_bytes / STATES_PART);
        let queue = (Mutex::new(Queue { pause, ..Queue::default() }), Condvar::new());
        let queue: Arc<SharedQueue> = Arc::new(queue);
        let shared = Arc::<EngineShared>::default();
        shared.note_states(&writer);
        let (of_thread, shared_of_thread) = (Arc::clone(&queue), Arc::clone(&shared));
        let max_bytes = setup.max_bytes;
        let answers = AnswerThread::start(Arc::clone(&setup.server))?;
        let unanswered = answers.unanswered();
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
            let (queue, shared) = (of_thread, shared_of_thread);
            let taken = VecDeque::new();
            let next_telling = Instant::now();
            Thread { writer, is_noted, setup, answers, queue, shared, taken, next_telling }.run();
        })?;
        Ok(DiskJournal { queue, shared, unanswered, max_bytes, thread: Mutex::new(Some(thread)) })
    }

    /// Makes a change of a log. Messages of a channel get their offsets in the order of the calls.
    /// `done` is made only if the change is taken, and called then.
    ///
    /// # Errors
    ///
    /// Why it is refused at once.
    pub fn append(
        &self,
        entry: impl Into<Entry>,
        done: impl FnOnce() -> WhenDone,
    ) -> Result<(), JournalRefused> {
        let entry = entry.into();
        let (count, bytes) = (entry.count(), entry.bytes());
        // A directory beyond its limit becomes smaller so.
        let frees = matches!(entry, Entry::Erase(..));
        let refused = self.state().filter(|why| !frees || *why != JournalRefused::OverLimit);
        self.push(refused, count, bytes, || Waiting::Entry(entry, done()))
    }

    /// Makes all of `writes` or none, as [`DiskJournal::append`] does with a log.
    ///
    /// # Errors
    ///
    /// Why it is refused at once.
    pub fn change(
        &self,
        writes: Vec<Write>,
        done: impl FnOnce() -> ChangeDone,
    ) -> Result<(), JournalRefused> {
        let bytes = writes.iter().map(write_bytes).sum();
        self.push(self.state(), 1, bytes, || Waiting::Change(writes, done()))
    }

    fn push(
        &self,
        refused: Option<JournalRefused>,
        count: usize,
        bytes: usize,
        waiting: impl FnOnce() -> Waiting,
    ) -> Result<(), JournalRefused> {
        refused.map_or(Ok(()), Err)?;
        let mut queue = lock(&self.queue.0);
        if queue.is_ending {
            return Err(JournalRefused::Failed);
        }
        if queue.count + count > WAITING_MAX || queue.bytes + bytes > WAITING_BYTES_MAX {
            return Err(JournalRefused::Busy);
        }
        queue.count += count;
        queue.bytes += bytes;
        let was_empty = queue.waiting.is_empty();
        queue.waiting.push_back(waiting());
        drop(queue);
        if was_empty {
            self.queue.1.notify_one();
        }
        Ok(())
    }

    /// Why publications are refused; `None` while the disk works and the directory is within its
    /// limit.
    pub fn state(&self) -> Option<JournalRefused> {
        match self.shared.state.load(Ordering::Relaxed) {
            FULL => Some(JournalRefused::Full),
            FAILED => Some(JournalRefused::Failed),
            _ if self.shared.is_over_limit.load(Ordering::Relaxed) => {
                Some(JournalRefused::OverLimit)
            }
            _ => None,
        }
    }

    /// How many messages were written so far.
    pub fn messages(&self) -> u64 {
        self.shared.messages.load(Ordering::Relaxed)
    }

    /// How much there is of all states.
    pub(crate) fn states(&self) -> AllStates {
        self.shared.states()
    }

    /// Counters so far.
    pub fn figures(&self) -> JournalFigures {
        self.shared.figures(self.max_bytes)
    }

    /// The storage's last error.
    pub fn failure(&self) -> String {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl DiskJournal {
    /// Ends the thread, after all waiting work. Later work is refused.
    pub fn end(&self) {
        lock(&self.queue.0).is_ending = true;
        self.queue.1.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It panics only with the process.
            let _ = thread.join();
        }
    }
}

impl Drop for DiskJournal {
    fn drop(&mut self) {
        self.end();
    }
}

struct Thread {
    writer: Writer,
    /// True if the storage knows that this run goes on.
    is_noted: bool,
    setup: JournalSetup,
    answers: AnswerThread,
    queue: Arc<SharedQueue>,
    shared: Arc<EngineShared>,
    /// The next group to write.
    taken: VecDeque<Waiting>,
    /// When it may be told again what could not be read.
    next_telling: Instant,
}

impl Thread {
    fn run(mut self) {
        let mut next_tick = Instant::now() + TICK;
        loop {
            if !self.rest() {
                return;
            }
            let is_ending = self.take(next_tick);
            if self.taken.is_empty() && is_ending {
                break;
            }
            if !self.taken.is_empty() && !self.write() {
                break;
            }
            if Instant::now() >= next_tick {
                let has_more = self.tick();
                self.tell_unreadable();
                // What is due in states.
                if !self.taken.is_empty() && !self.write() {
                    break;
                }
                // Waiting work is written between two steps of it.
                next_tick = Instant::now() + if has_more { Duration::ZERO } else { TICK };
            }
        }
        self.answers.wait();
        if self.shared.state.load(Ordering::Relaxed) == WORKS {
            // Otherwise the next start finds an end that was not clean, which it can deal with.
            drop(self.writer.end_run());
        }
    }

    /// Takes all that waits, up to a limit. Waits for it until `deadline`. Returns whether the
    /// thread is to end.
    fn take(&mut self, deadline: Instant) -> bool {
        let mut queue = lock(&self.queue.0);
        while queue.waiting.is_empty() && !queue.is_ending && queue.pause.is_no() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            let waited = self.queue.1.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        debug_assert!(self.taken.is_empty(), "it was written");
        if queue.count <= GROUP_MAX && queue.bytes <= GROUP_BYTES {
            // Publishers wait for the lock.
            std::mem::swap(&mut queue.waiting, &mut self.taken);
            (queue.count, queue.bytes) = (0, 0);
        } else {
            let (mut count, mut bytes) = (0, 0);
            while count < GROUP_MAX
                && bytes < GROUP_BYTES
                && let Some(waiting) = queue.waiting.pop_front()
            {
                count += waiting.count();
                bytes += waiting.bytes();
                self.taken.push_back(waiting);
            }
            queue.count -= count;
            queue.bytes -= bytes;
        }
        queue.is_writing = !self.taken.is_empty();
        queue.is_ending
    }

    /// Writes what was taken, and reports what became of it. Returns whether the thread goes on:
    /// not if it is to end while the disk fails.
    fn write(&mut self) -> bool {
        let Group { entries, done, changes, changed } = Group::of(self.taken.drain(..));
        let began = Instant::now();
        let Thread { writer, setup, answers, queue, shared, .. } = self;
        let server = &*setup.server;
        let mut stamps = GroupStamps { server, answers, has_begun: false };
        let now_ms = server.now_ms();
        let mut result = writer.append(now_ms, &entries, changes.clone(), &mut || stamps.next());
        while let Err(error) = result {
            // Others go on meanwhile; what is pending gets later stamps.
            stamps.end();
            fail(queue, shared, &error);
            if wait_to_retry(queue) {
                return false;
            }
            result = match writer.retry(&mut || stamps.next()) {
                Ok(appended) if appended.len() == done.len() => Ok(appended),
                // The error came before anything was pending.
                Ok(_) => writer.append(now_ms, &entries, changes.clone(), &mut || stamps.next()),
                Err(error) => Err(error),
            };
        }
        shared.state.store(WORKS, Ordering::Relaxed);
        shared.commits.record(began.elapsed().as_micros() as u64);
        shared.note_states(writer);
        let Ok(appended) = result else { return false };
        let new = appended.iter().flat_map(Appended::contents);
        let (messages, bytes) = new.fold((0, 0), |(count, sum), content| {
            (count + 1, sum + content.body.bytes().len() as u64)
        });
        shared.messages.fetch_add(messages, Ordering::Relaxed);
        shared.message_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_stamped = stamps.leave();
        answers.answer(Safe { appended, entries, done, changed, is_stamped });
        true
    }

    /// Tells what could not be read, but not with each tick.
    fn tell_unreadable(&mut self) {
        let Unreadable { count, last } = self.writer.take_unreadable();
        self.shared.unreadable.fetch_add(count, Ordering::Relaxed);
        if count > 0 && Instant::now() >= self.next_telling {
            self.setup.server.unreadable(&last);
            self.next_telling = Instant::now() + TELL_UNREADABLE;
        }
    }

    /// Syncs what waits for no sync, drops what has expired or was erased, and takes what is due in
    /// states, to be written next. Returns whether more of that is left.
    fn tick(&mut self) -> bool {
        let Thread { writer, setup, queue, shared, taken, .. } = self;
        let server = &*setup.server;
        let result = writer.check().and_then(|()| match setup.sync {
            SyncPolicy::Interval => writer.sync(),
            SyncPolicy::Always | SyncPolicy::Never => Ok(()),
        });
        let result = result.and_then(|()| writer.reserve_stamps(server.newest_stamp()));
        let result = result.and_then(|()| writer.take_rewriting_step());
        let retention_of = |name: &ChannelName| server.retention_of(name);
        let now_ms = server.now_ms();
        let result = result.and_then(|()| writer.expire(now_ms, &retention_of));
        let result = result.and_then(|more| Ok(writer.remove_erased()? || more));
        let result = result.and_then(|more| Ok(writer.walk(now_ms, &retention_of)? || more));
        let due = result.and_then(|more| {
            let (due, has_more) = writer.due_entries(now_ms, &retention_of)?;
            Ok((due, has_more || more))
        });
        match due {
            Ok((due, has_more)) => {
                taken.extend(due.into_iter().map(|due| Waiting::Entry(due, Box::new(|_| {}))));
                let bytes = writer.bytes().unwrap_or_default();
                shared.disk_bytes.store(bytes, Ordering::Relaxed);
                let NameIndex { kept, forgotten, .. } = writer.count_names();
                shared.names_kept.store(kept, Ordering::Relaxed);
                shared.names_forgotten.store(forgotten, Ordering::Relaxed);
                shared.is_over_limit.store(bytes > setup.max_bytes, Ordering::Relaxed);
                shared.state.store(WORKS, Ordering::Relaxed);
                writer.give_back();
                has_more
            }
            Err(error) => {
                fail(queue, shared, &error);
                // Nothing is pending, so that there is nothing to stamp.
                if writer.retry(&mut || server.newest_stamp()).is_ok() {
                    shared.state.store(WORKS, Ordering::Relaxed);
                }
                false
            }
        }
    }
}

type SharedQueue = (Mutex<Queue>, Condvar);

/// Waits before the next attempt. Returns whether the journal is to end.
fn wait_to_retry(queue: &SharedQueue) -> bool {
    let is_running = |queue: &mut Queue| !queue.is_ending;
    let waited = queue.1.wait_timeout_while(lock(&queue.0), RETRY, is_running);
    waited.unwrap_or_else(PoisonError::into_inner).0.is_ending
}

/// Refuses what waits and what comes, until the disk works again.
fn fail(queue: &SharedQueue, shared: &EngineShared, error: &StorageError) {
    let (state, refused) = match error {
        StorageError::Full => (FULL, JournalRefused::Full),
        StorageError::Failed(what) | StorageError::Damaged(what) => {
            shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone_from(what);
            (FAILED, JournalRefused::Failed)
        }
    };
    shared.state.store(state, Ordering::Relaxed);
    let mut locked = lock(&queue.0);
    let waiting = std::mem::take(&mut locked.waiting);
    (locked.count, locked.bytes) = (0, 0);
    drop(locked);
    waiting.into_iter().for_each(|waiting| waiting.refuse(refused));
}
