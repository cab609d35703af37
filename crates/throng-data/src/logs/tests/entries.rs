//! The entries of the random world, and their outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_core::change::{
    ChangeError, Condition, Erase, KnownRecord, LogChange, LogRecord, LogState, RecordChange,
};
use throng_core::{Body, Content, IDEMPOTENCY_MS, MessageId, Publication, RoomHolder};

use super::{CHANGES_MAX, CHANNELS, World, name, retention, text};
use crate::logs::{Appended, Entry, LogBounds, Logs};
use crate::storage::KeyOrder;

/// An entry that is to be made.
pub(super) enum Wanted {
    /// The channel, the idempotency key and the body of a publication.
    Message(&'static str, Option<u64>, String),
    Change(&'static str, Condition, Vec<String>, RecordChange),
    Erase(&'static str, Erase),
}

impl Wanted {
    pub(super) fn channel(&self) -> &'static str {
        match self {
            Wanted::Message(channel, ..)
            | Wanted::Change(channel, ..)
            | Wanted::Erase(channel, _) => channel,
        }
    }
}

impl World {
    /// Random entries of a commit.
    pub(super) fn entries(&mut self) -> (Vec<Entry>, Vec<Wanted>) {
        let one = |world: &mut World| match world.random.below(100) {
            0..70 => world.publication(),
            70..90 => world.change(),
            _ => world.erasure(),
        };
        (0..=self.random.below(5)).map(|_| one(self)).unzip()
    }

    fn channel(&mut self) -> &'static str {
        CHANNELS[self.random.below(3) as usize]
    }

    fn body(&mut self) -> String {
        self.bodies += 1;
        self.bodies.to_string()
    }

    fn publication(&mut self) -> (Entry, Wanted) {
        let (channel, body) = (self.channel(), self.body());
        let key = self.random.percent(40).then(|| self.random.below(6));
        let publication = Publication {
            idempotency_key: key.map(|key| key.to_string().into()),
            ..Publication::new(name(channel), Body::Text(body.clone().into()))
        };
        let wanted = Wanted::Message(channel, key, body);
        (Entry::Publication(publication, retention()), wanted)
    }

    /// A change, whose condition holds now in most cases.
    fn change(&mut self) -> (Entry, Wanted) {
        let channel = self.channel();
        let state = self.logs.state(&name(channel)).expect("it is read").expect("nobody writes");
        let version = state.record_version();
        let condition = Condition {
            head: self.random.percent(30).then_some(state.head),
            record: self.random.percent(50).then(|| version + self.random.below(5) / 4),
            key: None,
        };
        let bodies: Vec<_> = (0..self.random.below(4)).map(|_| self.body()).collect();
        let record = match self.random.below(4) {
            0 => RecordChange::Remove,
            1 => RecordChange::Keep,
            _ => {
                // The attribute of a creation without properties, and one that is not known.
                let other = self.body();
                let both = [(11, &[0; 41][..]), (100, other.as_bytes())];
                let facts = &both[usize::from(self.random.percent(50))..];
                RecordChange::Write(LogRecord::of(facts).expect("it is short"))
            }
        };
        let message = |body: &String| Publication::new(name(channel), Body::Text((**body).into()));
        let messages = bodies.iter().map(message).collect();
        self.changes.push((channel, bodies.clone()));
        let change = LogChange::append(name(channel), messages);
        let holder = RoomHolder::numbered(self.random.below(3) as u16);
        let change = LogChange { condition: condition.clone(), record, holder, ..change };
        let wanted = Wanted::Change(channel, condition, bodies, change.record.clone());
        (Entry::Change(change, retention()), wanted)
    }

    fn erasure(&mut self) -> (Entry, Wanted) {
        let channel = self.channel();
        let LogBounds { head, floor, .. } = self.logs.bounds(&name(channel)).expect("it is read");
        let what = match self.random.below(10) {
            0 => Erase::Log,
            1..3 => Erase::History,
            _ => {
                // Sometimes one of this commit, or none.
                let offset = floor + self.random.below(head.offset - floor + 3);
                Erase::Message(MessageId { offset, ..head })
            }
        };
        let (_, messages) = self.read(channel, (0, u64::MAX), KeyOrder::Up);
        if let Erase::Message(id) = what
            && let Some(message) = messages.iter().find(|message| message.id == id)
        {
            self.erased.entry(text(message)).or_insert(false);
        }
        (Entry::Erase(name(channel), what, retention()), Wanted::Erase(channel, what))
    }

    /// Checks the outcome of an entry, after which a log is in this state but for its record.
    pub(super) fn acknowledge(&mut self, appended: Appended, wanted: Wanted, state: &mut LogState) {
        match (appended, wanted) {
            (Appended::New(content), Wanted::Message(channel, key, body)) => {
                self.message(channel, &content, body);
                if let Some(key) = key {
                    let now_ms = self.now_ms;
                    let before = self.keys.insert((channel, key), (content.id, now_ms));
                    let is_over = |at_ms: u64| at_ms + IDEMPOTENCY_MS <= now_ms;
                    assert!(before.is_none_or(|(_, at_ms)| is_over(at_ms)), "published twice");
                }
            }
            (Appended::Known(id), Wanted::Message(channel, Some(key), _)) => {
                self.seen.insert("append: known key");
                // Unless the one that was published with it was never acknowledged.
                let known = self.keys.get(&(channel, key));
                known.into_iter().for_each(|(known, _)| assert_eq!(*known, id));
                assert!(id.epoch == state.head.epoch && id.offset <= state.head.offset);
                let at_ms = known.map_or(self.now_ms, |known| known.1.min(self.now_ms));
                self.keys.insert((channel, key), (id, at_ms));
            }
            (
                Appended::Changed(contents, version),
                Wanted::Change(channel, wanted, bodies, record),
            ) => {
                assert_eq!(contents.len(), bodies.len());
                let first = contents.first().map(|first| first.id.offset);
                let head = first.map_or(state.head.offset, |first| first - 1);
                assert!(wanted.head.is_none_or(|wanted| wanted.offset == head));
                assert!(wanted.record.is_none_or(|record| record == state.record_version()));
                for (content, body) in contents.iter().zip(bodies) {
                    self.message(channel, content, body);
                }
                match record {
                    RecordChange::Keep => {}
                    RecordChange::Remove => state.record = None,
                    RecordChange::Write(record) => {
                        assert!(self.versions.insert(version) && version > 0, "{version} again");
                        state.record = Some(KnownRecord { version, record });
                    }
                }
                assert_eq!(version, state.record_version());
            }
            (Appended::Refused(ChangeError::Conflict(known)), Wanted::Change(_, wanted, ..)) => {
                self.seen.insert("change: conflict");
                assert_eq!(known, *state);
                assert!(!wanted.holds(state), "{wanted:?} holds of {state:?}");
            }
            (Appended::Erased(count, _), Wanted::Erase(channel, Erase::Message(id))) => {
                if count == Some(1) {
                    self.seen.insert("erase: a message");
                    let body = self.given.get(&(name(channel), id));
                    body.map(|body| self.erased.insert(body.clone(), true));
                }
            }
            (Appended::Erased(count, _), Wanted::Erase(channel, what)) => {
                assert!(count.is_some(), "there are few");
                self.erased_up_to.insert(channel, state.head.offset);
                if what == Erase::Log {
                    self.seen.insert("erase: a log");
                    state.record = None;
                }
            }
            (appended, _) => panic!("{appended:?}"),
        }
    }

    /// Notes a message that was acknowledged.
    fn message(&mut self, channel: &'static str, content: &Content, body: String) {
        assert_eq!(text(content), body);
        let before = self.given.insert((name(channel), content.id), body);
        assert!(before.is_none(), "{} names two messages", content.id);
        let all = self.acknowledged.entry(channel).or_default();
        assert!(all.last().is_none_or(|(last, _)| *last < content.id.offset));
        all.push((content.id.offset, content.time_ms));
    }

    /// Of each change all messages are there, but for those that were dropped before others.
    pub(super) fn check_changes(&mut self) {
        let all =
            CHANNELS.map(|channel| (channel, self.read(channel, (0, u64::MAX), KeyOrder::Up)));
        let all: BTreeMap<_, _> = all.into_iter().collect();
        // What is kept is of the newest.
        let old = self.changes.len().saturating_sub(CHANGES_MAX);
        self.changes.drain(..old);
        for (channel, bodies) in &self.changes {
            let (_, messages) = &all[channel];
            let is_of = |message: &&Content| bodies.contains(&text(message));
            let found: Vec<_> = messages.iter().filter(is_of).map(text).collect();
            let is_kept = |body: &&String| self.erased.get(*body) != Some(&true);
            let whole: Vec<_> = bodies.iter().filter(is_kept).cloned().collect();
            let is_open = bodies.iter().any(|body| self.erased.get(body) == Some(&false));
            assert!(is_open || whole.ends_with(&found), "{found:?} of {bodies:?}");
        }
        if self.random.percent(20) {
            let at_rest = Logs::at_rest(Arc::new(self.storage.clone())).expect("it opens");
            at_rest.check(&mut |fault| panic!("{fault}"));
        }
    }
}
