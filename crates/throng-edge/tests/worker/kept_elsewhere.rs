//! Connections with kept channels whose logs have to be fetched: nothing is read before.

use std::sync::Arc;

use throng_access::{AccessControl, AllowAll};
use throng_core::conformance::{Lateness, OpenReading, TestJournal};
use throng_core::records::StoreError;
use throng_core::{Body, ChannelName, Channels, Fetched, JournalId, Publication, Rule, Rules};
use throng_edge::Settings;

use crate::kept;
use crate::rig::{Client, Rig};

/// A worker over a journal that reads only what was fetched, and answers when the test says so.
struct World {
    rig: Rig,
    journal: Arc<TestJournal>,
}

impl World {
    /// A user, ann, who follows two channels.
    fn new() -> World {
        World::with_rules(Rules::default().with_journal())
    }

    fn with_rules(rules: Rules) -> World {
        let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
        let control = (Arc::clone(&access), rules);
        let mut journal = None;
        let rig = Rig::with_engine(Settings::for_tests(), control, |memory| {
            let lateness = Lateness { of_readings: true, ..Lateness::default() };
            let late = TestJournal::new(Arc::clone(&memory), usize::MAX).with_lateness(lateness);
            let late = Arc::new(late);
            journal = Some(Arc::clone(&late));
            Channels::new(memory, vec![late])
        });
        kept::change(&rig, &access, "ann", &kept::update(&["a", "b"], &[]), || {});
        World { rig, journal: journal.expect("the channels have it") }
    }

    /// Answers all that is asked, and what is asked then, the newest first.
    fn settle(&mut self) {
        loop {
            self.rig.work();
            let open = self.journal.take_readings();
            if open.is_empty() {
                break;
            }
            for open in open.into_iter().rev() {
                match open {
                    OpenReading::Marker(marker, ticket) => ticket.answer(marker),
                    OpenReading::Fetch(channel, reading, ticket) => {
                        let held = self.journal.read(self.rig.now_ms(), &channel, reading);
                        ticket.answer(Fetched::held_by(held));
                    }
                }
            }
        }
        assert_eq!(self.journal.held(), 0, "nothing stays readable for nobody");
        self.rig.worker.check_invariants();
    }

    fn sse(&mut self, parameters: &str) -> Client {
        self.rig.connect(&format!(
            "GET /users/ann?welcome=true&{parameters} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n"
        ))
    }

    fn write(&mut self, channel: ChannelName, text: &str) {
        self.journal.publish(1, publication(channel, text)).expect("the queue has room");
    }

    /// Publishes to a channel in memory.
    fn write_own(&mut self, text: &str) {
        let publication = publication(ChannelName::channel("own"), text);
        self.rig.engine.publish(1, publication).expect("the queue has room");
    }
}

fn publication(channel: ChannelName, text: &str) -> Publication {
    Publication::new(channel, Body::Text(text.into()))
}

