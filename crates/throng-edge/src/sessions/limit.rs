//! Finds out whose a connection is, and keeps clients to their limits.
//!
//! A client's address is known when its connection is accepted, or when the PROXY header is read,
//! or, behind a proxy that speaks HTTP, with each request. An address beyond a limit is refused
//! there and then: without a place in the table, where the connection itself shows it.

use throng_access::address::{ProxyHeader, parse_proxy_header};
use throng_access::limit::{ClientKeys, Refusal};
use throng_access::{CountedAddress, RefusedClient};
use throng_core::ChannelName;
use throng_dialect::CloseReason;
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::subscribe::{Request, Route};
use throng_wire::{ErrorCode, ErrorResponse, RetryAfter};

use super::client::Client;
use super::error_response::Reader;
use super::shown::continues;
use crate::connection::{ConnectionId, Flags};
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;
use crate::sockets::Arrival;

impl<N: Net> Sessions<N> {
    /// Facts about the client of a new connection. `None` if it is refused, and `socket` can be
    /// closed.
    pub(crate) fn arrival(&mut self, socket: &N::Socket) -> Option<Arrival> {
        let clients = &self.access.clients;
        if !clients.keeps_addresses() {
            return Some(Arrival::default());
        }
        let source = &clients.source;
        // The peer has gone since the accept: a socket that was reset has none (ENOTCONN).
        let Some(peer) = self.peer(socket) else {
            self.count(Counter::ClosedByPeer);
            self.count(Counter::Closed);
            return None;
        };
        if source.expects_proxy_header() {
            // The protocol forbids guessing whether a header is there; a stranger's may be forged.
            if !source.trusts(peer.ip()) {
                self.count(Counter::RefusedProxy);
                self.count(Counter::Closed);
                return None;
            }
            return Some(Arrival { counted: None, awaits_proxy_header: true });
        }
        // Without limits, the address of a connection that shows it can be looked up at any time.
        let address = source.of_connection(peer.ip());
        let address = address.filter(|_| clients.limiter.limits_addresses());
        let Some(address) = address else { return Some(Arrival::default()) };
        match CountedAddress::connect(clients, address, self.clock().unix_ms()) {
            Ok(client) => Some(Arrival { counted: Some(client), awaits_proxy_header: false }),
            Err(refusal) => {
                self.refuse_unread(socket, refusal);
                None
            }
        }
    }

    /// Refuses a connection that is not in the table. Its request, if it is there, is read to
    /// answer in the form that the client understands, and because closing a socket with unread
    /// input resets the connection.
    fn refuse_unread(&mut self, socket: &N::Socket, refusal: Refusal) {
        let client = || {
            let address = self.peer(socket).map(|peer| peer.ip());
            RefusedClient { address, ..RefusedClient::default() }
        };
        self.access.refusals.note(&refusal.into(), client, self.clock().unix_ms());
        if self.refuse_handshake(socket) {
            self.count(Counter::RefusedLimit);
            return self.count(Counter::Closed);
        }
        let mut input = self.buffers().take_input();
        let read = self.read_unlisted(socket, &mut input);
        // More input would reset the connection, and an answer that waits for the end with it.
        let is_all = read < input.len();
        let mut out = Vec::new();
        self.count(Counter::RefusedLimit);
        let (reader, request) = self.read_request(&input[..read]);
        self.write_refusal(refusal, request.as_deref(), &reader, &mut out);
        self.buffers().return_input(input);
        self.answer_unlisted(socket, &out, is_all);
    }

    /// The reader of an answer to the request that `bytes` begin with, and that request if it
    /// subscribes.
    fn read_request(&self, bytes: &[u8]) -> (Reader, Option<Box<Request>>) {
        let limits = Limits { max_head_bytes: self.settings.max_head_bytes };
        let Ok(Parsed::Complete { head, .. }) = head::parse(bytes, limits) else {
            return (Reader::default(), None);
        };
        let request = match throng_dialect::route(&head) {
            Ok(Route::Subscribe(request)) => Some(request),
            Ok(Route::Other) | Err(_) => None,
        };
        (self.reader_of(&head), request)
    }

