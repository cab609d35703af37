//! The end of the machine under logs on a real disk: what was not synced is dropped at a random
//! moment, block by block.
//!
//! A layer below the logs and above the files knows what the disk has of each journal of the
//! library: what was in it when a sync returned. When a sync fails, what it had to write never gets
//! there, although reads still find it. When the machine ends, the disk has what was synced, and of
//! the rest any blocks, also of entries that are being written: they are there or not.
//! `THRONG_SEED=` runs one seed alone.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use throng_core::change::{Erase, LogChange, LogRecord, RecordChange};
use throng_core::{
    Attributes, Body, ChannelName, Content, MessageId, Publication, Retention, RoomHolder, Stamp,
};

use super::tests::Random;
use super::{Appended, Entry, Logs, Writer};
use crate::storage::disk::DiskStorage;
use crate::storage::{Each, KeyOrder, Space, Storage, StorageError, Write};
use crate::sync_policy::SyncPolicy;

const SEEDS: u64 = 8;
const LIVES: usize = 6;
const STEPS: u64 = 12;
const BLOCK_BYTES: usize = 4096;
const NOW_MS: u64 = 1_700_000_000_000;
const KEPT: Retention =
    Retention { max_messages: usize::MAX, max_bytes: usize::MAX, max_age_ms: 1 << 40 };
const CHANNELS: [&str; 3] = ["a", "b", "c"];

/// The disk's contents of a file.
#[derive(Debug, Clone, Default)]
struct Image {
    bytes: Vec<u8>,
    /// The writes of a failed sync, as they were then: the system thinks that they are on the disk.
    dropped: HashMap<usize, Vec<u8>>,
    /// While it is open, no other file gets its number.
    file: Option<Arc<File>>,
}

fn block(bytes: &[u8], at: usize) -> &[u8] {
    let from = (at * BLOCK_BYTES).min(bytes.len());
    &bytes[from..(from + BLOCK_BYTES).min(bytes.len())]
}

/// The blocks in which two contents of a file differ.
fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
    let blocks = after.len().div_ceil(BLOCK_BYTES);
    (0..blocks).filter(|&at| block(before, at) != block(after, at)).collect()
}

impl Image {
    fn put(&mut self, at: usize, content: &[u8]) {
        let end = at * BLOCK_BYTES + content.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at * BLOCK_BYTES..end].copy_from_slice(content);
    }

    /// The blocks that the system would write now.
    fn dirty(&self, now: &[u8]) -> Vec<usize> {
        let mut dirty = changed(&self.bytes, now);
        dirty.retain(|at| self.dropped.get(at).is_none_or(|known| known != block(now, *at)));
        dirty
    }

    fn sync(&mut self, now: &[u8]) {
        for at in self.dirty(now) {
            self.dropped.remove(&at);
            self.put(at, block(now, at));
        }
    }

    fn fail(&mut self, now: &[u8]) {
        for at in self.dirty(now) {
            self.dropped.insert(at, block(now, at).to_vec());
        }
    }
}

struct Disk {
    path: PathBuf,
    files: DiskStorage,
    /// The disk's contents of journals, by their numbers in the file system.
    images: Mutex<HashMap<u64, Image>>,
    fails: Mutex<bool>,
    /// True if the machine ends with the next sync.
    ends: Mutex<bool>,
}

/// Journals with their numbers and contents, without the holes at their ends.
fn journals(path: &Path) -> Vec<(PathBuf, File, Vec<u8>)> {
    let all =
        fs::read_dir(path).expect("it is read").map(|entry| entry.expect("it is read").path());
    let all = all.filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    let read = |path: PathBuf| {
        let (mut bytes, mut file) = (Vec::new(), File::open(&path).expect("it is read"));
        let mut piece = vec![0; BLOCK_BYTES * 16];
        loop {
            let count = file.read(&mut piece).expect("it is read");
            // A test writes no such hole.
            if piece[..count].iter().all(|byte| *byte == 0) {
                break;
            }
            bytes.extend_from_slice(&piece[..count]);
        }
        (path, file, bytes)
    };
    all.map(read).collect()
}

fn number(file: &File) -> u64 {
    file.metadata().expect("it is read").ino()
}

impl Disk {
    fn open(path: &Path) -> Arc<Disk> {
        let files = DiskStorage::open(path, 1 << 20).expect("it opens");
        let (images, fails, ends) = Default::default();
        let disk = Disk { path: path.into(), files, images, fails, ends };
        // Opening has synced what is there.
        disk.each(Image::sync);
        Arc::new(disk)
    }

    fn each(&self, change: fn(&mut Image, &[u8])) {
        let mut images = self.images.lock().expect("nobody panics");
        for (_, file, bytes) in journals(&self.path) {
            let image = images.entry(number(&file)).or_default();
            change(image, &bytes);
            image.file.get_or_insert_with(|| Arc::new(file));
        }
    }

    fn fail(&self) {
        *self.fails.lock().expect("nobody panics") = true;
    }

