//! Other state that outlives the process, in the same commits as messages.

use std::sync::Arc;

use throng_core::Ticket;
use throng_core::records::{Change, Each, KEY_BYTES_MAX, Records, StoreError, Table};

use crate::journal::{ChangeDone, DiskJournal, JournalRefused};
use crate::logs::Logs;
use crate::storage::{Space, Write};

/// The tables of the data directory.
pub struct JournalRecords {
    logs: Arc<Logs>,
    journal: Arc<DiskJournal>,
}

impl JournalRecords {
    /// Tables beside the logs, written by the same thread.
    pub fn new(logs: Arc<Logs>, journal: Arc<DiskJournal>) -> JournalRecords {
        JournalRecords { logs, journal }
    }
}

impl From<JournalRefused> for StoreError {
    fn from(refused: JournalRefused) -> StoreError {
        match refused {
            JournalRefused::Busy => StoreError::Busy,
            JournalRefused::Full => StoreError::Full,
            JournalRefused::OverLimit => StoreError::OverLimit,
            JournalRefused::Failed => StoreError::Failed,
        }
    }
}

/// The key of an entry in the common table: the number of its own comes first.
fn key(table: Table, key: &[u8]) -> Vec<u8> {
    debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
    [&[table as u8], key].concat()
}

fn write(Change { table, key: of, value }: Change) -> Write {
    let (space, key) = (Space::Records, key(table, &of).into());
    Write { space, key, value: value.map(|value| (&*value).into()) }
}

impl Records for JournalRecords {
    fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
        let mut done = Some(done);
        let writes = changes.into_iter().map(write).collect();
        let taken = self.journal.change(writes, || -> ChangeDone {
            let done = done.take();
            Box::new(move |outcome| {
                if let Some(done) = done {
                    done.answer(outcome.map_err(StoreError::from));
                }
            })
        });
        if let (Err(refused), Some(done)) = (taken, done) {
            done.answer(Err(refused.into()));
        }
    }

    fn state(&self) -> Result<(), StoreError> {
        self.journal.state().map_or(Ok(()), |refused| Err(refused.into()))
    }

    fn read_from(&self, table: Table, from: &[u8], each: Each<'_>) -> Result<(), String> {
        self.logs.visit_records(table, from, each).map_err(|error| error.to_string())
    }

    fn approximate_len(&self) -> u64 {
        // Keys of states are in the same table.
        let all = self.logs.storage().approximate_len(Space::Records);
        all.saturating_sub(self.journal.states().keys)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::journal::JournalSetup;
    use crate::journal::tests::Alone;
    use crate::storage::Storage;
    use crate::storage::disk::DiskStorage;
    use crate::storage::memory::{Fault, MemoryStorage};
    use crate::sync_policy::SyncPolicy;

    /// No event of a test takes this long.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn records(storage: Arc<dyn Storage>) -> JournalRecords {
        let (logs, _) = Logs::open(storage, "boot").expect("it opens");
        let logs = Arc::new(logs);
        let server = Arc::<Alone>::default();
        let setup = JournalSetup { sync: SyncPolicy::Always, max_bytes: u64::MAX, server };
        let journal = Arc::new(DiskJournal::start(&logs, setup).expect("it starts"));
        JournalRecords::new(logs, journal)
    }

    fn put(key: &str, value: Option<&str>) -> Change {
        let table = Table::Subscriptions;
        Change {
            table,
            key: key.as_bytes().into(),
            value: value.map(|value| value.as_bytes().into()),
        }
    }

    /// Begins a change. The receiver gets what becomes of it.
    fn begin(
        records: &JournalRecords,
        changes: &[Change],
    ) -> mpsc::Receiver<Option<Result<(), StoreError>>> {
        let (sender, outcome) = mpsc::channel();
        let done = Ticket::new(move |outcome| sender.send(outcome).expect("the test waits"));
        records.change(changes.to_vec(), done);
        outcome
    }

    fn make(records: &JournalRecords, changes: &[Change]) -> Result<(), StoreError> {
        let outcome = begin(records, changes).recv_timeout(PATIENCE);
        outcome.expect("it is answered").expect("the store does not end")
    }

    /// At most `count` entries from a key on.
    fn read(records: &JournalRecords, from: &str, count: usize) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
        let mut each = |key: &[u8], value: &[u8]| {
            all.push((text(key), text(value)));
            if all.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        records.read_from(Table::Subscriptions, from.as_bytes(), &mut each).expect("it is read");
        all
    }

    fn all(records: &JournalRecords) -> Vec<(String, String)> {
        read(records, "", usize::MAX)
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let pair = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        expected.iter().map(pair).collect()
    }

    #[test]
    fn changes_are_there_after_a_restart_in_the_order_of_keys() {
        let folder = tempfile::tempdir().unwrap();
        let open = || DiskStorage::open(folder.path(), 1 << 20).expect("it opens");
        let before = records(Arc::new(open()));
        assert_eq!(
            make(&before, &[put("b", Some("1")), put("a", Some("")), put("c", None)]),
            Ok(())
        );
        // Of two changes of one entry in one commit the later one holds.
        assert_eq!(make(&before, &[put("d", Some("1")), put("d", None), put("b", None)]), Ok(()));
        assert_eq!(make(&before, &[put("e", None), put("e", Some("2"))]), Ok(()));
        assert_eq!(all(&before), pairs(&[("a", ""), ("e", "2")]));
        assert_eq!(read(&before, "", 1), pairs(&[("a", "")]));
        assert_eq!(read(&before, "b", 9), pairs(&[("e", "2")]));
        assert_eq!(read(&before, "f", 9), []);
        drop(before);
        assert_eq!(all(&records(Arc::new(open()))), pairs(&[("a", ""), ("e", "2")]));
    }

    #[test]
    fn a_full_disk_refuses_what_comes_and_makes_what_it_has_taken() {
        let storage = MemoryStorage::default();
        let records = records(Arc::new(storage.clone()));
        assert_eq!(make(&records, &[put("a", Some("1"))]), Ok(()));
        storage.fail(Fault::CommitLost(true), u32::MAX);
        let taken = begin(&records, &[put("b", Some("1"))]);
        while records.journal.state().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(make(&records, &[put("c", Some("1"))]), Err(StoreError::Full));
        storage.mend();
        let taken = taken.recv_timeout(PATIENCE).expect("it is answered");
        assert_eq!(taken, Some(Ok(())), "there is room again");
        assert_eq!(all(&records), pairs(&[("a", "1"), ("b", "1")]));
    }
}
