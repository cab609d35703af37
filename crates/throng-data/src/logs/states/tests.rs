//! States of logs, one change after the other.

use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::change::Erase;
use throng_core::{
    Attributes, Body, ChannelName, Content, KeyQuery, MessageId, Publication, PublishError,
    Retention, RoomHolder, Stamp, StateLimits,
};

use crate::logs::format::{self, LogHead, Scratch, Table};
use crate::logs::group::TRIMMED_PER_COMMIT;
use crate::logs::{Appended, Entry, KeyRow, Logs, StateRow, Writer};
use crate::storage::memory::MemoryStorage;
use crate::storage::{KeyOrder, Space, Storage, Write};
use crate::sync_policy::SyncPolicy;

const NOW_MS: u64 = 1_700_000_000_000;
const AGE_MS: u64 = 10_000;
const HOUR_MS: u64 = 3_600_000;
const KEPT: Retention = Retention { max_messages: 3, max_bytes: usize::MAX, max_age_ms: AGE_MS };
const MAX: StateLimits =
    StateLimits { max_keys: 100_000, max_bytes: usize::MAX, forgets_soon: false };

struct Run {
    storage: MemoryStorage,
    logs: Arc<Logs>,
    writer: Writer,
    stamp: u64,
    now_ms: u64,
}

fn log() -> ChannelName {
    ChannelName::channel("log")
}

fn plain(text: &str) -> Publication {
    Publication::new(log(), Body::Text(text.into()))
}

fn set(key: &str, text: &str) -> Publication {
    let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
    Publication { attributes, ..plain(text) }
}

fn remove(key: &str) -> Publication {
    Publication::tombstone(log(), key)
}

impl Run {
    fn open(storage: &MemoryStorage) -> Run {
        let (logs, opened) = Logs::open(Arc::new(storage.clone()), "boot").expect("it opens");
        let logs = Arc::new(logs);
        let mut writer =
            Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
        writer.apply_retention("all").expect("it writes");
        let writer = writer.with_state_limits(Box::new(|_| MAX), u64::MAX);
        Run { storage: storage.clone(), logs, writer, stamp: opened.stamps.0, now_ms: NOW_MS }
    }

    fn new() -> Run {
        Run::open(&MemoryStorage::default())
    }

    fn make(&mut self, entries: &[Entry]) -> Vec<Appended> {
        let stamp = &mut self.stamp;
        let mut next = || {
            *stamp += 1;
            Stamp(*stamp)
        };
        let made = self.writer.append(self.now_ms, entries, Vec::new(), &mut next);
        made.expect("it writes")
    }

    fn publish(&mut self, messages: impl IntoIterator<Item = Publication>) -> Vec<Appended> {
        let entries: Vec<_> = messages.into_iter().map(|it| Entry::Publication(it, KEPT)).collect();
        self.make(&entries)
    }

    /// Does all that is due, with this retention.
    fn settle(&mut self, retention: Option<Retention>) -> Vec<Arc<Content>> {
        let mut contents = Vec::new();
        for _ in 0..100 {
            let more = self.writer.expire(self.now_ms, &|_| retention).expect("it writes");
            let more = self.writer.walk(self.now_ms, &|_| retention).expect("it writes") || more;
            let more = self.writer.remove_erased().expect("it writes") || more;
            let due = self.writer.due_entries(self.now_ms, &|_| retention).expect("it is read");
            let made = self.make(&due.0);
            contents.extend(made.iter().flat_map(|made| made.contents().to_vec()));
            if !more && !due.1 && due.0.is_empty() {
                break;
            }
        }
        contents
    }

    /// Keys of the log, with those that are removed.
    fn keys(&self) -> Vec<(String, u64)> {
        let query = KeyQuery { prefix: "".into(), after: None, limit: 0, is_of_one: false };
        let (mut all, base) = (Vec::new(), self.row().map_or(u64::MAX, |row| row.base));
        let mut each = |key: Box<str>, row: KeyRow| {
            if row.offset > base {
                all.push((key.into(), row.offset));
            }
            ControlFlow::Continue(())
        };
        self.logs.visit_keys(&log(), &query, &mut each).expect("it is read");
        all
    }

