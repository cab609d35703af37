//! Connections of users whose kept channels are not read from the store yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use throng_access::AccessControl;
use throng_core::Ticket;
use throng_core::records::{Change, Each, Records, StoreError, Table};
use throng_edge::{Counter, Settings};

use crate::kept;
use crate::rig::Rig;

/// Users that are read before the server serves.
const OTHERS: usize = 20_000;

/// Longer than the names of others, so it is the last one.
const LAST: &str = "a-user-with-a-long-name";

/// A store that never changes.
struct Stored(BTreeSet<Vec<u8>>);

impl Records for Stored {
    fn change(&self, _: Vec<Change>, _: Ticket<Result<(), StoreError>>) {
        unreachable!("workers change nothing")
    }

    fn state(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_from(&self, _: Table, from: &[u8], each: Each<'_>) -> Result<(), String> {
        let _ = self.0.range(from.to_vec()..).try_for_each(|key| each(key, &[]));
        Ok(())
    }
}

fn key(user: &str, channel: &str) -> Vec<u8> {
    [&[user.len() as u8], user.as_bytes(), channel.as_bytes()].concat()
}

/// A rig, and access control of which all users but the last one are read.
fn rig() -> (Rig, Arc<AccessControl>) {
    let (rig, access) = kept::rig(Settings::for_tests());
    let others = (0..OTHERS).map(|n| key(&format!("user-{n}"), "c"));
    let stored = Stored(others.chain([key(LAST, "a"), key(LAST, "b")]).collect());
    access.kept.begin_reading(Arc::new(stored)).expect("it is read");
    assert!(!access.kept.is_whole() && access.kept.is_read("user-7"));
    (rig, access)
}

#[test]
fn a_connection_waits_until_its_user_is_read() {
    let (mut rig, access) = rig();
    let clients = [
        rig.get(&format!("/users/{LAST}")),
        rig.get(&format!("/users/{LAST}?wait=9")),
        rig.connect(&format!("GET /users/{LAST} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n")),
    ];
    let other = rig.get("/users/user-7");
    rig.work();
    assert!(clients.iter().all(|client| client.has_nothing()), "they wait");
    assert!(other.received().starts_with("HTTP/1.1 200"), "others do not");
    assert_eq!(rig.count(Counter::Waited), 3);
    access.kept.read_on().expect("it is read");
    rig.work();
    rig.publish("b", "hello", None);
    rig.work();
    for client in &clients {
        assert_eq!(client.received().matches("hello").count(), 1);
    }
    rig.worker.check_invariants();
}

#[test]
fn a_command_for_an_inbox_waits_until_its_user_is_read() {
    for command in [
        format!(r#"{{"type":"subscribe","user":"{LAST}"}}"#),
        format!(r#"{{"type":"subscribe","channels":["x",{{"user":"{LAST}"}}]}}"#),
    ] {
        let (mut rig, access) = rig();
        let client = rig.v1();
        rig.send_frame(&client, &command);
        rig.work();
        assert!(!client.received().contains("subscribed"), "it waits");
        access.kept.read_on().expect("it is read");
        rig.work();
        assert!(client.received().contains("subscribed"), "{command}");
        rig.publish("a", "hello", None);
        rig.work();
        assert!(client.received().contains("hello"), "{command}");
        rig.worker.check_invariants();
    }
}

#[test]
fn a_connection_that_names_its_channels_waits_for_nobody() {
    let (mut rig, _) = rig();
    let client = rig.get(&format!("/subscribe?channel=c&user={LAST}"));
    rig.publish("c", "hello", None);
    rig.work();
    assert!(client.received().contains("hello"));
}

#[test]
fn a_connection_whose_user_is_never_read_is_refused() {
    let (mut rig, access) = rig();
    let client = rig.get(&format!("/users/{LAST}"));
    rig.work();
    access.kept.end_reading();
    rig.work();
    assert!(client.received().starts_with("HTTP/1.1 503"), "{}", client.received());
}
