//! Sockets that have no place in the table, and questions to the socket of a connection.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use throng_core::{FoundConnection, FoundTransport, clock};
use throng_dialect::CloseReason;
use throng_tls::CertifiedUser;

use super::Sockets;
use crate::connection::{Connection, ConnectionId, Flags, State, Token};
use crate::counters::{Counter, Parked};
use crate::net::{HandoffHeader, Leaving, Net, Read, Transfer};

impl<N: Net> Sockets<N> {
    /// A socket was accepted. `None` if it is closed: it has to begin with TLS, and cannot.
    pub(crate) fn open(
        &mut self,
        socket: N::Socket,
        is_tls: bool,
        awaits_proxy_header: bool,
    ) -> Option<N::Socket> {
        self.count(Counter::Accepted);
        self.net.opened(&socket);
        if is_tls && !self.net.begin_tls(&socket, awaits_proxy_header) {
            self.accept_failed();
            self.net.close(socket);
            return None;
        }
        Some(socket)
    }

    /// The listener could not accept a connection, which stays in the backlog.
    pub(crate) fn accept_failed(&mut self) {
        self.count(Counter::AcceptFailed);
    }

    /// A socket has come by a handoff, with `bytes` that begin with its state below. Returns the
    /// length of that; `None` if the socket can only be closed.
    pub(crate) fn arrived(
        &mut self,
        header: HandoffHeader,
        socket: &N::Socket,
        bytes: &mut [u8],
    ) -> Option<usize> {
        self.net.arrived(header, socket, bytes)
    }

    /// Frees the place that was kept for the handoff, if there is one.
    pub(crate) fn give_back_place(&self, header: HandoffHeader) {
        if header.has_place {
            self.metrics.give_back_place();
        }
    }

    /// Closes a socket that gets no place.
    pub(crate) fn turn_away(&mut self, socket: N::Socket) {
        self.net.close(socket);
    }

    /// True if a socket shakes hands, so that it can have no answer.
    pub(crate) fn refuse_handshake(&mut self, socket: &N::Socket) -> bool {
        self.net.refuse_handshake(socket)
    }

    /// Reads what has come on a socket without a place. Returns its length.
    pub(crate) fn read_unlisted(&mut self, socket: &N::Socket, buffer: &mut [u8]) -> usize {
        match self.net.read(socket, buffer) {
            Read::Bytes(count) | Read::More(count) => count,
            _ => 0,
        }
    }

    /// Answers on a socket without a place, which is closed then. `is_all` says that it has been
    /// read empty. Counts the end of its connection.
    pub(crate) fn answer_unlisted(&mut self, socket: &N::Socket, bytes: &[u8], is_all: bool) {
        let written = if is_all {
            self.net.write_last(socket, bytes)
        } else {
            self.net.write(socket, &[IoSlice::new(bytes)])
        };
        if let Transfer::Bytes(sent) = written {
            self.metrics.add(Counter::SentBytes, sent as u64);
        }
        self.count(Counter::Closed);
    }

    /// The address of the other end: a system call.
    pub(crate) fn peer(&self, socket: &N::Socket) -> Option<SocketAddr> {
        self.net.peer(socket)
    }

    /// The user of the certificate that the other end has shown.
    pub(crate) fn certified_user(&self, id: ConnectionId) -> Option<&CertifiedUser> {
        self.net.certified_user(&self.connections[id].socket)
    }

    /// Reads from a connection.
    pub(crate) fn read_into(&mut self, id: ConnectionId, buffer: &mut [u8]) -> Read {
        self.net.read(&self.connections[id].socket, buffer)
    }

    /// The worker is about to act on input that it read earlier.
    pub(crate) fn resume_reading(&mut self, id: ConnectionId) {
        self.net.resume(&self.connections[id].socket);
    }

    /// The next connection that has more to read below.
    pub(crate) fn next_ready(&mut self) -> Option<Token> {
        self.net.next_ready()
    }

    /// True if a connection has more to read below.
    pub(crate) fn has_ready(&self) -> bool {
        self.net.has_ready()
    }

    /// Lets the kernel find out whether the peer of a waiting long-poll is alive: nothing is
    /// written to it.
    pub(crate) fn keep_alive(&mut self, id: ConnectionId) {
        self.net.keep_alive(&self.connections[id].socket);
    }

    /// Bounds what the kernel holds of the connection's output and has not sent.
    pub(crate) fn bound_unsent(&mut self, id: ConnectionId) {
        self.net.bound_unsent(&self.connections[id].socket);
    }

    /// Bounds what the kernel holds of the connection's output.
    pub(crate) fn bound_unread(&mut self, id: ConnectionId) {
        self.net.bound_unread(&self.connections[id].socket);
    }