    fn row(&self) -> Option<StateRow> {
        self.logs.state_row(&log()).expect("it is read")
    }

    /// The offsets of all messages on the disk.
    fn offsets(&self) -> Vec<u64> {
        let mut all = Vec::new();
        let mut each = |content: Content| {
            all.push(content.id.offset);
            ControlFlow::Continue(())
        };
        self.logs.scan(&log(), (0, u64::MAX), KeyOrder::Up, &mut each).expect("it is read");
        all
    }

    fn id(&self, offset: u64) -> MessageId {
        MessageId { epoch: self.logs.epoch(), offset }
    }

    /// How many entries of tables of states there are.
    fn entries(&self) -> usize {
        let mut count = 0;
        let mut each = |_: &[u8], _: &[u8]| {
            count += 1;
            ControlFlow::Continue(())
        };
        let range: (&[u8], &[u8]) = (&[Table::Keys as u8], &[u8::MAX]);
        self.storage.scan(Space::Records, range, KeyOrder::Up, &mut each).expect("it is read");
        count
    }

    fn check(&self) {
        let at_rest = Logs::at_rest(Arc::new(self.storage.clone())).expect("it opens");
        at_rest.check(&mut |fault| panic!("{fault}"));
    }
}

fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(key, offset)| ((*key).to_owned(), *offset)).collect()
}

#[test]
fn a_value_stays_when_the_history_passes_over_it_and_no_other_message_does() {
    let mut run = Run::new();
    run.publish([set("a", "1"), plain("2"), set("b", "3"), set("b", "4"), plain("5")]);
    run.publish((6..9).map(|n| plain(&n.to_string())));
    assert_eq!(run.keys(), pairs(&[("a", 1), ("b", 4)]));
    assert_eq!(run.offsets(), [1, 4, 6, 7, 8]);
    let row = run.row().expect("it has a state");
    assert_eq!((row.keys, row.older, row.floor, row.base), (2, 2, 5, 0));
    run.now_ms += AGE_MS;
    run.settle(Some(KEPT));
    assert_eq!((run.offsets(), run.row().map(|row| row.floor)), (vec![1, 4], Some(8)));
    // A newer value takes its place.
    run.publish([set("a", "9")]);
    assert_eq!((run.keys(), run.offsets()), (pairs(&[("a", 9), ("b", 4)]), vec![4, 9]));
    run.check();
}

#[test]
fn a_log_with_a_state_is_not_forgotten_and_one_without_is() {
    let mut run = Run::new();
    run.publish([set("a", "1")]);
    let heads = |run: &Run| run.storage.get(Space::Heads, &format::name(&log())).expect("read");
    for _ in 0..10 {
        run.now_ms += AGE_MS;
        run.settle(Some(KEPT));
    }
    assert!(heads(&run).is_some());
    run.publish([remove("a")]);
    run.now_ms += AGE_MS;
    run.settle(Some(KEPT));
    assert_eq!(run.keys(), pairs(&[("a", 2)]), "whoever comes back learns it");
    run.now_ms += HOUR_MS;
    run.settle(Some(KEPT));
    assert_eq!((run.row(), run.entries(), run.offsets()), (None, 0, vec![]));
    assert!(heads(&run).is_some());
    run.now_ms += AGE_MS;
    run.settle(Some(KEPT));
    assert!(heads(&run).is_none());
    run.check();
}

#[test]
fn a_value_that_expires_gets_a_tombstone_once_its_channel_is_durable() {
    let mut run = Run::new();
    run.publish([Publication { expires_in_ms: Some(1_000), ..set("a", "1") }]);
    run.now_ms += 999;
    assert_eq!(run.settle(Some(KEPT)).len(), 0);
    run.now_ms += 1;
    assert_eq!(run.settle(None).len(), 0, "its channel is not durable now");
    let Appended::Refused(_) = &run.publish([remove("a")])[0] else { panic!("it has no value") };
    let mut run = Run { now_ms: run.now_ms + HOUR_MS, ..Run::open(&run.storage) };
    let told = run.settle(Some(KEPT));
    assert_eq!(told.len(), 1);
    assert!(told[0].removes_key() && told[0].key() == Some("a"));
    assert_eq!(run.settle(Some(KEPT)).len(), 0);
    run.check();
}

