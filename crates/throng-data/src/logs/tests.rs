//! Random publications, faults and ends of processes and machines, against a simple model.
//!
//! The model knows what was acknowledged. It objects if an acknowledged message is missing although
//! its epoch goes on, if an id names two messages, if a key publishes twice within an epoch, if a
//! part of a log is not what the retention says, if a condition is misjudged, if a part of a change
//! is there, and if what was erased is back. `THRONG_SEED=` runs one seed alone.

mod entries;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::{
    Body, ChannelName, Content, EntryCount, MessageId, Publication, Retention, Stamp,
};

use super::format::{self, LogHead};
use super::{Appended, Entry, LogBounds, Logs, OpenedLogs, Writer};
use crate::storage::memory::{Fault, MemoryStorage};
use crate::storage::{KeyOrder, Space, Storage};
use crate::sync_policy::SyncPolicy;

const SEEDS: u64 = 400;
const STEPS: usize = 150;
const CHANNELS: [&str; 3] = ["a", "aa", "b"];
const MAX_MESSAGES: usize = 6;
const MAX_AGE_MS: u64 = 10_000;
/// Changes whose messages are looked for: more than can have some.
const CHANGES_MAX: usize = 30;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn retention() -> Retention {
    Retention { max_messages: MAX_MESSAGES, max_bytes: usize::MAX, max_age_ms: MAX_AGE_MS }
}