    /// Appends the answer to a client beyond a limit.
    fn write_refusal(
        &self,
        refusal: Refusal,
        request: Option<&Request>,
        reader: &Reader,
        out: &mut Vec<u8>,
    ) {
        let error = ErrorResponse::from(refusal);
        let mut options = self.response_options(error.code, reader.origin.as_deref());
        options.request_id = reader.request_id.as_deref();
        options.retry_after = self.retry_of(refusal);
        throng_dialect::refuse(&error, request, &options, out);
    }

    /// When a client beyond a limit may come back.
    fn retry_of(&self, refusal: Refusal) -> Option<RetryAfter> {
        let default = self.retry_after(ErrorCode::TooManyRequests)?;
        Some(RetryAfter::from_ms(refusal.retry_ms(default.ms())))
    }

    /// Refuses the client of a connection for a limit. `bytes` begin with its request, if that has
    /// come, which `subscribes`, or not. Clients go on trying, so one whose request `is_alone` is
    /// closed without lingering, if it can be.
    pub(crate) fn refuse_limited(
        &mut self,
        id: ConnectionId,
        refusal: Refusal,
        subscribes: Option<&Request>,
        reader: &Reader,
        bytes: &[u8],
        is_alone: bool,
    ) {
        self.count(Counter::RefusedLimit);
        self.log_error(id, bytes, reader.request_id.as_deref(), &refusal.into());
        let mut out = self.buffers().take_output();
        self.write_refusal(refusal, subscribes, reader, &mut out);
        if is_alone {
            self.close_at_once_after(id, &out);
        } else {
            self.close_after(id, &out, CloseReason::Complete);
        }
        self.buffers().return_output(out);
    }

    /// Closes a WebSocket whose client is beyond a limit.
    pub(crate) fn close_limited(&mut self, id: ConnectionId, refusal: Refusal) {
        self.tell_refusal(id, &refusal.into());
        let mut message = refusal.to_string();
        if let Some(retry_after) = self.retry_of(refusal) {
            message += &format!("; {}", retry_after.close_reason());
        }
        self.refuse_input(id, CloseReason::Limited, &message);
    }

    /// Reads the PROXY header that the connection begins with. Returns its length; 0 if it is
    /// incomplete; all of `bytes` if the connection is closed.
    pub(crate) fn proxy_header(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        let (proxied, length) = match parse_proxy_header(bytes) {
            Ok(ProxyHeader::Incomplete) => return 0,
            Ok(ProxyHeader::Complete { proxied, length }) => (proxied, length),
            Err(_) => {
                // Without an answer, which would tell a stranger what this listener expects.
                self.condemn(id, CloseReason::ProxyHeader);
                return bytes.len();
            }
        };
        self[id].flags.set(Flags::AWAITS_PROXY_HEADER, false);
        let clients = &self.access.clients;
        let Some(address) = clients.source.of_proxied(proxied) else {
            return self.begin_behind_proxy_header(id, bytes, length);
        };
        // Only now: until its header has come, the connection was the proxy's.
        match CountedAddress::connect(clients, address, self.clock().unix_ms()) {
            Ok(client) => {
                self.connections_mut().set_address(id, Some(client));
                self.begin_behind_proxy_header(id, bytes, length)
            }
            Err(refusal) => {
                if self.refuse_handshake_of(id) {
                    self.count(Counter::RefusedLimit);
                    self.close_after(id, b"", CloseReason::Complete);
                } else {
                    let bytes = &bytes[length..];
                    let (reader, request) = self.read_request(bytes);
                    self.refuse_limited(id, refusal, request.as_deref(), &reader, bytes, false);
                }
                bytes.len()
            }
        }
    }