#[test]
fn tombstones_beyond_as_many_as_there_may_be_keys_are_dropped() {
    const FEW: StateLimits =
        StateLimits { max_keys: 40, max_bytes: usize::MAX, forgets_soon: false };
    let mut run = Run::new();
    run.writer = run.writer.with_state_limits(Box::new(|_| FEW), u64::MAX);
    for n in 0..50 {
        let key = n.to_string();
        run.publish([set(&key, "x"), remove(&key)]);
    }
    run.publish((0..3).map(|n| plain(&n.to_string())));
    assert_eq!(run.row().map(|row| (row.older_removed, row.floor)), Some((50, 0)));
    run.settle(Some(KEPT));
    let row = run.row().expect("there are tombstones");
    assert_eq!((row.removed, row.older_removed, row.floor), (40, 40, 20));
    assert_eq!(run.offsets()[0], 22);
    run.check();
}

#[test]
fn an_erased_state_is_gone_at_once_and_removed_in_steps() {
    const KEYS: usize = 2 * TRIMMED_PER_COMMIT + 10;
    let mut run = Run::new();
    while run.writer.remove_erased().expect("it writes") {}
    run.publish(
        (0..KEYS).map(|n| Publication { expires_in_ms: Some(HOUR_MS), ..set(&n.to_string(), "x") }),
    );
    assert_eq!(run.writer.all_states().keys, KEYS as u64);
    let erase = |what| Entry::Erase(log(), what, KEPT);
    let Appended::Erased(count, None) = run.make(&[erase(Erase::History)])[0] else {
        panic!("it is erased")
    };
    assert!(count.is_none_or(|count| count == KEYS as u64));
    assert_eq!((run.row(), run.writer.all_states().keys), (None, 0));
    // A new value of a key is none of them.
    run.publish([set("7", "new"), set("other", "new")]);
    assert_eq!(run.keys().len(), 2);
    let nothing = run.make(&[erase(Erase::Message(run.id(5)))]);
    assert!(matches!(nothing[..], [Appended::Erased(Some(0), None)]));
    let mut run = Run::open(&run.storage);
    while run.writer.remove_erased().expect("it writes") {}
    let newest = KEYS as u64 + 2;
    assert_eq!(run.offsets(), [newest - 1, newest]);
    assert_eq!(run.keys(), pairs(&[("7", newest - 1), ("other", newest)]));
    assert_eq!(run.entries(), 2 + 1, "two keys, and how much there is");
    run.check();
}