struct World {
    random: Random,
    storage: MemoryStorage,
    sync: SyncPolicy,
    logs: Arc<Logs>,
    writer: Option<Writer>,
    now_ms: u64,
    boots: u32,
    bodies: u64,
    /// The newest stamp; beyond all earlier runs.
    stamp: u64,
    /// The message of each id that was given out, whether acknowledged or not.
    given: HashMap<(ChannelName, MessageId), String>,
    /// The offsets and times of acknowledged messages of this epoch, by channel.
    acknowledged: BTreeMap<&'static str, Vec<(u64, u64)>>,
    /// The acknowledged publication of each key in this epoch.
    keys: HashMap<(&'static str, u64), (MessageId, u64)>,
    /// Where clients may resume: an id that was read of a channel, and how many messages were
    /// acknowledged then.
    positions: Vec<(&'static str, MessageId, usize)>,
    /// The bodies of changes, whether acknowledged or not.
    changes: Vec<(&'static str, Vec<String>)>,
    /// The bodies of messages that were to be erased, and whether that was acknowledged.
    erased: HashMap<String, bool>,
    /// The versions of records that were given out.
    versions: BTreeSet<u64>,
    /// Offsets up to which histories were erased in this epoch.
    erased_up_to: BTreeMap<&'static str, u64>,
    seen: BTreeSet<&'static str>,
}

fn open(storage: &MemoryStorage, boots: u32) -> (Arc<Logs>, OpenedLogs) {
    let (logs, opened) =
        Logs::open(Arc::new(storage.clone()), &format!("boot {boots}")).expect("it opens");
    (Arc::new(logs), opened)
}

fn name(channel: &str) -> ChannelName {
    ChannelName::channel(channel)
}

fn text(content: &Content) -> String {
    String::from_utf8_lossy(content.body.bytes()).into_owned()
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let sync =
            [SyncPolicy::Always, SyncPolicy::Always, SyncPolicy::Interval, SyncPolicy::Never]
                [random.below(4) as usize];
        let storage = MemoryStorage::default();
        let (logs, opened) = open(&storage, 0);
        assert!(!opened.may_have_lost);
        let writer = Some(Writer::begin(&logs, sync, opened.stamps).expect("it can be written"));
        World {
            random,
            storage,
            sync,
            logs,
            writer,
            now_ms: 1_700_000_000_000,
            boots: 0,
            bodies: 0,
            stamp: 0,
            given: HashMap::new(),
            acknowledged: BTreeMap::new(),
            keys: HashMap::new(),
            positions: Vec::new(),
            changes: Vec::new(),
            erased: HashMap::new(),
            versions: BTreeSet::new(),
            erased_up_to: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..55 => self.append(),
            55..63 => self.now_ms += self.random.below(8_000),
            63..66 => self.expire(),
            66..67 => self.pass(),
            67..68 => {
                if self.writer().remove_erased().is_err() {
                    self.retry();
                }
            }
            68..72 => {
                if self.sync != SyncPolicy::Never && self.writer().sync().is_err() {
                    self.retry();
                }
            }
            72..78 => self.fault(),
            78..82 => self.end_process(),
            82..86 => self.end_machine(),
            86..88 => self.end_cleanly(),
            _ => self.check_read(),
        }
    }

    fn writer(&mut self) -> &mut Writer {
        self.writer.as_mut().expect("it is there between steps")
    }

    fn append(&mut self) {
        let (entries, wanted) = self.entries();
        let state = |channel| {
            let state = self.logs.state(&name(channel)).expect("it is read");
            (channel, state.expect("nobody writes"))
        };
        let mut states: BTreeMap<_, _> = CHANNELS.into_iter().map(state).collect();
        let (now_ms, mut stamp) = (self.now_ms, self.stamp);
        let mut next = || {
            stamp += 1;
            Stamp(stamp)
        };
        let appended = self.writer().append(now_ms, &entries, Vec::new(), &mut next);
        self.stamp = stamp;
        let appended = match appended {
            Ok(appended) => appended,
            Err(_) => {
                self.seen.insert("append: fails first");
                let of = |channel| self.logs.state(&name(channel)).expect("it is read");
                for (channel, state) in &states {
                    assert_eq!(of(channel).as_ref(), Some(state), "it is not acknowledged");
                }
                // Sometimes the server ends before the disk works again.
                match self.random.below(5) {
                    0 => return self.end_process(),
                    1 => return self.end_machine(),
                    _ => self.retry(),
                }
            }
        };
        for (appended, wanted) in appended.into_iter().zip(wanted) {
            let state = states.get_mut(wanted.channel()).expect("it is known");
            for content in appended.contents() {
                assert_eq!(content.id.epoch, state.head.epoch);
                assert!(content.id.offset > state.head.offset);
                state.head = content.id;
            }
            self.acknowledge(appended, wanted, state);
        }
        for (channel, state) in states {
            let now = self.logs.state(&name(channel)).expect("it is read");
            assert_eq!(now, Some(state), "{channel}");
        }
    }

    fn fault(&mut self) {
        let fault = match self.random.below(4) {
            0 => Fault::CommitLost(true),
            1 => Fault::CommitLost(false),
            2 => Fault::CommitKept,
            _ => Fault::Sync,
        };
        let failing = self.random.below(3) as u32;
        self.storage.fail(fault, failing);
    }

    fn retry(&mut self) -> Vec<Appended> {
        loop {
            let writer = self.writer.as_mut().expect("it is there between steps");
            let stamp = &mut self.stamp;
            let mut next = || {
                *stamp += 1;
                Stamp(*stamp)
            };
            match writer.retry(&mut next) {
                Ok(appended) => return appended,
                Err(_) => drop(self.seen.insert("retry: fails first")),
            }
        }
    }

    fn new_epoch(&mut self) {
        self.erased_up_to.clear();
        // Erasures may be lost, too.
        self.erased.values_mut().for_each(|is_erased| *is_erased = false);
        self.acknowledged.clear();
        self.keys.clear();
        self.positions.clear();
    }

    /// Nothing is published for a while.
    fn pass(&mut self) {
        for _ in 0..2 {
            self.now_ms += MAX_AGE_MS;
            self.expire();
        }
    }

    fn expire(&mut self) {
        let now_ms = self.now_ms;
        loop {
            match self.writer().expire(now_ms, &|_| Some(retention())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    self.retry();
                }
            }
        }
        // Nothing that is too old is left.
        for channel in CHANNELS {
            let (_, messages) = self.read(channel, (0, u64::MAX), KeyOrder::Up);
            assert!(messages.iter().all(|message| message.time_ms + MAX_AGE_MS > now_ms));
        }
    }

    fn reopen(&mut self) -> OpenedLogs {
        let (logs, opened) = open(&self.storage, self.boots);
        self.logs = logs;
        if opened.may_have_lost {
            self.seen.insert("open: a new epoch");
            self.new_epoch();
        } else {
            self.seen.insert("open: the epoch goes on");
        }
        assert!(opened.stamps.0 >= self.stamp, "stamps go on");
        self.stamp = opened.stamps.0;
        self.writer =
            Some(Writer::begin(&self.logs, self.sync, opened.stamps).expect("it can be written"));
        self.check_read();
        opened
    }

    fn end_process(&mut self) {
        self.writer = None;
        self.storage.end_process();
        let opened = self.reopen();
        assert!(!opened.may_have_lost, "the machine still runs");
    }

    fn end_machine(&mut self) {
        self.writer = None;
        self.boots += 1;
        let kept = self.random.below(self.storage.unsynced() as u64 + 1) as usize;
        self.storage.lose_power(kept);
        let opened = self.reopen();
        assert!(!opened.may_have_lost || self.sync != SyncPolicy::Always);
    }

    fn end_cleanly(&mut self) {
        let writer = self.writer.take().expect("it is there between steps");
        let is_clean = writer.end_run().is_ok();
        if is_clean && self.random.percent(50) {
            self.boots += 1;
            self.storage.lose_power(0);
        } else {
            self.storage.end_process();
        }
        let opened = self.reopen();
        assert!(!opened.may_have_lost);
    }

    /// The logs are what the acknowledged messages of this epoch say, and what the retention
    /// leaves of them.
    fn check_read(&mut self) {
        for channel in CHANNELS {
            let (all, messages) = self.read(channel, (0, u64::MAX), KeyOrder::Up);
            let offsets: Vec<u64> = messages.iter().map(|message| message.id.offset).collect();
            let expected: Vec<u64> = (all.floor + 1..=all.head.offset).collect();
            assert_eq!(offsets, expected, "{channel}");
            let mut entries = EntryCount::default();
            messages.iter().for_each(|message| entries.add(message.is_blank()));
            assert!(entries.messages <= MAX_MESSAGES as u64);
            // Those that were erased since the last message came.
            assert!(entries.blanks <= 4 * MAX_MESSAGES as u64);
            if offsets.len() > MAX_MESSAGES {
                self.seen.insert("check: more than messages");
            }
            self.check_bodies(channel, &all, &messages);
            let head = self.check_head(channel);
            if head.number == 0 && head.offset > 0 {
                self.seen.insert("check: a forgotten channel");
            }
            let acknowledged = self.acknowledged.get(channel).map_or(&[][..], Vec::as_slice);
            for &(of, id, count) in &self.positions {
                if of == channel && (all.floor..=all.head.offset).contains(&id.offset) {
                    let is_after = |(offset, _): &(u64, u64)| *offset > id.offset;
                    assert!(acknowledged[count..].iter().all(is_after), "a hole after {id}");
                }
            }
            self.positions.push((channel, all.head, acknowledged.len()));
            for (offset, _) in acknowledged {
                let is_there = *offset <= all.floor || offsets.contains(offset);
                assert!(is_there, "{offset} of {channel} is lost: {offsets:?}");
            }
            let middle = self.random.below(all.head.offset + 2);
            for (range, order) in
                [((middle, u64::MAX), KeyOrder::Up), ((0, middle), KeyOrder::Down)]
            {
                let (_, part) = self.read(channel, range, order);
                let part: Vec<_> = part.iter().map(|message| message.id.offset).collect();
                let is_in = |at: &u64| range.0 < *at && *at < range.1;
                let mut expected: Vec<_> = offsets.iter().copied().filter(is_in).collect();
                if order == KeyOrder::Down {
                    expected.reverse();
                }
                assert_eq!(part, expected);
            }
            for message in &messages {
                let found = self.logs.offset_at(&name(channel), &all, message.stamp);
                assert_eq!(found, Ok(message.id.offset));
            }
            assert!(messages.iter().all(|message| message.stamp > all.lost), "{:?}", all.lost);
        }
        self.check_changes();
        self.check_list();
    }

    /// The messages of a log are as they were acknowledged.
    fn check_bodies(&self, channel: &str, bounds: &LogBounds, messages: &[Content]) {
        for message in messages {
            let Some(given) = self.given.get(&(name(channel), message.id)) else {
                // After a new epoch the messages are the same under other ids.
                continue;
            };
            let (is_whole, is_erased) = (*given == text(message), message.expires_ms.is_some());
            match self.erased.get(given) {
                None => assert!(is_whole && !is_erased, "{}", message.id),
                Some(true) => assert!(!is_whole && is_erased, "{} is back", message.id),
                Some(false) => assert!(is_whole != is_erased, "{}", message.id),
            }
        }
        let erased_up_to = self.erased_up_to.get(channel).copied().unwrap_or_default();
        assert!(bounds.floor >= erased_up_to, "{channel} up to {erased_up_to} is back");
    }

    /// The head of a log is what its messages add up to.
    fn check_head(&self, channel: &str) -> LogHead {
        let head = self.logs.committed_head(&name(channel)).expect("it is read");
        let bounds = [head.floor + 1, u64::MAX].map(|at| format::message(&name(channel), at));
        let (mut bytes, mut expiring, mut blanks) = (0, 0, 0);
        let mut count = |_: &[u8], value: &[u8]| {
            bytes += value.len() as u64;
            let measure = format::measure(value).expect("it is read");
            expiring += u64::from(measure.is_expiring);
            blanks += u64::from(measure.is_blank);
            ControlFlow::Continue(())
        };
        self.storage
            .scan(Space::Messages, (&bounds[0], &bounds[1]), KeyOrder::Up, &mut count)
            .expect("it is read");
        let counted = (head.bytes, head.expiring, head.blanks);
        assert_eq!(counted, (bytes, expiring, blanks), "{channel}");
        head
    }

    fn check_list(&self) {
        let mut listed = Vec::new();
        let mut visit = |number, name: ChannelName| {
            listed.push((number, name));
            ControlFlow::Continue(())
        };
        self.logs.list(0, &mut visit).expect("it is read");
        assert!(listed.is_sorted_by_key(|(number, _)| *number));
        for channel in CHANNELS {
            let heads = self.logs.committed_head(&name(channel)).expect("it is read");
            let places = listed.iter().filter(|(_, listed)| *listed == name(channel)).count();
            assert_eq!(places, usize::from(heads.number > 0), "{channel}");
        }
    }

    /// Messages between two offsets, in an order.
    fn read(&self, channel: &str, range: (u64, u64), order: KeyOrder) -> (LogBounds, Vec<Content>) {
        let mut messages = Vec::new();
        let mut each = |content| {
            messages.push(content);
            ControlFlow::Continue(())
        };
        let bounds = self.logs.visit(&name(channel), range, order, &mut each);
        (bounds.expect("it is read"), messages)
    }
}

#[test]
fn what_is_acknowledged_is_there() {
    let only = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    let mut seen = BTreeSet::new();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
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
        "append: known key",
        "append: fails first",
        "change: conflict",
        "check: a forgotten channel",
        "erase: a log",
        "erase: a message",
        "open: a new epoch",
        "open: the epoch goes on",
        "retry: fails first",
    ];
    let missing: Vec<_> = all.iter().filter(|event| !seen.contains(**event)).collect();
    assert!(missing.is_empty() || seeds.end - seeds.start < SEEDS, "never happened: {missing:?}");
}

