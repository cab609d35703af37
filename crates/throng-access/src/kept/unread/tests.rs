use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, mpsc};
use std::thread;

use proptest::prelude::*;
use throng_core::Ticket;
use throng_core::records::{Change, Each, StoreError};

use super::*;
use crate::kept::KeptChange;

type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// A store in memory.
#[derive(Default)]
struct Stored {
    entries: Mutex<Entries>,
    /// Called once, after entries were found and before the reader has them.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    fails: Mutex<bool>,
}

impl Records for Stored {
    fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
        let mut stored = self.entries.lock().expect("no test panics");
        for Change { key, value, .. } in changes {
            match value {
                Some(value) => stored.insert(key, value),
                None => stored.remove(&key),
            };
        }
        done.answer(Ok(()));
    }

    fn state(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_from(&self, _: Table, from: &[u8], each: Each<'_>) -> Result<(), String> {
        if *self.fails.lock().expect("no test panics") {
            return Err("a bad block".into());
        }
        let stored = self.entries.lock().expect("no test panics");
        let _ = stored.range(Box::from(from)..).try_for_each(|(key, value)| each(key, value));
        drop(stored);
        let meanwhile = self.meanwhile.lock().expect("no test panics").take();
        meanwhile.into_iter().for_each(|act| act());
        Ok(())
    }

    fn approximate_len(&self) -> u64 {
        self.entries.lock().expect("no test panics").len() as u64
    }
}

/// Asks for a user. The receiver gets the answer; `None` if there will be none.
fn ask(kept: &KeptSubscriptions, user: &str) -> mpsc::Receiver<Option<KeptRead>> {
    let (sender, answer) = mpsc::channel();
    let mut issue = || {
        let sender = sender.clone();
        Ticket::new(move |read| sender.send(read).expect("the test waits"))
    };
    if let Answer::Now(read) = kept.ask(user, Later::new(&mut issue)) {
        sender.send(Some(read)).expect("the test waits");
    }
    answer
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Makes a change as a server does: the user is read, then the store, then memory.
fn change(kept: &KeptSubscriptions, stored: &Stored, user: &str, change: &KeptChange) {
    kept.read_user(user).expect("it is read");
    let plan = kept.plan(user, change, 0).expect("it is within the limits");
    stored.change(plan.changes(user).collect(), Ticket::new(drop));
    kept.make(user, change, plan, drop);
}

fn channels(kept: &KeptSubscriptions, user: &str) -> BTreeSet<String> {
    kept.read_user(user).expect("it is read");
    let page = kept.channels_page(user, None, usize::MAX);
    page.names.into_iter().map(String::from).collect()
}

/// A store in which each user follows two channels, as another process has left it.
fn stored(users: &[&str]) -> Arc<Stored> {
    let (kept, stored) = (KeptSubscriptions::default(), Arc::<Stored>::default());
    let both = KeptChange::Replace(strings(&["a", "b"]));
    users.iter().for_each(|user| change(&kept, &stored, user, &both));
    stored
}

fn begin(stored: &Arc<Stored>, entries: usize) -> Arc<KeptSubscriptions> {
    let kept = Arc::<KeptSubscriptions>::default();
    kept.begin_with(Arc::clone(stored) as _, entries).expect("it is read");
    kept
}

fn read_rest(kept: &KeptSubscriptions) {
    while kept.read_on().expect("it is read") {}
}

#[test]
fn few_subscriptions_are_read_before_the_server_serves() {
    let kept = begin(&stored(&["ann", "bob"]), 9);
    assert!(kept.is_whole() && kept.progress().is_none());
    assert_eq!((kept.counts().users, kept.counts().subscriptions), (2, 4));
}

#[test]
fn a_user_is_read_before_those_in_front() {
    let kept = begin(&stored(&["ann", "bob", "cyd", "dan", "eve"]), 1);
    assert_eq!(kept.progress(), Some(KeptProgress { read: 2, left: 8 }));
    let is_read = |user: &str| kept.is_read(user);
    assert_eq!(["ann", "bob", "eve", "al"].map(is_read), [true, false, false, true]);
    let mut answers = ask(&kept, "dan");
    assert!(answers.try_recv().is_err(), "it waits for the thread");
    assert!(kept.read_on().is_ok_and(|is_more| !is_more), "a part is more than all of them");
    assert_eq!(answers.recv().expect("it is answered"), Some(Ok(())));
    answers = ask(&kept, "eve");
    assert_eq!(answers.recv().expect("it is answered"), Some(Ok(())), "at once");
    assert_eq!(kept.counts().subscriptions, 10);
}

#[test]
fn only_the_users_who_are_asked_for_are_read_early() {
    let kept = begin(&stored(&["ann", "bob", "cyd", "dan"]), 1);
    kept.read_user("dan").expect("it is read");
    assert_eq!(["bob", "cyd", "dan"].map(|user| kept.is_read(user)), [false, false, true]);
    assert_eq!(kept.counts().users, 2);
    // Neither users whose names begin alike, nor users without entries.
    for user in ["da", "danny", "zoe"] {
        assert_eq!(channels(&kept, user).len(), 0, "{user}");
    }
    read_rest(&kept);
    assert_eq!((kept.counts().users, kept.counts().subscriptions), (4, 8));
}

#[test]
fn a_removal_between_search_and_addition_holds() {
    let none = KeptChange::Replace(strings(&["b"]));
    for is_of_part in [true, false] {
        let stored = stored(&["ann", "bob", "cyd"]);
        let kept = begin(&stored, 1);
        let (other, of_change, change_to) = (Arc::clone(&kept), Arc::clone(&stored), none.clone());
        let act = move || change(&other, &of_change, "bob", &change_to);
        *stored.meanwhile.lock().expect("no test panics") = Some(Box::new(act));
        if is_of_part {
            kept.read_on().expect("it is read");
        } else {
            kept.read_user("bob").expect("it is read");
        }
        assert_eq!(channels(&kept, "bob"), ["b".to_owned()].into());
        read_rest(&kept);
        assert_eq!(channels(&kept, "bob"), ["b".to_owned()].into());
        assert_eq!(kept.counts().subscriptions, 5);
    }
}

#[test]
fn a_user_who_cannot_be_read_is_refused_and_read_later() {
    let stored = stored(&["ann", "bob"]);
    let kept = begin(&stored, 1);
    let fail = |fails| *stored.fails.lock().expect("no test panics") = fails;
    fail(true);
    let answers = ask(&kept, "bob");
    assert!(kept.read_on().is_err() && !kept.is_whole());
    let refused = answers.recv().expect("it is answered").expect("it is no end");
    assert_eq!(refused.map_err(|error| error.code), Err(ErrorCode::Unavailable));
    fail(false);
    assert_eq!(channels(&kept, "bob").len(), 2);
}

#[test]
fn nobody_waits_for_a_server_that_ends() {
    let kept = begin(&stored(&["ann", "bob"]), 1);
    let before = ask(&kept, "bob");
    kept.end_reading();
    let after = ask(&kept, "bob");
    for answers in [before, after] {
        assert_eq!(answers.recv().expect("it is answered"), None);
    }
}

#[test]
fn users_are_asked_for_and_changed_while_others_are_read() {
    let names: Vec<_> = (0..300).map(|n| format!("user-{n}")).collect();
    let stored = stored(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let kept = begin(&stored, 1);
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !kept.is_whole() {
                if let Some(source) = kept.source.load_full() {
                    kept.answer_asked(&source);
                    kept.read_part(&source, 3).expect("it is read");
                }
            }
        });
        scope.spawn(|| {
            for user in names.iter().rev().step_by(2) {
                change(&kept, &stored, user, &KeptChange::Replace(strings(&["b", "c"])));
            }
        });
        for user in names.iter().step_by(5) {
            let (asked, sender) = (user.clone(), sender.clone());
            let mut issue = || {
                let (asked, sender) = (asked.clone(), sender.clone());
                Ticket::new(move |read| sender.send((asked, read)).expect("the test waits"))
            };
            if let Answer::Now(read) = kept.ask(user, Later::new(&mut issue)) {
                sender.send((asked, Some(read))).expect("the test waits");
            }
        }
        drop(sender);
    });
    let answered: Vec<_> = answers.iter().collect();
    assert!(answered.len() == 60 && answered.iter().all(|(_, read)| *read == Some(Ok(()))));
    for (n, user) in names.iter().rev().enumerate() {
        let expected = if n % 2 == 0 { ["b", "c"] } else { ["a", "b"] };
        assert_eq!(channels(&kept, user), expected.map(str::to_owned).into(), "{user}");
    }
    assert_eq!((kept.counts().users, kept.counts().subscriptions), (300, 600));
}

