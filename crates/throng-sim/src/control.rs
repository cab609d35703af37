//! A fake control plane: it answers each request for a page with `ok`, and hands connections that
//! subscribe back to the workers.

use std::sync::Arc;

use throng_access::{Clients, CountedAddress};
use throng_edge::net::Read;

use crate::net::Handoff;
use crate::notes::Notes;
use crate::pipe::FakeSocket;

/// The connections of the control plane.
#[derive(Debug)]
pub(crate) struct Control {
    clients: Arc<Clients>,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    /// The address of its client, which counts as long as the connection is open.
    client: Option<CountedAddress>,
    socket: FakeSocket,
    bytes: Vec<u8>,
}

impl Control {
    /// A control plane without connections.
    pub(crate) fn new(clients: Arc<Clients>) -> Control {
        Control { clients, held: Vec::new() }
    }

    /// Takes a connection from a worker.
    pub(crate) fn take(&mut self, (header, socket, bytes): Handoff) {
        let arrived = |address| CountedAddress::arrived(&self.clients, address);
        self.held.push(Held { client: header.address.map(arrived), socket, bytes });
    }

    /// Closes all connections.
    pub(crate) fn end(&mut self) {
        self.held.clear();
    }

    /// Whether it has no connections.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Reads and answers requests. Returns the connections to hand back, with their clients and the
    /// bytes already read.
    pub(crate) fn turn(
        &mut self,
        notes: &Notes,
    ) -> Vec<(Option<CountedAddress>, FakeSocket, Vec<u8>)> {
        let mut back = Vec::new();
        for mut held in std::mem::take(&mut self.held) {
            let is_open = held.read();
            while let Some(length) = held.head() {
                if held.subscribes() {
                    break;
                }
                held.bytes.drain(..length);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                held.socket.0.borrow_mut().write_anyway(answer);
            }
            if held.head().is_some() {
                notes.saw("control: handed back");
                back.push((held.client, held.socket, held.bytes));
            } else if is_open {
                self.held.push(held);
            }
        }
        back
    }
}

impl Held {
    /// Reads all available bytes. Returns whether more may follow.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 256];
        loop {
            match self.socket.0.borrow_mut().read(&mut buffer) {
                Read::Bytes(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Read::End | Read::Gone => return false,
                _ => return true,
            }
        }
    }

    /// The length of the head at the beginning, if it is complete.
    fn head(&self) -> Option<usize> {
        let end = self.bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        Some(end + 4)
    }

    fn subscribes(&self) -> bool {
        ["GET /channels/", "GET /users/", "GET /subscribe"]
            .iter()
            .any(|start| self.bytes.starts_with(start.as_bytes()))
    }
}
