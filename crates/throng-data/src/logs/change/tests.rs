//! Changes, records and erasure, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_core::change::{Condition, LogRecord};
use throng_core::{
    Attributes, Body, Content, IDEMPOTENCY_MS, IdempotencyKey, Publication, Publisher,
};

use super::*;
use crate::logs::erasure_notes::ErasureNotes;
use crate::logs::forgotten::QUIET_MIN_MS;
use crate::logs::unreadable::RETRY_MS;
use crate::logs::{Entry, Logs};
use crate::storage::Storage;
use crate::storage::disk::DiskStorage;
use crate::storage::memory::{Fault, MemoryStorage};
use crate::sync_policy::SyncPolicy;

const NOW_MS: u64 = 1_700_000_000_000;
const AGE_MS: u64 = 10_000;
const KEPT: Retention =
    Retention { max_messages: usize::MAX, max_bytes: usize::MAX, max_age_ms: AGE_MS };

struct Run {
    logs: Arc<Logs>,
    writer: Writer,
    stamp: u64,
    now_ms: u64,
}

fn log() -> ChannelName {
    ChannelName::channel("log")
}

fn message(text: &str) -> Publication {
    Publication::new(log(), Body::Text(text.into()))
}

fn record(text: &str) -> LogRecord {
    LogRecord::of(&[(100, text.as_bytes())]).expect("it is short")
}

fn known(version: u64, text: &str) -> KnownRecord {
    KnownRecord { version, record: record(text) }
}

fn change(texts: &[&str], record: RecordChange) -> LogChange {
    let messages = texts.iter().map(|text| message(text)).collect();
    LogChange { record, ..LogChange::append(log(), messages) }
}

fn erase(what: Erase) -> Entry {
    Entry::Erase(log(), what, KEPT)
}

impl Run {
    fn open(storage: Arc<dyn Storage>) -> Run {
        let (logs, opened) = Logs::open(storage, "boot").expect("it opens");
        let logs = Arc::new(logs);
        let mut writer =
            Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
        writer.apply_retention("all").expect("it writes");
        Run { logs, writer, stamp: opened.stamps.0, now_ms: NOW_MS }
    }

    fn make(&mut self, entries: &[Entry]) -> Result<Vec<Appended>, StorageError> {
        let stamp = &mut self.stamp;
        let mut next = || {
            *stamp += 1;
            Stamp(*stamp)
        };
        self.writer.append(self.now_ms, entries, Vec::new(), &mut next)
    }

    fn one(&mut self, entry: Entry) -> Appended {
        self.make(&[entry]).expect("it writes").pop().expect("there is one")
    }

    fn publish(&mut self, texts: &[&str]) {
        let entries: Vec<_> = texts.iter().map(|text| (message(text), KEPT).into()).collect();
        self.make(&entries).expect("it writes");
    }

    /// Makes a change. Returns the offsets of its messages, and the version of the record.
    fn change(&mut self, texts: &[&str], record: RecordChange) -> (Vec<u64>, u64) {
        match self.one(Entry::Change(change(texts, record), KEPT)) {
            Appended::Changed(contents, version) => {
                (contents.iter().map(|content| content.id.offset).collect(), version)
            }
            other => panic!("{other:?}"),
        }
    }

    fn erase(&mut self, what: Erase) -> Option<u64> {
        match self.one(erase(what)) {
            Appended::Erased(messages, _) => messages,
            other => panic!("{other:?}"),
        }
    }

    fn id(&self, offset: u64) -> MessageId {
        MessageId { epoch: self.logs.epoch(), offset }
    }

    fn state(&self) -> LogState {
        self.logs.state(&log()).expect("it is read").expect("nobody writes")
    }

    fn contents(&self) -> Vec<Content> {
        let mut all = Vec::new();
        let mut each = |content| {
            all.push(content);
            ControlFlow::Continue(())
        };
        let all_offsets = (0, u64::MAX);
        self.logs.visit(&log(), all_offsets, KeyOrder::Up, &mut each).expect("it is read");
        all
    }

    fn texts(&self) -> Vec<String> {
        let text = |content: &Content| String::from_utf8_lossy(content.body.bytes()).into();
        self.contents().iter().map(text).collect()
    }

