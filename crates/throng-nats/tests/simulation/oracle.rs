//! What has to be true, whatever happened.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What one incarnation of the stream has ever stored: by subject, sequence to body.
#[derive(Default)]
pub(crate) struct Era {
    pub(crate) subjects: HashMap<String, BTreeMap<u64, String>>,
}

impl Era {
    fn next(&self, subject: &str, after: u64) -> Option<(u64, &String)> {
        let stored = self.subjects.get(subject)?;
        stored.range(after + 1..).next().map(|(sequence, body)| (*sequence, body))
    }

    fn bodies(&self) -> impl Iterator<Item = &String> {
        self.subjects.values().flat_map(BTreeMap::values)
    }
}

/// How far a follower is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) sequence: u64,
    /// Messages up to here may have been gone when it began to follow.
    pub(crate) floor: u64,
    pub(crate) has_gap: bool,
}

/// All that was ever stored and reported.
#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) eras: Vec<Era>,
    /// Bodies of publications that were reported not to be stored.
    pub(crate) refused: BTreeSet<String>,
    /// Bodies that were reported to be stored: era, subject, sequence.
    pub(crate) acknowledged: HashMap<String, (usize, String, u64)>,
}

impl Oracle {
    pub(crate) fn new() -> Oracle {
        Oracle { eras: vec![Era::default()], ..Oracle::default() }
    }

    pub(crate) fn era(&self) -> usize {
        self.eras.len() - 1
    }

    pub(crate) fn stored(&mut self, subject: &str, sequence: u64, body: String) {
        let era = self.eras.last_mut().expect("there is one");
        assert!(!era.bodies().any(|other| *other == body), "{body} is stored twice");
        let stored = era.subjects.entry(subject.to_owned()).or_default();
        assert_eq!(stored.insert(sequence, body), None);
    }

    /// A follower in `era` was reported this message.
    pub(crate) fn reported(
        &self,
        era: usize,
        subject: &str,
        position: &mut Position,
        (sequence, body): (u64, &str),
    ) {
        let may_skip = position.has_gap || sequence <= position.floor;
        let from = if may_skip { sequence - 1 } else { position.sequence.max(position.floor) };
        assert!(sequence > position.sequence, "{subject}: {sequence} again, at {position:?}");
        let next = self.eras[era].next(subject, from);
        let next = next.map(|(sequence, body)| (sequence, body.as_str()));
        assert_eq!(next, Some((sequence, body)), "{subject} at {position:?}");
        *position = Position { sequence, floor: position.floor, has_gap: false };
    }

    /// A follower in `era` was told a gap, while the stream keeps these messages of the subject,
    /// and all from `first`: there is a message that it cannot get any more, or nobody can know
    /// that there is none, since the one at its position is dropped, or it had none and the log
    /// `is_full`.
    pub(crate) fn gap(
        &self,
        era: usize,
        subject: &str,
        position: &mut Position,
        first: u64,
        kept: &BTreeSet<u64>,
        is_full: bool,
    ) {
        let next = self.eras[era].next(subject, position.sequence);
        let is_lost = next.is_some_and(|(sequence, _)| !kept.contains(&sequence));
        let is_dropped = match position.sequence {
            0 => is_full,
            own => !kept.contains(&own),
        };
        let is_unknown = position.sequence + 1 < first || is_dropped;
        let is_of_now = era == self.era();
        assert!(is_lost || is_unknown || !is_of_now, "{subject}: no gap at {position:?}, {next:?}");
        position.has_gap = true;
    }

    /// A reading after `after` gave these.
    pub(crate) fn read(
        &self,
        era: usize,
        subject: &str,
        after: u64,
        found: &[(u64, String)],
        is_whole: bool,
    ) {
        let empty = BTreeMap::new();
        let stored = self.eras[era].subjects.get(subject).unwrap_or(&empty);
        let last = found.last().map_or(after, |(sequence, _)| *sequence).max(after);
        let expected: Vec<_> = stored
            .range(after + 1..last + 1)
            .map(|(sequence, body)| (*sequence, body.clone()))
            .collect();
        if is_whole {
            assert_eq!(found, expected, "{subject} after {after}");
        } else {
            assert!(found.iter().all(|message| expected.contains(message)), "{subject}: {found:?}");
        }
    }

    /// The publication was reported to be stored.
    pub(crate) fn acknowledged(
        &mut self,
        subject: &str,
        sequence: u64,
        body: &str,
        is_key_known: bool,
    ) {
        let at = self.eras.iter().rposition(|era| {
            let stored = era.subjects.get(subject).and_then(|stored| stored.get(&sequence));
            stored.is_some_and(|stored| is_key_known || stored == body)
        });
        let era = at.unwrap_or_else(|| panic!("{body} is not at {sequence} of {subject}"));
        let place = (era, subject.to_owned(), sequence);
        assert!(self.acknowledged.insert(body.to_owned(), place).is_none() || is_key_known);
    }

    /// What was reported not to be stored is not, when nothing is under way any more.
    pub(crate) fn finish(&self) {
        for body in self.eras.iter().flat_map(Era::bodies) {
            assert!(!self.refused.contains(body), "{body} was refused, and is stored");
        }
    }
}
