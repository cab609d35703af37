//! A client of TLS, and the socket between it and the worker.
//!
//! The client opens what the worker writes as soon as it is written: a record that was sealed with
//! a number that was used before, or that is not the one that follows, does not open.

use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;

use throng_edge::connection::Token;
use throng_edge::net::{HandoffHeader, Net, Read, Transfer};
use throng_edge::tls::Numbered;
use throng_tls::{Connector, End, Established, Handshake, Incoming, Outgoing, testing};

/// How far the client's side is.
enum Side {
    Shaking(Box<Handshake>),
    Done(Outgoing, Incoming),
}

pub(super) struct Pipe {
    number: u32,
    side: Option<Side>,
    to_worker: Vec<u8>,
    /// Bytes that the client sends once the handshake is done.
    unsent: Vec<u8>,
    /// Records that have come and are not opened.
    records: Vec<u8>,
    /// Opened bytes that are not acted upon.
    pub(super) content: Vec<u8>,
    /// How many more bytes the socket takes.
    room: usize,
    token: Option<Token>,
    watches_writable: bool,
    /// True if an event is due.
    pub(super) has_edge: bool,
    /// True if the client sends no more.
    pub(super) has_left: bool,
    is_gone: bool,
    /// True if the worker has told that it sends no more.
    pub(super) is_told_end: bool,
    is_finished: bool,
    pub(super) is_closed: bool,
    /// True if what the client has not read is given up.
    pub(super) is_reset: bool,
    /// The most bytes that the worker reads at once.
    read_bytes_max: usize,
    /// True if the client waits before it acts on what it reads.
    is_slow: bool,
}

pub(super) type SharedPipe = Rc<RefCell<Pipe>>;

impl Pipe {
    /// A client that begins its handshake, and sends `content` behind it.
    pub(super) fn new(
        number: u32,
        connector: &Connector,
        content: &[u8],
        read_bytes_max: usize,
    ) -> Pipe {
        let mut handshake = testing::client(connector);
        let mut to_worker = Vec::new();
        handshake.advance(&[], &mut to_worker).expect("a client speaks first");
        Pipe {
            number,
            side: Some(Side::Shaking(Box::new(handshake))),
            to_worker,
            unsent: content.to_vec(),
            records: Vec::new(),
            content: Vec::new(),
            room: usize::MAX,
            token: None,
            watches_writable: false,
            has_edge: false,
            has_left: false,
            is_gone: false,
            is_told_end: false,
            is_finished: false,
            is_closed: false,
            is_reset: false,
            read_bytes_max,
            is_slow: false,
        }
    }

    pub(super) fn is_shaking(&self) -> bool {
        matches!(self.side, Some(Side::Shaking(_)))
    }

    pub(super) fn send(&mut self, content: &[u8]) {
        self.unsent.extend_from_slice(content);
        self.seal();
    }

    /// The client updates its key, and asks the worker to do so, too.
    pub(super) fn update_keys(&mut self, asks: bool) {
        if let Some(Side::Done(outgoing, incoming)) = &mut self.side
            && outgoing.suite().is_tls13()
        {
            if asks {
                testing::ask_for_key_update(outgoing, incoming, &mut self.to_worker);
            } else {
                incoming.seal_key_update(outgoing, &mut self.to_worker).expect("nothing is open");
            }
            self.has_edge = true;
        }
    }

    fn seal(&mut self) {
        let Some(Side::Done(outgoing, incoming)) = &mut self.side else { return };
        while !self.unsent.is_empty() {
            if outgoing.check().is_err() {
                let updated = incoming.seal_key_update(outgoing, &mut self.to_worker);
                updated.expect("only a key update is due");
            }
            let sealed = outgoing.seal([&self.unsent[..]], &mut self.to_worker);
            let sealed = sealed.expect("nothing is open");
            self.unsent.drain(..sealed.content_bytes());
            outgoing.keep(sealed);
        }
        self.has_edge = true;
    }

    /// The client reads, so that the socket takes more.
    pub(super) fn grant(&mut self, room: usize) {
        self.has_edge |= self.room == 0;
        self.room = room;
    }

    /// The client leaves: in order, cut off, or gone at once.
    pub(super) fn leave(&mut self, how: usize) {
        if how == 0
            && let Some(Side::Done(outgoing, _)) = &mut self.side
        {
            let alert = throng_tls::Alert::CloseNotify;
            outgoing.seal_alert(alert, &mut self.to_worker).expect("nothing is open");
        }
        self.is_gone = how == 2;
        self.has_left = true;
        self.has_edge = true;
    }

    /// The event that is due, for the worker: its token, whether the peer has ended, and whether
    /// the socket takes more.
    pub(super) fn event(&mut self) -> Option<(Token, bool, bool)> {
        let token = self.token.filter(|_| self.has_edge)?;
        self.has_edge = false;
        Some((token, self.has_left, self.watches_writable && self.room > 0))
    }