    /// Everything that a reader of all logs finds, and the faults of a check.
    fn at_rest(&self) -> (usize, Vec<String>) {
        let (mut found, mut faults) = (0, Vec::new());
        let mut each = |_| {
            found += 1;
            ControlFlow::Continue(())
        };
        self.logs.visit_all(&mut each).expect("it is read");
        self.logs.check(&mut |fault| faults.push(fault.to_owned()));
        (found, faults)
    }

    /// Lets time pass, a second after the other.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 1_000 {
            self.now_ms += 1_000;
            while self.writer.expire(self.now_ms, &|_| Some(KEPT)).expect("it writes") {}
        }
    }

    /// How many channels have a head.
    fn heads(&self) -> u64 {
        self.logs.check(&mut |_| {}).channels
    }
}

#[test]
fn a_condition_is_judged_by_what_is_before_it_in_the_commit() {
    let mut run = Run::open(Arc::new(MemoryStorage::default()));
    let id = |offset| Some(run.id(offset));
    let on_head = |offset, text| {
        let condition = Condition { head: id(offset), ..Condition::default() };
        Entry::Change(LogChange { condition, ..change(&[text], RecordChange::Keep) }, KEPT)
    };
    let entries = [on_head(0, "1"), (message("2"), KEPT).into(), on_head(1, "no"), on_head(2, "3")];
    let appended = run.make(&entries).expect("it writes");
    let Appended::Refused(ChangeError::Conflict(state)) = &appended[2] else {
        panic!("{appended:?}")
    };
    assert_eq!(*state, LogState { head: run.id(2), record: None });
    assert_eq!(run.texts(), ["1", "2", "3"]);
    let (offsets, version) = run.change(&["4", "5"], RecordChange::Write(record("a")));
    assert_eq!((offsets, run.state().record), (vec![4, 5], Some(known(version, "a"))));
    let on_record = |version, text| {
        let condition = Condition { record: Some(version), ..Condition::default() };
        let written = RecordChange::Write(record(text));
        Entry::Change(LogChange { condition, ..change(&[text], written) }, KEPT)
    };
    let entries = [on_record(version, "6"), on_record(version, "no"), on_record(0, "no")];
    let appended = run.make(&entries).expect("it writes");
    let Appended::Changed(_, next) = appended[0] else { panic!("{appended:?}") };
    for conflict in &appended[1..] {
        let Appended::Refused(ChangeError::Conflict(state)) = conflict else {
            panic!("{conflict:?}")
        };
        assert_eq!((state.head.offset, &state.record), (6, &Some(known(next, "6"))));
    }
    assert!(next > version);
}

#[test]
fn a_log_with_a_record_is_not_forgotten() {
    let storage = MemoryStorage::default();
    let mut run = Run::open(Arc::new(storage.clone()));
    let (_, first) = run.change(&[], RecordChange::Write(record("a")));
    assert_eq!(run.change(&[], RecordChange::Keep), (vec![], first));
    run.publish(&["x"]);
    run.pass(5 * AGE_MS);
    assert_eq!((run.heads(), run.texts().len(), run.at_rest().1), (1, 0, vec![]));
    let mut run = Run::open(Arc::new(storage));
    assert_eq!(run.state(), LogState { head: run.id(1), record: Some(known(first, "a")) });
    assert_eq!(run.change(&[], RecordChange::Remove), (vec![], 0));
    assert_eq!((run.heads(), run.state().record), (1, None));
    run.pass(AGE_MS);
    assert_eq!((run.heads(), run.at_rest().1), (0, vec![]));
    // A log that is not there has no record to remove, and does not begin so.
    assert_eq!(run.change(&[], RecordChange::Remove), (vec![], 0));
    assert_eq!(run.heads(), 0);
    let (_, second) = run.change(&["y"], RecordChange::Write(record("b")));
    assert!(second > first, "no version comes again");
    // An erased log is forgotten sooner than one whose last message has expired.
    run.pass(AGE_MS / 2);
    assert_eq!(run.erase(Erase::Log), Some(1));
    run.pass(QUIET_MIN_MS - 1_000);
    assert_eq!(run.heads(), 1);
    run.pass(1_000);
    assert_eq!(run.heads(), 0);
    run.change(&[], RecordChange::Write(record("c")));
    assert_eq!(run.erase(Erase::Log), Some(0));
    run.pass(AGE_MS);
    assert_eq!((run.heads(), run.at_rest().1), (0, vec![]));
}

