//! Asks the application who a client is that shows no credential, and whether one with a token is
//! let in; and tells those who decide what its request shows besides.

use std::sync::Arc;

use throng_access::{
    Connect, ConnectVerdict, Details, Identity, Newcomer, PassedHeaders, ShownToken,
};
use throng_core::{Answer, LateAnswer, Later};
use throng_wire::credential::{check_cookie, check_scheme};
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::subscribe::{Request, Transport};
use throng_wire::{ErrorCode, ErrorResponse};

use super::ask::{Wait, ticket};
use super::certified::cookie_request;
use super::client::Client;
use super::identify::Unidentified;
use crate::connection::{ConnectionId, Stage};
use crate::net::Net;
use crate::worker::Worker;

impl<N: Net> Worker<N> {
    /// The identity of a client without a credential. `told` is the application's answer, if it was
    /// asked before.
    pub(super) fn identify_elsewhere(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
        told: Option<Arc<Identity>>,
    ) -> Result<Client, Unidentified> {
        let Some(connect) = self.access.connect.clone() else {
            check_scheme(head.headers("authorization"))?;
            return Ok(Client::Anonymous);
        };
        if let Some(identity) = told {
            connect.recheck(&identity, self.clock.wall_s())?;
            return Ok(Client::Token(identity));
        }
        let passed = self.access.passed.pick(|name| headers(head, name))?;
        // Browsers let foreign pages connect with their cookies, to a WebSocket as well.
        if connect.passes_ambient(&passed) {
            self.check_cookie(request, head)?;
        }
        let address = self.client_address(id);
        let details = Details {
            address: address.filter(|_| self.access.passed.address),
            headers: Some(&passed),
        };
        let newcomer = Newcomer { transport: transport(request), details, token: None };
        // Ahead of the limit: strangers at the same address lock out nobody who was let in.
        if let Some(identity) = connect.known(newcomer) {
            return Ok(Client::Token(identity));
        }
        // A stranger who was refused too often must not make the application work any more.
        let now_ms = self.clock.unix_ms();
        let limiter = &self.access.clients.limiter;
        limiter.may_verify(address, now_ms).map_err(Unidentified::Limited)?;
        self.ask_application(id, &*connect, newcomer).map(Client::Token)
    }

    /// A client with a verified token, as far as the application lets it in, if it decides that
    /// too. `told` is what it has said, if it was asked before.
    pub(super) fn confirm(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
        token: ShownToken<'_>,
        told: Option<Arc<Identity>>,
    ) -> Result<Client, Unidentified> {
        let client = Client::Token(Arc::clone(token.identity));
        let connect = self.access.connect.clone().filter(|connect| connect.decides_tokens());
        let Some(connect) = connect else { return Ok(client) };
        if let Some(identity) = told {
            connect.recheck(&identity, self.clock.wall_s())?;
            return Ok(Client::Token(identity));
        }
        // Limits come first. It is not admitted again once the application has answered.
        self.admit_client(&client, request).map_err(Unidentified::Limited)?;
        let mut passed = self.access.passed.pick(|name| headers(head, name))?;
        // The token says who it is. What a foreign page made the browser send besides does not.
        passed.keep_ambient_if(|| self.check_cookie(request, head).is_ok());
        let details = self.details(id, Some(&passed));
        let newcomer = Newcomer { transport: transport(request), details, token: Some(token) };
        self.ask_application(id, &*connect, newcomer).map(Client::Token)
    }

    /// The identity by a token that a connection shows later in its life, as far as the
    /// application agrees, if it decides that too; `told` as in [`Worker::confirm`].
    pub(super) fn confirm_newer(
        &mut self,
        id: ConnectionId,
        token: ShownToken<'_>,
        told: Option<Arc<Identity>>,
    ) -> Result<Arc<Identity>, Unidentified> {
        let connect = self.access.connect.clone().filter(|connect| connect.decides_tokens());
        let Some(connect) = connect else { return Ok(Arc::clone(token.identity)) };
        if let Some(identity) = told {
            connect.recheck(&identity, self.clock.wall_s())?;
            return Ok(identity);
        }
        let (transport, details) = ("websocket", self.details(id, None));
        self.ask_application(id, &*connect, Newcomer { transport, details, token: Some(token) })
    }

