//! A log with keys beside all that was published to it.

use std::collections::BTreeMap;
use std::sync::Weak;

use proptest::prelude::*;

use super::super::tests::content;
use super::*;
use crate::attributes::{Attributes, Erasure, Extras};
use crate::entry_count::EntryCount;
use crate::message::Content;
use crate::state::TOMBSTONE_MS;

const MAX: StateLimits = StateLimits { max_keys: 100, max_bytes: usize::MAX, forgets_soon: false };

#[derive(Debug, Clone)]
enum Step {
    Set { key: u8, expires_in_ms: Option<u64> },
    Remove { key: u8 },
    Publish,
    Erase { back: u64 },
    Evict,
    Wait { ms: u64 },
    Freeze,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..6_u8;
    let set = (key.clone(), prop::option::weighted(0.2, 1..50_u64));
    let step = prop_oneof![
        8 => set.prop_map(|(key, expires_in_ms)| Step::Set { key, expires_in_ms }),
        2 => key.prop_map(|key| Step::Remove { key }),
        4 => Just(Step::Publish),
        1 => (0..20_u64).prop_map(|back| Step::Erase { back }),
        1 => Just(Step::Evict),
        2 => (1..40_u64).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Freeze),
    ];
    prop::collection::vec(step, 1..200)
}

/// A message as it was published.
struct Sent {
    offset: u64,
    key: Option<String>,
    is_tombstone: bool,
    is_gone: bool,
}

struct World {
    log: Log,
    /// What publishers hold, as the log has told of changes.
    held: BTreeMap<u16, isize>,
    sent: Vec<Sent>,
    retention: Retention,
    now_ms: u64,
}

impl World {
    fn with(retention: Retention) -> World {
        let (log, sent) = (Log::default(), Vec::new());
        World { log, held: BTreeMap::new(), sent, retention, now_ms: 1 }
    }

    fn append(&mut self, key: Option<u8>, is_tombstone: bool, expires_in_ms: Option<u64>) {
        let key = key.map(|key| format!("key {key}"));
        self.append_named(key, is_tombstone, expires_in_ms);
    }

    fn append_named(
        &mut self,
        key: Option<String>,
        is_tombstone: bool,
        expires_in_ms: Option<u64>,
    ) {
        let mut values: Vec<(u16, &[u8])> = Vec::new();
        key.iter().for_each(|key| values.push((4, key.as_bytes())));
        if is_tombstone {
            values.push((5, b""));
        }
        let attributes = if values.is_empty() { None } else { Attributes::of(&values).ok() };
        self.append_with(attributes, expires_in_ms);
        let sent = self.sent.last_mut().expect("it is appended");
        (sent.key, sent.is_tombstone) = (key, is_tombstone);
        self.tidy();
    }

    fn append_with(&mut self, attributes: Option<Attributes>, expires_in_ms: Option<u64>) {
        let offset = self.sent.len() as u64 + 1;
        let expires_ms = expires_in_ms.map(|ms| self.now_ms + ms);
        let message = Content {
            time_ms: self.now_ms,
            extras: Extras::new(None, attributes),
            ..Arc::into_inner(content(offset, expires_ms)).expect("it is new")
        };
        // Every third message is the server's.
        self.log.append(Arc::new(message), Weak::new(), RoomHolder::numbered((offset % 3) as u16));
        self.sent.push(Sent { offset, key: None, is_tombstone: false, is_gone: false });
    }

    /// Does what follows each change of a log.
    fn tidy(&mut self) {
        let before: Vec<_> =
            self.log.views().map(|view| (view.offset(), view.is_expired())).collect();
        self.log.expire(self.now_ms);
        for (offset, was_expired) in before {
            let is_expired = self.log.view_of(offset).is_some_and(|view| view.is_expired());
            self.sent[offset as usize - 1].is_gone |= is_expired && !was_expired;
        }
        self.log.trim(&self.retention, self.now_ms, MAX);
        for key in self.log.take_ended_keys() {
            self.append_named(Some(key.into()), true, None);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Set { key, expires_in_ms } => self.append(Some(key), false, expires_in_ms),
            Step::Remove { key } => {
                if self.log.newest_of(&format!("key {key}")).is_some() {
                    self.append(Some(key), true, None);
                }
            }
            Step::Publish => self.append(None, false, None),
            Step::Erase { back } => {
                let offset = (self.sent.len() as u64).saturating_sub(back);
                if back % 2 == 0 {
                    self.append_with(Some(Attributes::of_erasure(Erasure::of(offset))), None);
                    self.tidy();
                }
                if self.log.erase(offset).is_some() {
                    self.sent[offset as usize - 1].is_gone = true;
                }
                self.tidy();
            }
            Step::Evict => drop(self.log.drop_oldest()),
            Step::Wait { ms } => {
                self.now_ms += ms;
                self.tidy();
            }
            Step::Freeze => self.freeze(),
        }
    }

    /// Takes the log apart and puts it together.
    fn freeze(&mut self) {
        let keys = self.log.frozen_keys();
        let mut thawed = Log::new(self.log.lost());
        keys.iter().for_each(|keys| thawed.begin_keys(keys.floor));
        for place in self.log.places() {
            let super::super::Place::Here(content) = place else { unreachable!("none is sealed") };
            thawed.append(Arc::clone(content), Weak::new(), RoomHolder::NOBODY);
        }
        keys.iter().for_each(|keys| thawed.thaw_keys(keys));
        // All that was held is held again.
        self.held.clear();
        self.log = thawed;
    }

