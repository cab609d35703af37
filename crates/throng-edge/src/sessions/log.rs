//! Tells the operator of requests, in the log at the level `debug`, and the application of
//! connections that begin and end.

use std::net::IpAddr;
use std::sync::Arc;

use throng_access::{Credentials, RefusedClient};
use throng_core::events::Event;
use throng_core::{ChannelName, VolatilePublication};
use throng_tls::CertificateFlaw;
use throng_wire::ErrorResponse;
use throng_wire::log::request_line;
use throng_wire::subscribe::{Replay, Request, Transport};
use tracing::Level;

use super::Sessions;
use super::client::Client;
use crate::close_counters::label_of;
use crate::connection::ConnectionId;
use crate::net::Net;

impl<N: Net> Sessions<N> {
    /// Logs the request that `bytes` begin with, its status, and an error code or the transport.
    /// Costs one comparison unless the level is on.
    fn log_request(
        &self,
        id: ConnectionId,
        bytes: &[u8],
        request_id: Option<&str>,
        (status, outcome): (u16, &str),
    ) {
        if !tracing::enabled!(Level::DEBUG) {
            return;
        }
        let peer = self.peer(&self[id].socket);
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let request = request_id.map(tracing::field::display);
        tracing::debug!(%peer, request, "{} {status} {outcome}", request_line(bytes));
    }

    /// Logs a request that is refused.
    pub(crate) fn log_error(
        &self,
        id: ConnectionId,
        bytes: &[u8],
        request_id: Option<&str>,
        error: &ErrorResponse,
    ) {
        self.log_request(id, bytes, request_id, (error.code.status(), error.code.name()));
        self.tell_refused(id, bytes, error);
    }

    /// Tells the operator that a request or command of the connection was refused.
    pub(crate) fn tell_refusal(&self, id: ConnectionId, error: &ErrorResponse) {
        self.tell_refused(id, &[], error);
    }

    /// The same, of a request that `bytes` begin with.
    fn tell_refused(&self, id: ConnectionId, bytes: &[u8], error: &ErrorResponse) {
        let client =
            || RefusedClient { address: self.address_of(id), app: self.app_named_by(id, bytes) };
        self.access.refusals.note(error, client, self.clock().unix_ms());
    }

    /// The id of the application whose client a connection is, or would be by its request.
    fn app_named_by(&self, id: ConnectionId, bytes: &[u8]) -> Option<Box<str>> {
        let apps = self.access.apps.load();
        if apps.is_empty() {
            return None;
        }
        let of_connection = || {
            let is_of_apps = self[id].encoding().dialect().is_of_apps();
            is_of_apps.then(|| self.app_of(id)).flatten()
        };
        let line = request_line(bytes);
        let key = line.strip_prefix("GET /app/");
        let named = key.and_then(|key| apps.with_key(key)).map(|(app, _)| Arc::clone(app));
        Some(named.or_else(of_connection)?.app().id().into())
    }

    /// Tells the operator why the connection has no TLS.
    pub(crate) fn tell_flaw(&self, id: ConnectionId, flaw: CertificateFlaw) {
        let (address, now_ms) = (|| self.address_of(id), self.clock().unix_ms());
        self.access.refusals.note_handshake(flaw.sentence(), address, now_ms);
    }

    fn address_of(&self, id: ConnectionId) -> Option<IpAddr> {
        let peer = || self.peer(&self[id].socket).map(|peer| peer.ip());
        self.connections().address(id).or_else(peer)
    }

    /// Logs a request that subscribes. A long-poll is logged when it starts, not with its answer.
    pub(crate) fn log_subscription(&self, id: ConnectionId, request: &Request, bytes: &[u8]) {
        if self.connections().is_canary(id) {
            return;
        }
        let outcome = match request.transport {
            Transport::WebSocket { .. } => (101, "websocket"),
            Transport::Sse => (200, "sse"),
            Transport::Stream => (200, "stream"),
            Transport::LongPoll { .. } => (200, "poll"),
        };
        self.log_request(id, bytes, request.request_id.as_deref(), outcome);
    }

    /// A connection begins to stream. A viewer of the status page is the operator, and of a client
    /// that has to show who it is nothing is known before.
    pub(crate) fn notify_connected(&self, id: ConnectionId, request: &Request, client: &Client) {
        let transport = match request.transport {
            _ if request.is_status() || matches!(client, Client::Unidentified) => return,
            Transport::WebSocket { .. } => "websocket",
            Transport::Sse => "sse",
            Transport::Stream => "stream",
            Transport::LongPoll { .. } => return,
        };
        self.notify_client(id, client.credentials(), transport);
    }

    /// It is known whose a connection is.
    pub(crate) fn notify_client(
        &self,
        id: ConnectionId,
        credentials: Credentials<'_>,
        transport: &'static str,
    ) {
        let Some(events) = &self.events else { return };
        let connection = self.connections().name(id);
        let is_claimed = matches!(credentials, Credentials::Claimed { .. });
        let event =
            Event::Connected { connection, user: credentials.user(), is_claimed, transport };
        events.notify(self.clock().unix_ms(), event);
    }

    /// True if the application is told what the client of a connection publishes.
    pub(crate) fn tells_client_events(&self, id: ConnectionId) -> bool {
        self.events.is_some() && self[id].encoding().dialect().is_of_apps()
    }

    /// The client of a connection has published an event of its own.
    pub(crate) fn notify_client_event(&self, id: ConnectionId, event: &VolatilePublication) {
        let Some(events) = &self.events else { return };
        let event = Event::ClientEvent(self.connections().name(id), event);
        events.notify(self.clock().unix_ms(), event);
    }

    /// The client of a connection has begun to follow a channel that `has_messages`, or none with
    /// which it was to begin.
    pub(crate) fn notify_if_missed(
        &self,
        id: ConnectionId,
        channel: &ChannelName,
        replay: Option<Replay>,
        has_messages: bool,
    ) {
        let is_missed = matches!(replay, Some(Replay::Last(1..) | Replay::Newest)) && !has_messages;
        if let Some(events) = &self.events
            && is_missed
            && self.tells_client_events(id)
        {
            events.notify(self.clock().unix_ms(), Event::CacheMiss(channel));
        }
    }

    /// Streams have ended, or begun to close.
    pub(crate) fn tell_ended(&mut self) {
        while let Some((connection, reason)) = self.next_ended() {
            if let Some(events) = &self.events {
                let event = Event::Disconnected { connection, reason: label_of(reason) };
                events.notify(self.clock().unix_ms(), event);
            }
        }
    }
}