#[test]
fn an_erased_message_leaves_what_an_expired_one_leaves() {
    for is_new_run in [false, true] {
        let storage = MemoryStorage::default();
        let mut run = Run::open(Arc::new(storage.clone()));
        let attributes = Attributes::of(&[(1, b"event")]).ok();
        let with_event = Publication { attributes, ..message("secret") };
        run.make(&[(with_event, KEPT).into()]).expect("it writes");
        run.publish(&["2", "3", "4", "5"]);
        let before = run.contents();
        if is_new_run {
            run = Run::open(Arc::new(storage));
        }
        let other = MessageId { epoch: throng_core::Epoch::random(), offset: 2 };
        let erased = [run.id(1), run.id(1), run.id(6), run.id(0), other]
            .map(|id| run.erase(Erase::Message(id)));
        assert_eq!(erased, [1, 0, 0, 0, 0].map(Some));
        assert_eq!(run.texts(), ["", "2", "3", "4", "5"]);
        let (place, was) = (&run.contents()[0], &before[0]);
        assert_eq!((place.id, place.stamp, place.time_ms), (was.id, was.stamp, was.time_ms));
        assert!(place.is_expired(1) && place.extras.attributes().is_none());
        assert_eq!(run.at_rest(), (5, vec![]));
        run.publish(&["6"]);
        assert_eq!(run.texts().len(), 6);
        assert_eq!(run.erase(Erase::History), Some(5));
        assert_eq!(run.erase(Erase::Message(run.id(2))), Some(0));
        assert_eq!(run.at_rest(), (0, vec![]));
    }
}

#[test]
fn an_erased_history_is_gone_at_once_and_removed_in_steps() {
    const MESSAGES: usize = 2 * TRIMMED_PER_COMMIT + 10;
    let storage = MemoryStorage::default();
    let rows = || {
        let mut rows = 0;
        let mut each = |_: &[u8], _: &[u8]| {
            rows += 1;
            ControlFlow::Continue(())
        };
        let all: (&[u8], &[u8]) = (&[], &[u8::MAX]);
        storage.scan(Space::Messages, all, KeyOrder::Up, &mut each).expect("it is read");
        rows
    };
    let mut run = Run::open(Arc::new(storage.clone()));
    while run.writer.remove_erased().expect("it writes") {}
    run.publish(&["x"; MESSAGES]);
    let newest = run.contents().pop().expect("there are some");
    assert_eq!(run.erase(Erase::History), Some(MESSAGES as u64));
    run.publish(&["after"]);
    assert_eq!(run.erase(Erase::Message(run.id(3))), Some(0));
    assert!(run.writer.remove_erased().expect("it writes"));
    assert_eq!(rows(), MESSAGES + 1 - TRIMMED_PER_COMMIT);
    let bounds = run.logs.bounds(&log()).expect("it is read");
    assert_eq!((bounds.floor, bounds.lost), (MESSAGES as u64, newest.stamp));
    let mut run = Run::open(Arc::new(storage.clone()));
    assert_eq!((run.texts(), run.at_rest()), (vec!["after".into()], (1, vec![])));
    while run.writer.remove_erased().expect("it writes") {}
    assert_eq!((rows(), run.at_rest()), (1, (1, vec![])));
    let notes = run.logs.check(&mut |_| {});
    assert_eq!((notes.channels, notes.messages), (1, 1));
}

#[test]
fn an_erased_log_begins_anew_after_its_last_offset() {
    let storage = MemoryStorage::default();
    let mut run = Run::open(Arc::new(storage.clone()));
    let write = |text| RecordChange::Write(record(text));
    let (_, version) = run.change(&["1", "2"], write("a"));
    // In one commit with what is before and after it.
    let entries = [
        Entry::Change(change(&["3"], write("b")), KEPT),
        erase(Erase::Log),
        Entry::Change(change(&["4"], write("c")), KEPT),
        erase(Erase::Message(run.id(4))),
        (message("5"), KEPT).into(),
    ];
    storage.fail(Fault::CommitKept, 0);
    run.make(&entries).expect_err("the commit fails");
    assert_eq!(run.state(), LogState { head: run.id(2), record: Some(known(version, "a")) });
    let mut stamp = run.stamp;
    let mut next = || {
        stamp += 1;
        Stamp(stamp)
    };
    let appended = run.writer.retry(&mut next).expect("it writes again");
    let counts: Vec<_> = appended
        .iter()
        .filter_map(|appended| match appended {
            Appended::Erased(messages, _) => *messages,
            _ => None,
        })
        .collect();
    assert_eq!((counts, run.texts()), (vec![3, 1], vec!["".into(), "5".into()]));
    let record_now = run.state().record.map(|known| known.record);
    assert_eq!((run.state().head.offset, record_now), (5, Some(record("c"))));
    assert_eq!(run.at_rest(), (2, vec![]));
    assert_eq!(run.erase(Erase::Log), Some(1));
    assert_eq!(run.erase(Erase::Log), Some(0));
    assert_eq!((run.state().head.offset, run.state().record), (5, None));
    run.pass(AGE_MS);
    assert_eq!(run.heads(), 0);
}

