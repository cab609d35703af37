//! The thread that has the store's files rewritten after erasures, so that within a time of the
//! settings no file has what was erased.
//!
//! All erasures of half of that time are done with by one rewriting. The other half is for what may
//! come between: a disk that fails, or a server that is not there.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use throng_core::clock;

use crate::logs::Logs;
use crate::storage::StorageError;
use crate::storage::disk::DiskStorage;

/// How often it looks whether files are to be rewritten, at most.
const LOOK: Duration = Duration::from_secs(60);

/// How long it waits after a failure.
const AGAIN: Duration = Duration::from_secs(600);

/// How often it looks for the writer's answer, which comes within half a second, unless that is
/// paused.
const ANSWER_LOOK: Duration = Duration::from_millis(100);

/// How long it waits for that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Rewritings since the start, and what is left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RewriteFigures {
    /// For how long something has been erased that may still be in files, in milliseconds; `None`
    /// if there is nothing.
    pub oldest_ms: Option<u64>,
    pub done: u64,
    pub failed: u64,
}

struct Shared {
    storage: Arc<DiskStorage>,
    logs: Arc<Logs>,
    within: Duration,
    is_ending: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
}

/// See the module. The thread ends after this is dropped, once it has rewritten the table that it
/// may be at: nobody waits for that.
pub struct Rewriter {
    shared: Arc<Shared>,
    /// Wakes the thread when it is dropped.
    end: Mutex<Option<Sender<()>>>,
}