#[test]
fn a_value_is_published_again_before_it_is_out_of_reach() {
    let mut run = Run::new();
    run.publish([set("a", "old"), set("b", "new")]);
    run.now_ms += AGE_MS;
    run.settle(Some(KEPT));
    // As if so many messages had come and gone.
    let head = run.logs.committed_head(&log()).expect("it is read");
    let offset = throng_core::RENEWED_AFTER + 64;
    let head = LogHead { offset: offset - 1, floor: offset - 1, ..head };
    let value = Scratch::default().head(&head);
    let write = Write::put(Space::Heads, format::name(&log()), value);
    run.storage.commit(&[write]).expect("it writes");
    let mut run = Run { now_ms: run.now_ms, ..Run::open(&run.storage) };
    run.publish([plain("x")]);
    let renewed = run.settle(Some(KEPT));
    let shown = |content: &Arc<Content>| (content.key().map(String::from), content.id.offset);
    let expected = [("a", offset + 1), ("b", offset + 2)];
    let expected = expected.map(|(key, offset)| (Some(key.to_owned()), offset));
    assert_eq!(renewed.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(run.keys(), pairs(&[("a", offset + 1), ("b", offset + 2)]));
    assert_eq!(renewed[0].body.bytes(), b"old");
}

#[test]
fn all_states_together_have_a_limit() {
    let mut run = Run::new();
    run.publish([set("a", "x")]);
    let one = run.writer.all_states().bytes;
    run.writer = run.writer.with_state_limits(Box::new(|_| MAX), 2 * one);
    let other = Publication { channel: ChannelName::user("ann"), ..set("b", "x") };
    let made = run.publish([other, set("c", "x"), plain("x")]);
    assert!(matches!(made[..], [Appended::New(_), Appended::Refused(_), Appended::New(_)]));
    let mut run = Run::open(&run.storage);
    assert_eq!(run.writer.all_states().keys, 2);
    run.publish([remove("a")]);
    assert_eq!(run.writer.all_states().keys, 1);
    run.check();
}

#[test]
fn a_publisher_leaves_half_of_the_room_to_others() {
    const ROOM: u64 = 100_000;
    let of = |number, key: &str| {
        let holder = RoomHolder::numbered(number);
        [Publication { holder, ..set(key, &"x".repeat(900)) }]
    };
    let limited = |mut run: Run| {
        run.writer = run.writer.with_state_limits(Box::new(|_| MAX), ROOM);
        run
    };
    let fill = |run: &mut Run, number: u16, prefix: &str| {
        let taken = |n: &usize| match &run.publish(of(number, &format!("{prefix} {n}")))[0] {
            Appended::New(_) => true,
            Appended::Refused(why) => {
                assert_eq!(*why, PublishError::StatesOverShare.into());
                false
            }
            other => panic!("{other:?}"),
        };
        (0..1_000).take_while(taken).count()
    };
    let mut run = limited(Run::new());
    let [ann, bob] = [(1, "ann"), (2, "bob")].map(|(number, of)| fill(&mut run, number, of));
    assert!((40..=50).contains(&ann) && (20..=25).contains(&bob), "{ann} and {bob}");
    assert_eq!(run.logs.states_refused(), [2, 0]);
    run.check();
    // After a restart nothing is different.
    let mut run = limited(Run::open(&run.storage));
    assert_eq!([1, 2].map(|number| fill(&mut run, number, "more")), [0, 0]);
    // The application may take what is left, whoever else holds what.
    while let Appended::New(_) = &run.publish(of(0, &run.stamp.to_string()))[0] {}
    assert_eq!(run.logs.states_refused(), [2, 1]);
    // Whoever sets another one's key holds it; what is removed is free.
    run.publish(of(3, "ann 0"));
    run.publish([remove("ann 1"), remove("ann 2")]);
    assert_eq!(fill(&mut run, 3, "eve"), 1);
    let erase = Entry::Erase(log(), Erase::History, KEPT);
    run.make(&[erase]);
    run.check();
    run.settle(Some(KEPT));
    assert!(run.logs.room.all().values().all(|bytes| *bytes == 0));
    assert!(fill(&mut run, 2, "bob") >= ann);
    run.check();
}

#[test]
fn a_key_that_is_damaged_stands_for_itself_alone() {
    let mut run = Run::new();
    run.publish([set("whole", "1"), set("damaged", "2")]);
    run.storage.damage(Space::Records, &crate::logs::state_rows::key(&log(), "damaged"));
    let made = run.publish([set("damaged", "3"), set("whole", "3"), plain("4"), plain("5")]);
    assert!(matches!(
        made[..],
        [Appended::Unreadable, Appended::New(_), Appended::New(_), Appended::New(_)]
    ));
    run.publish((6..20).map(|n| plain(&n.to_string())));
    // It is not known whether its message is the newest, so it stays, and all behind it.
    let bounds = run.logs.bounds(&log()).expect("it is read");
    assert_eq!((bounds.floor, run.offsets()[0]), (1, 2));
    assert!(run.writer.take_unreadable().count > 0);
    let other = Publication { channel: ChannelName::channel("other"), ..set("damaged", "x") };
    assert!(matches!(run.publish([other])[..], [Appended::New(_)]));
}
