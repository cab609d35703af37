use std::sync::{Mutex, OnceLock, Weak};

use throng_access::kept::{KeptWritten, SharedKeptTable, read_entry};
use throng_core::records::{Each, StoreError, Table};
use throng_core::{Channels, Epoch, MemoryEngine, Rules};

use super::*;

/// A store that takes everything, and notes how many entries each commit changes.
#[derive(Default)]
struct Stored {
    commits: Mutex<Vec<usize>>,
}

impl Stored {
    /// The commits since the last call.
    fn commits(&self) -> Vec<usize> {
        std::mem::take(&mut *self.commits.lock().unwrap())
    }
}

impl Records for Stored {
    fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
        self.commits.lock().unwrap().push(changes.len());
        done.answer(Ok(()));
    }

    fn state(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_from(&self, _: Table, _: &[u8], _: Each<'_>) -> Result<(), String> {
        unreachable!("a maker reads nothing")
    }
}

fn maker() -> (Maker, Arc<Stored>) {
    let rules = Arc::new(Rules::default());
    let memory = MemoryEngine::new(Epoch::numbered(1), rules, vec![], 1);
    let engine = Arc::new(Channels::from(memory));
    let store = Arc::new(Stored::default());
    let records = ChangeStore::Records(Arc::clone(&store) as _);
    (Maker::new(Arc::default(), engine, records), store)
}

/// A change after which the user follows exactly these channels.
fn order(user: &str, channels: &[String]) -> ChangeOrder {
    let change = KeptChange::Replace(channels.to_vec());
    ChangeOrder { line: 0, user: user.into(), change }
}

/// Makes the changes of requests that wait together. Returns what each has changed.
fn make(maker: &Maker, requests: Vec<Vec<ChangeOrder>>) -> Vec<Vec<KeptChanged>> {
    let (mut jobs, mut answers) = (Vec::new(), Vec::new());
    for orders in requests {
        let (done, answer) = oneshot::channel();
        jobs.push(ChangeJob { id: 0, key: None, orders, when: When::Possible, done });
        answers.push(answer);
    }
    maker.make_all(jobs);
    answers.into_iter().map(|mut answer| answer.try_recv().unwrap().unwrap().changed).collect()
}

#[test]
fn waiting_requests_are_stored_together_in_order() {
    let (maker, store) = maker();
    let [first, second] = ["first", "second"].map(|name| vec![name.to_owned()]);
    let requests = [
        ("ann", &first),
        ("bob", &second),
        ("ann", &second),
        ("cy", &second),
        // They change nothing by now.
        ("bob", &second),
        ("ann", &second),
    ];
    let changed =
        make(&maker, requests.iter().map(|(user, channels)| vec![order(user, channels)]).collect());
    let added: Vec<_> = changed.iter().map(|changed| changed[0].added).collect();
    assert_eq!(added, [1, 1, 1, 1, 0, 0]);
    assert_eq!(store.commits(), [2, 3]);
    for user in ["ann", "bob", "cy"] {
        assert_eq!(&*maker.kept.channels_page(user, None, 9).names, [second[0].as_str().into()]);
    }
}

#[test]
fn a_change_that_ends_many_subscriptions_is_stored_in_parts() {
    let (maker, store) = maker();
    let all: Vec<String> = (0..CHANGED_PER_COMMIT / 4).map(|number| number.to_string()).collect();
    let users: Vec<String> = (0..10).map(|number| format!("user-{number}")).collect();
    for channels in [&all[..], &[]] {
        let orders = users.iter().map(|user| order(user, channels)).collect();
        let changed = make(&maker, vec![orders]);
        let count: usize = changed[0].iter().map(|one| one.added + one.removed).sum();
        assert_eq!(count, users.len() * all.len());
        let part = CHANGED_PER_COMMIT;
        assert_eq!(store.commits(), [part, part, part / 2]);
    }
}

/// Subscriptions that are shared with a table which has whatever is written at once, and who was
/// written, in order.
fn shared() -> (Arc<SharedKept>, Arc<Mutex<Vec<String>>>) {
    let written = Arc::<Mutex<Vec<String>>>::default();
    let of_table = Arc::<OnceLock<Weak<SharedKept>>>::default();
    let (log, own) = (Arc::clone(&written), Arc::clone(&of_table));
    let table = SharedKeptTable {
        write: Box::new(move |entry, done| {
            let (user, channels) = read_entry(&entry.key, entry.value.as_deref()).unwrap();
            let mut log = log.lock().unwrap();
            log.push(user.clone());
            let shared = own.get().and_then(Weak::upgrade).unwrap();
            shared.take(&user, &channels, log.len() as u64);
            done.answer(Ok(KeptWritten::Stored));
        }),
        compare: Box::new(|done| done.answer(())),
    };
    let shared = Arc::new(SharedKept::new(Arc::default(), table));
    assert!(of_table.set(Arc::downgrade(&shared)).is_ok());
    (shared, written)
}

#[test]
fn others_do_not_wait_for_a_user_with_several_changes() {
    let (shared, written) = shared();
    let rules = Arc::new(Rules::default());
    let memory = MemoryEngine::new(Epoch::numbered(1), rules, vec![], 1);
    let engine = Arc::new(Channels::from(memory));
    let store = ChangeStore::Shared(Arc::clone(&shared));
    let maker = Maker::new(Arc::clone(shared.kept()), engine, store);
    let channels = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    let of = |user: &str, counts: &[usize]| -> Vec<ChangeOrder> {
        counts.iter().map(|count| order(user, &channels(*count))).collect()
    };
    let requests =
        vec![of("ann", &[1, 2, 3]).into_iter().chain(of("bob", &[3, 1])).collect(), of("cy", &[1])];
    let changed = make(&maker, requests);
    assert_eq!(*written.lock().unwrap(), ["ann", "bob", "cy", "ann", "bob", "ann"]);
    assert_eq!([changed[0].len(), changed[1].len()], [5, 1]);
    let found = ["ann", "bob", "cy"].map(|user| shared.kept().channels_of(user));
    assert_eq!(found, [3, 1, 1], "the last change of each holds");
}
