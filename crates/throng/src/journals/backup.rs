//! Backups of the data directory while the server runs, one at a time.

use std::fs;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use throng_control::Control;
use throng_data::backup::{BackupError, Copied, back_up};
use throng_data::directory::REVOCATIONS;
use throng_data::storage::disk::DiskStorage;
use throng_units::format::{count, seconds};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::control_socket::{Conversation, Failure};
use crate::terminal::{EXIT_CONFIGURATION, EXIT_RUNTIME};

/// How often a command prints how far it has come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Makes backups, each on a thread of its own.
pub(crate) struct Backups {
    /// The file of revocations, if there is one. It may be elsewhere than the data.
    revocations: Option<PathBuf>,
    storage: Weak<DiskStorage>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_ending: Arc<AtomicBool>,
}

/// A backup that is being made.
struct UnderWay {
    progress: watch::Receiver<Copied>,
    outcome: oneshot::Receiver<Result<String, Failure>>,
    is_stopped: Arc<AtomicBool>,
}

impl Backups {
    /// Those of `storage`, with the file of revocations at this path.
    pub(super) fn new(revocations: Option<PathBuf>, storage: &Arc<DiskStorage>) -> Backups {
        Backups {
            revocations,
            storage: Arc::downgrade(storage),
            thread: Mutex::default(),
            is_ending: Arc::default(),
        }
    }

    /// Writes what the directory has now to `target`, and tells a command about it. Stops if the
    /// command goes.
    pub(crate) async fn make(
        &self,
        target: PathBuf,
        control: &Arc<Control>,
        mut conversation: Conversation,
    ) {
        let under_way = self.begin(target, Arc::clone(control));
        let UnderWay { progress, mut outcome, is_stopped } = match under_way {
            Ok(under_way) => under_way,
            Err(error) => return conversation.end(Err(error)).await,
        };
        let mut tells = interval(PROGRESS_INTERVAL);
        tells.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tells.tick().await;
        loop {
            tokio::select! {
                outcome = &mut outcome => {
                    // Only a bug panics, which the log has then.
                    let outcome = outcome.unwrap_or_else(|_| Err(failed("the backup has failed")));
                    return conversation.end(outcome).await;
                }
                () = conversation.gone() => {
                    is_stopped.store(true, Ordering::Relaxed);
                    return;
                }
                _ = tells.tick() => {
                    let Copied { entries, entries_in_all, .. } = *progress.borrow();
                    let (entries, in_all) = (count(entries), count(entries_in_all));
                    let message = format!("{entries} of about {in_all} entries");
                    conversation.progress(&message).await;
                }
            }
        }
    }

    /// Tells the one that is under way to stop, and lets none begin.
    pub(crate) fn stop(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_under_way(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for the end of the one that was under way.
    pub(super) fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has logged why, if it panicked.
            let _ = thread.join();
        }
    }

    fn begin(&self, target: PathBuf, control: Arc<Control>) -> Result<UnderWay, Failure> {
        if !target.is_absolute() {
            return Err(failed("the path of a backup must be absolute"));
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_ending.load(Ordering::Relaxed) {
            return Err(failed("the server ends"));
        }
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Err(failed("another backup is under way; try again when it is complete"));
        }
        let Some(storage) = self.storage.upgrade() else { return Err(failed("the server ends")) };
        let (told, progress) = watch::channel(Copied::default());
        let (ended, outcome) = oneshot::channel();
        let is_stopped = Arc::<AtomicBool>::default();
        let stops = [Arc::clone(&is_stopped), Arc::clone(&self.is_ending)];
        let revocations = self.revocations.clone();
        let run = move || {
            let beside = |directory: &Path| {
                let Some(path) = &revocations else { return Ok(()) };
                copy(path, directory, |read| control.with_revocations_at_rest(read))
            };
            let mut each = |copied: &Copied| {
                told.send_replace(*copied);
                if stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            };
            let outcome = log(&target, || back_up(&storage, &target, beside, &mut each));
            // The command may have gone.
            let _ = ended.send(outcome);
        };
        let begun = thread::Builder::new().name("backup".into()).spawn(run);
        *thread = Some(begun.map_err(|error| failed(&format!("no thread can be had: {error}")))?);
        Ok(UnderWay { progress, outcome, is_stopped })
    }
}

fn failed(message: &str) -> Failure {
    Failure { message: message.into(), code: EXIT_RUNTIME }
}

/// Makes a backup, logs what came of it, and says it in one sentence.
fn log(
    target: &Path,
    make: impl FnOnce() -> Result<Copied, BackupError>,
) -> Result<String, Failure> {
    let (begin, shown) = (Instant::now(), target.display());
    match make() {
        Ok(Copied { messages, entries, .. }) => {
            let (messages, entries) = (count(messages), count(entries));
            let time = seconds(begin.elapsed().as_secs_f64());
            let message = format!(
                "{messages} messages, {entries} entries in all, are in {shown} after {time}"
            );
            tracing::info!("backup: {message}");
            Ok(message)
        }
        Err(error) => {
            let message = format!("the backup {shown} {error}");
            tracing::error!("{message}");
            let code = match error {
                BackupError::Directory(_) => EXIT_CONFIGURATION,
                BackupError::NoRoom { .. } | BackupError::Storage(_) | BackupError::Io(_) => {
                    EXIT_RUNTIME
                }
            };
            Err(Failure { message, code })
        }
    }
}

/// Copies the file of revocations into a directory, if it is there, and syncs the copy. `at_rest`
/// calls what it is given while nothing is written to the file; the directory may be on a disk that
/// is slow or hangs, so it is written afterwards.
fn copy(
    from: &Path,
    directory: &Path,
    at_rest: impl FnOnce(&dyn Fn() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let bytes = match at_rest(&|| fs::read(from)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    let to = directory.join(REVOCATIONS);
    let mut copy = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    copy.write_all(&bytes)?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use throng_data::directory::DirectoryError;

    use super::*;

    #[test]
    fn a_disk_that_is_full_at_the_end_is_no_wrong_setting() {
        let code = |error: BackupError| {
            let failed = log(Path::new("/backup"), || Err(error)).expect_err("it has failed");
            assert!(failed.message.starts_with("the backup /backup "), "{failed:?}");
            failed.code
        };
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(code(BackupError::Io(full)), EXIT_RUNTIME);
        assert_eq!(code(DirectoryError::Inside.into()), EXIT_CONFIGURATION);
    }

    #[test]
    fn the_file_of_revocations_is_copied_if_there_is_one() {
        let folder = tempfile::tempdir().expect("a directory");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir(&to).expect("it is made");
        copy(&from, &to, |read| read()).expect("there is nothing to copy");
        assert_eq!(fs::read_dir(&to).expect("it is there").count(), 0);
        fs::write(&from, "all of it").expect("it is written");
        let at_rest = |read: &dyn Fn() -> io::Result<Vec<u8>>| {
            let bytes = read();
            // Nobody who writes to the file waits for the disk of the copy.
            assert_eq!(fs::read_dir(&to).expect("it is there").count(), 0);
            bytes
        };
        copy(&from, &to, at_rest).expect("it is copied");
        let copied = to.join(REVOCATIONS);
        assert_eq!(fs::read(&copied).expect("it is there"), b"all of it");
        let mode = fs::metadata(copied).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        copy(&from, &to, |read| read()).expect_err("it is there already");
    }
}