/// One step of a random run.
#[derive(Debug, Clone)]
enum Step {
    Part(usize),
    Read(u8),
    Change(u8, bool, Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let named = prop::collection::vec(0u8..9, 0..6);
    let step = prop_oneof![
        (1usize..6).prop_map(Step::Part),
        (0u8..8).prop_map(Step::Read),
        (0u8..8, any::<bool>(), named)
            .prop_map(|(user, all, names)| Step::Change(user, all, names)),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    /// In any order of parts, early reads and changes, memory has what the store has.
    #[test]
    fn what_is_stored_is_what_is_kept(before in steps(), after in steps()) {
        let stored = Arc::<Stored>::default();
        let mut expected = BTreeMap::<String, BTreeSet<String>>::new();
        for steps in [before, after] {
            let kept = begin(&stored, 1);
            for step in steps {
                match step {
                    Step::Part(entries) => {
                        if let Some(source) = kept.source.load_full() {
                            kept.read_part(&source, entries).expect("it is read");
                        }
                    }
                    Step::Read(user) => {
                        let user = format!("user-{user}");
                        let known = expected.get(&user).cloned().unwrap_or_default();
                        prop_assert_eq!(channels(&kept, &user), known);
                    }
                    Step::Change(user, is_all, numbers) => {
                        let user = format!("user-{user}");
                        let names: Vec<_> = numbers.iter().map(|n| format!("c-{n}")).collect();
                        let known = expected.entry(user.clone()).or_default();
                        let made = if is_all {
                            *known = names.iter().cloned().collect();
                            KeptChange::Replace(names)
                        } else {
                            let (add, remove) = names.split_at(names.len() / 2);
                            known.retain(|name| !remove.contains(name));
                            known.extend(add.iter().cloned());
                            KeptChange::Update { add: add.to_vec(), remove: remove.to_vec() }
                        };
                        change(&kept, &stored, &user, &made);
                    }
                }
            }
            read_rest(&kept);
            prop_assert!(kept.is_whole());
            let whole = begin(&stored, usize::MAX);
            prop_assert_eq!(kept.counts(), whole.counts());
            for (user, known) in &expected {
                prop_assert_eq!(&channels(&kept, user), known);
            }
        }
    }
}
