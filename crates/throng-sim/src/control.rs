//! A fake control plane: it answers each request for a page with `ok`, and hands connections that
//! subscribe back to the workers.

use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use throng_access::{Clients, CountedAddress};
use throng_edge::Counters;
use throng_edge::net::{Leaving, Net as _, Read, Transfer};
use throng_edge::tls::TlsNet;
use throng_tls::{Acceptor, RECORD_BYTES_MAX};

use crate::net::{FakeNet, Handoff};
use crate::notes::Notes;
use crate::pipe::FakeSocket;

/// The connections of the control plane.
#[derive(Debug)]
pub(crate) struct Control {
    clients: Arc<Clients>,
    /// Its end of the TLS connections.
    net: TlsNet<FakeNet>,
    held: Vec<Held>,
    /// The number of bytes that were written over TLS.
    pub(crate) tls_bytes: u64,
}

/// A connection for a worker.
pub(crate) type HandBack = (Option<CountedAddress>, bool, FakeSocket, Vec<u8>);

#[derive(Debug)]
struct Held {
    /// The address of its client, which counts as long as the connection is open.
    client: Option<CountedAddress>,
    socket: FakeSocket,
    bytes: Vec<u8>,
}

impl Control {
    /// A control plane without connections.
    pub(crate) fn new(
        clients: Arc<Clients>,
        notes: &Rc<Notes>,
        acceptor: Option<Acceptor>,
    ) -> Control {
        let net = TlsNet::new(FakeNet::new(notes), acceptor, Arc::<Counters>::default(), u32::MAX);
        Control { clients, net, held: Vec::new(), tls_bytes: 0 }
    }

    /// Takes a connection from a worker.
    pub(crate) fn take(&mut self, (header, socket, mut bytes): Handoff) {
        let arrived = |address| CountedAddress::arrived(&self.clients, address);
        let state_bytes = self.net.arrived(header, &socket, &mut bytes);
        bytes.drain(..state_bytes.expect("a worker has written the state"));
        self.held.push(Held { client: header.address.map(arrived), socket, bytes });
    }

    /// Closes the connections, which are between two requests: over TLS with its end, like the real
    /// control plane.
    pub(crate) fn end(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.net.close(held.socket);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Reads and answers requests. Returns the connections to hand back: with their clients,
    /// whether they have TLS, and the bytes already read, behind the state of TLS.
    pub(crate) fn turn(&mut self, notes: &Notes) -> Vec<HandBack> {
        let mut back = Vec::new();
        for mut held in std::mem::take(&mut self.held) {
            let is_open = held.read(&mut self.net);
            while let Some(length) = held.head() {
                if held.subscribes() {
                    break;
                }
                held.bytes.drain(..length);
                self.tls_bytes += held.answer(&mut self.net);
            }
            if held.head().is_some() {
                notes.saw("control: handed back");
                back.extend(held.leave(&mut self.net));
            } else if is_open {
                self.held.push(held);
            } else {
                self.net.close(held.socket);
            }
        }
        back
    }
}

impl Held {
    /// Reads all available bytes. Returns whether more may follow.
    fn read(&mut self, net: &mut TlsNet<FakeNet>) -> bool {
        let mut buffer = vec![0; RECORD_BYTES_MAX];
        loop {
            match net.read(&self.socket, &mut buffer) {
                Read::Bytes(count) | Read::More(count) => {
                    self.bytes.extend_from_slice(&buffer[..count])
                }
                Read::End | Read::Gone | Read::Failed(_) => return false,
                // Some sockets give little at a time.
                _ if self.socket.0.borrow().has_unread() => {}
                _ => return true,
            }
        }
    }

    /// Answers with a page. Returns the number of bytes, if they are written over TLS.
    fn answer(&self, net: &mut TlsNet<FakeNet>) -> u64 {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let pipe = &self.socket.0;
        if pipe.borrow().tls.is_none() {
            pipe.borrow_mut().write_anyway(answer);
            return 0;
        }
        let capacity = pipe.borrow_mut().set_capacity(usize::MAX);
        let written = net.write(&self.socket, &[IoSlice::new(answer)]);
        pipe.borrow_mut().set_capacity(capacity);
        if let Transfer::Bytes(count) = written { count as u64 } else { 0 }
    }

    /// The connection with all that belongs to it; `None` if it can only be closed.
    fn leave(self, net: &mut TlsNet<FakeNet>) -> Option<HandBack> {
        let Held { client, socket, bytes } = self;
        match net.leave(&socket) {
            Leaving::Plain => Some((client, false, socket, bytes)),
            Leaving::Tls(mut state) => {
                state.extend_from_slice(&bytes);
                Some((client, true, socket, state))
            }
            Leaving::Unfinished => {
                net.close(socket);
                None
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
