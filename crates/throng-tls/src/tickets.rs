//! One session ticket for a client that resumes.
//!
//! rustls keeps tickets by the name of the server, and one configuration serves all connections.
//! Here each client has its own ticket, so that a run resumes as many different sessions as there
//! are clients. The ticket is in a variable of the thread while rustls runs, as in `secrets`;
//! nothing else ever reads it.

use std::cell::RefCell;

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Lets a client resume a session, once. It has a secret, and its size is the server's choice: some
/// hundred bytes to a few kilobytes.
pub struct SessionTicket(Box<Session>);

enum Session {
    Tls12(Tls12ClientSessionValue),
    Tls13(Tls13ClientSessionValue),
}

impl std::fmt::Debug for SessionTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

#[derive(Debug, Default)]
pub(crate) struct HandshakeTickets {
    /// The one to show.
    shown: Option<SessionTicket>,
    /// The last one that came.
    received: Option<SessionTicket>,
}

impl HandshakeTickets {
    pub(crate) fn showing(ticket: Option<SessionTicket>) -> Self {
        Self { shown: ticket, received: None }
    }

    pub(crate) fn has_received(&self) -> bool {
        self.received.is_some()
    }

    pub(crate) fn into_received(self) -> Option<SessionTicket> {
        self.received
    }

    /// Calls into rustls, which finds these tickets and adds to them.
    pub(crate) fn lend<R>(&mut self, call: impl FnOnce() -> R) -> R {
        CURRENT.set(std::mem::take(self));
        let result = call();
        *self = CURRENT.take();
        result
    }
}

thread_local! {
    static CURRENT: RefCell<HandshakeTickets> = RefCell::default();
}

/// The store of configurations that resume.
#[derive(Debug)]
pub(crate) struct CurrentTicket;

fn receive(session: Session) {
    let ticket = SessionTicket(Box::new(session));
    CURRENT.with_borrow_mut(|current| current.received = Some(ticket));
}

impl ClientSessionStore for CurrentTicket {
    // The first group that is offered is X25519, which every server has.
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, value: Tls12ClientSessionValue) {
        receive(Session::Tls12(value));
    }

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        CURRENT.with_borrow(|current| match &current.shown.as_ref()?.0.as_ref() {
            Session::Tls12(value) => Some(value.clone()),
            Session::Tls13(_) => None,
        })
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {
        CURRENT.with_borrow_mut(|current| {
            current.shown.take_if(|ticket| matches!(*ticket.0, Session::Tls12(_)));
        });
    }

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, value: Tls13ClientSessionValue) {
        receive(Session::Tls13(value));
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        CURRENT.with_borrow_mut(|current| {
            let ticket = current.shown.take_if(|ticket| matches!(*ticket.0, Session::Tls13(_)))?;
            match *ticket.0 {
                Session::Tls13(value) => Some(value),
                Session::Tls12(_) => None,
            }
        })
    }
}
