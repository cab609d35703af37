//! Sessions alone: without the worker that connects them, with a policy that takes its time.

use std::sync::Mutex;

use throng_access::{Access, Action, Asker, Decision};
use throng_core::{Answer, Later, Ticket};

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
    let setup = setup(Arc::new(AccessControl::open(policy)));
    let sockets = Sockets::new(&setup, OneNet::taking(usize::MAX));
    let mut sessions = Sessions::new(&setup, Delivery::new(&setup, sockets));
    sessions.begin_slice();
    sessions
}

/// Takes in a connection that asks for a stream of a channel. Returns what it is written at once.
fn request(sessions: &mut Sessions<OneNet>, channel: &str) -> String {
    let head = format!("GET /channels/{channel} HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
