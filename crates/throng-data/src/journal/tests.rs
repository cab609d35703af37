//! The thread that writes, over a storage in memory.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};

use throng_core::change::{Erase, LogChange};
use throng_core::{Body, Content, Publication, Receipt, Retention};

use super::*;
use crate::storage::memory::{Fault, MemoryStorage};

const NOW_MS: u64 = 1_700_000_000_000;
const KEPT: Retention = Retention { max_messages: 100, max_bytes: 1 << 20, max_age_ms: u64::MAX };

/// No event of a test takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

type AnswerThread = Receiver<Result<JournalWritten, JournalRefused>>;

fn logs(storage: &MemoryStorage, boot: &str) -> Arc<Logs> {
    let (logs, _) = Logs::open(Arc::new(storage.clone()), boot).expect("it opens");
    Arc::new(logs)
}

/// A server that gives out stamps to the journal alone.
#[derive(Default)]
pub(crate) struct Alone(AtomicU64);

impl JournalServer for Alone {
    fn now_ms(&self) -> u64 {
        NOW_MS
    }

    fn retention_of(&self, _: &ChannelName) -> Option<Retention> {
        Some(KEPT)
    }

    fn retention(&self) -> String {
        "all".into()
    }

    fn begin_group(&self) {}

    fn next_stamp(&self) -> Stamp {
        Stamp(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn deliver(&self, _: &Arc<Content>, _: Option<&Arc<Receipt>>) -> u64 {
        0
    }

    fn end_group(&self) {}

    fn newest_stamp(&self) -> Stamp {
        Stamp(self.0.load(Ordering::Relaxed))
    }
}

/// Stops in its first tick, says so, and goes on when it is told to.
struct Stopped {
    alone: Alone,
    calls: AtomicU64,
    stops: Mutex<(Sender<()>, Receiver<()>)>,
}

impl JournalServer for Stopped {
    fn now_ms(&self) -> u64 {
        self.alone.now_ms()
    }

    fn retention_of(&self, channel: &ChannelName) -> Option<Retention> {
        self.alone.retention_of(channel)
    }

    fn retention(&self) -> String {
        self.alone.retention()
    }

    fn begin_group(&self) {}

    fn next_stamp(&self) -> Stamp {
        self.alone.next_stamp()
    }

    fn deliver(&self, content: &Arc<Content>, receipt: Option<&Arc<Receipt>>) -> u64 {
        self.alone.deliver(content, receipt)
    }

    fn end_group(&self) {}

    fn newest_stamp(&self) -> Stamp {
        // The start asks first.
        if self.calls.fetch_add(1, Ordering::Relaxed) == 1 {
            let stops = self.stops.lock().expect("nobody panics");
            stops.0.send(()).expect("the test waits");
            // The test may have failed.
            let _ = stops.1.recv();
        }
        self.alone.newest_stamp()
    }
}

/// Keeps what answers publishers, for the test to call it.
#[derive(Default)]
struct Elsewhere {
    alone: Alone,
    answers: Mutex<Vec<Answering>>,
}

impl Elsewhere {
    /// The answers to the next group, once it is safe.
    fn next(&self) -> Answering {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(answers) = self.answers.lock().expect("nobody panics").pop() {
                return answers;
            }
            assert!(Instant::now() < deadline, "it is not answered");
            std::thread::yield_now();
        }
    }
}

impl JournalServer for Elsewhere {
    fn now_ms(&self) -> u64 {
        self.alone.now_ms()
    }

    fn retention_of(&self, channel: &ChannelName) -> Option<Retention> {
        self.alone.retention_of(channel)
    }

    fn retention(&self) -> String {
        self.alone.retention()
    }

    fn begin_group(&self) {}

    fn next_stamp(&self) -> Stamp {
        self.alone.next_stamp()
    }

    fn deliver(&self, content: &Arc<Content>, receipt: Option<&Arc<Receipt>>) -> u64 {
        self.alone.deliver(content, receipt)
    }

    fn end_group(&self) {}

    fn newest_stamp(&self) -> Stamp {
        self.alone.newest_stamp()
    }

