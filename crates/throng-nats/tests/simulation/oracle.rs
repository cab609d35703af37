//! What has to be true, whatever happened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeBounds;

use crate::broker::ErasedBytes;

/// What one incarnation of the stream has ever stored: by subject, sequence to body.
#[derive(Default)]
pub(crate) struct Era {
    pub(crate) subjects: HashMap<String, BTreeMap<u64, String>>,
    /// Messages that were erased one by one.
    erased: BTreeSet<u64>,
    /// Messages that are to be erased one by one: it may be written down already.
    marked: BTreeSet<u64>,
    /// By subject: all up to here were erased with their history.
    floors: HashMap<String, u64>,
    /// Messages of which a node has heard that they are erased.
    hidden: BTreeSet<u64>,
    /// By subject: the keys that messages set, or remove.
    keys: HashMap<String, BTreeMap<u64, (String, bool)>>,
    /// By subject: the state has nothing of messages up to here. Their history may still be there,
    /// if its erasure is not done.
    bases: HashMap<String, u64>,
}

impl Era {
    fn is_erased(&self, subject: &str, sequence: u64) -> bool {
        self.erased.contains(&sequence) || sequence <= self.floor(subject)
    }

    fn floor(&self, subject: &str) -> u64 {
        self.floors.get(subject).copied().unwrap_or(0)
    }

    fn base(&self, subject: &str) -> u64 {
        self.bases.get(subject).copied().unwrap_or(0)
    }

    /// The sequences of a subject's messages within a range.
    fn sequences(&self, subject: &str, range: impl RangeBounds<u64>) -> impl Iterator<Item = u64> {
        let stored = self.subjects.get(subject).into_iter();
        stored.flat_map(move |stored| {
            let range = (range.start_bound().cloned(), range.end_bound().cloned());
            stored.range(range).map(|(sequence, _)| *sequence).collect::<Vec<_>>()
        })
    }

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
    /// By reading: what it may not show any more.
    readings: HashMap<u64, BTreeSet<u64>>,
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

    /// The message that was just stored sets a key, or removes it.
    pub(crate) fn has_key(&mut self, subject: &str, sequence: u64, key: (String, bool)) {
        let era = self.eras.last_mut().expect("there is one");
        era.keys.entry(subject.to_owned()).or_default().insert(sequence, key);
    }

    /// A state was stored that has nothing of messages up to `base`.
    pub(crate) fn forgets(&mut self, subject: &str, base: u64) {
        let era = self.eras.last_mut().expect("there is one");
        let before = era.bases.insert(subject.to_owned(), base);
        assert!(before.is_none_or(|before| before <= base), "{subject}: {base} after {before:?}");
    }

    /// The state of a subject has nothing of messages up to here.
    pub(crate) fn base(&self, subject: &str) -> u64 {
        self.eras.last().expect("there is one").base(subject)
    }

    /// The newest message of each key of a subject after one and up to another, and whether that
    /// removes it.
    pub(crate) fn newest(
        &self,
        era: usize,
        subject: &str,
        (after, up_to): (u64, u64),
    ) -> BTreeMap<String, (u64, bool)> {
        let keys = self.eras[era].keys.get(subject).into_iter().flatten();
        let keys = keys.filter(|(sequence, _)| (after + 1..=up_to).contains(*sequence));
        keys.map(|(sequence, (key, is_removed))| (key.clone(), (*sequence, *is_removed))).collect()
    }

    /// The last message of a subject, and the last one without a key.
    pub(crate) fn lasts(&self, subject: &str) -> (u64, u64) {
        let era = self.eras.last().expect("there is one");
        let has_key =
            |sequence: &u64| era.keys.get(subject).is_some_and(|keys| keys.contains_key(sequence));
        let last = era.sequences(subject, ..).last().unwrap_or(0);
        (last, era.sequences(subject, ..).filter(|it| !has_key(it)).last().unwrap_or(0))
    }

    /// A client with this position was told that it lacks nothing up to `up_to`, and got these.
    pub(crate) fn is_recovered(
        &self,
        era: usize,
        subject: &str,
        (after, up_to): (u64, u64),
        found: &BTreeSet<u64>,
    ) {
        let own = &self.eras[era];
        let has_key =
            |sequence: &u64| own.keys.get(subject).is_some_and(|keys| keys.contains_key(sequence));
        let plain = own.sequences(subject, after + 1..up_to + 1).filter(|it| !has_key(it));
        let lacks: Vec<_> =
            plain.filter(|it| !found.contains(it) && !own.is_erased(subject, *it)).collect();
        assert!(lacks.is_empty(), "{subject} after {after}: {lacks:?} are missing");
        self.has_keys(era, subject, (after, up_to), found);
    }

