//! Connections with kept channels whose logs have to be fetched: nothing is read before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use throng_access::{AccessControl, AllowAll};
use throng_core::conformance::Delegate;
use throng_core::records::StoreError;
use throng_core::{
    Answer, Body, ChannelName, Engine, Fetched, Follow, Followed, History, HistoryQuery, Later,
    Mark, Marked, MemoryEngine, Publication, Reading, Rules, Ticket,
};
use throng_edge::Settings;

use crate::kept;
use crate::rig::{Client, Rig};

type Readable = Arc<Mutex<Vec<(ChannelName, Reading)>>>;

/// A question that the test answers.
enum Open {
    Fetch(ChannelName, Reading, Ticket<Fetched>),
    Marker(Marked, Ticket<Marked>),
}

/// An engine that reads only what was fetched, and answers when the test says so.
struct Elsewhere {
    engine: Arc<MemoryEngine>,
    is_full: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<Open>>>,
    readable: Readable,
}

/// Keeps a part readable.
struct Hold(Readable, (ChannelName, Reading));

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = self.0.lock().unwrap();
        let at = all.iter().position(|part| *part == self.1).expect("it is readable");
        all.swap_remove(at);
    }
}

impl Elsewhere {
    fn expect_readable(&self, channel: &ChannelName, reading: Reading) {
        let all = self.readable.lock().unwrap();
        assert!(all.contains(&(channel.clone(), reading)), "{reading:?} of {channel:?}: {all:?}");
    }
}

impl Delegate for Elsewhere {
    fn behind(&self) -> &dyn Engine {
        &*self.engine
    }

    fn fetches(&self) -> bool {
        true
    }

    fn fetch(
        &self,
        _: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let (ticket, answer) = later.ticket();
        self.open.lock().unwrap().push(Open::Fetch(channel.clone(), reading, ticket));
        answer
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        self.expect_readable(follow.channel, Reading::Start(follow.start));
        self.engine.follow(now_ms, follow)
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        self.expect_readable(channel, Reading::Page(query, limit));
        self.engine.history(now_ms, channel, query, limit)
    }

    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let is_full = self.is_full.load(Ordering::Relaxed) && mark.is_some();
        let marker = if is_full {
            Err(StoreError::Full.into())
        } else {
            Ok(self.engine.read_marker(now_ms, inbox, mark))
        };
        let (ticket, answer) = later.ticket();
        self.open.lock().unwrap().push(Open::Marker(marker, ticket));
        answer
    }
}

/// A worker over such an engine.
struct World {
    rig: Rig,
    /// True if the journal takes no marker.
    is_full: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<Open>>>,
    readable: Readable,
}

impl World {
    /// A user, ann, who follows two channels.
    fn new() -> World {
        let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
        let (open, readable) = (Arc::default(), Readable::default());
        let (of_engine, held) = (Arc::clone(&open), Arc::clone(&readable));
        let is_full = Arc::<AtomicBool>::default();
        let fills = Arc::clone(&is_full);
        let control = (Arc::clone(&access), Rules::default());
        let rig = Rig::with_engine(Settings::for_tests(), control, |engine| {
            Arc::new(Elsewhere { engine, is_full: fills, open: of_engine, readable: held })
        });
        kept::change(&rig, &access, "ann", &kept::update(&["a", "b"], &[]), || {});
        World { rig, is_full, open, readable }
    }

    /// Answers all that is asked, and what is asked then, the newest first.
    fn settle(&mut self) {
        loop {
            self.rig.work();
            let open = std::mem::take(&mut *self.open.lock().unwrap());
            if open.is_empty() {
                break;
            }
            for open in open.into_iter().rev() {
                match open {
                    Open::Marker(marker, ticket) => ticket.answer(marker),
                    Open::Fetch(channel, reading, ticket) => {
                        self.readable.lock().unwrap().push((channel.clone(), reading));
                        let hold = Hold(Arc::clone(&self.readable), (channel, reading));
                        ticket.answer(Fetched::held_by(hold));
                    }
                }
            }
        }
        assert_eq!(*self.readable.lock().unwrap(), [], "nothing stays readable for nobody");
        self.rig.worker.check_invariants();
    }

    fn sse(&mut self, parameters: &str) -> Client {
        self.rig.connect(&format!(
            "GET /users/ann?welcome=true&{parameters} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n"
        ))
    }

    fn write(&mut self, channel: ChannelName, text: &str) {
        let publication = Publication {
            channel,
            body: Body::Text(text.into()),
            content_type: None,
            idempotency_key: None,
            expires_in_ms: None,
            excluded: None,
            receipt: None,
        };
        self.rig.engine.publish(1, publication).expect("the queue has room");
    }
}

#[test]
fn a_user_waits_for_the_logs_of_all_kept_channels() {
    let mut world = World::new();
    world.write(ChannelName::user("ann"), "letter");
    let clients = [world.sse(""), world.rig.get("/users/ann"), world.rig.get("/users/ann?wait=9")];
    world.rig.work();
    assert!(clients.iter().all(|client| client.received().is_empty()));
    // It is there when the subscriptions begin.
    world.rig.publish("a", "while it waits", None);
    world.settle();
    world.rig.publish("b", "live", None);
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
fn nothing_is_wanted_for_a_client_that_has_gone() {
    let mut world = World::new();
    let client = world.sse("");
    world.rig.work();
    let wanted = |world: &World| {
        let open = world.open.lock().unwrap();
        let fetches = open.iter().filter_map(|open| match open {
            Open::Fetch(.., ticket) => Some(ticket.is_wanted()),
            Open::Marker(..) => None,
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
    world.rig.publish("a", "live", None);
    world.rig.work();
    assert!(client.received().contains("live"));
}

#[test]
fn a_marker_that_the_journal_does_not_take_is_refused_as_such() {
    let mut world = World::new();
    world.write(ChannelName::user("ann"), "letter");
    let client = world.rig.v1();
    world.is_full.store(true, Ordering::Relaxed);
    world.rig.send_frame(&client, r#"{"type":"read","user":"ann","id":"z-1"}"#);
    world.settle();
    let received = client.received();
    assert!(received.contains(r#""code":"not_stored""#), "{received}");
    world.rig.send_frame(&client, r#"{"type":"read","user":"ann"}"#);
    world.settle();
    let received = client.received();
    assert!(received.contains(r#""unread":1"#), "{received}");
}
