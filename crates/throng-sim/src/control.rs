//! A fake control plane: it answers each request for a page with `ok`, and hands connections that
//! subscribe back to the workers.

use throng_edge::net::Transfer;

use crate::notes::Notes;
use crate::pipe::FakeSocket;

/// The connections of the control plane.
#[derive(Debug, Default)]
pub(crate) struct Control {
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    socket: FakeSocket,
    bytes: Vec<u8>,
}

impl Control {
    /// Takes a connection from a worker, with the bytes already read.
    pub(crate) fn take(&mut self, socket: FakeSocket, bytes: Vec<u8>) {
        self.held.push(Held { socket, bytes });
    }

    /// Whether it has no connections.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Reads and answers requests. Returns the connections to hand back, with the bytes already
    /// read.
    pub(crate) fn turn(&mut self, notes: &Notes) -> Vec<(FakeSocket, Vec<u8>)> {
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
                back.push((held.socket, held.bytes));
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
                Transfer::Bytes(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Transfer::Blocked => return true,
                Transfer::End | Transfer::Gone => return false,
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
