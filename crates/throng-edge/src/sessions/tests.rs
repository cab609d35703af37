//! Sessions alone: without the worker that connects them, with a policy that takes its time.

use std::sync::Mutex;

use throng_access::session::Tagger;
use throng_access::{Access, AccessRules, Action, Apps, Asker, Decision};
use throng_core::{Answer, Later, Ticket};
use throng_pusher::App;

use super::*;
use crate::connection::ConnectionId;
use crate::net::fixture::OneNet;
use crate::setup::fixture::setup;
use crate::sockets::Sockets;

/// Allows every channel but one that is named so; of `slow`, it decides later.
#[derive(Debug, Default)]
struct Policy(Mutex<Vec<Ticket<Decision>>>);

impl Access for Policy {
    fn may(
        &self,
        _: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        match action {
            Action::Subscribe(name) if name.name() == "slow" => {
                let (ticket, answer) = later.ticket();
                self.0.lock().expect("no test panics here").push(ticket);
                answer
            }
            Action::Subscribe(name) if name.name() == "denied" => Decision::forbidden("no").into(),
            _ => Decision::Allowed.into(),
        }
    }
}

fn sessions(policy: Arc<Policy>) -> Sessions<OneNet> {
    sessions_with(AccessControl::open(policy))
}

fn sessions_with(access: AccessControl) -> Sessions<OneNet> {
    let setup = setup(Arc::new(access));
    let sockets = Sockets::new(&setup, OneNet::taking(usize::MAX));
    let mut sessions = Sessions::new(&setup, Delivery::new(&setup, sockets));
    sessions.begin_slice();
    sessions
}

/// Takes in a connection that asks for a stream of a channel. Returns what it is written at once.
fn request(sessions: &mut Sessions<OneNet>, channel: &str) -> String {
    connect(sessions, format!("GET /channels/{channel} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

fn connect(sessions: &mut Sessions<OneNet>, head: String) -> String {
    sessions.net().input = head.into_bytes();
    sessions.accepted(());
    sessions.check_invariants();
    sessions.net().take_written()
}

#[test]
fn a_request_that_is_allowed_parks_its_connection() {
    let mut sessions = sessions(Arc::default());
    assert!(request(&mut sessions, "news").starts_with("HTTP/1.1 200 "));
    assert_eq!(sessions.subscriptions_in_all(), 1);
    assert!(sessions[ConnectionId::new(0)].is_parked());
}

#[test]
fn a_request_that_is_denied_is_answered_and_lingers() {
    let mut sessions = sessions(Arc::default());
    assert!(request(&mut sessions, "denied").starts_with("HTTP/1.1 403 "));
    assert_eq!((sessions.subscriptions_in_all(), sessions.net().finished), (0, 1));
}

#[test]
fn a_request_waits_until_it_is_decided() {
    let policy = Arc::new(Policy::default());
    let mut sessions = sessions(Arc::clone(&policy));
    assert_eq!(request(&mut sessions, "slow"), "");
    let ticket = policy.0.lock().expect("no test panics here").pop().expect("it has asked");
    ticket.answer(Decision::forbidden("no"));
    let mut notifications = Vec::new();
    sessions.take_queue(&mut notifications);
    for notification in notifications {
        sessions.turn(|sessions| sessions.notified(notification));
    }
    sessions.end_notifications();
    assert!(sessions.net().take_written().starts_with("HTTP/1.1 403 "));
    sessions.check_invariants();
}

/// What a parked connection has beside its place in the table: a session, an entry in the side
/// table, buffers.
fn beside(sessions: &Sessions<OneNet>, at: u32) -> (bool, bool, bool) {
    let id = ConnectionId::new(at);
    let (connections, connection) = (sessions.connections(), &sessions[id]);
    assert!(connection.is_parked());
    let has_entry = connections.side().has_entry(connection);
    (connections.session(id).is_some(), has_entry, connection.io.is_some())
}

#[test]
fn an_application_costs_its_clients_a_session_and_others_nothing() {
    let app = App::new("1", "app-key", b"0123456789abcdef", "shop/").expect("an application");
    let apps = Apps::new([app]).expect("it is alone");
    let apps = Arc::new(apps.named_by(&Tagger::from_seed([7; 16])));
    let open = AccessControl::open(Arc::new(AccessRules::default()));
    let mut sessions = sessions_with(AccessControl { apps: apps.into(), ..open });
    let websocket = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: throng.v1\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    for (at, path, has_session) in [(0, "/subscribe", false), (1, "/app/app-key", true)] {
        let written = connect(&mut sessions, websocket(path));
        assert!(written.starts_with("HTTP/1.1 101 "), "{written}");
        // The sizes of a connection, 32 bytes, and of a session, 16, are asserted where they are.
        assert_eq!(beside(&sessions, at), (has_session, false, false), "{path}");
    }
}