#[test]
fn a_user_waits_for_the_logs_of_all_kept_channels() {
    let mut world = World::new();
    world.write(ChannelName::user("ann"), "letter");
    let clients = [world.sse(""), world.rig.get("/users/ann"), world.rig.get("/users/ann?wait=9")];
    world.rig.work();
    assert!(clients.iter().all(|client| client.received().is_empty()));
    // It is there when the subscriptions begin.
    world.write(ChannelName::channel("a"), "while it waits");
    world.settle();
    world.write(ChannelName::channel("b"), "live");
    world.settle();
    let received = [clients[0].received(), clients[1].received()];
    for received in &received {
        for text in ["while it waits", "live"] {
            assert_eq!(received.matches(text).count(), 1, "{received}");
        }
    }
    assert!(received[0].contains(r#""unread":1"#), "{}", received[0]);
    assert!(clients[2].received().contains("while it waits"));
}

#[test]
fn a_position_resumes_in_all_kept_channels() {
    let mut world = World::new();
    world.write(ChannelName::channel("a"), "long ago");
    world.write(ChannelName::user("ann"), "letter");
    world.write(ChannelName::channel("b"), "new");
    // By the message of the inbox, and by a position.
    for since in ["z-1", "~z-2"] {
        let client = world.sse(&format!("since={since}"));
        world.settle();
        let received = client.received();
        assert!(received.contains("Throng-Recovered: true\r\n"), "{received}");
        assert!(received.contains("data: new\n") && !received.contains("long ago"), "{received}");
    }
}

#[test]
fn a_channel_in_another_order_moves_no_position() {
    let own = Rule { pattern: "own*".into(), ..Rule::default() };
    let others = Rule { journal: Some(JournalId(0)), ..Rule::default() };
    let mut world = World::with_rules(Rules::new(vec![own], others));
    // Its stamps are beyond all of the journal.
    (0..50).for_each(|_| world.write_own("before"));
    let client = world.rig.v1();
    for command in
        [r#"{"type":"subscribe","user":"ann"}"#, r#"{"type":"subscribe","channel":"own"}"#]
    {
        world.rig.send_frame(&client, command);
        world.settle();
    }
    world.write(ChannelName::channel("a"), "one");
    world.settle();
    world.write_own("two");
    world.settle();
    world.write(ChannelName::channel("b"), "three");
    world.write_own("four");
    world.settle();
    let received = client.received();
    let at = |text: &str| received.find(text).unwrap_or_else(|| panic!("{text}: {received}"));
    assert!(at("one") < at("two") && at("two") < at("four") && at("four") < at("three"));
    let positions: Vec<_> = received.split("~z-").skip(1).collect();
    let numbers = positions.iter().map(|text| text.split(|c: char| !c.is_ascii_digit()).next());
    let numbers: Vec<_> = numbers.flatten().collect();
    assert_eq!(numbers[numbers.len() - 4..], ["1", "1", "1", "2"], "{received}");
}

#[test]
fn nothing_is_wanted_for_a_client_that_has_gone() {
    let mut world = World::new();
    let client = world.sse("");
    world.rig.work();
    let wanted = |world: &World| {
        let open = world.journal.readings();
        let fetches = open.iter().filter_map(|open| match open {
            OpenReading::Fetch(.., ticket) => Some(ticket.is_wanted()),
            OpenReading::Marker(..) => None,
        });
        fetches.collect::<Vec<_>>()
    };
    assert_eq!(wanted(&world), [true; 3]);
    world.rig.hang_up(&client);
    world.rig.work();
    assert_eq!(wanted(&world), [false; 3]);
    world.settle();
}

#[test]
fn commands_wait_for_logs_and_markers() {
    let mut world = World::new();
    world.write(ChannelName::user("ann"), "letter");
    let client = world.rig.v1();
    for (command, answer) in [
        (r#"{"type":"subscribe","user":"ann"}"#, "subscribed"),
        (r#"{"type":"read","user":"ann","id":"z-1"}"#, r#""unread":0"#),
        (r#"{"type":"history","user":"ann"}"#, "letter"),
    ] {
        world.rig.send_frame(&client, command);
        world.rig.work();
        assert!(!client.received().contains(answer), "{answer}");
        world.settle();
        assert!(client.received().contains(answer), "{}", client.received());
    }
    world.write(ChannelName::channel("a"), "live");
    world.rig.work();
    assert!(client.received().contains("live"));
}

#[test]
fn a_marker_that_the_journal_does_not_take_is_refused_as_such() {
    let mut world = World::new();
    world.write(ChannelName::user("ann"), "letter");
    let client = world.rig.v1();
    world.journal.refuse_markers(Some(StoreError::Full.into()));
    world.rig.send_frame(&client, r#"{"type":"read","user":"ann","id":"z-1"}"#);
    world.settle();
    let received = client.received();
    assert!(received.contains(r#""code":"not_stored""#), "{received}");
    world.rig.send_frame(&client, r#"{"type":"read","user":"ann"}"#);
    world.settle();
    let received = client.received();
    assert!(received.contains(r#""unread":1"#), "{received}");
}
