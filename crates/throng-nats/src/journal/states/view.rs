//! How a channel with a state is, as the stream's leader says it, part by part.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::beside::{self, Found};
use crate::api::state::{KnownState, StateCopy};
use crate::api::{JetStreamError, get, stream};
use crate::journal::logs::LogView;
use crate::subject::Subjects;

/// A part of a view.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PartOf {
    /// The last message of a subject.
    Last(String),
    /// The first and last sequence of the stream.
    Bounds,
}

impl PartOf {
    /// What the leader is asked for, as JetStream names it.
    pub(super) fn request(&self) -> (&'static str, Vec<u8>) {
        match self {
            PartOf::Last(subject) => ("MSG.GET", get::last(subject)),
            PartOf::Bounds => ("INFO", Vec::new()),
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct View {
    lasts: BTreeMap<String, Option<Found>>,
    bounds: Option<(u64, u64)>,
}

impl View {
    pub(super) fn has(&self, part: &PartOf) -> bool {
        match part {
            PartOf::Last(subject) => self.lasts.contains_key(subject),
            PartOf::Bounds => self.bounds.is_some(),
        }
    }

    /// Takes an answer.
    ///
    /// # Errors
    ///
    /// The server's error, or an unreadable answer.
    pub(super) fn take(&mut self, part: PartOf, payload: &[u8]) -> Result<(), JetStreamError> {
        match part {
            PartOf::Last(subject) => drop(self.lasts.insert(subject, beside::found(payload)?)),
            PartOf::Bounds => {
                let info = stream::parse(payload, &Value::Null)?;
                self.bounds = Some((info.first, info.last));
            }
        }
        Ok(())
    }

    pub(super) fn last(&self, subject: &str) -> Option<&Found> {
        self.lasts.get(subject)?.as_ref()
    }

    /// The sequence of the last message of a subject; 0 without one.
    pub(super) fn sequence(&self, subject: &str) -> u64 {
        self.last(subject).map_or(0, |found| found.sequence)
    }

    /// The record of the state; `None` without one.
    pub(super) fn state(&self, subject: &str) -> Option<KnownState> {
        let found = self.last(subject)?;
        KnownState::read(found.sequence, &found.data)
    }

    /// The copy of a key's newest message, if the record knows of it.
    pub(super) fn copy(&self, subject: &str, base: u64) -> Option<StateCopy> {
        let copy = StateCopy::of(self.last(subject)?)?;
        Some(copy).filter(|copy| copy.message.sequence > base)
    }

    /// The log of the channel, whose head is known to be at least this.
    pub(super) fn log(&self, subjects: &Subjects, suffix: &str, head: u64) -> LogView {
        let part = |subject: String| self.last(&subject).cloned();
        let own = [subjects.ingest(suffix), subjects.record(suffix), subjects.erasures(suffix)];
        let [last, record, marker] = own.map(part);
        LogView::of([last, record, marker, None]).with_head(head)
    }

    /// The first and last sequence of the stream, if they were asked for.
    pub(super) fn bounds(&self) -> (u64, u64) {
        self.bounds.unwrap_or_default()
    }

    /// The highest sequence in it.
    pub(super) fn reached(&self) -> u64 {
        let lasts = self.lasts.values().flatten().map(|found| found.sequence);
        lasts.max().unwrap_or(0).max(self.bounds().1)
    }
}