#[test]
fn logs_on_a_disk_are_there_after_they_are_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let disk = crate::storage::disk::DiskStorage::open(directory.path(), 1 << 20);
        let (logs, opened) =
            Logs::open(Arc::new(disk.expect("it opens")), "boot").expect("it opens");
        (Arc::new(logs), opened)
    };
    let publication = |text: &str| Publication {
        idempotency_key: Some(text.into()),
        ..Publication::new(name("a"), Body::Text(text.into()))
    };
    let mut epoch = None;
    for run in 0..3_u64 {
        let (logs, opened) = open();
        assert_eq!(*epoch.get_or_insert(opened.epoch), opened.epoch);
        let mut writer =
            Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it can be written");
        let publications: Vec<_> = (0..3)
            .map(|n| Entry::from((publication(&format!("{run}.{n}")), retention())))
            .collect();
        let mut append =
            || writer.append(5, &publications, Vec::new(), &mut Stamp::default).expect("it writes");
        assert!(append().iter().all(|appended| matches!(appended, Appended::New(_))));
        assert!(append().iter().all(|appended| matches!(appended, Appended::Known(_))));
        let bounds = logs.bounds(&name("a")).expect("it is read");
        assert_eq!(bounds.head.offset, 3 * (run + 1));
        assert_eq!(bounds.head.offset - bounds.floor, (3 * (run + 1)).min(6));
        if run == 1 {
            writer.end_run().expect("it writes");
        }
    }
}
