//! A table of changes, which every node has whole.

use std::collections::BTreeMap;

use throng_nats::api::table::TableEntry;
use throng_nats::journal::{Changed, JournalEvent, JournalReport, TableId};

use super::{World, states};
use crate::broker::Broker;

const TABLE: TableId = TableId(0);

/// What a node knows of the table.
#[derive(Default)]
pub(super) struct JournalTable {
    /// By key.
    values: BTreeMap<String, String>,
    pub(super) is_known: bool,
    /// Changes under way, by token.
    changes: BTreeMap<u64, TableEntry>,
    /// All entries that were reported since the table was lost.
    entries: Vec<TableEntry>,
}

impl World {
    pub(super) fn change_table(&mut self, node: usize) {
        self.next_token += 1;
        let (token, key) = (self.next_token, format!("k.{}", self.random.below(4)));
        let value = self.random.percent(80).then(|| token.to_string().into_bytes().into());
        let entry = TableEntry { key: key.into(), value };
        self.nodes[node].table.changes.insert(token, entry.clone());
        self.step(node, JournalEvent::Change { table: TABLE, token, entry, replaces: None });
    }

    /// What a journal says about one of the tables.
    pub(super) fn table_reported(&mut self, node: usize, report: JournalReport) {
        let of = &mut self.nodes[node];
        match report {
            JournalReport::Changed { token, outcome } if of.states.is_of(token) => {
                self.tally.conflicts += usize::from(of.states.changed(token, &outcome));
            }
            JournalReport::Changed { token, outcome } => {
                self.tally.changed += usize::from(of.table.changed(token, &outcome));
            }
            report @ (JournalReport::Entries(states::TABLE, _)
            | JournalReport::Current { table: states::TABLE, .. }
            | JournalReport::TableLost(states::TABLE)) => of.states.reported(report),
            report => of.table.reported(report),
        }
    }
}

impl JournalTable {
    /// True if no change is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns whether the change is stored.
    pub(super) fn changed(&mut self, token: u64, outcome: &Changed) -> bool {
        let entry = self.changes.remove(&token).expect("it was changed once");
        let is_reported = self.entries.contains(&entry);
        match outcome {
            Changed::Stored => assert!(is_reported, "{entry:?} was not reported before"),
            // Removals are all alike.
            Changed::Away => assert!(!is_reported || entry.value.is_none(), "{entry:?}"),
            Changed::Unknown => {}
            Changed::Busy | Changed::Refused(_) | Changed::Conflict { .. } => panic!("{outcome:?}"),
        }
        *outcome == Changed::Stored
    }

    pub(super) fn reported(&mut self, report: JournalReport) {
        match report {
            JournalReport::Entries(_, entries) => {
                entries.into_iter().for_each(|stored| self.take(stored.entry));
            }
            JournalReport::Current { .. } => self.is_known = true,
            JournalReport::TableLost(_) => {
                self.values.clear();
                self.entries.clear();
            }
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, entry: TableEntry) {
        let key = entry.key.to_string();
        match &entry.value {
            Some(value) => {
                assert!(!self.entries.contains(&entry), "{entry:?} was reported before");
                self.values.insert(key, String::from_utf8_lossy(value).into_owned());
            }
            None => drop(self.values.remove(&key)),
        }
        self.entries.push(entry);
    }

    pub(super) fn finish(&self, broker: &Broker) {
        assert!(self.changes.is_empty(), "{:?}", self.changes);
        assert_eq!(self.values, broker.values("KV_throng-changes", "$KV.throng-changes."));
    }
}