impl Rewriter {
    /// Starts the thread, which has files rewritten within this time of an erasure.
    ///
    /// # Errors
    ///
    /// An error of the system.
    pub fn start(
        storage: &Arc<DiskStorage>,
        logs: &Arc<Logs>,
        within: Duration,
    ) -> io::Result<Rewriter> {
        let (storage, logs) = (Arc::clone(storage), Arc::clone(logs));
        let (is_ending, done, failed) = Default::default();
        let shared = Arc::new(Shared { storage, logs, within, is_ending, done, failed });
        let of_thread = Arc::clone(&shared);
        let (end, ended) = mpsc::channel::<()>();
        thread::Builder::new().name("rewriter".into()).spawn(move || {
            let look = LOOK.min(of_thread.within / 8);
            let mut wait = look;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = if of_thread.look() { look } else { AGAIN.min(of_thread.within / 8) };
            }
        })?;
        Ok(Rewriter { shared, end: Mutex::new(Some(end)) })
    }

    /// True while files are being rewritten: then the storage cannot be closed.
    pub fn is_rewriting(&self) -> bool {
        self.shared.logs.is_rewriting()
    }

    /// Figures so far.
    pub fn figures(&self) -> RewriteFigures {
        let Shared { logs, done, failed, .. } = &*self.shared;
        RewriteFigures {
            oldest_ms: logs.erased_ms().map(|ms| clock::machine_ms().saturating_sub(ms)),
            done: done.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
        }
    }

    /// Has the thread end.
    pub fn end(&self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        drop(self.end.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Has files rewritten if it is time. Returns false if that has failed.
    fn look(&self) -> bool {
        match self.is_due() {
            Ok(true) if self.begin() => {}
            Ok(_) => return true,
            Err(error) => return self.has_failed(&error),
        }
        tracing::info!(
            "rewriting the files of the data directory, so that none has what is erased"
        );
        let began = Instant::now();
        let rewritten = self.storage.rewrite(&|| self.is_ending.load(Ordering::Relaxed));
        self.logs.end_rewriting(rewritten.is_ok());
        match rewritten {
            Ok(()) => {
                self.done.fetch_add(1, Ordering::Relaxed);
                let took_s = began.elapsed().as_secs_f64();
                tracing::info!(took_s, "the files of the data directory are rewritten");
                true
            }
            Err(error) => self.has_failed(&error),
        }
    }

    /// True if something was erased half of the time ago, and is removed.
    fn is_due(&self) -> Result<bool, StorageError> {
        let Some(erased_ms) = self.logs.erased_ms() else { return Ok(false) };
        let half_ms = self.within.as_millis() as u64 / 2;
        let is_time = clock::machine_ms() >= erased_ms.saturating_add(half_ms);
        // The clock was put back: sooner is better than never.
        let is_future = erased_ms > clock::machine_ms().saturating_add(half_ms);
        Ok((is_time || is_future) && !self.logs.has_erased_entries()?)
    }

    /// Returns whether the writer lets it begin.
    fn begin(&self) -> bool {
        self.logs.ask_rewriting();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while !self.logs.is_rewriting() {
            if Instant::now() > deadline || self.is_ending.load(Ordering::Relaxed) {
                return self.logs.withdraw_rewriting();
            }
            thread::sleep(ANSWER_LOOK);
        }
        true
    }

    fn has_failed(&self, error: &StorageError) -> bool {
        if !self.is_ending.load(Ordering::Relaxed) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                "the files of the data directory are not rewritten, and what is erased \
                            may be in them: {error}; it is tried again"
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use throng_core::change::Erase;
    use throng_core::{Body, ChannelName, MessageId, Publication, Retention};

    use super::*;
    use crate::journal::tests::Alone;
    use crate::journal::{DiskJournal, JournalRefused, JournalSetup, JournalWritten, WhenDone};
    use crate::logs::{Appended, Entry};
    use crate::storage::Storage as _;
    use crate::sync_policy::SyncPolicy;

    const KEPT: Retention =
        Retention { max_messages: 10_000, max_bytes: usize::MAX, max_age_ms: u64::MAX };

    /// No event of a test takes this long.
    const PATIENCE: Duration = Duration::from_secs(60);

    struct Run {
        logs: Arc<Logs>,
        journal: DiskJournal,
        shared: Shared,
    }

    fn news() -> ChannelName {
        ChannelName::channel("news")
    }

    impl Run {
        fn open(path: &Path) -> Run {
            let storage = Arc::new(DiskStorage::open(path, 1 << 20).expect("it opens"));
            let (logs, _) = Logs::open(Arc::clone(&storage) as _, "boot").expect("it opens");
            let logs = Arc::new(logs);
            let server = Arc::<Alone>::default();
            let setup = JournalSetup { sync: SyncPolicy::Never, max_bytes: u64::MAX, server };
            let journal = DiskJournal::start(&logs, setup).expect("it starts");
            let (is_ending, done, failed) = Default::default();
            let of_shared = Arc::clone(&logs);
            let within = Duration::ZERO;
            let shared = Shared { storage, logs: of_shared, within, is_ending, done, failed };
            Run { logs, journal, shared }
        }

        fn make(&self, entry: Entry) -> Appended {
            let (sender, answer) = mpsc::channel();
            let done = || -> WhenDone { Box::new(move |answer| drop(sender.send(answer))) };
            self.journal.append(entry, done).expect("it is taken");
            let answer = answer.recv_timeout(PATIENCE).expect("it is answered");
            let Ok(JournalWritten { appended, .. }) = answer else { panic!("the disk works") };
            appended
        }

        fn publish(&self, text: &str) -> MessageId {
            let publication = Publication::new(news(), Body::Text(text.into()));
            match self.make((publication, KEPT).into()) {
                Appended::New(content) => content.id,
                other => panic!("a new message, not {other:?}"),
            }
        }

        fn erase(&self, what: Erase) {
            self.make(Entry::Erase(news(), what, KEPT));
        }

        /// Looks until files have been rewritten this often.
        fn rewrite(&self, times: u64) {
            let deadline = Instant::now() + PATIENCE;
            while self.shared.done.load(Ordering::Relaxed) < times {
                assert!(self.shared.look() && Instant::now() < deadline, "it works");
            }
        }

        /// Waits until the writer has noted a rewriting.
        fn settle(&self) {
            let deadline = Instant::now() + PATIENCE;
            while self.logs.rewriting_ends() {
                assert!(Instant::now() < deadline, "it is noted");
                thread::yield_now();
            }
        }
    }

    /// True if a file of a directory has these bytes.
    fn has(path: &Path, text: &str) -> bool {
        std::fs::read_dir(path).expect("it is read").any(|entry| {
            let entry = entry.expect("it is read").path();
            if entry.is_dir() {
                return has(&entry, text);
            }
            // A file that is not needed any more goes at any time.
            let bytes = std::fs::read(entry).unwrap_or_default();
            bytes.windows(text.len()).any(|part| part == text.as_bytes())
        })
    }

    #[test]
    fn what_is_erased_is_in_no_file_after_a_rewriting_while_others_publish() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("store");
        let run = Run::open(&path);
        // Each is found as it is, however the library compresses others.
        let [one, two] = ["q7Zk0vXw3Lr9", "J5hT8dYb2NsM"];
        run.publish(two);
        assert!(run.shared.storage.settle().is_ok());
        run.erase(Erase::History);
        let first = run.publish(one);
        assert!([one, two].into_iter().all(|text| has(&path, text)));
        run.erase(Erase::Message(first));
        thread::scope(|scope| {
            let others = scope.spawn(|| {
                for n in 0..80 {
                    run.publish(&format!("{n}: {}", "x".repeat(1_000)));
                }
            });
            run.rewrite(1);
            others.join().expect("they are written");
        });
        assert!(![one, two].into_iter().any(|text| has(&path, text)));
        let mut left = 0;
        let mut each = |_| {
            left += 1;
            std::ops::ControlFlow::Continue(())
        };
        let all = (0, u64::MAX);
        let order = crate::storage::KeyOrder::Up;
        run.logs.visit(&news(), all, order, &mut each).expect("it is read");
        assert_eq!(left, 81, "with the place of the first");
        run.settle();
        assert_eq!(run.logs.erased_ms(), None);
    }

    #[test]
    fn what_is_erased_during_a_rewriting_is_due_after_it() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("store");
        let run = Run::open(&path);
        let [first, second] = ["first", "second"].map(|text| run.publish(text));
        run.erase(Erase::Message(first));
        let first_ms = run.logs.erased_ms();
        assert!(run.shared.begin() && run.logs.is_rewriting());
        assert_eq!(run.journal.pause(), Err(JournalRefused::Busy));
        run.journal.go_on();
        run.erase(Erase::Message(second));
        assert_eq!(run.logs.erased_ms(), first_ms);
        // It fails: all is due as before.
        run.logs.end_rewriting(false);
        run.settle();
        assert_eq!(run.logs.erased_ms(), first_ms);
        assert!(run.shared.begin());
        let [third, fourth] = ["third", "fourth"].map(|text| run.publish(text));
        run.erase(Erase::Message(third));
        run.logs.end_rewriting(true);
        run.settle();
        assert!(run.logs.erased_ms() >= first_ms && first_ms.is_some());
        // The end of this one may not be noted yet.
        assert!(run.shared.begin());
        run.logs.end_rewriting(true);
        run.erase(Erase::Message(fourth));
        run.settle();
        assert!(run.logs.erased_ms().is_some());
        drop(run);
        // The note outlives the process.
        let run = Run::open(&path);
        assert!(run.logs.erased_ms().is_some());
        assert!(run.shared.begin());
        run.logs.end_rewriting(true);
        run.settle();
        assert_eq!(run.logs.erased_ms(), None);
        drop(run);
        assert_eq!(Run::open(&path).logs.erased_ms(), None);
    }

    #[test]
    fn a_paused_journal_lets_no_rewriting_begin() {
        let folder = tempfile::tempdir().expect("a directory");
        let run = Run::open(&folder.path().join("store"));
        let first = run.publish("first");
        run.erase(Erase::Message(first));
        run.journal.pause().expect("the disk works");
        run.shared.is_ending.store(true, Ordering::Relaxed);
        assert!(!run.shared.begin() && !run.logs.is_rewriting());
        run.journal.go_on();
    }
}
