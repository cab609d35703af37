//! Revocations of all nodes: a table in NATS, which each node has whole.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use throng_access::AccessControl;
use throng_access::revocation::{Forgetting, SharedChange, SharedRevocations, SharedTable};
use throng_access::session::Tagger;
use throng_access::shared::ShareError;
use throng_control::revoke_action;
use throng_core::{ScanTarget, Ticket, WantedTags, clock};
use throng_nats::api::table::{StoredEntry, TableEntry};
use throng_nats::engine::{NatsJournal, TableNews};

use super::tables::{self, LostEntries, REVOCATIONS, TableWrite, TableWritten};

/// How often revocations are forgotten that concern no living token, in seconds.
const TIDY_S: u64 = 600;

/// Revocations whose connections one scan looks for: it compares each connection with all of them.
const SCANNED_AT_ONCE: usize = 256;

/// Keeps the revocations of `shared` as the table has them, and writes what is revoked here.
pub(super) fn share(
    node: &Arc<NatsJournal>,
    access: &AccessControl,
    shared: impl FnOnce(SharedTable) -> SharedRevocations,
) -> Arc<SharedRevocations> {
    let (of_write, of_compare) = (Arc::downgrade(node), Arc::downgrade(node));
    let write = move |change: &SharedChange, done: Ticket<Result<(), ShareError>>| {
        let answer = move |outcome: Option<Result<_, _>>| match outcome {
            Some(outcome) => done.answer(outcome.map(|_: TableWritten| ())),
            None => drop(done),
        };
        tables::write(&of_write, REVOCATIONS, entry(change), Ticket::new(answer));
    };
    let compare = move |done| tables::compare(&of_compare, REVOCATIONS, done);
    let table = SharedTable { write: Box::new(write), compare: Box::new(compare) };
    let shared = Arc::new(shared(table));
    let keeper = Keeper {
        node: Arc::downgrade(node),
        shared: Arc::clone(&shared),
        tagger: access.tagger.clone(),
        tidied_s: AtomicU64::new(clock::now_ms() / 1000),
        forgetting: Mutex::default(),
        lost: LostEntries::new(REVOCATIONS),
    };
    node.set_table_owner(REVOCATIONS, move |news| keeper.take(news));
    shared
}

/// The entry of a change, which is written whatever the table has.
fn entry(change: &SharedChange) -> TableWrite {
    let value = change.value().map(Vec::into_boxed_slice);
    (TableEntry { key: change.key().into(), value }, None)
}

/// Makes what the table has.
struct Keeper {
    node: Weak<NatsJournal>,
    shared: Arc<SharedRevocations>,
    tagger: Tagger,
    tidied_s: AtomicU64,
    forgetting: Mutex<Forgetting>,
    lost: Arc<LostEntries>,
}

impl Keeper {
    fn take(&self, news: TableNews) {
        match news {
            TableNews::Entries(entries) => self.make(&entries),
            TableNews::Current => {
                if self.shared.are_known() {
                    // A WebSocket opens before it follows a channel, so before they were known.
                    self.close(&self.shared.changes());
                }
                self.lost.write_back(&self.node);
                self.tidy();
            }
            TableNews::Lost => {
                tracing::error!(
                    "the bucket of revocations in NATS has lost entries: this node writes those \
                     that it knows again"
                );
                self.lost.are(self.shared.changes().iter().map(entry));
            }
        }
    }

    /// Forgets revocations, if it is time.
    fn tidy(&self) {
        let now_ms = clock::now_ms();
        let mut forgetting = self.forgetting.lock().unwrap_or_else(PoisonError::into_inner);
        let forget_s = forgetting.now_s(now_ms, clock::machine_ms());
        let now_s = now_ms / 1000;
        if now_s.saturating_sub(self.tidied_s.load(Ordering::Relaxed)) >= TIDY_S {
            self.tidied_s.store(now_s, Ordering::Relaxed);
            self.shared.tidy(forget_s);
        }
    }

    /// Makes changes, and closes the connections that they concern.
    fn make(&self, entries: &[StoredEntry]) {
        let mut made = Vec::new();
        for StoredEntry { entry, .. } in entries {
            let Some(change) = SharedChange::read(&entry.key, entry.value.as_deref()) else {
                tracing::warn!(
                    "the bucket of revocations has an entry that cannot be read: {}",
                    entry.key
                );
                continue;
            };
            if self.shared.take(&change) {
                made.push(change);
            }
        }
        // Those from before are looked for once all are known.
        if self.shared.is_known() {
            self.close(&made);
        }
    }

    /// Closes the connections that revocations concern.
    fn close(&self, revoked: &[SharedChange]) {
        let Some(node) = self.node.upgrade() else { return };
        for spares_newer in [false, true] {
            let of = |change: &SharedChange| match change {
                SharedChange::Revoke { revocation, spares_newer: spares }
                    if *spares == spares_newer =>
                {
                    Some(self.tagger.of_revocation(revocation))
                }
                SharedChange::Revoke { .. } | SharedChange::Lift(_) => None,
            };
            let tags: Vec<WantedTags> = revoked.iter().filter_map(of).collect();
            for some in tags.chunks(SCANNED_AT_ONCE) {
                let target = ScanTarget::Sessions(some.to_vec());
                node.scan_own(target, revoke_action(spares_newer));
            }
        }
    }
}