    fn answer(&self, answers: Answering) {
        self.answers.lock().expect("nobody panics").push(answers);
    }
}

fn start(logs: &Arc<Logs>, sync: SyncPolicy) -> DiskJournal {
    let setup = JournalSetup { sync, max_bytes: u64::MAX, server: Arc::<Alone>::default() };
    DiskJournal::start(logs, setup).expect("it starts")
}

fn publication(text: &str) -> Publication {
    Publication::new(ChannelName::channel("news"), Body::Text(text.into()))
}

fn publish(journal: &DiskJournal, text: &str) -> Result<AnswerThread, JournalRefused> {
    let (sender, answers) = mpsc::channel();
    // The send fails if the test has dropped its end.
    let done = || -> WhenDone { Box::new(move |answer| drop(sender.send(answer))) };
    journal.append((publication(text), KEPT), done).map(|()| answers)
}

fn answer(answers: &AnswerThread) -> Result<JournalWritten, JournalRefused> {
    answers.recv_timeout(PATIENCE).expect("it is answered")
}

fn offset(answers: &AnswerThread) -> u64 {
    match answer(answers) {
        Ok(JournalWritten { appended: Appended::New(content), .. }) => content.id.offset,
        other => panic!("a new message, not {other:?}"),
    }
}

/// Waits until the journal is in a state.
fn wait_for(journal: &DiskJournal, state: Option<JournalRefused>) {
    let deadline = Instant::now() + PATIENCE;
    while journal.state() != state {
        assert!(Instant::now() < deadline, "{state:?} does not come");
        std::thread::yield_now();
    }
}

#[test]
fn publications_are_answered_in_their_order_and_counted() {
    let logs = logs(&MemoryStorage::default(), "boot");
    let journal = start(&logs, SyncPolicy::Always);
    let all: Vec<_> = (0..3 * GROUP_MAX)
        .map(|n| publish(&journal, &n.to_string()).expect("it is taken"))
        .collect();
    let offsets: Vec<_> = all.iter().map(offset).collect();
    assert!(offsets.windows(2).all(|two| two[0] + 1 == two[1]), "{offsets:?}");
    assert_eq!(journal.figures().messages, all.len() as u64);
    let bounds = logs.bounds(&ChannelName::channel("news")).expect("it is read");
    assert_eq!(Some(&bounds.head.offset), offsets.last());
}

#[test]
fn many_publishers_are_answered_where_the_server_says() {
    let storage = MemoryStorage::default();
    let server = Arc::<Elsewhere>::default();
    let setup = JournalSetup {
        sync: SyncPolicy::Always,
        max_bytes: u64::MAX,
        server: Arc::clone(&server) as _,
    };
    let journal = DiskJournal::start_paused(&logs(&storage, "boot"), setup).expect("it starts");
    let publish_many = || -> Vec<_> {
        let many = ["a", "b", "c"].map(|text| publish(&journal, text).expect("it is taken"));
        journal.go_on();
        many.into()
    };
    let many = publish_many();
    let answers = server.next();
    assert!(!journal.is_idle() && many.iter().all(|answer| answer.try_recv().is_err()));
    answers();
    assert_eq!(many.iter().map(offset).collect::<Vec<_>>(), [1, 2, 3]);
    journal.pause().expect("the disk works");
    assert!(journal.is_idle());
    let many = publish_many();
    // As when the server ends.
    drop(server.next());
    assert!(many.iter().all(|answer| answer.recv().is_err()), "neither accepted nor refused");
    journal.pause().expect("the disk works");
    assert!(journal.is_idle());
    let few = publish(&journal, "d").expect("it is taken");
    journal.go_on();
    assert_eq!(offset(&few), 7);
}

#[test]
fn a_failing_disk_refuses_new_work_and_answers_old() {
    for (fault, refused) in [
        (Fault::CommitLost(true), JournalRefused::Full),
        (Fault::CommitLost(false), JournalRefused::Failed),
        (Fault::CommitKept, JournalRefused::Failed),
        (Fault::Sync, JournalRefused::Failed),
    ] {
        let storage = MemoryStorage::default();
        let journal = start(&logs(&storage, "boot"), SyncPolicy::Always);
        let before = offset(&publish(&journal, "before").expect("it is taken"));
        storage.fail(fault, u32::MAX);
        let under_way = publish(&journal, "under way").expect("it is taken");
        wait_for(&journal, Some(refused));
        assert_eq!(publish(&journal, "meanwhile").map(drop), Err(refused));
        storage.mend();
        assert_eq!(offset(&under_way), before + 1, "{fault:?}");
        wait_for(&journal, None);
        let after = publish(&journal, "after").expect("it is taken");
        assert_eq!(offset(&after), before + 2, "what was refused has no offset");
    }
}

#[test]
fn an_end_writes_what_waits_and_is_clean() {
    let storage = MemoryStorage::default();
    let opened = logs(&storage, "boot");
    let journal = start(&opened, SyncPolicy::Never);
    let answers = publish(&journal, "last").expect("it is taken");
    drop(journal);
    let last = offset(&answers);
    storage.lose_power(0);
    let (logs, reopened) = Logs::open(Arc::new(storage), "another boot").expect("it opens");
    assert!(!reopened.may_have_lost && reopened.epoch == opened.epoch());
    let bounds = logs.bounds(&ChannelName::channel("news")).expect("it is read");
    assert_eq!(bounds.head.offset, last);
}

#[test]
fn a_pause_is_a_clean_end_behind_which_the_run_goes_on() {
    let storage = MemoryStorage::default();
    let opened = logs(&storage, "boot");
    let journal = start(&opened, SyncPolicy::Never);
    let before = publish(&journal, "before").expect("it is taken");
    journal.pause().expect("the disk works");
    let before = offset(&before);
    assert!(journal.is_idle());
    let elsewhere = || Logs::open(Arc::new(storage.clone()), "another boot").expect("it opens").1;
    let other = elsewhere();
    assert!(!other.may_have_lost && other.epoch == opened.epoch());
    let after = publish(&journal, "after").expect("it is taken");
    journal.go_on();
    assert_eq!(offset(&after), before + 1);
    assert!(elsewhere().may_have_lost, "the run goes on");
}

#[test]
fn a_paused_journal_writes_nothing() {
    let storage = MemoryStorage::default();
    drop(start(&logs(&storage, "boot"), SyncPolicy::Never));
    let setup = JournalSetup {
        sync: SyncPolicy::Never,
        max_bytes: u64::MAX,
        server: Arc::<Alone>::default(),
    };
    let journal = DiskJournal::start_paused(&logs(&storage, "boot"), setup).expect("it starts");
    let first = publish(&journal, "first").expect("it is taken");
    let elsewhere = || Logs::open(Arc::new(storage.clone()), "another boot").expect("it opens").1;
    assert!(!elsewhere().may_have_lost);
    journal.go_on();
    assert_eq!(offset(&first), 1);
    assert!(elsewhere().may_have_lost, "the run has begun");
}

#[test]
fn an_end_in_a_pause_writes_nothing() {
    let storage = MemoryStorage::default();
    let journal = start(&logs(&storage, "boot"), SyncPolicy::Never);
    journal.pause().expect("the disk works");
    let answers = publish(&journal, "too late").expect("it is taken");
    drop(journal);
    assert!(answers.recv().is_err(), "neither accepted nor refused");
    let bounds = logs(&storage, "boot").bounds(&ChannelName::channel("news")).expect("it is read");
    assert_eq!(bounds.head.offset, 0);
}

#[test]
fn a_journal_whose_disk_fails_does_not_pause() {
    let storage = MemoryStorage::default();
    let journal = start(&logs(&storage, "boot"), SyncPolicy::Always);
    storage.fail(Fault::Sync, u32::MAX);
    let under_way = publish(&journal, "under way").expect("it is taken");
    wait_for(&journal, Some(JournalRefused::Failed));
    assert_eq!(journal.pause(), Err(JournalRefused::Failed));
    storage.mend();
    journal.go_on();
    assert_eq!(offset(&under_way), 1);
}

#[test]
fn an_end_while_the_disk_fails_leaves_the_outcome_open() {
    let storage = MemoryStorage::default();
    let journal = start(&logs(&storage, "boot"), SyncPolicy::Always);
    storage.fail(Fault::CommitKept, u32::MAX);
    let answers = publish(&journal, "under way").expect("it is taken");
    wait_for(&journal, Some(JournalRefused::Failed));
    drop(journal);
    assert!(answers.recv().is_err(), "neither accepted nor refused");
    storage.end_process();
    let (_, reopened) = Logs::open(Arc::new(storage), "boot").expect("it opens");
    assert!(!reopened.may_have_lost);
}

#[test]
fn work_in_hand_does_not_reopen_a_full_directory() {
    let (stopped, stops) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let server = Arc::new(Stopped {
        alone: Alone::default(),
        calls: AtomicU64::new(0),
        stops: Mutex::new((stopped, goes_on)),
    });
    let storage = MemoryStorage::default();
    let setup = JournalSetup { sync: SyncPolicy::Never, max_bytes: 0, server };
    let journal = DiskJournal::start(&logs(&storage, "boot"), setup).expect("it starts");
    stops.recv_timeout(PATIENCE).expect("it looks");
    let answers = publish(&journal, "waits").expect("it is taken");
    go_on.send(()).expect("it waits");
    assert_eq!(offset(&answers), 1);
    assert_eq!(journal.state(), Some(JournalRefused::OverLimit));
    assert_eq!(publish(&journal, "refused").map(drop), Err(JournalRefused::OverLimit));
    let (sender, erased) = mpsc::channel();
    let done = || -> WhenDone { Box::new(move |answer| drop(sender.send(answer))) };
    let history = Entry::Erase(ChannelName::channel("news"), Erase::History, KEPT);
    journal.append(history, done).expect("it makes room");
    let JournalWritten { appended, .. } = answer(&erased).expect("it is written");
    assert!(matches!(appended, Appended::Erased(Some(1), _)), "{appended:?}");
    drop(journal);
    // The disk works, so that the end is clean.
    storage.lose_power(0);
    let (_, opened) = Logs::open(Arc::new(storage), "another boot").expect("it opens");
    assert!(!opened.may_have_lost);
}

#[test]
fn a_change_takes_the_room_of_its_messages() {
    let opened = logs(&MemoryStorage::default(), "boot");
    let setup = JournalSetup {
        sync: SyncPolicy::Never,
        max_bytes: u64::MAX,
        server: Arc::<Alone>::default(),
    };
    let journal = DiskJournal::start_paused(&opened, setup).expect("it starts");
    let change = |count: usize, text: &str| {
        let channel = ChannelName::channel("news");
        let change = LogChange::append(channel, vec![publication(text); count]);
        let (sender, answers) = mpsc::channel();
        let done = || -> WhenDone { Box::new(move |answer| drop(sender.send(answer))) };
        journal.append(Entry::Change(change, KEPT), done).map(|()| answers)
    };
    let half = "x".repeat(WAITING_BYTES_MAX / 2);
    assert_eq!(change(3, &half).map(drop), Err(JournalRefused::Busy));
    let first = change(1_000, "x").expect("it is taken");
    let room = (WAITING_MAX - 1_000) / 1_000;
    let others: Vec<_> = (0..room).map(|_| change(1_000, "x").expect("it is taken")).collect();
    assert_eq!(change(1_000, "x").map(drop), Err(JournalRefused::Busy));
    let last = change(WAITING_MAX % 1_000, "x").expect("it is taken");
    assert_eq!(publish(&journal, "x").map(drop), Err(JournalRefused::Busy));
    journal.go_on();
    let mut newest = 0;
    for answers in [&first].into_iter().chain(&others).chain([&last]) {
        let JournalWritten { appended, .. } = answer(answers).expect("it is written");
        let Appended::Changed(contents, 0) = appended else { panic!("{appended:?}") };
        assert!(contents.iter().all(|content| {
            newest += 1;
            content.id.offset == newest
        }));
    }
    assert_eq!(newest, WAITING_MAX as u64);
    assert_eq!(journal.messages(), newest);
    assert!(journal.figures().commits.count() > 10, "no commit has them all");
}