    /// The offsets of what a subscription after `offset` is to get.
    fn expected(&self, offset: u64) -> Vec<u64> {
        let is_newest = |sent: &&Sent| {
            let is_same = |later: &&Sent| later.key == sent.key && later.offset > sent.offset;
            sent.key.is_none() || !self.sent.iter().any(|later| is_same(&later))
        };
        let after = self.sent.iter().filter(|sent| sent.offset > offset && !sent.is_gone);
        after.filter(is_newest).map(|sent| sent.offset).collect()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let bytes: usize = self.log.views().map(|view| view.weight_bytes()).sum();
        prop_assert_eq!(self.log.bytes(), bytes);
        let blanks = self.log.views().filter(View::is_blank).count();
        prop_assert_eq!(self.log.len() - self.log.readable(), blanks);
        let keys = (0..6).map(|key| format!("key {key}"));
        let mut state_bytes = 0;
        for key in keys {
            let newest = self.sent.iter().rfind(|sent| sent.key.as_ref() == Some(&key));
            let newest = newest.filter(|sent| !sent.is_tombstone && !sent.is_gone);
            prop_assert_eq!(self.log.newest_of(&key), newest.map(|sent| sent.offset));
            if let Some(view) = newest.and_then(|sent| self.log.view_of(sent.offset)) {
                state_bytes += value_bytes(&key, view.weight_bytes());
            }
        }
        prop_assert_eq!(self.log.state_bytes(), state_bytes);
        let newest = || self.log.keys.iter().flat_map(|keys| &keys.newest);
        let tombstone_bytes = newest().filter_map(|(key, Newest { offset, .. })| {
            let view = self.log.view_of(*offset).filter(removes_key)?;
            Some(value_bytes(key, view.weight_bytes()))
        });
        prop_assert_eq!(self.log.tombstone_bytes(), tombstone_bytes.sum::<usize>());
        let mut held = BTreeMap::new();
        for (key, Newest { offset, holder }) in newest().filter(|(_, it)| it.holder.number() > 0) {
            let view = self.log.view_of(*offset).expect("it is there");
            *held.entry(holder.number()).or_default() +=
                value_bytes(key, view.weight_bytes()) as isize;
        }
        for (holder, bytes) in self.log.take_uncounted() {
            *self.held.entry(holder.number()).or_default() += bytes;
        }
        self.held.retain(|_, bytes| *bytes != 0);
        prop_assert_eq!(&self.held, &held);
        let Some((window, ..)) = self.log.window() else { return Ok(()) };
        let blanks = self.log.views().rev().take(window).filter(View::is_blank).count() as u64;
        let count = EntryCount { messages: window as u64 - blanks, blanks };
        prop_assert_eq!(self.log.count(), count);
        prop_assert!(window == 1 || !count.exceeds(self.retention.max_messages), "{:?}", count);
        let head = self.sent.len() as u64;
        prop_assert_eq!(self.log.newest_offset(), Some(head));
        for offset in self.log.floor().unwrap_or(head)..=head {
            let backlog = self.log.backlog(offset, false);
            let found = backlog.iter().filter(|it| !it.content().is_without_body());
            let found: Vec<_> = found.map(|message| message.id.offset).collect();
            prop_assert_eq!(&found, &self.expected(offset), "after {}", offset);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn resuming_from_anywhere_gives_the_state_of_now(
        steps in steps(),
        max_messages in 0..8_usize,
        max_age_ms in prop_oneof![Just(u64::MAX), 1..100_u64],
    ) {
        let retention = Retention { max_messages, max_bytes: usize::MAX, max_age_ms };
        let mut world = World::with(retention);
        // Without a key it is another log.
        world.append(Some(0), false, None);
        for step in steps {
            world.step(step.clone());
            world.check()?;
        }
    }
}

#[test]
fn a_tombstone_in_the_window_is_kept_however_old_it_is() {
    let retention = Retention { max_messages: 3, max_bytes: usize::MAX, max_age_ms: u64::MAX };
    let mut world = World::with(retention);
    world.append(Some(0), false, None);
    world.append(Some(0), true, None);
    world.step(Step::Wait { ms: 2 * TOMBSTONE_MS });
    let after = |world: &mut World, offset| {
        let backlog = world.log.backlog(offset, false);
        backlog.iter().map(|message| message.id.offset).collect::<Vec<_>>()
    };
    world.append(Some(1), false, None);
    assert_eq!(after(&mut world, 1), [2, 3], "whoever has the value learns that it is removed");
    assert_eq!(world.log.floor(), Some(0));
    (0..3).for_each(|_| world.append(Some(1), false, None));
    assert_eq!(after(&mut world, 1), [6]);
    assert_eq!(world.log.floor(), Some(2), "nobody is told that nothing is missing");
}

#[test]
fn a_log_ends_at_its_newest_message_when_many_tombstones_go() {
    let retention = Retention { max_messages: 9, max_bytes: usize::MAX, max_age_ms: 1_000 };
    let mut world = World::with(retention);
    let keys: Vec<_> = (0..GONE_MIN as u8).collect();
    world.append(Some(100), false, None);
    for is_tombstone in [false, true] {
        keys.iter().for_each(|&key| world.append(Some(key), is_tombstone, None));
    }
    world.step(Step::Wait { ms: 2 * TOMBSTONE_MS });
    let left: Vec<_> = world.log.views().map(|view| view.offset()).collect();
    assert_eq!(left, [1, world.sent.len() as u64], "a value, and the place of the newest message");
    world.append(Some(101), false, None);
    assert_eq!(world.log.state_keys(), 2);
}