    /// Goes on behind a PROXY header of `length` bytes: with TLS, which takes all of them, or with
    /// a request. Returns how many bytes were handled.
    pub(crate) fn begin_behind_proxy_header(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        length: usize,
    ) -> usize {
        if !self.net.proxy_header_ended(&self.connections[id].socket, &bytes[length..]) {
            return length;
        }
        // No event comes for what was read already.
        self.defer_read(id);
        bytes.len()
    }

    /// Registers the connection for events; it ends if the kernel refuses.
    pub(crate) fn watch(&mut self, id: ConnectionId) {
        let connection = &self.connections[id];
        let token = connection.token(id);
        if !self.net.watch(&connection.socket, token) {
            self.condemn(id, CloseReason::SocketError);
        }
    }

    /// True if the connection has been neither handed off nor condemned in this turn.
    pub(crate) fn is_here(&self, id: ConnectionId) -> bool {
        self.connections.get(id).is_some_and(|connection| connection.state() != State::Condemned)
    }

    /// The connections that stream, from this place of the table on.
    pub(crate) fn streams(&self, from: u32) -> impl Iterator<Item = (Token, &N::Socket)> {
        let ids = (from..self.connections.extent()).map(ConnectionId::new);
        ids.filter_map(|id| {
            // Not every place of the table is taken.
            let connection = self.connections.get(id)?;
            let is_stream =
                connection.state() == State::Streaming && !connection.has(Flags::CANARY);
            is_stream.then(|| (connection.token(id), &connection.socket))
        })
    }

    /// Condemns a connection that cannot be written down: one that shakes hands, of which only
    /// rustls knows, or whose TLS has failed. Also one of the canary, whose other end is this
    /// process's.
    pub(crate) fn end_unfinished(&mut self, id: ConnectionId) {
        let connection = &self.connections[id];
        let is_canary = connection.has(Flags::CANARY);
        if is_canary || !self.net.may_leave(&connection.socket) {
            let is_new = connection.state() == State::Head || is_canary;
            let reason = if is_new { CloseReason::Complete } else { CloseReason::TlsFailed };
            self.condemn(id, reason);
        }
    }

    /// The state of a connection's socket below, for another process, if it has any.
    pub(crate) fn leave(&mut self, id: ConnectionId) -> Option<Vec<u8>> {
        match self.net.leave(&self.connections[id].socket) {
            Leaving::Plain => None,
            Leaving::Tls(state) => Some(state),
            Leaving::Unfinished => unreachable!("`end_unfinished` has ended it"),
        }
    }

    /// Asks for the events of a connection that another process has had.
    pub(crate) fn watch_again(&mut self, id: ConnectionId, is_watched: bool) {
        self.count_held(id);
        if !is_watched {
            self.watch(id);
        }
        let connection = &mut self.connections[id];
        if connection.state() == State::Condemned || !connection.has(Flags::BLOCKED) {
            return;
        }
        connection.flags.set(Flags::WATCHES_WRITABLE, true);
        let token = connection.token(id);
        let is_watched = self.net.watch_writable(&connection.socket, token);
        self.connections.fall_behind(id, self.clock.tick());
        if !is_watched {
            self.condemn(id, CloseReason::SocketError);
        }
    }

    /// The request of a long-poll is answered. The next one on the connection may be another
    /// client's, if a proxy sends it.
    pub(crate) fn forget_client(&mut self, id: ConnectionId) {
        let source = &self.connections.clients().source;
        if source.header().is_none() {
            return;
        }
        let peer = self.net.peer(&self.connections[id].socket);
        if peer.is_some_and(|peer| source.trusts(peer.ip())) {
            self.connections.set_address(id, None);
        }
    }

    /// True if the connection shakes hands, so that it can have no answer.
    pub(crate) fn refuse_handshake_of(&mut self, id: ConnectionId) -> bool {
        self.net.refuse_handshake(&self.connections[id].socket)
    }

    /// The entry of the connection in this place.
    pub(crate) fn describe(
        &self,
        id: ConnectionId,
        connection: &Connection<N::Socket>,
    ) -> FoundConnection {
        let transport = match connection.parked() {
            Some(Parked::WebSocket) => FoundTransport::WebSocket,
            Some(Parked::Sse | Parked::Status) => FoundTransport::Sse,
            Some(Parked::Poll) => FoundTransport::LongPoll,
            Some(Parked::Stream | Parked::Canary) | None => FoundTransport::Stream,
        };
        let since_ms = self.connections.accepted_ms(connection);
        let peer = self.net.peer(&connection.socket);
        // The address of a client without a proxy is kept, too, where limits count it.
        let is_named =
            |address: &IpAddr| peer.is_none_or(|peer| peer.ip().to_canonical() != *address);
        FoundConnection {
            name: self.connections.name_of(id, connection),
            transport,
            since_ms: since_ms.map(clock::wall_ms),
            peer,
            proxied: self.connections.address(id).filter(is_named),
            lag: None,
        }
    }
}