    /// The remains of a machine that ends now, in a new directory.
    fn lose_power(&self, random: &mut Random, to: &Path) {
        copy(&self.path, to);
        let images = self.images.lock().expect("nobody panics");
        for (path, file, now) in journals(&self.path) {
            let mut image = images.get(&number(&file)).cloned().unwrap_or_default();
            for at in image.dirty(&now) {
                if random.percent(60) {
                    image.put(at, block(&now, at));
                }
            }
            let name = path.file_name().expect("it has a name");
            let file = File::create(to.join(name)).expect("it is made");
            file.write_all_at(&image.bytes, 0).expect("it is written");
            file.set_len(fs::metadata(&path).expect("it is there").len()).expect("it is written");
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("it is made");
    for entry in fs::read_dir(from).expect("it is read") {
        let entry = entry.expect("it is read");
        let (kind, to) = (entry.file_type().expect("it is known"), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if entry.path().extension().is_none_or(|extension| extension != "jnl") {
            fs::copy(entry.path(), to).expect("it is copied");
        }
    }
}

impl Storage for Disk {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.files.get(space, key)
    }

    fn scan(
        &self,
        space: Space,
        range: (&[u8], &[u8]),
        order: KeyOrder,
        each: Each<'_>,
    ) -> Result<(), StorageError> {
        self.files.scan(space, range, order, each)
    }

    fn commit(&self, writes: &[Write]) -> Result<(), StorageError> {
        self.files.commit(writes)
    }

    fn sync(&self) -> Result<(), StorageError> {
        if *self.ends.lock().expect("nobody panics") {
            return Err(StorageError::Failed("the machine ends".into()));
        }
        if std::mem::take(&mut *self.fails.lock().expect("nobody panics")) {
            self.each(Image::fail);
            return Err(StorageError::Failed("a sync fails".into()));
        }
        self.files.sync()?;
        self.each(Image::sync);
        Ok(())
    }

    fn settle(&self) -> Result<(), StorageError> {
        self.files.settle()?;
        self.each(Image::sync);
        Ok(())
    }

    fn recover(&self) -> Result<(), StorageError> {
        self.files.recover()?;
        // A sync of the same file would not help what an earlier one has dropped.
        self.each(Image::sync);
        Ok(())
    }

    fn bytes(&self) -> Result<u64, StorageError> {
        self.files.bytes()
    }
}

struct World {
    random: Random,
    bodies: u64,
    stamp: u64,
    acknowledged: HashMap<(ChannelName, MessageId), String>,
    /// The bodies of all changes, whether acknowledged or not, and the record that each writes.
    changes: Vec<(ChannelName, Vec<String>, LogRecord)>,
    /// Messages of publications to erase.
    erasable: Vec<(ChannelName, MessageId)>,
    /// Those that were to be erased, and whether that was acknowledged.
    erased: HashMap<(ChannelName, MessageId), bool>,
}

impl World {
    /// Some are longer than a block, and cannot be compressed.
    fn body(&mut self) -> String {
        self.bodies += 1;
        let words = if self.random.percent(20) { self.random.below(900) } else { 1 };
        let words = (0..words).map(|_| format!("{:016x}", self.random.below(u64::MAX)));
        format!("{} {}", self.bodies, words.collect::<String>())
    }

    /// A publication, which may set a key, a change of some messages with a record, or the erasure
    /// of a message.
    fn entry(&mut self) -> Entry {
        let channel = ChannelName::channel(CHANNELS[self.random.below(3) as usize]);
        let message =
            |body: &String| Publication::new(channel.clone(), Body::Text(body.as_str().into()));
        match self.random.below(10) {
            0..2 if !self.erasable.is_empty() => {
                let at = self.random.below(self.erasable.len() as u64) as usize;
                let (channel, id) = self.erasable.swap_remove(at);
                self.erased.insert((channel.clone(), id), false);
                Entry::Erase(channel, Erase::Message(id), KEPT)
            }
            2..5 => {
                let bodies: Vec<_> = (0..=self.random.below(3)).map(|_| self.body()).collect();
                let number = self.bodies.to_string();
                let record = LogRecord::of(&[(100, number.as_bytes())]).expect("it is short");
                let messages = bodies.iter().map(message).collect();
                self.changes.push((channel.clone(), bodies, record.clone()));
                let record = RecordChange::Write(record);
                Entry::Change(LogChange { record, ..LogChange::append(channel, messages) }, KEPT)
            }
            5..8 => Entry::Publication(message(&self.body()), KEPT),
            _ => {
                let key = self.random.below(4).to_string();
                let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
                let message = message(&self.body());
                let holder = RoomHolder::numbered(self.random.below(3) as u16);
                Entry::Publication(Publication { attributes, holder, ..message }, KEPT)
            }
        }
    }

    fn append(&mut self, writer: &mut Writer, disk: &Disk) {
        let entries: Vec<_> = (0..=self.random.below(4)).map(|_| self.entry()).collect();
        if self.random.percent(15) {
            disk.fail();
        }
        let stamp = &mut self.stamp;
        let mut next = || {
            *stamp += 1;
            Stamp(*stamp)
        };
        let appended = writer.append(NOW_MS, &entries, Vec::new(), &mut next);
        if *disk.ends.lock().expect("nobody panics") {
            return assert!(appended.is_err());
        }
        let appended = appended.or_else(|_| writer.retry(&mut next)).expect("it writes again");
        for (appended, entry) in appended.into_iter().zip(entries) {
            for (content, publication) in appended.contents().iter().zip(entry.publications()) {
                let body = text(content);
                assert_eq!(publication.body.bytes(), body.as_bytes());
                let of = (publication.channel.clone(), content.id);
                let before = self.acknowledged.insert(of, body);
                assert!(before.is_none(), "{} names two messages", content.id);
            }
            match (appended, entry) {
                (Appended::New(content), Entry::Publication(publication, _)) => {
                    self.erasable.push((publication.channel, content.id));
                }
                (Appended::Changed(..), Entry::Change(..)) => {}
                (Appended::Erased(Some(1), _), Entry::Erase(channel, Erase::Message(id), _)) => {
                    self.erased.insert((channel, id), true);
                }
                (appended, _) => panic!("{appended:?}"),
            }
        }
    }

    /// The machine ends while entries are written, so that they are there or not.
    fn end(&mut self, writer: &mut Writer, disk: &Disk) {
        *disk.ends.lock().expect("nobody panics") = true;
        self.append(writer, disk);
    }

    fn check(&self, logs: &Logs) {
        let mut found = HashMap::new();
        for channel in CHANNELS.map(ChannelName::channel) {
            let mut each = |content: Content| {
                found.insert((channel.clone(), content.id), text(&content));
                ControlFlow::Continue(())
            };
            logs.visit(&channel, (0, u64::MAX), KeyOrder::Up, &mut each).expect("it is read");
        }
        for (id, body) in &self.acknowledged {
            let found = found.get(id).unwrap_or_else(|| panic!("{id:?} is lost"));
            match self.erased.get(id) {
                None => assert_eq!(found, body, "{id:?}"),
                Some(true) => assert_eq!(found, "", "{id:?} is back"),
                Some(false) => assert!(found == body || found.is_empty(), "{id:?}: {found}"),
            }
        }
        let found: HashSet<_> = found.into_values().collect();
        let mut records = HashMap::new();
        for (channel, bodies, record) in &self.changes {
            let count = bodies.iter().filter(|body| found.contains(*body)).count();
            assert!(count == 0 || count == bodies.len(), "{count} of {bodies:?}");
            if count > 0 {
                records.insert(channel, record);
            }
        }
        for channel in CHANNELS.map(ChannelName::channel) {
            let state = logs.state(&channel).expect("it is read").expect("nobody writes");
            let known = state.record.as_ref().map(|known| &known.record);
            assert_eq!(known, records.get(&channel).copied(), "it is of the last change");
        }
        logs.check(&mut |fault| panic!("{fault}"));
    }

    /// Runs until the machine ends, and leaves what is there then in `to`.
    fn live(&mut self, life: usize, from: &Path, to: &Path) {
        let boot = format!("boot {life}");
        let mut disk = Disk::open(from);
        let (logs, opened) = Logs::open(Arc::clone(&disk) as _, &boot).expect("it opens");
        assert!(!opened.may_have_lost);
        self.stamp = opened.stamps.0;
        let mut logs = Arc::new(logs);
        let mut writer =
            Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
        for _ in 0..=self.random.below(STEPS) {
            self.check(&logs);
            if !self.random.percent(10) {
                self.append(&mut writer, &disk);
                continue;
            }
            // The process ends, sometimes as soon as a sync has failed.
            if self.random.percent(50) {
                disk.fail();
                let _ = disk.sync();
            }
            let images = std::mem::take(&mut *disk.images.lock().expect("nobody panics"));
            drop((writer, logs, disk));
            disk = Disk::open(from);
            let mut known = disk.images.lock().expect("nobody panics");
            images.into_iter().for_each(|(number, image)| {
                known.insert(number, image);
            });
            drop(known);
            let (again, opened) = Logs::open(Arc::clone(&disk) as _, &boot).expect("it opens");
            logs = Arc::new(again);
            writer = Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
            self.stamp = opened.stamps.0;
        }
        self.check(&logs);
        self.end(&mut writer, &disk);
        disk.lose_power(&mut self.random, to);
        // The files of the library are beside that which says that it has not ended cleanly.
        fs::write(to.with_extension("running"), "").expect("it is written");
    }
}

fn text(content: &Content) -> String {
    String::from_utf8_lossy(content.body.bytes()).into_owned()
}

#[test]
fn what_is_acknowledged_survives_the_end_of_the_machine() {
    let only = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let folder = tempfile::tempdir().expect("a directory");
        let run = std::panic::AssertUnwindSafe(|| {
            let random = Random(seed);
            let (acknowledged, changes, erasable, erased) = Default::default();
            let mut world =
                World { random, bodies: 0, stamp: 0, acknowledged, changes, erasable, erased };
            for life in 0..LIVES {
                let [from, to] = [life, life + 1].map(|life| folder.path().join(life.to_string()));
                world.live(life, &from, &to);
            }
        });
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("replay: THRONG_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
