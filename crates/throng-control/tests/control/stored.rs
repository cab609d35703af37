//! Kept subscriptions with a store: on the disk first, in memory second.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};
use throng_core::Ticket;
use throng_core::records::{Change, Each, Records, StoreError, Table};

use crate::client::{TIMEOUT, get, post, request};
use crate::server::Server;

/// Changes to store, with the way to answer.
type Asked = (Vec<Change>, Ticket<Result<(), StoreError>>);

/// A store that the test answers for.
struct Store {
    state: Mutex<Result<(), StoreError>>,
    asked: Mutex<Vec<Asked>>,
    has_asked: Condvar,
}

impl Store {
    fn new() -> Arc<Store> {
        let (asked, has_asked) = (Mutex::default(), Condvar::new());
        Arc::new(Store { state: Mutex::new(Ok(())), asked, has_asked })
    }

    /// The next commit that is asked for.
    fn next(&self) -> Asked {
        let asked = self.asked.lock().unwrap();
        let waiting = |asked: &mut Vec<Asked>| asked.is_empty();
        let (mut asked, waited) =
            self.has_asked.wait_timeout_while(asked, TIMEOUT, waiting).unwrap();
        assert!(!waited.timed_out(), "nothing is to be stored");
        asked.remove(0)
    }
}

impl Records for Store {
    fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
        self.asked.lock().unwrap().push((changes, done));
        self.has_asked.notify_all();
    }

    fn state(&self) -> Result<(), StoreError> {
        *self.state.lock().unwrap()
    }

    fn read_from(&self, _: Table, _: &[u8], _: Each<'_>) -> Result<(), String> {
        unreachable!("the control plane reads nothing")
    }
}

fn put(user: &str, channels: &Value) -> String {
    let body = json!({ "channels": channels }).to_string();
    let length = format!("Content-Length: {}", body.len());
    request("PUT", &format!("/users/{user}/subscriptions"), &[&length]) + &body
}

fn channels(server: &Server, user: &str) -> Value {
    server.ask(get(&format!("/users/{user}/subscriptions"))).json()["channels"].clone()
}

#[test]
fn a_change_is_made_and_answered_once_it_is_stored() {
    let store = Store::new();
    let server = Server::storing(Arc::clone(&store) as _);
    let mut client = server.connect(put("ann", &json!(["a", "b"])));
    let (changes, done) = store.next();
    assert_eq!(changes.len(), 2);
    assert!(changes.iter().all(|change| change.value.is_some()));
    assert_eq!(channels(&server, "ann"), json!([]), "it is not stored yet");
    done.answer(Ok(()));
    let answer = client.answer();
    assert_eq!((answer.status, answer.json()["added"].clone()), (200, json!(2)));
    assert_eq!(channels(&server, "ann"), json!(["a", "b"]));
    // A change that changes nothing needs no store.
    assert_eq!(server.ask(put("ann", &json!(["b", "a"]))).status, 200);
}

#[test]
fn a_store_that_refuses_leaves_everything_as_it_was() {
    for (error, status, code) in [
        (StoreError::Full, 507, "not_stored"),
        (StoreError::OverLimit, 507, "not_stored"),
        (StoreError::Failed, 503, "unavailable"),
        (StoreError::Busy, 503, "busy"),
    ] {
        let store = Store::new();
        let server = Server::storing(Arc::clone(&store) as _);
        for change in [
            put("ann", &json!(["a"])).into_bytes(),
            post("/subscriptions", &[], r#"{"user":"ann","add":["a"]}"#),
        ] {
            let mut client = server.connect(change);
            let (_, done) = store.next();
            done.answer(Err(error));
            client.answer().expect_refusal(status, code);
            assert_eq!(channels(&server, "ann"), json!([]));
        }
        *store.state.lock().unwrap() = Err(error);
        server.ask(put("ann", &json!(["a"]))).expect_refusal(status, code);
        assert!(store.asked.lock().unwrap().is_empty(), "it is refused at once");
    }
}

#[test]
fn a_store_that_ends_leaves_the_outcome_open() {
    let store = Store::new();
    let server = Server::storing(Arc::clone(&store) as _);
    let mut client = server.connect(put("ann", &json!(["a"])));
    drop(store.next());
    client.answer().expect_refusal(504, "outcome_unknown");
}

/// A store that has been filled, in which the last user is behind those that are read at the start.
struct Filled {
    keys: BTreeSet<Vec<u8>>,
    fails: Mutex<bool>,
}

/// Longer than the names of others.
const LAST: &str = "a-user-with-a-long-name";

impl Filled {
    fn new() -> Filled {
        let key = |user: &str| [&[user.len() as u8], user.as_bytes(), b"a"].concat();
        let others = (0..20_000).map(|n| key(&format!("user-{n}")));
        Filled { keys: others.chain([key(LAST)]).collect(), fails: Mutex::new(false) }
    }
}

impl Records for Filled {
    fn change(&self, _: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
        done.answer(Ok(()));
    }

    fn state(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_from(&self, _: Table, from: &[u8], each: Each<'_>) -> Result<(), String> {
        if *self.fails.lock().unwrap() {
            return Err("a bad block".to_owned());
        }
        let _ = self.keys.range(from.to_vec()..).try_for_each(|key| each(key, &[]));
        Ok(())
    }
}

#[test]
fn a_user_is_read_from_the_store_for_a_request() {
    for request in [
        put(LAST, &json!(["a", "b"])).into_bytes(),
        post("/subscriptions", &[], format!(r#"{{"user":"{LAST}","add":["b"]}}"#)),
        post("/subscriptions?atomic=true", &[], format!(r#"{{"user":"{LAST}","add":["b"]}}"#)),
    ] {
        let server = Server::reading(Arc::new(Filled::new()));
        let page = get("/channels/a/followers?limit=1");
        let before = server.ask(page.clone()).json();
        assert_eq!((&before["count"], &before["partial"]), (&json!(20_000), &json!(true)));
        let answer = server.ask(request).json();
        assert_eq!((&answer["added"], &answer["removed"]), (&json!(1), &json!(0)), "{answer}");
        assert_eq!(channels(&server, LAST), json!(["a", "b"]));
        let read = server.ask(page).json();
        assert_eq!((&read["count"], &read["partial"]), (&json!(20_001), &json!(true)));
    }
}

#[test]
fn a_user_who_cannot_be_read_is_refused() {
    let store = Arc::new(Filled::new());
    let server = Server::reading(Arc::clone(&store) as _);
    *store.fails.lock().unwrap() = true;
    server.ask(put(LAST, &json!(["b"]))).expect_refusal(503, "unavailable");
    let page = format!("/users/{LAST}/subscriptions");
    server.ask(get(&page)).expect_refusal(503, "unavailable");
    assert_eq!(channels(&server, "user-7"), json!(["a"]), "others are read");
    *store.fails.lock().unwrap() = false;
    assert_eq!(channels(&server, LAST), json!(["a"]));
}