    /// A client got these, which have the newest message of each key up to `up_to`.
    pub(crate) fn has_keys(
        &self,
        era: usize,
        subject: &str,
        (after, up_to): (u64, u64),
        found: &BTreeSet<u64>,
    ) {
        let later = self.newest(era, subject, (up_to, u64::MAX - 1));
        for (key, (sequence, is_removed)) in self.newest(era, subject, (after, up_to)) {
            let own = &self.eras[era];
            let is_forgotten = sequence <= own.base(subject);
            let is_gone = own.is_erased(subject, sequence) || is_forgotten;
            let is_gone = is_gone || (after == 0 && is_removed);
            let is_there = found.contains(&sequence) || later.contains_key(&key) || is_gone;
            assert!(is_there, "{subject} after {after}: {key} of {sequence} is missing");
        }
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
        let mut between = self.eras[era].sequences(subject, from + 1..sequence);
        let missed = between.find(|missed| !self.eras[era].is_erased(subject, *missed));
        assert_eq!(missed, None, "{subject} at {position:?}, before {sequence}");
        let next = self.eras[era].next(subject, sequence - 1);
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

    /// A message is about to be erased.
    pub(crate) fn marks(&mut self, sequence: u64) {
        self.eras.last_mut().expect("there is one").marked.insert(sequence);
    }

    /// The servers have erased messages.
    pub(crate) fn erased(&mut self, erased: &ErasedBytes) {
        let era = self.eras.last_mut().expect("there is one");
        match erased {
            ErasedBytes::Message(sequence) => drop(era.erased.insert(*sequence)),
            ErasedBytes::UpTo(subject, up_to) => {
                let floor = era.floors.entry(subject.clone()).or_default();
                *floor = (*floor).max(*up_to);
            }
        }
    }

    /// A node in `era` has heard that a message is erased, or a whole history.
    pub(crate) fn hides(&mut self, era: usize, subject: &str, message: Option<u64>) {
        let era = &mut self.eras[era];
        let history = era.sequences(subject, ..=era.floor(subject)).filter(|_| message.is_none());
        let all: Vec<u64> = history.chain(message).collect();
        era.hidden.extend(all);
    }

    /// A reading begins.
    pub(crate) fn reads(&mut self, token: u64, era: usize, subject: &str) {
        let own = self.eras[era].sequences(subject, ..);
        let hidden = own.filter(|sequence| self.eras[era].hidden.contains(sequence)).collect();
        self.readings.insert(token, hidden);
    }

    /// The messages that a reading may not show, since they were erased before it began.
    pub(crate) fn hidden(&mut self, token: u64) -> BTreeSet<u64> {
        self.readings.remove(&token).unwrap_or_default()
    }

    /// True if a message after `after` was erased with a history.
    pub(crate) fn has_lost(&self, era: usize, subject: &str, after: u64) -> bool {
        let era = &self.eras[era];
        let (floor, mut own) = (era.floor(subject), era.sequences(subject, after + 1..));
        own.any(|sequence| sequence <= floor && !era.erased.contains(&sequence))
    }

    /// How many messages of a subject were erased one by one.
    pub(crate) fn erased_of(&self, era: usize, subject: &str) -> usize {
        let own = self.eras[era].sequences(subject, ..);
        own.filter(|sequence| self.eras[era].erased.contains(sequence)).count()
    }

    /// How many messages of a subject after a position are to be erased, and still there: readers
    /// may count each of them twice, since that is written down before it is done.
    pub(crate) fn marked_after(&self, era: usize, subject: &str, after: u64) -> usize {
        let own = self.eras[era].sequences(subject, after + 1..);
        let is_marked = |it: &u64| self.eras[era].marked.contains(it);
        own.filter(|it| is_marked(it) && !self.eras[era].is_erased(subject, *it)).count()
    }

    pub(crate) fn stored_after(&self, era: usize, subject: &str, after: u64) -> usize {
        self.eras[era].sequences(subject, after + 1..).count()
    }

    /// A change whose condition was this head was stored, with this message first.
    pub(crate) fn follows(&self, subject: &str, head: u64, first: &str) {
        let (era, _, first) = &self.acknowledged[first];
        let mut between = self.eras[*era].sequences(subject, head + 1..*first);
        assert_eq!(between.next(), None, "{subject} had another message after {head}");
    }

    /// The messages of a change are stored, next to each other, or none of them is.
    pub(crate) fn is_all_or_none(&self, subject: &str, bodies: &[String]) {
        for era in &self.eras {
            let stored = era.subjects.get(subject);
            let all = stored.into_iter().flatten().filter(|(_, body)| bodies.contains(body));
            let all: Vec<_> = all.map(|(sequence, body)| (*sequence, body)).collect();
            let first = all.first().map_or(0, |(first, _)| *first);
            let expected: Vec<_> = (first..).zip(bodies).collect();
            assert!(all.is_empty() || all == expected, "{subject}: {all:?} of {bodies:?}");
        }
    }

    /// A reading after a position gave these, and said that it had all up to another one and
    /// whether it was whole. Returns whether erased messages are between them.
    pub(crate) fn read(
        &self,
        era: usize,
        subject: &str,
        (after, up_to, is_whole): (u64, u64, bool),
        found: &[(u64, String)],
    ) -> bool {
        let empty = BTreeMap::new();
        let era = &self.eras[era];
        let stored = era.subjects.get(subject).unwrap_or(&empty);
        let last = found.last().map_or(after, |(sequence, _)| *sequence).max(after).max(up_to);
        let between = stored.range(after + 1..last + 1);
        let of = |(sequence, body): (&u64, &String)| (*sequence, body.clone());
        let (expected, missing): (Vec<_>, Vec<_>) =
            between.map(of).partition(|message| found.contains(message));
        assert_eq!(found, expected, "{subject} after {after}");
        let is_erased = |it: &u64| era.erased.contains(it) || era.marked.contains(it);
        let mut lacks = missing.iter().filter(|(sequence, _)| !is_erased(sequence));
        assert!(!is_whole || lacks.next().is_none(), "{subject} after {after}: {missing:?}");
        !missing.is_empty() && is_whole
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
