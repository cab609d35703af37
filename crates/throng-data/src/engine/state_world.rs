//! Random changes of states, with faults and ends of processes and machines, against a simple model
//! that knows all messages.
//!
//! It objects if a state has other values than the newest of each key, if a subscription that has
//! recovered lacks one of these or any other message, if one that has not lacks nothing, if a
//! message is dropped for notices or erased ones, if a condition or a limit is misjudged, and if
//! what is on the disk does not agree.
//! `THRONG_SEED=` runs one seed alone.

mod checks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throng_core::change::{ChangeError, Condition, Erase, KeyCondition, LogChange};
use throng_core::parts::Limits;
use throng_core::{
    Attributes, Body, ChannelName, Content, Erasure, MessageId, Publication, PublishError,
    Retention, RoomHolder, Stamp, StartAt, StateLimits,
};

use super::expired_runs::ExpiredRuns;
use crate::logs::{Appended, Entry, Logs, Writer};
use crate::storage::memory::{Fault, MemoryStorage};
use crate::sync_policy::SyncPolicy;

const SEEDS: u64 = 200;
const STEPS: usize = 120;
const CHANNELS: [&str; 2] = ["a", "aa"];
const KEYS: u64 = 6;
const MAX: StateLimits = StateLimits { max_keys: 4, max_bytes: 1 << 20, forgets_soon: false };
const LIMITS: Limits = Limits { messages: 100, bytes: 1 << 20, state: MAX };
const HOUR_MS: u64 = 3_600_000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A message that was acknowledged.
#[derive(Debug, Clone)]
struct Sent {
    offset: u64,
    key: Option<String>,
    text: String,
    is_tombstone: bool,
    expires_ms: Option<u64>,
    stamp: Stamp,
    time_ms: u64,
    is_notice: bool,
    is_erased: bool,
}

impl Sent {
    fn can_be_read(&self, now_ms: u64) -> bool {
        !self.is_erased && self.expires_ms.is_none_or(|at_ms| at_ms > now_ms)
    }
}

struct World {
    random: Random,
    kept: Retention,
    storage: MemoryStorage,
    logs: Arc<Logs>,
    writer: Option<Writer>,
    expired: ExpiredRuns,
    now_ms: u64,
    boots: u32,
    stamp: u64,
    texts: u64,
    sent: BTreeMap<&'static str, Vec<Sent>>,
    /// Offsets up to which histories were erased.
    erased_up_to: BTreeMap<&'static str, u64>,
    seen: BTreeSet<&'static str>,
}

fn name(channel: &str) -> ChannelName {
    ChannelName::channel(channel)
}

fn open(storage: &MemoryStorage, boots: u32) -> (Arc<Logs>, Writer, u64) {
    let storage = Arc::new(storage.clone());
    let (logs, opened) = Logs::open(storage, &format!("boot {boots}")).expect("it opens");
    assert!(!opened.may_have_lost);
    let logs = Arc::new(logs);
    let writer = Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
    (logs, writer.with_state_limits(Box::new(|_| MAX), u64::MAX), opened.stamps.0)
}

impl World {
    fn new(seed: u64) -> World {
        let storage = MemoryStorage::default();
        let (logs, writer, stamp) = open(&storage, 0);
        // Some keep nothing but their states.
        let max_messages = [4, 4, 0, 12][seed as usize % 4];
        World {
            random: Random(seed),
            kept: Retention { max_messages, max_bytes: usize::MAX, max_age_ms: 20_000 },
            storage,
            logs,
            writer: Some(writer),
            expired: ExpiredRuns::default(),
            now_ms: 1_700_000_000_000,
            boots: 0,
            stamp,
            texts: 0,
            sent: BTreeMap::new(),
            erased_up_to: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..60 => self.append(),
            60..70 => self.now_ms += self.random.below(15_000),
            70..72 => self.now_ms += self.random.below(2 * HOUR_MS),
            72..77 => self.expire(),
            77..82 => self.do_due(),
            82..84 => drop(self.writer().remove_erased()),
            84..90 => self.fault(),
            90..95 => self.reopen(),
            _ => {}
        }
        if self.random.percent(30) {
            self.check();
        }
    }

    fn writer(&mut self) -> &mut Writer {
        self.writer.as_mut().expect("it is there between steps")
    }

