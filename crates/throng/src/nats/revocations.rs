//! Revocations of all nodes: a table in NATS, which each node has whole.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use throng_access::revocation::{
    ShareError, SharedChange, SharedRevocations, SharedTable, remembered_s,
};
use throng_access::session::Tagger;
use throng_access::{AccessControl, Policy};
use throng_control::revoke_action;
use throng_core::{ScanTarget, Ticket, WantedTags};
use throng_nats::api::table::{TableEntry, TableSettings};
use throng_nats::engine::{Changed, NatsEngine, TableNews};

use crate::access::now_s;
use crate::settings::Settings;

/// The name of the table, after the prefix of the installation.
const NAME: &str = "revocations";

/// How often revocations are forgotten that concern no living token, in seconds.
const TIDY_S: u64 = 600;

/// Revocations whose connections one scan looks for: it compares each connection with all of them.
const SCANNED_AT_ONCE: usize = 256;

/// The table of a node; `None` if it has nothing to revoke.
pub(crate) fn table(settings: &Settings, policy: &Policy) -> Option<TableSettings> {
    let max_age_ms = remembered_s(policy) * 1000;
    settings.has_keys().then(|| TableSettings { name: NAME.into(), max_age_ms })
}

/// Keeps the revocations of `shared` as the table has them, and writes what is revoked here.
pub(super) fn share(
    node: &Arc<NatsEngine>,
    access: &AccessControl,
    shared: impl FnOnce(SharedTable) -> SharedRevocations,
) -> Arc<SharedRevocations> {
    let of_write = Arc::downgrade(node);
    let write = move |change: &SharedChange, done: Done| write(&of_write, change, done);
    let of_compare = Arc::downgrade(node);
    let compare = move |done| {
        if let Some(node) = of_compare.upgrade() {
            node.compare_table(done);
        }
    };
    let table = SharedTable { write: Box::new(write), compare: Box::new(compare) };
    let shared = Arc::new(shared(table));
    let keeper = Keeper {
        node: Arc::downgrade(node),
        shared: Arc::clone(&shared),
        tagger: access.tagger.clone(),
        tidied_s: AtomicU64::new(now_s()),
        lost: Arc::default(),
    };
    node.set_table_owner(move |news| keeper.take(news));
    shared
}

type Done = Ticket<Result<(), ShareError>>;

fn write(node: &Weak<NatsEngine>, change: &SharedChange, done: Done) {
    // Otherwise the server ends, and the ticket says that there is no answer.
    let Some(node) = node.upgrade() else { return };
    let entry =
        TableEntry { key: change.key().into(), value: change.value().map(Vec::into_boxed_slice) };
    let answer = move |outcome| {
        let outcome = match outcome {
            Some(Changed::Stored) => Ok(()),
            Some(Changed::Busy) => Err(ShareError::Busy),
            Some(Changed::Away) => Err(ShareError::Away),
            Some(Changed::Refused(reason)) => Err(ShareError::Refused(reason)),
            Some(Changed::Unknown) | None => Err(ShareError::Unknown),
        };
        done.answer(outcome);
    };
    node.change_table(entry, Ticket::new(answer));
}

/// Makes what the table has.
struct Keeper {
    /// The node has this.
    node: Weak<NatsEngine>,
    shared: Arc<SharedRevocations>,
    tagger: Tagger,
    tidied_s: AtomicU64,
    lost: Arc<Lost>,
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
                let now_s = now_s();
                if now_s.saturating_sub(self.tidied_s.load(Ordering::Relaxed)) >= TIDY_S {
                    self.tidied_s.store(now_s, Ordering::Relaxed);
                    self.shared.tidy(now_s);
                }
            }
            TableNews::Lost => {
                tracing::error!(
                    "the bucket of revocations in NATS has lost entries: this node writes those \
                     that it knows again"
                );
                self.lost.are(self.shared.changes());
            }
        }
    }

    /// Makes changes, and closes the connections that they concern.
    fn make(&self, entries: &[TableEntry]) {
        let mut made = Vec::new();
        for entry in entries {
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

/// What the table has lost and this node knows. It is written again, one after the other, so that
/// what is revoked meanwhile does not wait.
#[derive(Default)]
struct Lost {
    changes: Mutex<VecDeque<SharedChange>>,
    is_writing: AtomicBool,
}

impl Lost {
    fn are(&self, changes: Vec<SharedChange>) {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) = changes.into();
    }

    fn next(&self) -> Option<SharedChange> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Writes what is left, unless that is under way.
    fn write_back(self: &Arc<Lost>, node: &Weak<NatsEngine>) {
        if !self.is_writing.swap(true, Ordering::AcqRel) {
            self.write_next(node.clone());
        }
    }

    fn write_next(self: &Arc<Lost>, node: Weak<NatsEngine>) {
        let Some(change) = self.next() else {
            return self.is_writing.store(false, Ordering::Release);
        };
        let (lost, again, of_write) = (Arc::clone(self), change.clone(), node.clone());
        let done = move |outcome| match outcome {
            Some(Ok(())) => lost.write_next(node),
            _ => {
                // Tried again when the table is current the next time.
                let mut changes = lost.changes.lock().unwrap_or_else(PoisonError::into_inner);
                changes.push_front(again);
                lost.is_writing.store(false, Ordering::Release);
            }
        };
        write(&of_write, &change, Ticket::new(done));
    }
}
