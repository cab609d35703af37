//! A table of states: each entry is written only if it replaces the one that it was made of.

use std::collections::BTreeMap;

use throng_nats::api::table::{StoredEntry, TableEntry};
use throng_nats::journal::{Changed, JournalEvent, JournalReport, TableId};

use super::World;
use crate::broker::Broker;

pub(super) const TABLE: TableId = TableId(1);

/// The key whose entry is removed, too.
const REMOVED: &str = "k.3";

/// What a node knows of the table.
#[derive(Default)]
pub(super) struct States {
    /// By key: the sequence of the last entry, and its value. Each change adds its token to it.
    known: BTreeMap<String, (u64, Option<String>)>,
    /// True if all of it was reported once.
    pub(super) is_known: bool,
    /// Changes under way, by token: their keys.
    changes: BTreeMap<u64, String>,
    /// Changes of this node that are stored, since the table was lost.
    stored: Vec<(String, u64)>,
}

impl World {
    pub(super) fn change_state(&mut self, node: usize) {
        self.next_token += 1;
        let (token, key) = (self.next_token, format!("k.{}", self.random.below(4)));
        let is_removed = key == REMOVED && self.random.percent(40);
        let states = &mut self.nodes[node].states;
        let (replaces, value) = states.known.get(&key).cloned().unwrap_or_default();
        let value = format!("{}{token},", value.unwrap_or_default());
        let value = (!is_removed).then(|| value.into_bytes().into());
        states.changes.insert(token, key.clone());
        let entry = TableEntry { key: key.into(), value };
        self.step(
            node,
            JournalEvent::Change { table: TABLE, token, entry, replaces: Some(replaces) },
        );
    }
}

fn has(value: Option<&str>, token: u64) -> bool {
    value.is_some_and(|value| value.split(',').any(|one| *one == token.to_string()))
}

impl States {
    /// True if no change is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.changes.is_empty()
    }

    /// True if a change is of this table.
    pub(super) fn is_of(&self, token: u64) -> bool {
        self.changes.contains_key(&token)
    }

    /// Returns whether another entry was in the way of the change.
    pub(super) fn changed(&mut self, token: u64, outcome: &Changed) -> bool {
        let key = self.changes.remove(&token).expect("it was changed once");
        let (sequence, value) = self.known.get(&key).cloned().unwrap_or_default();
        match outcome {
            Changed::Stored if key == REMOVED => {}
            Changed::Stored => {
                assert!(has(value.as_deref(), token), "{token} was not reported before");
                self.stored.push((key, token));
            }
            Changed::Conflict { last } => {
                assert!(sequence >= *last, "{last} of {key} was not reported before");
            }
            Changed::Away | Changed::Unknown => {}
            Changed::Busy | Changed::Refused(_) => panic!("{outcome:?}"),
        }
        matches!(outcome, Changed::Conflict { .. })
    }

    pub(super) fn reported(&mut self, report: JournalReport) {
        match report {
            JournalReport::Entries(_, entries) => {
                for StoredEntry { entry: TableEntry { key, value }, sequence } in entries {
                    let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
                    let (before, _) =
                        self.known.insert(key.into(), (sequence, value)).unwrap_or_default();
                    assert!(before < sequence, "{before} was reported before {sequence}");
                }
            }
            JournalReport::Current { .. } => self.is_known = true,
            JournalReport::TableLost(_) => {
                self.known.clear();
                self.stored.clear();
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn finish(&self, broker: &Broker) {
        assert!(self.changes.is_empty(), "{:?}", self.changes);
        let stored = broker.values("KV_throng-states", "$KV.throng-states.");
        let known = self.known.iter();
        let known: BTreeMap<_, _> =
            known.filter_map(|(key, (_, value))| Some((key.clone(), value.clone()?))).collect();
        assert_eq!(known, stored);
        for (key, token) in &self.stored {
            let value = known.get(key).map(String::as_str);
            assert!(has(value, *token), "{token} of {key} was overwritten: {value:?}");
        }
    }
}