    /// From now on the client waits before it acts on what it reads. What it sends comes at once.
    pub(super) fn wait(&mut self) {
        self.is_slow = true;
        self.read_bytes_max = usize::MAX;
    }

    /// The client acts on what it has read.
    pub(super) fn go_on(&mut self) {
        self.is_slow = false;
        self.take(&[]);
    }

    fn take(&mut self, bytes: &[u8]) {
        self.records.extend_from_slice(bytes);
        if self.is_slow {
            return;
        }
        if let Some(Side::Shaking(mut handshake)) = self.side.take_if(|side| is_shaking(side)) {
            let progress = handshake.advance(&self.records, &mut self.to_worker);
            let progress = progress.expect("the worker's handshake is right");
            self.records.drain(..progress.used_bytes);
            self.has_edge = true;
            if !progress.is_done {
                self.side = Some(Side::Shaking(handshake));
                return;
            }
            let Established { outgoing, incoming, .. } =
                handshake.finish().expect("the handshake is done");
            self.side = Some(Side::Done(outgoing, incoming));
            self.seal();
        }
        let Some(Side::Done(outgoing, incoming)) = &mut self.side else { return };
        let opened = incoming.open(outgoing, &mut self.records);
        match opened.end {
            None => {}
            Some(End::Closed) => self.is_told_end = true,
            Some(end) => panic!("client {} cannot open what was written: {end:?}", self.number),
        }
        self.content.extend_from_slice(&self.records[..opened.content_bytes]);
        self.records.drain(..opened.used_bytes);
    }
}

fn is_shaking(side: &Side) -> bool {
    matches!(side, Side::Shaking(_))
}

/// The worker's end. Dropping it closes the connection.
pub(super) struct Socket(pub(super) SharedPipe);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.borrow_mut().is_closed = true;
    }
}

impl Numbered for Socket {
    fn number(&self) -> u32 {
        self.0.borrow().number
    }
}

/// The sockets, and those that were handed off to the control plane.
#[derive(Default)]
pub(super) struct Sockets {
    pub(super) to_control: Vec<(HandoffHeader, Socket, Vec<u8>)>,
    /// True if the control plane takes nothing.
    pub(super) refuses: bool,
}

impl Net for Sockets {
    type Socket = Socket;

    fn read(&mut self, socket: &Socket, buffer: &mut [u8]) -> Read {
        let mut pipe = socket.0.borrow_mut();
        let most = pipe.read_bytes_max.min(buffer.len());
        let count = most.min(pipe.to_worker.len());
        if pipe.is_gone {
            return Read::Gone;
        }
        if count == 0 {
            return if pipe.has_left { Read::End } else { Read::Blocked };
        }
        buffer[..count].copy_from_slice(&pipe.to_worker[..count]);
        pipe.to_worker.drain(..count);
        // As if the rest came just now.
        pipe.has_edge |= !pipe.to_worker.is_empty();
        Read::Bytes(count)
    }

    fn write(&mut self, socket: &Socket, slices: &[IoSlice<'_>]) -> Transfer {
        let mut pipe = socket.0.borrow_mut();
        assert!(!pipe.is_finished, "a write after finishing");
        if pipe.is_gone {
            return Transfer::Gone;
        }
        let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        assert!(!bytes.is_empty(), "an empty write");
        let count = bytes.len().min(pipe.room);
        if count == 0 {
            return Transfer::Blocked;
        }
        if pipe.room != usize::MAX {
            pipe.room -= count;
        }
        bytes.truncate(count);
        pipe.take(&bytes);
        Transfer::Bytes(count)
    }

    fn watch(&mut self, socket: &Socket, token: Token) -> bool {
        let mut pipe = socket.0.borrow_mut();
        pipe.token = Some(token);
        pipe.has_edge = true;
        true
    }

    fn watch_writable(&mut self, socket: &Socket, token: Token) -> bool {
        socket.0.borrow_mut().watches_writable = true;
        self.watch(socket, token)
    }

    fn unacknowledged_bytes(&self, _: &Socket) -> usize {
        0
    }

    fn keep_alive(&mut self, _: &Socket) {}

    fn bound_unread(&mut self, _: &Socket) {}

    fn resume(&mut self, _: &Socket) {}

    fn reset(&mut self, socket: &Socket) {
        socket.0.borrow_mut().is_reset = true;
    }

    fn finish(&mut self, socket: &Socket) {
        socket.0.borrow_mut().is_finished = true;
    }

    fn to_control(
        &mut self,
        header: HandoffHeader,
        socket: Socket,
        bytes: &[u8],
    ) -> Result<(), Socket> {
        if self.refuses {
            return Err(socket);
        }
        socket.0.borrow_mut().token = None;
        self.to_control.push((header, socket, bytes.to_vec()));
        Ok(())
    }

    fn to_worker(
        &mut self,
        _: throng_core::WorkerId,
        _: HandoffHeader,
        socket: Socket,
        _: &[u8],
    ) -> Result<(), Socket> {
        Err(socket)
    }
}
