//! Writes the idempotency keys of this node to the table of all nodes, and reads the others' keys.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use throng_core::{Ticket, clock};

use super::keys;
use super::link::count;
use super::shared::NodeShared;
use super::table::TableNews;
use crate::api::table::TableEntry;
use crate::journal::{Changed, JournalEvent, KnownKey};

impl NodeShared {
    /// Has the journal told of all keys that the table has.
    pub(super) fn follow_keys(self: &Arc<NodeShared>) {
        let Some(table) = self.keys.table else { return };
        let shared: Weak<NodeShared> = Arc::downgrade(self);
        let hear = move |news| {
            let (Some(shared), TableNews::Entries(entries)) = (shared.upgrade(), news) else {
                return;
            };
            let values = entries.iter().filter_map(|stored| stored.entry.value.as_deref());
            for keys in values.filter_map(|value| keys::read(value, shared.from_wall_ms)) {
                shared.tell(JournalEvent::Keys(keys));
            }
        };
        self.tables.set_owner(table, Box::new(hear));
    }

    /// This node has published with keys.
    pub(super) fn published_with(&self, keys: Vec<KnownKey>) {
        if self.keys.table.is_some() {
            let lost = self.keys.add(keys);
            self.link.counts.keys_lost.fetch_add(lost as u64, Ordering::Relaxed);
        }
    }

    /// Writes keys that wait.
    pub(super) fn write_keys(self: &Arc<NodeShared>, now_ms: u64) {
        let Some((table, epoch)) = self.keys.table.zip(self.link.epoch()) else { return };
        if !self.link.is_open() {
            return;
        }
        let Some(keys) = self.keys.take() else { return };
        let value = keys::entry(epoch.number(), clock::wall_ms(now_ms), &keys);
        // A subject of its own, so that no entry replaces another one.
        let key = format!("{}.{}", self.nonce, self.keys.number()).into();
        let shared = Arc::clone(self);
        let written = move |outcome: Option<Changed>| match outcome {
            Some(Changed::Stored | Changed::Conflict { .. }) => shared.keys.done(None),
            Some(Changed::Refused(reason)) => {
                if shared.link.counts.keys_lost.load(Ordering::Relaxed) == 0 {
                    tracing::error!("the bucket of idempotency keys takes none: {reason}");
                }
                keys.iter().for_each(|_| count(&shared.link.counts.keys_lost));
                shared.keys.done(None);
            }
            // It is written again, perhaps twice.
            Some(Changed::Busy | Changed::Away | Changed::Unknown) | None => {
                shared.keys.done(Some(keys));
            }
        };
        let token = self.token();
        self.tables.begin(token, Ticket::new(written));
        let entry = TableEntry { key, value: Some(value.into()) };
        self.tell(JournalEvent::Change { table, token, entry, replaces: None });
    }
}
