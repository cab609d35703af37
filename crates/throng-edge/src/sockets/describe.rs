//! The entry of a connection in a list.

use std::net::IpAddr;

use throng_core::{FoundConnection, FoundTransport, clock};

use crate::connection::{Connection, ConnectionId};
use crate::counters::Parked;
use crate::net::Net;
use crate::sockets::Sockets;

impl<N: Net> Sockets<N> {
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
