//! Scans of all connections.

use std::sync::mpsc;

use throng_access::session::Tagger;
use throng_core::{
    ChannelName, ConnectionScan, Notification, ScanAction, ScanClose, ScanTarget, Scanned, Ticket,
};
use throng_edge::Counter;

use crate::rig::Rig;
use crate::tokens::{rig, token, token_of_ann, websocket};

pub(crate) fn scan(rig: &mut Rig, target: ScanTarget, action: ScanAction) -> Scanned {
    let (sender, answer) = mpsc::channel();
    let ticket = Ticket::new(move |scanned| drop(sender.send(scanned)));
    rig.queue.post(Notification::Scan(ConnectionScan::new(target, action, 1, ticket)));
    rig.work();
    rig.worker.check_invariants();
    answer.try_recv().expect("the worker is done").expect("an answer")
}

pub(crate) fn user(name: &str) -> ScanTarget {
    let tags = Tagger::from_seed([0; 16]).of_user(name);
    ScanTarget::User { inbox: ChannelName::user(name), tags }
}

#[test]
fn the_connections_of_a_user_are_listed() {
    let mut rig = rig();
    let bob = token(3600, r#""sub": "bob", "throng": {"subscribe": ["rooms/*"]}"#);
    let clients = [
        websocket(&mut rig, "/channels/rooms%2Fa", &token_of_ann(), "throng.plain"),
        websocket(&mut rig, "/users/ann", &token_of_ann(), "throng.v1"),
        websocket(&mut rig, "/channels/rooms%2Fa", &bob, "throng.v1"),
    ];
    let found = scan(&mut rig, user("ann"), ScanAction::List { limit: 9 });
    assert_eq!((found.count, found.connections.len()), (2, 2));
    assert_eq!(found.connections[0].transport.word(), "websocket");
    assert!(found.connections[0].since_ms.is_some());
    let found = scan(&mut rig, user("ann"), ScanAction::List { limit: 1 });
    assert_eq!((found.count, found.connections.len()), (2, 1));
    let target = ScanTarget::Channel(ChannelName::channel("rooms/a"));
    assert_eq!(scan(&mut rig, target, ScanAction::List { limit: 9 }).count, 2);
    drop(clients);
}

#[test]
fn without_keys_connections_are_found_by_inbox() {
    let mut rig = Rig::new();
    let _clients = [rig.get("/users/ann"), rig.get("/subscribe?channel=a&user=ann")];
    let _others = [rig.get("/users/bob"), rig.get("/channels/ann")];
    let found = scan(&mut rig, user("ann"), ScanAction::List { limit: 9 });
    assert_eq!((found.count, found.connections.len()), (2, 2));
}

#[test]
fn a_revocation_closes_only_connections_of_its_token() {
    let mut rig = rig();
    let ann = token_of_ann();
    let many: Vec<_> = (0..200)
        .map(|_| websocket(&mut rig, "/channels/rooms%2Fa", &ann, "throng.plain"))
        .collect();
    let other = token(3600, r#""sub": "bob", "throng": {"subscribe": ["rooms/*"]}"#);
    let other = websocket(&mut rig, "/channels/rooms%2Fa", &other, "throng.plain");
    let tags = Tagger::from_seed([0; 16]).of_user("ann");
    let revoked = scan(&mut rig, ScanTarget::Sessions(vec![tags]), ScanAction::Revoke);
    assert_eq!(revoked.count, 200);
    assert_eq!(rig.count(Counter::ClosedRevoked), 200);
    other.received();
    rig.publish("rooms/a", "news", None);
    rig.work();
    assert!(other.received().contains("news"));
    assert!(!many[0].received().contains("news"));
}

#[test]
fn clients_hear_of_late_messages_where_a_transport_can_say_so() {
    const LATE: &str = r#"{"type":"late","late":true}"#;
    const CURRENT: &str = r#"{"type":"late","late":false}"#;
    let mut rig = Rig::new();
    let tell =
        |rig: &mut Rig, is_late| scan(rig, ScanTarget::All, ScanAction::TellLate(is_late)).count;
    let sse = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    let (v1, events) = (rig.v1(), rig.connect(sse));
    let (lines, poll) = (rig.get("/channels/a"), rig.get("/channels/a?wait=30"));
    let all = [&v1, &events, &lines, &poll];
    let hear = |text: &str| all.map(|client| client.received().contains(text));
    assert_eq!(hear("late"), [false; 4]);
    assert_eq!(tell(&mut rig, false), 0, "nobody was told otherwise");
    assert_eq!(tell(&mut rig, true), 4);
    assert_eq!(hear(LATE), [true, true, false, false]);
    assert_eq!(tell(&mut rig, true), 0, "all were told");
    // Clients that come later are told, too.
    let later = rig.connect(sse);
    let received = later.received();
    assert!(received.contains(&format!("event: late\ndata: {LATE}\n\n")), "{received}");
    assert!(rig.v1().received().contains(LATE));
    // A new process goes on.
    rig.replace_process();
    assert_eq!(tell(&mut rig, true), 0, "all were told");
    rig.publish("a", "news", None);
    rig.work();
    assert_eq!(hear("late"), [false; 4]);
    assert!(tell(&mut rig, false) >= 4);
    assert_eq!(hear(CURRENT), [true, true, false, false]);
    assert!(later.received().contains(CURRENT));
    assert!(!rig.connect(sse).received().contains("late"));
    assert!(rig.count(Counter::ToldLate) >= 4 + 3);
}

#[test]
fn the_application_disconnects_with_a_code_of_its_own() {
    let mut rig = Rig::new();
    let target = || ScanTarget::Channel(ChannelName::channel("a"));
    let close = |may_return| {
        ScanAction::Close(ScanClose { code: 4600, reason: "moved".into(), may_return })
    };
    let stream = rig.get("/channels/a");
    let poll = rig.get("/channels/a?wait=30");
    let _elsewhere = rig.get("/channels/b");
    stream.received();
    assert_eq!(scan(&mut rig, target(), close(true)).count, 2);
    let received = stream.received();
    assert!(received.contains(r#""close_code":4600,"message":"moved""#), "{received}");
    assert!(poll.received().starts_with("HTTP/1.1 204"));
    let poll = rig.get("/channels/a?wait=30");
    assert_eq!(scan(&mut rig, target(), close(false)).count, 1);
    assert!(poll.received().starts_with("HTTP/1.1 403"));
    assert_eq!(rig.count(Counter::ClosedDisconnected), 2);
    assert_eq!(rig.worker.subscriptions_in_all(), 1);
}
