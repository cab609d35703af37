//! The fake sockets of one worker, and its hand-offs.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;

use throng_core::WorkerId;
use throng_edge::connection::Token;
use throng_edge::net::{HandoffHeader, Net, Read, Transfer, WriteRequest};
use throng_edge::tls::Numbered;

use crate::notes::Notes;
use crate::pipe::{FakeSocket, Ready, SharedPipe};
use crate::random::Random;

/// A connection on its way: what is known about it, its socket, and the bytes already read.
pub(crate) type Handoff = (HandoffHeader, FakeSocket, Vec<u8>);

/// The fake network of one worker.
#[derive(Debug)]
pub struct FakeNet {
    notes: Rc<Notes>,
    watched: Vec<SharedPipe>,
    /// Hand-offs to the control plane.
    pub(crate) to_control: Vec<Handoff>,
    /// Hand-offs to other workers.
    pub(crate) to_workers: Vec<(WorkerId, Handoff)>,
    /// True if hand-offs are refused for now.
    pub(crate) refuses: bool,
    /// The number of bytes that sockets without TLS accepted.
    pub(crate) sent_bytes: u64,
}

impl FakeNet {
    /// A net without sockets.
    pub fn new(notes: &Rc<Notes>) -> FakeNet {
        FakeNet {
            notes: Rc::clone(notes),
            watched: Vec::new(),
            to_control: Vec::new(),
            to_workers: Vec::new(),
            refuses: false,
            sent_bytes: 0,
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        self.watched.iter().any(|pipe| pipe.borrow().has_edge())
    }

    /// At most `max_events` events, in random order.
    pub fn wait(&mut self, max_events: usize, random: &mut Random) -> Vec<Ready> {
        self.watched.retain(|pipe| !pipe.borrow().is_closed());
        let mut with_edge: Vec<_> =
            self.watched.iter().filter(|pipe| pipe.borrow().has_edge()).cloned().collect();
        let mut events = Vec::new();
        while events.len() < max_events && !with_edge.is_empty() {
            let pipe = with_edge.swap_remove(random.below(with_edge.len()));
            events.extend(pipe.borrow_mut().ready());
        }
        events
    }
}

impl Numbered for FakeSocket {
    fn number(&self) -> u32 {
        self.0.borrow().client as u32
    }
}

impl Net for FakeNet {
    type Socket = FakeSocket;

    fn read(&mut self, socket: &FakeSocket, buffer: &mut [u8]) -> Read {
        let read = socket.0.borrow_mut().read(buffer);
        match read {
            Read::Gone => self.notes.saw("read: reset"),
            Read::End => self.notes.saw("read: end"),
            _ => {}
        }
        read
    }

    fn write(&mut self, socket: &FakeSocket, slices: &[IoSlice<'_>]) -> Transfer {
        let transfer = socket.0.borrow_mut().write(slices);
        match transfer {
            Transfer::Bytes(count) => {
                if socket.0.borrow().tls.is_none() {
                    self.sent_bytes += count as u64;
                }
                if count < slices.iter().map(|slice| slice.len()).sum() {
                    self.notes.saw("write: short");
                }
                if slices.len() > 1 {
                    self.notes.saw("write: several messages at once");
                }
            }
            Transfer::Blocked => self.notes.saw("write: blocked"),
            Transfer::Gone => self.notes.saw("write: reset"),
            Transfer::Held(_) => unreachable!("nothing is below"),
        }
        transfer
    }

    fn write_each(
        &mut self,
        requests: &[WriteRequest<'_, FakeSocket>],
        transfers: &mut Vec<Transfer>,
    ) {
        self.notes.saw("write: to several at once");
        let is_shared = |pair: &[WriteRequest<'_, _>]| std::ptr::eq(pair[0].bytes, pair[1].bytes);
        let is_answer = |pair: &[WriteRequest<'_, _>]| pair[0].bytes.starts_with(b"HTTP/1.1 200");
        if requests.windows(2).any(|pair| is_shared(pair) && is_answer(pair)) {
            self.notes.saw("poll: one answer to several");
        }
        for request in requests {
            transfers.push(self.write(request.socket, &[IoSlice::new(request.bytes)]));
        }
    }

    fn watch(&mut self, socket: &FakeSocket, token: Token) -> bool {
        socket.0.borrow_mut().watch(token, false);
        self.remember(&socket.0);
        true
    }

    fn watch_writable(&mut self, socket: &FakeSocket, token: Token) -> bool {
        socket.0.borrow_mut().watch(token, true);
        self.remember(&socket.0);
        true
    }

    fn unacknowledged_bytes(&self, socket: &FakeSocket) -> usize {
        socket.0.borrow().waiting_bytes()
    }

    fn bound_unread(&mut self, _: &FakeSocket) {}

    fn keep_alive(&mut self, socket: &FakeSocket) {
        socket.0.borrow_mut().is_kept_alive = true;
    }

    fn resume(&mut self, socket: &FakeSocket) {
        socket.0.borrow().touch();
    }

    fn reset(&mut self, socket: &FakeSocket) {
        socket.0.borrow_mut().reset();
    }

    fn finish(&mut self, socket: &FakeSocket) {
        socket.0.borrow_mut().finish();
    }

    fn peer(&self, socket: &FakeSocket) -> Option<SocketAddr> {
        socket.0.borrow().peer()
    }

    fn to_control(
        &mut self,
        header: HandoffHeader,
        socket: FakeSocket,
        bytes: &[u8],
    ) -> Result<(), FakeSocket> {
        self.watched.retain(|pipe| !Rc::ptr_eq(pipe, &socket.0));
        socket.0.borrow_mut().unwatch();
        if self.refuses {
            self.notes.saw("to control: refused");
            socket.0.borrow_mut().handoff_failed = true;
            return Err(socket);
        }
        self.to_control.push((header, socket, bytes.to_vec()));
        Ok(())
    }

    fn to_worker(
        &mut self,
        worker: WorkerId,
        header: HandoffHeader,
        socket: FakeSocket,
        bytes: &[u8],
    ) -> Result<(), FakeSocket> {
        self.watched.retain(|pipe| !Rc::ptr_eq(pipe, &socket.0));
        socket.0.borrow_mut().unwatch();
        if self.refuses {
            self.notes.saw("to worker: refused");
            return Err(socket);
        }
        self.notes.saw(match bytes {
            [] => "to worker: moved",
            _ => "to worker: moved with its head",
        });
        self.to_workers.push((worker, (header, socket, bytes.to_vec())));
        Ok(())
    }
}

impl FakeNet {
    fn remember(&mut self, pipe: &SharedPipe) {
        if !self.watched.iter().any(|known| Rc::ptr_eq(known, pipe)) {
            self.watched.push(Rc::clone(pipe));
        }
    }
}