#[test]
fn the_name_of_an_erased_log_goes_once_nobody_follows_it() {
    let storage = MemoryStorage::default();
    let followed = Arc::new(AtomicBool::new(true));
    let open = |storage: &MemoryStorage| {
        let mut run = Run::open(Arc::new(storage.clone()));
        let followed = Arc::clone(&followed);
        let head = move |_: &ChannelName| followed.load(Ordering::SeqCst).then_some(2);
        run.writer = run.writer.with_followers(Box::new(head));
        run
    };
    let mut run = open(&storage);
    run.publish(&["1", "2"]);
    run.erase(Erase::History);
    run.writer.erasures = ErasureNotes::default();
    run.pass(QUIET_MIN_MS);
    assert_eq!(run.heads(), 1, "an erased history keeps its name");
    run.erase(Erase::Log);
    run.pass(10 * AGE_MS);
    assert_eq!(run.heads(), 1);
    let mut run = open(&storage);
    run.writer.erasures = ErasureNotes::default();
    followed.store(false, Ordering::SeqCst);
    // The first commit fails, and nothing is noted of it.
    storage.fail(Fault::CommitLost(false), 0);
    while run.writer.expire(run.now_ms + RETRY_MS, &|_| Some(KEPT)).is_ok() {
        run.now_ms += RETRY_MS;
    }
    run.writer.retry(&mut || Stamp(1 << 50)).expect("it writes again");
    assert_eq!((run.heads(), run.writer.erasures.first_ms), (1, 0));
    run.now_ms += RETRY_MS;
    while run.writer.expire(run.now_ms, &|_| Some(KEPT)).expect("it writes") {}
    assert_eq!(run.heads(), 0);
    assert!(run.writer.erasures.first_ms > 0, "the files are rewritten for the name");
    assert_eq!(run.logs.erased_ms(), Some(run.writer.erasures.first_ms));
    run.publish(&["3"]);
    assert_eq!(run.state().head.offset, 3);
}

#[test]
fn a_name_that_is_used_again_is_kept_as_long_as_others() {
    let mut run = Run::open(Arc::new(MemoryStorage::default()));
    for record in [RecordChange::Keep, RecordChange::Write(record("a"))] {
        run.publish(&["1"]);
        run.erase(Erase::Log);
        run.change(&[], record.clone());
        if record == RecordChange::Keep {
            run.publish(&["2"]);
        }
        run.pass(AGE_MS + QUIET_MIN_MS);
        assert_eq!(run.heads(), 1);
        run.erase(Erase::Log);
        run.pass(QUIET_MIN_MS);
        assert_eq!((run.heads(), run.at_rest()), (0, (0, vec![])));
    }
}

#[test]
fn the_name_of_an_erased_log_stays_with_its_idempotency_keys() {
    let mut run = Run::open(Arc::new(MemoryStorage::default()));
    let key = IdempotencyKey::new(Publisher::Anonymous, "k");
    run.one((Publication { idempotency_key: Some(key), ..message("1") }, KEPT).into());
    run.erase(Erase::Log);
    run.logs.forget_erased().expect("it writes");
    run.pass(AGE_MS);
    assert_eq!(run.heads(), 1);
    run.pass(IDEMPOTENCY_MS + RETRY_MS);
    assert_eq!(run.heads(), 0);
}