    fn fault(&mut self) {
        let fault = [Fault::CommitLost(false), Fault::CommitKept, Fault::Sync];
        self.storage.fail(fault[self.random.below(3) as usize], self.random.below(2) as u32);
    }

    fn retry(&mut self) -> Vec<Appended> {
        loop {
            let writer = self.writer.as_mut().expect("it is there between steps");
            let stamp = &mut self.stamp;
            let mut next = || {
                *stamp += 1;
                Stamp(*stamp)
            };
            if let Ok(appended) = writer.retry(&mut next) {
                return appended;
            }
        }
    }

    /// The process ends, or the machine.
    fn reopen(&mut self) {
        self.writer = None;
        if self.random.percent(50) {
            self.storage.end_process();
        } else {
            self.boots += 1;
            let kept = self.random.below(self.storage.unsynced() as u64 + 1) as usize;
            self.storage.lose_power(kept);
        }
        let (logs, writer, stamp) = open(&self.storage, self.boots);
        assert!(stamp >= self.stamp);
        (self.logs, self.writer, self.stamp) = (logs, Some(writer), stamp);
    }

    fn expire(&mut self) {
        let now_ms = self.now_ms;
        let retention = self.random.percent(90).then_some(self.kept);
        loop {
            match self.writer().expire(now_ms, &|_| retention) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => drop(self.retry()),
            }
        }
    }

    fn do_due(&mut self) {
        let now_ms = self.now_ms;
        let retention = self.random.percent(90).then_some(self.kept);
        let due = self.writer().due_entries(now_ms, &|_| retention);
        let Ok((entries, _)) = due else {
            self.retry();
            return;
        };
        if retention.is_some() && !entries.is_empty() {
            self.seen.insert("due");
        }
        let wanted = entries.iter().map(|_| Wanted::Due).collect();
        self.make(entries, wanted);
    }

    fn channel(&mut self) -> &'static str {
        CHANNELS[self.random.below(CHANNELS.len() as u64) as usize]
    }

    fn message(&mut self, channel: &str) -> Publication {
        self.texts += 1;
        let publication =
            Publication::new(name(channel), Body::Text(self.texts.to_string().into()));
        let key = self.random.below(KEYS).to_string();
        let expires_in_ms = self.random.percent(20).then(|| 1 + self.random.below(20_000));
        match self.random.below(10) {
            0..5 => {
                let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
                let holder = RoomHolder::numbered(self.random.below(3) as u16);
                Publication { attributes, expires_in_ms, holder, ..publication }
            }
            5..7 => Publication::tombstone(name(channel), &key),
            _ => Publication { expires_in_ms, ..publication },
        }
    }

    fn entry(&mut self) -> (Entry, Wanted) {
        let channel = self.channel();
        match self.random.below(10) {
            0..6 => {
                let message = self.message(channel);
                let wanted = Wanted::Messages(channel, None, vec![message.clone()]);
                (Entry::Publication(message, self.kept), wanted)
            }
            6..8 => {
                let count = 1 + self.random.below(3);
                let messages: Vec<_> = (0..count).map(|_| self.message(channel)).collect();
                let key = self.random.below(KEYS).to_string();
                let offset = self.newest(channel, &key).map(|sent| sent.offset);
                let offset = if self.random.percent(60) { offset } else { Some(1) };
                let epoch = self.logs.epoch();
                let newest = offset.map(|offset| MessageId { epoch, offset });
                let key = KeyCondition { key: key.into(), newest };
                let key = self.random.percent(50).then_some(key);
                let condition = Condition { key: key.clone(), ..Condition::default() };
                let change = LogChange::append(name(channel), messages.clone());
                let change = LogChange { condition, ..change };
                (Entry::Change(change, self.kept), Wanted::Messages(channel, key, messages))
            }
            _ => {
                let newest = self.sent(channel).last().map_or(0, |sent| sent.offset);
                let offset = 1 + self.random.below(newest + 2);
                let what = match self.random.below(12) {
                    0 => Erase::History,
                    1 => Erase::Log,
                    _ => Erase::Message(MessageId { epoch: self.logs.epoch(), offset }),
                };
                (Entry::Erase(name(channel), what, self.kept), Wanted::Erase(channel, what))
            }
        }
    }

    fn append(&mut self) {
        let count = 1 + self.random.below(4);
        let (mut entries, mut wanted, mut told) = (Vec::new(), Vec::new(), BTreeSet::new());
        for _ in 0..count {
            let (entry, of_entry) = self.entry();
            if let Wanted::Erase(channel, Erase::Message(id)) = of_entry
                && self.is_message(channel, id.offset)
                && told.insert((channel, id.offset))
                && self.random.percent(70)
            {
                let notice = LogChange::notice(name(channel), Erasure::of(id.offset));
                wanted.push(Wanted::Messages(channel, None, notice.messages.clone()));
                entries.push(Entry::Change(notice, self.kept));
            }
            entries.push(entry);
            wanted.push(of_entry);
        }
        self.make(entries, wanted);
    }

    /// True if somebody has published this, and nobody has erased it.
    fn is_message(&self, channel: &str, offset: u64) -> bool {
        let found = self.sent(channel).iter().find(|sent| sent.offset == offset);
        found.is_some_and(|sent| !sent.is_notice && !sent.is_tombstone && !sent.is_erased)
    }

    fn make(&mut self, entries: Vec<Entry>, wanted: Vec<Wanted>) {
        if entries.is_empty() {
            return;
        }
        let (now_ms, mut stamp) = (self.now_ms, self.stamp);
        let mut next = || {
            stamp += 1;
            Stamp(stamp)
        };
        let appended = self.writer().append(now_ms, &entries, Vec::new(), &mut next);
        self.stamp = stamp;
        let appended = appended.unwrap_or_else(|_| {
            self.seen.insert("a commit fails first");
            // Nobody gets what is not acknowledged.
            let channel = self.channel();
            match self.read_turns(channel, StartAt::State, 2) {
                None => drop(self.seen.insert("read: not acknowledged")),
                Some(start) => self.check_state(channel, &start),
            }
            self.retry()
        });
        for (appended, wanted) in appended.into_iter().zip(wanted) {
            self.acknowledge(appended, wanted);
        }
    }

    fn sent(&self, channel: &str) -> &[Sent] {
        self.sent.get(channel).map_or(&[], Vec::as_slice)
    }

    /// The newest message of a key, if it is a value that can be read.
    fn newest(&self, channel: &str, key: &str) -> Option<&Sent> {
        let is_of = |sent: &&Sent| sent.key.as_deref() == Some(key);
        let newest = self.sent(channel).iter().rfind(is_of)?;
        (!newest.is_tombstone && newest.can_be_read(self.now_ms)).then_some(newest)
    }

    /// The keys that count, with values that have expired and have no tombstones yet.
    fn counted(&self, channel: &str) -> BTreeMap<String, &Sent> {
        let mut newest = BTreeMap::new();
        for sent in self.sent(channel) {
            if let Some(key) = &sent.key {
                newest.insert(key.clone(), sent);
            }
        }
        newest.retain(|_, sent| !sent.is_tombstone && !sent.is_erased);
        newest
    }

    fn add(&mut self, channel: &'static str, content: &Content) {
        let text = String::from_utf8_lossy(content.body.bytes()).into_owned();
        let all = self.sent.entry(channel).or_default();
        assert!(all.last().is_none_or(|last| last.offset < content.id.offset));
        all.push(Sent {
            offset: content.id.offset,
            key: content.key().map(String::from),
            text,
            is_tombstone: content.removes_key(),
            expires_ms: content.expires_ms.map(|at_ms| at_ms.get()),
            stamp: content.stamp,
            time_ms: content.time_ms,
            is_notice: content.is_notice(),
            is_erased: false,
        });
    }

    fn acknowledge(&mut self, appended: Appended, wanted: Wanted) {
        match wanted {
            Wanted::Messages(channel, condition, messages) => {
                let expected = self.expected(channel, condition.as_ref(), &messages);
                match (appended, expected) {
                    (Appended::Refused(refused), Err(expected)) => {
                        assert_eq!(refused, expected);
                        self.seen.insert(match refused {
                            ChangeError::KeyConflict(_) => "refused: a conflict",
                            ChangeError::Refused(PublishError::StateFull) => "refused: full",
                            _ => "refused: no key",
                        });
                    }
                    (Appended::New(content), Ok(())) => self.add(channel, &content),
                    (Appended::Changed(contents, _), Ok(())) => {
                        contents.iter().for_each(|content| self.add(channel, content));
                    }
                    (appended, expected) => panic!("{appended:?}, and not {expected:?}"),
                }
            }
            Wanted::Erase(channel, Erase::Message(id)) => {
                let Appended::Erased(count, tombstone) = appended else { panic!("{appended:?}") };
                let now_ms = self.now_ms;
                let sent = self.sent.entry(channel).or_default();
                let erased = sent.iter_mut().find(|sent| sent.offset == id.offset);
                if count == Some(1) {
                    let erased = erased.expect("it was there");
                    assert!(erased.can_be_read(now_ms));
                    erased.is_erased = true;
                    self.seen.insert("erase: a message");
                } else if tombstone.is_some() {
                    // One that had expired.
                    erased.expect("it was there").is_erased = true;
                }
                if let Some(tombstone) = tombstone {
                    self.seen.insert("erase: a value");
                    self.add(channel, &tombstone);
                }
            }
            Wanted::Erase(channel, _) => {
                let newest = self.sent(channel).last().map_or(0, |sent| sent.offset);
                self.erased_up_to.insert(channel, newest);
                let all = self.sent.entry(channel).or_default();
                all.iter_mut().for_each(|sent| sent.is_erased = true);
                // Those are no keys any more, and get no tombstones.
                all.iter_mut().for_each(|sent| sent.key = None);
            }
            Wanted::Due => {
                for content in appended.contents() {
                    let channel = CHANNELS.into_iter().find(|it| name(it) == content.channel);
                    let channel = channel.expect("it is known");
                    let key = content.key().expect("it is a tombstone");
                    assert!(content.removes_key() && self.newest(channel, key).is_none());
                    assert!(self.counted(channel).contains_key(key), "{key} has a tombstone");
                    self.seen.insert("due: an expired value");
                    self.add(channel, content);
                }
            }
        }
    }

    /// Whether messages are taken.
    fn expected(
        &self,
        channel: &str,
        condition: Option<&KeyCondition>,
        messages: &[Publication],
    ) -> Result<(), ChangeError> {
        let id_of = |sent: &Sent| MessageId { epoch: self.logs.epoch(), offset: sent.offset };
        if let Some(KeyCondition { key, newest }) = condition {
            let known = self.newest(channel, key).map(id_of);
            if known != *newest {
                return Err(ChangeError::KeyConflict(known));
            }
        }
        let before = self.counted(channel);
        // Each key that counts, and whether it can be read.
        let mut after: BTreeMap<_, _> =
            before.iter().map(|(key, sent)| (&**key, sent.can_be_read(self.now_ms))).collect();
        for message in messages {
            let Some(key) = message.key() else { continue };
            if !message.removes_key() {
                after.insert(key, true);
            } else if after.get(key) == Some(&true) {
                after.remove(key);
            } else {
                return Err(PublishError::NoKey.into());
            }
        }
        let is_full = after.len() > before.len().max(MAX.max_keys);
        if is_full { Err(PublishError::StateFull.into()) } else { Ok(()) }
    }
}

/// What is to become of an entry.
enum Wanted {
    Messages(&'static str, Option<KeyCondition>, Vec<Publication>),
    Erase(&'static str, Erase),
    Due,
}

#[test]
fn a_state_is_the_newest_of_each_key_whatever_happens() {
    let only = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    let mut seen = BTreeSet::new();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.check();
            world.seen
        });
        match std::panic::catch_unwind(run) {
            Ok(events) => seen.extend(events),
            Err(panic) => {
                eprintln!("replay: THRONG_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let all = [
        "a commit fails first",
        "due",
        "due: an expired value",
        "erase: a message",
        "erase: a value",
        "kept: beside notices",
        "read: not acknowledged",
        "refused: a conflict",
        "refused: full",
        "refused: no key",
        "resume: not recovered",
        "resume: recovered from before the history",
    ];
    let missing: Vec<_> = all.iter().filter(|event| !seen.contains(**event)).collect();
    assert!(missing.is_empty() || seeds.end - seeds.start < SEEDS, "never happened: {missing:?}");
}