    fn ask_application(
        &mut self,
        id: ConnectionId,
        connect: &dyn Connect,
        newcomer: Newcomer<'_>,
    ) -> Result<Arc<Identity>, Unidentified> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics.worker());
        let mut issue = || {
            ticket(engine, worker, question, |verdict: ConnectVerdict| {
                LateAnswer::Client(verdict.map(|identity| identity as _))
            })
        };
        match connect.who(newcomer, Later::new(&mut issue)) {
            Answer::Now(Ok(identity)) => Ok(identity),
            Answer::Now(Err(error)) => {
                self.charge_denial(id, &error);
                Err(error.into())
            }
            Answer::Later(_) => Err(Unidentified::Later(Wait::new(question, Stage::Client))),
        }
    }

    /// Fails if what a browser sends by itself does not count for this request.
    pub(super) fn check_cookie(
        &self,
        request: &Request,
        head: &Head<'_>,
    ) -> Result<(), ErrorResponse> {
        let pages = self.settings.pages.load();
        check_cookie(&self.settings.origin_policy(&pages), cookie_request(request, head))
    }

    /// The application does not let a client in, which counts as a bad token of its address: beyond
    /// a rate of them, the application is not asked any more.
    pub(super) fn charge_denial(&self, id: ConnectionId, error: &ErrorResponse) {
        if error.code == ErrorCode::Unauthorized {
            let (address, now_ms) = (self.client_address(id), self.clock.unix_ms());
            self.access.clients.limiter.charge_bad_token(address, now_ms);
        }
    }

    /// The headers of a request that an access policy gets; `None` if it gets none. `bytes` begin
    /// with the head.
    pub(super) fn passed(
        &self,
        request: &Request,
        bytes: &[u8],
    ) -> Result<Option<PassedHeaders>, ErrorResponse> {
        if self.access.passed.headers.is_empty() {
            return Ok(None);
        }
        let limits = Limits { max_head_bytes: self.settings.max_head_bytes };
        let Ok(Parsed::Complete { head, .. }) = head::parse(bytes, limits) else {
            debug_assert!(false, "the head of a request was parsed before");
            return Err(ErrorCode::BadRequest.into());
        };
        let mut passed = self.access.passed.pick(|name| headers(&head, name))?;
        passed.keep_ambient_if(|| self.check_cookie(request, &head).is_ok());
        Ok(Some(passed))
    }

    /// Details of the connection's client for an access policy, besides its credentials.
    pub(super) fn details<'a>(
        &self,
        id: ConnectionId,
        headers: Option<&'a PassedHeaders>,
    ) -> Details<'a> {
        let address = if self.access.passed.address { self.client_address(id) } else { None };
        Details { address, headers }
    }

    /// The address of the connection's client, kept or asked for.
    fn client_address(&self, id: ConnectionId) -> Option<std::net::IpAddr> {
        let kept = self.connections.address(id);
        kept.or_else(|| {
            let peer = self.net.peer(&self.connections[id].socket)?;
            self.access.clients.source.of_connection(peer.ip())
        })
    }
}

/// The values of a header. They are few, and the names do not live as long as the head.
fn headers<'h>(head: &Head<'h>, name: &str) -> std::vec::IntoIter<&'h [u8]> {
    head.headers(name).collect::<Vec<_>>().into_iter()
}

fn transport(request: &Request) -> &'static str {
    match request.transport {
        Transport::WebSocket { .. } => "websocket",
        Transport::Sse => "sse",
        Transport::Stream => "stream",
        Transport::LongPoll { .. } => "long-poll",
    }
}