#[test]
fn what_was_erased_is_in_no_file_after_it_is_compacted() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("store");
    let storage = Arc::new(DiskStorage::open(&path, 1 << 20).expect("it opens"));
    let mut run = Run::open(Arc::clone(&storage) as _);
    // Each is found as it is, however the library compresses others.
    let [one, two, stays] = ["q7Zk0vXw3Lr9", "J5hT8dYb2NsM", "c4GfPqU6eAiB"];
    run.publish(&[one, two, stays]);
    storage.settle().expect("it writes");
    let has = |text: &str| {
        let mut folders = vec![path.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("it is read") {
                let entry = entry.expect("it is read").path();
                if entry.is_dir() {
                    folders.push(entry);
                    continue;
                }
                let bytes = std::fs::read(entry).expect("it is read");
                if bytes.windows(text.len()).any(|part| part == text.as_bytes()) {
                    return true;
                }
            }
        }
        false
    };
    assert!([one, two, stays].into_iter().all(has));
    run.erase(Erase::Message(run.id(1)));
    storage.compact().expect("it writes");
    assert_eq!([one, two, stays].map(has), [false, true, true]);
    run.erase(Erase::History);
    while run.logs.remove_erased().expect("it writes") {}
    storage.compact().expect("it writes");
    assert_eq!([one, two, stays].map(has), [false; 3]);
    let name = "mV4xR9dK2wQz";
    let named = || ChannelName::channel(name);
    let secret = Publication::new(named(), Body::Text("x".into()));
    run.one((secret, KEPT).into());
    run.one(Entry::Erase(named(), Erase::Log, KEPT));
    storage.compact().expect("it writes");
    assert!(has(name));
    while run.logs.remove_erased().expect("it writes") {}
    run.logs.forget_erased().expect("it writes");
    storage.compact().expect("it writes");
    assert!(!has(name));
    let begin = run.logs.bounds(&named()).expect("it is read");
    assert_eq!((begin.floor, begin.head.offset, run.at_rest().1), (1, 1, vec![]));
}

#[test]
fn a_creation_takes_room_until_it_is_erased() {
    let storage = MemoryStorage::default();
    let open = || {
        let mut run = Run::open(Arc::new(storage.clone()));
        let max = Box::new(|_: &ChannelName| throng_core::Rule::default().state);
        run.writer = run.writer.with_state_limits(max, 3 * RECORD_BYTES_MAX as u64);
        run
    };
    let ann = RoomHolder::numbered(1);
    let create = |run: &mut Run, n: usize, holder| {
        let channel = ChannelName::channel(&format!("{n:0200}"));
        let creation = throng_core::Creation::at(NOW_MS);
        let before = run.logs.state(&channel).expect("it is read").expect("nobody writes");
        let change = LogChange::create(channel, &creation, &before);
        run.one(Entry::Change(LogChange { holder, ..change }, KEPT))
    };
    let mut run = open();
    let made = (0..100).take_while(|n| match create(&mut run, *n, ann) {
        Appended::Changed(..) => true,
        Appended::Refused(why) => {
            assert_eq!(why, PublishError::StatesOverShare.into());
            false
        }
        other => panic!("{other:?}"),
    });
    let made = made.count();
    assert!((4..20).contains(&made), "{made}");
    let mut run = open();
    assert!(matches!(create(&mut run, made, ann), Appended::Refused(_)));
    let bob = RoomHolder::numbered(2);
    assert!(matches!(create(&mut run, made, bob), Appended::Changed(..)));
    // Whoever changes a created channel does not become its creator.
    assert!(matches!(create(&mut run, made, ann), Appended::Changed(..)));
    assert_eq!(run.logs.room.all().len(), 2);
    for n in 0..=made {
        let channel = ChannelName::channel(&format!("{n:0200}"));
        run.one(Entry::Erase(channel, Erase::Log, KEPT));
    }
    assert_eq!(run.writer.all_states().creations, 0);
    assert!(run.logs.room.all().values().all(|bytes| *bytes == 0));
    assert_eq!(run.at_rest(), (0, vec![]));
}

#[test]
fn a_count_that_takes_long_is_none() {
    let mut run = Run::open(Arc::new(MemoryStorage::default()));
    let brief = Publication { expires_in_ms: Some(0), ..message("brief") };
    run.make(&[(brief.clone(), KEPT).into()]).expect("it writes");
    run.publish(&["x", "y"]);
    assert_eq!(run.erase(Erase::History), Some(2), "one has expired");
    run.make(&[(brief.clone(), KEPT).into()]).expect("it writes");
    run.publish(&["x"; TRIMMED_PER_COMMIT]);
    assert_eq!(run.erase(Erase::History), None);
    run.make(&[(brief, KEPT).into()]).expect("it writes");
    run.publish(&[&"x".repeat(COUNTED_BYTES as usize)]);
    assert_eq!(run.erase(Erase::History), None);
    assert_eq!(run.at_rest(), (0, vec![]));
}
