//! The tables that all nodes share in NATS. Each node has them whole, but for the read markers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use throng_access::revocation::remembered_s;
use throng_access::shared::ShareError;
use throng_core::{IDEMPOTENCY_MS, Ticket};
use throng_nats::api::StreamSettings;
use throng_nats::api::table::{TableEntry, TableKind, TableSettings};
use throng_nats::engine::{Changed, NatsJournal, TableId};

use crate::access::token_policy;
use crate::settings::{LogPlace, Settings};

/// The subscriptions of users.
pub(super) const SUBSCRIPTIONS: TableId = TableId(0);

/// How far users have read their inboxes.
pub(super) const MARKERS: TableId = TableId(1);

/// The idempotency keys of publications.
pub(super) const KEYS: TableId = TableId(2);

/// Revocations; only of nodes with keys that keep them here.
pub(super) const REVOCATIONS: TableId = TableId(3);

/// Room for some million subscriptions, which the guide says in more detail. For more, edit the
/// bucket.
const SUBSCRIPTIONS_BYTES: u64 = 256 << 20;

/// All channels of a user are one entry: 10,000 names of a hundred bytes.
const SUBSCRIPTIONS_ENTRY_BYTES: u32 = 1 << 20;

/// Two million markers. The oldest ones are dropped then: their users have more unread.
const MARKERS_BYTES: u64 = 256 << 20;

/// The id of a message, and headers.
const MARKERS_ENTRY_BYTES: u32 = 4 << 10;

/// A million keys in five minutes, if each entry has few of them.
const KEYS_BYTES: u64 = 64 << 20;

/// A thousand keys.
const KEYS_ENTRY_BYTES: u32 = 32 << 10;

const REVOCATIONS_BYTES: u64 = 64 << 20;

/// A name of 255 bytes, encoded, and some numbers.
const REVOCATIONS_ENTRY_BYTES: u32 = 16 << 10;

/// The tables of a node, each at its [`TableId`].
pub(crate) fn tables(settings: &Settings, stream: &StreamSettings) -> Vec<TableSettings> {
    let subscriptions = TableSettings {
        name: "subscriptions".into(),
        kind: TableKind::States,
        max_age_ms: 0,
        bytes_max: SUBSCRIPTIONS_BYTES,
        entry_bytes_max: SUBSCRIPTIONS_ENTRY_BYTES,
    };
    let markers = TableSettings {
        name: "markers".into(),
        kind: TableKind::OnDemand,
        // All messages that are newer than the marker are unread, whatever it says.
        max_age_ms: stream.max_age_ms(),
        bytes_max: MARKERS_BYTES,
        entry_bytes_max: MARKERS_ENTRY_BYTES,
    };
    let keys = TableSettings {
        name: "keys".into(),
        kind: TableKind::Changes,
        max_age_ms: IDEMPOTENCY_MS,
        bytes_max: KEYS_BYTES,
        entry_bytes_max: KEYS_ENTRY_BYTES,
    };
    let has_revocations = settings.has_keys() && settings.records_journal() == LogPlace::Nats;
    let revocations = has_revocations.then(|| TableSettings {
        name: "revocations".into(),
        kind: TableKind::Changes,
        max_age_ms: remembered_s(&token_policy(settings)) * 1000,
        bytes_max: REVOCATIONS_BYTES,
        entry_bytes_max: REVOCATIONS_ENTRY_BYTES,
    });
    [subscriptions, markers, keys].into_iter().chain(revocations).collect()
}

/// How old what a node knows of revocations may be, in milliseconds; `None` if it has none.
pub(super) fn revocations_age_ms(node: &NatsJournal) -> Option<u64> {
    (node.tables() > REVOCATIONS.0).then(|| node.table_age_ms(REVOCATIONS))
}

/// An entry to be written, with the place of the one that it replaces if that matters.
pub(super) type TableWrite = (TableEntry, Option<u64>);

/// The outcome of writing an entry.
pub(super) enum TableWritten {
    Stored,
    /// The table has another one, at this place; 0 if the place is not known.
    Conflict(u64),
}

/// Writes an entry. The ticket is answered once the table's owner has been told of it.
pub(super) fn write(
    node: &Weak<NatsJournal>,
    table: TableId,
    entry: TableWrite,
    done: Ticket<Result<TableWritten, ShareError>>,
) {
    // Otherwise the server ends, and the ticket says that there is no answer.
    let Some(node) = node.upgrade() else { return };
    let answer = move |outcome| {
        let outcome = match outcome {
            Some(Changed::Stored) => Ok(TableWritten::Stored),
            Some(Changed::Conflict { last }) => Ok(TableWritten::Conflict(last)),
            Some(Changed::Busy) => Err(ShareError::Busy),
            Some(Changed::Away) => Err(ShareError::Away),
            Some(Changed::Refused(reason)) => Err(ShareError::Refused(reason)),
            Some(Changed::Unknown) | None => Err(ShareError::Unknown),
        };
        done.answer(outcome);
    };
    node.change_table(table, entry, Ticket::new(answer));
}

/// Compares a table with what its owner was told.
pub(super) fn compare(node: &Weak<NatsJournal>, table: TableId, done: Ticket<()>) {
    if let Some(node) = node.upgrade() {
        node.compare_table(table, done);
    }
}

/// Entries that a table has lost and this node knows. They are written again one by one, so that
/// changes do not wait meanwhile.
pub(super) struct LostEntries {
    table: TableId,
    entries: Mutex<VecDeque<TableWrite>>,
    is_writing: AtomicBool,
}

impl LostEntries {
    pub(super) fn new(table: TableId) -> Arc<LostEntries> {
        Arc::new(LostEntries {
            table,
            entries: Mutex::default(),
            is_writing: AtomicBool::new(false),
        })
    }

    pub(super) fn are(&self, entries: impl Iterator<Item = TableWrite>) {
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner) = entries.collect();
    }

    fn next(&self) -> Option<TableWrite> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Writes what is left, unless that is under way.
    pub(super) fn write_back(self: &Arc<LostEntries>, node: &Weak<NatsJournal>) {
        if !self.is_writing.swap(true, Ordering::AcqRel) {
            self.write_next(node.clone());
        }
    }

    fn write_next(self: &Arc<LostEntries>, node: Weak<NatsJournal>) {
        let Some(entry) = self.next() else {
            return self.is_writing.store(false, Ordering::Release);
        };
        let (lost, again, of_write) = (Arc::clone(self), entry.clone(), node.clone());
        let done = move |outcome| match outcome {
            // Another node has written what it knows, or somebody a newer one.
            Some(Ok(TableWritten::Stored | TableWritten::Conflict(_))) => lost.write_next(node),
            _ => {
                // Tried again when the table is current the next time.
                let mut entries = lost.entries.lock().unwrap_or_else(PoisonError::into_inner);
                entries.push_front(again);
                lost.is_writing.store(false, Ordering::Release);
            }
        };
        write(&of_write, self.table, entry, Ticket::new(done));
    }
}