    /// Finds the client of a request that subscribes, where a proxy names it in a header. Returns
    /// whether the request goes on; if not, it is refused.
    pub(crate) fn find_proxied_client(
        &mut self,
        id: ConnectionId,
        head: &Head<'_>,
        request: &Request,
        bytes: &[u8],
    ) -> bool {
        let clients = &self.access.clients;
        let Some(header) = clients.source.header() else { return true };
        let peer = self.peer(&self[id].socket).map(|peer| peer.ip());
        let Some(peer) = peer.filter(|peer| clients.source.trusts(*peer)) else { return true };
        let values: Vec<_> = head.headers(header.name()).collect();
        let address = match clients.source.of_request(peer, values.into_iter()) {
            Ok(address) => address,
            Err(error) => {
                let error = ErrorResponse::new(ErrorCode::BadRequest, error.to_string());
                self.count(Counter::RefusedSubscribe);
                let request_id = request.request_id.clone();
                self.refuse(id, &error, &Reader { request_id, ..Reader::default() });
                return false;
            }
        };
        // The request before, on the same connection of the proxy, may have been another client's.
        self.connections_mut().set_address(id, None);
        let Some(address) = address else { return true };
        // A poll that goes on is no new connection of the client.
        let is_new = !continues(request);
        let counted = if is_new {
            CountedAddress::connect(&self.access.clients, address, self.clock().unix_ms())
        } else {
            CountedAddress::hold(&self.access.clients, address)
        };
        match counted {
            Ok(client) => {
                self.connections_mut().set_address(id, Some(client));
                true
            }
            Err(refusal) => {
                let reader = self.reader_of(head);
                self.refuse_limited(id, refusal, Some(request), &reader, bytes, false);
                false
            }
        }
    }

    /// Counts a message that the client of the connection publishes.
    pub(crate) fn limit_publication(&self, id: ConnectionId, bytes: usize) -> Result<(), Refusal> {
        let limiter = &self.access.clients.limiter;
        let client = self.connections().limited_client(id);
        limiter.publish(client, 1, bytes, self.clock().unix_ms())
    }

    /// Counts something that the client of the connection reads.
    pub(crate) fn limit_reading(&self, id: ConnectionId) -> Result<(), Refusal> {
        let client = self.connections().limited_client(id);
        self.access.clients.limiter.begin_reading(client, self.clock().unix_ms())
    }

    /// Charges what the client of the connection reads.
    pub(crate) fn charge_read(&self, id: ConnectionId, bytes: usize) {
        let client = self.connections().limited_client(id);
        self.access.clients.limiter.charge_read(client, bytes, self.clock().unix_ms());
    }

    /// The parts of a client that have limits by what it has shown.
    pub(crate) fn limited_by(&self, client: &Client) -> ClientKeys {
        match client {
            Client::Known(client) => self.access.limited_by(client),
            _ => ClientKeys::default(),
        }
    }

    /// Counts a connection of the client that is about to begin, and its subscriptions. The one
    /// ends with its session, the others with themselves.
    pub(crate) fn hold_subscriber(
        &self,
        id: ConnectionId,
        client: &Client,
        count: usize,
    ) -> Result<(), Refusal> {
        let (limiter, shown) = (&self.access.clients.limiter, self.limited_by(client));
        debug_assert!(self.connections().session(id).is_none(), "it has no session yet");
        limiter.hold_connection(shown)?;
        let subscribed =
            limiter.subscribe(self.connections().limited_client(id).and(shown), count as u32);
        subscribed.inspect_err(|_| limiter.disconnect(shown))
    }

    /// Takes back what [`Sessions::hold_subscriber`] has counted, for one that does not begin.
    pub(crate) fn release_subscriber(&self, id: ConnectionId, client: &Client, count: usize) {
        let (limiter, shown) = (&self.access.clients.limiter, self.limited_by(client));
        limiter.unsubscribe(self.connections().limited_client(id).and(shown), count as u32);
        limiter.disconnect(shown);
    }

    /// How many channels the connection may follow: as many as the settings allow, or more if its
    /// token grants it.
    pub(crate) fn max_channels(&self, id: ConnectionId) -> usize {
        let session = self.connections().session(id);
        let grants = session.map(|session| self.connections().side().grants_of(session));
        let granted = grants.map_or(0, |grants| grants.max_channels());
        self.settings.max_channels_per_connection.max(granted)
    }

    /// Fails if the application of some channels may not have one more.
    pub(super) fn check_channel_limits(&self, names: &[ChannelName]) -> Result<(), ErrorResponse> {
        self.engine.memory().check_channel_limits(names).map_err(|max| {
            let message = format!("this application has {max} channels, and may not have more");
            ErrorResponse::new(ErrorCode::TooManyRequests, message)
        })
    }

    /// Counts subscriptions that the client of the connection is about to begin.
    pub(crate) fn limit_subscriptions(
        &self,
        id: ConnectionId,
        count: usize,
    ) -> Result<(), Refusal> {
        self.access.clients.limiter.subscribe(self.connections().limited_client(id), count as u32)
    }
}
