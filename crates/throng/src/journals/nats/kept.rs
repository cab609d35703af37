//! Subscriptions that all nodes keep together: a table in NATS, which each node has whole.
//!
//! # Threads
//!
//! Before the node knows the table, nobody follows anything here, and entries are taken on the
//! thread of the connection. Later ones are taken on a thread of their own: connections may have to
//! follow channels that are fetched from NATS first, which that thread cannot wait for. Outcomes of
//! changes pass through it, too, so that they are answered after their entries were taken.

use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context as _, Result};
use throng_access::AccessControl;
use throng_access::kept::{KeptEntry, KeptWritten, SharedKept, SharedKeptTable, read_entry};
use throng_access::shared::ShareError;
use throng_control::{KeptState, KeptTaker};
use throng_core::{Channels, Ticket};
use throng_nats::api::table::{StoredEntry, TableEntry};
use throng_nats::engine::{NatsJournal, TableNews};

use super::tables::{self, LostEntries, SUBSCRIPTIONS, TableWrite, TableWritten};

/// The thread's work, in this order.
enum Step {
    Take(TableNews),
    Answer(Box<dyn FnOnce() + Send>),
}

/// Keeps the subscriptions of `access` as the table has them, and writes what is changed here.
///
/// # Errors
///
/// An error of the system, if the thread cannot be started.
pub(super) fn share(
    node: &Arc<NatsJournal>,
    channels: &Arc<Channels>,
    access: &AccessControl,
) -> Result<()> {
    let (sender, steps) = mpsc::channel();
    let table = table(Arc::downgrade(node), sender.clone());
    let shared = Arc::new(SharedKept::new(Arc::clone(&access.kept), table));
    let keeper = Arc::new(Keeper {
        node: Arc::downgrade(node),
        taker: KeptTaker::new(Arc::clone(&shared), Arc::downgrade(channels)),
        shared: Arc::clone(&shared),
        reading: Mutex::new(Some(Reading { seen: HashSet::new(), is_after_loss: false })),
        lost: LostEntries::new(SUBSCRIPTIONS),
    });
    let of_thread = Arc::clone(&keeper);
    std::thread::Builder::new()
        .name("kept".into())
        .spawn(move || of_thread.run(steps))
        .context("cannot start the thread of kept subscriptions")?;
    node.set_table_owner(SUBSCRIPTIONS, move |news| {
        if keeper.shared.is_known() {
            // Fails only when the server ends.
            let _ = sender.send(Step::Take(news));
        } else {
            keeper.take(news);
        }
    });
    let is_first = access.shared_kept.set(shared).is_ok();
    debug_assert!(is_first);
    Ok(())
}

fn table(node: Weak<NatsJournal>, steps: Sender<Step>) -> SharedKeptTable {
    let of_compare = (node.clone(), steps.clone());
    let write = move |entry, done: Ticket<Result<KeptWritten, ShareError>>| {
        let steps = steps.clone();
        let answer = move |outcome: Option<Result<TableWritten, ShareError>>| {
            let outcome =
                outcome.unwrap_or(Err(ShareError::Unknown)).map(|written| match written {
                    TableWritten::Stored => KeptWritten::Stored,
                    TableWritten::Conflict(last) => KeptWritten::Conflict { last },
                });
            after(&steps, move || done.answer(outcome));
        };
        tables::write(&node, SUBSCRIPTIONS, to_write(entry), Ticket::new(answer));
    };
    let compare = move |done: Ticket<()>| {
        let (node, steps) = of_compare.clone();
        let answer = move |compared: Option<()>| {
            if compared.is_some() {
                after(&steps, move || done.answer(()));
            }
        };
        tables::compare(&node, SUBSCRIPTIONS, Ticket::new(answer));
    };
    SharedKeptTable { write: Box::new(write), compare: Box::new(compare) }
}

/// Does something after all that was told before was taken. When the server ends, it is dropped.
fn after(steps: &Sender<Step>, act: impl FnOnce() + Send + 'static) {
    let _ = steps.send(Step::Answer(Box::new(act)));
}

fn to_write(KeptEntry { key, value, replaces }: KeptEntry) -> TableWrite {
    let value = value.map(Vec::into_boxed_slice);
    (TableEntry { key: key.into(), value }, Some(replaces))
}

/// The table is being read from its begin.
struct Reading {
    /// Users that it has an entry of, even if they follow nothing.
    seen: HashSet<String>,
    /// True if it has lost entries. Otherwise who is not in it is kept no more.
    is_after_loss: bool,
}

/// Makes what the table has.
struct Keeper {
    node: Weak<NatsJournal>,
    shared: Arc<SharedKept>,
    taker: KeptTaker,
    /// `None` while only what is new is read.
    reading: Mutex<Option<Reading>>,
    lost: Arc<LostEntries>,
}

impl Keeper {
    /// Until the server ends.
    fn run(&self, steps: Receiver<Step>) {
        for step in steps {
            match step {
                Step::Take(news) => self.take(news),
                Step::Answer(act) => act(),
            }
        }
    }

    fn take(&self, news: TableNews) {
        match news {
            TableNews::Entries(entries) => {
                let states: Vec<_> = entries.into_iter().filter_map(state).collect();
                if let Some(reading) = &mut *self.reading() {
                    reading.seen.extend(states.iter().map(|state| state.user.clone()));
                }
                self.taker.take(states);
            }
            TableNews::Current => {
                let reading = self.reading().take();
                if let Some(reading) = reading {
                    self.is_read(&reading);
                }
                self.shared.becomes_known();
                self.lost.write_back(&self.node);
            }
            TableNews::Lost => {
                tracing::error!(
                    "the bucket of subscriptions in NATS has lost entries: this node writes those \
                     of users that it knows and the bucket does not"
                );
                self.shared.forget_places();
                let is_after_loss = self.shared.is_known();
                *self.reading() = Some(Reading { seen: HashSet::new(), is_after_loss });
            }
        }
    }

    fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table was read from its begin.
    fn is_read(&self, Reading { seen, is_after_loss }: &Reading) {
        let unseen = self.shared.unseen(|user| seen.contains(user));
        if *is_after_loss {
            return self.lost.are(unseen.into_iter().map(|(_, entry)| to_write(entry)));
        }
        // Entries of another process before this one began. It has followed nothing since.
        let nothing = |(user, _)| KeptState { user, channels: Vec::new(), sequence: 0 };
        self.taker.take(unseen.into_iter().map(nothing).collect());
    }
}

fn state(StoredEntry { entry, sequence }: StoredEntry) -> Option<KeptState> {
    let Some((user, channels)) = read_entry(&entry.key, entry.value.as_deref()) else {
        tracing::warn!(
            "the bucket of subscriptions has an entry that cannot be read: {}",
            entry.key
        );
        return None;
    };
    Some(KeptState { user, channels, sequence })
}
