//! From the start of a connect to the response head.
//!
//! The request is sent right after `connect`: over loopback the connection is there by then, which
//! saves an event; otherwise the kernel says that it would block, and an event says when.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use super::client::State;
use super::resume::Kind;
use super::socket;
use super::sources::ATTEMPTS_MAX;
use super::thread::Thread;
use crate::marker::now_ns;
use crate::plan::Transport;
use crate::protocol::http::{Head, Length};
use crate::tally::Failure;
use crate::template::Values;

/// What a server may leave unread of pongs and requests before it counts as one that does not read.
const UNSENT_BYTES_MAX: usize = 1 << 20;

impl Thread {
    /// Begins to connect a client.
    pub(super) fn open(&mut self, position: usize) {
        let now = now_ns();
        self.tally.attempts += 1;
        self.tally.connecting.note(now);
        self.clients[position].since_ns = now;
        self.set_state(position, State::Connecting);
        self.has_begun(position, now);
        let begun = self.connect(position).and_then(|socket| {
            let request = self.request(position);
            let sent = send_some(&socket, &request)?;
            socket::register(&self.epoll, &socket, position as u32, sent < request.len())?;
            let client = &mut self.clients[position];
            client.socket = Some(socket);
            if sent < request.len() {
                client.extra().unsent = request[sent..].to_vec();
            }
            self.scratch = request;
            Ok(sent > 0)
        });
        match begun {
            Ok(true) => self.requested(position),
            Ok(false) => {}
            Err(error) => self.fail(position, socket::failure(error)),
        }
    }

    fn connect(&self, position: usize) -> Result<OwnedFd, Errno> {
        let number = self.setting.number(self.index, position);
        let target = &self.setting.targets[number % self.setting.targets.len()];
        let source_number = self.setting.source_number(self.index, position);
        let mut attempt = 0;
        loop {
            let source = self.setting.sources.of(source_number, attempt, target);
            attempt += 1;
            match socket::connect(source, target) {
                Err(error)
                    if socket::is_port_taken(error)
                        && source.is_some()
                        && attempt < ATTEMPTS_MAX => {}
                outcome => return outcome,
            }
        }
    }

    /// The client's request, in the thread's scratch buffer, which is to be put back.
    fn request(&mut self, position: usize) -> Vec<u8> {
        let mut request = std::mem::take(&mut self.scratch);
        request.clear();
        let resume = self.ids.get(&self.clients[position].resume);
        self.with_values(position, |values| {
            self.setting.requests.write(values, resume, &mut request);
        });
        request
    }

    fn with_values(&self, position: usize, write: impl FnOnce(&Values<'_>)) {
        let number = self.setting.number(self.index, position);
        let run = self.setting.share.run;
        let values = Values { client: number, run, ..Values::default() };
        match self.setting.stream(number) {
            Some(stream) => write(&Values { stream, streams: &[stream], ..values }),
            None => {
                let streams = self.setting.streams(number);
                let stream = streams.first().copied().unwrap_or_default();
                write(&Values { stream, streams: &streams, ..values });
            }
        }
    }

    /// The request, or its first part, is on its way.
    fn requested(&mut self, position: usize) {
        self.set_state(position, State::Handshaking);
        if self.setting.transport == Transport::LongPoll {
            // There is no answer before the first message.
            let is_first = !self.clients[position].resume.is_some();
            self.join(position, now_ns());
            self.clients[position].is_unsure = is_first;
        }
    }

    /// Asks again on the same connection: the next long-poll.
    pub(super) fn ask_again(&mut self, position: usize) -> Result<(), Failure> {
        let request = self.request(position);
        let sent = self.send(position, &request);
        self.scratch = request;
        sent
    }

    /// Sends, or keeps what the socket does not take.
    pub(super) fn send(&mut self, position: usize, bytes: &[u8]) -> Result<(), Failure> {
        let client = &mut self.clients[position];
        let Some(socket) = &client.socket else { return Ok(()) };
        let is_waiting = client.extra.as_ref().is_some_and(|extra| !extra.unsent.is_empty());
        let sent =
            if is_waiting { 0 } else { send_some(socket, bytes).map_err(socket::failure)? };
        if sent == bytes.len() {
            return Ok(());
        }
        if !is_waiting {
            socket::watch_room(&self.epoll, socket, position as u32).map_err(socket::failure)?;
        }
        let unsent = &mut client.extra().unsent;
        unsent.extend_from_slice(&bytes[sent..]);
        match unsent.len() > UNSENT_BYTES_MAX {
            true => Err(Failure::Protocol("the server does not read")),
            false => Ok(()),
        }
    }

    /// There is room to send: the connection is there, and what was kept goes out.
    pub(super) fn flush(&mut self, position: usize) {
        let client = &mut self.clients[position];
        let (Some(socket), Some(extra)) = (&client.socket, &mut client.extra) else { return };
        if extra.unsent.is_empty() {
            return;
        }
        match send_some(socket, &extra.unsent) {
            Ok(sent) => {
                extra.unsent.drain(..sent);
                if extra.unsent.is_empty() {
                    extra.unsent = Vec::new();
                    client.shrink();
                }
                if sent > 0 && self.clients[position].state == State::Connecting {
                    self.requested(position);
                }
            }
            Err(error) => self.fail(position, socket::failure(error)),
        }
    }

    /// What the kernel says about a connection in trouble.
    pub(super) fn socket_failure(&self, position: usize) -> Option<Failure> {
        let socket = self.clients[position].socket.as_ref()?;
        let error = match sockopt::socket_error(socket) {
            Ok(Err(error)) | Err(error) => error,
            Ok(Ok(())) => return None,
        };
        Some(socket::failure(error))
    }

    /// Takes bytes of the response head. Returns those that come after it, if it is whole.
    pub(super) fn head<'a>(
        &mut self,
        position: usize,
        bytes: &'a [u8],
    ) -> Result<Option<&'a [u8]>, Failure> {
        let client = &mut self.clients[position];
        let mut before = client.extra.as_mut().map(|extra| std::mem::take(&mut extra.head));
        let before_bytes = before.as_ref().map_or(0, Vec::len);
        let whole = match &mut before {
            Some(before) if before_bytes > 0 => {
                before.extend_from_slice(bytes);
                &before[..]
            }
            _ => bytes,
        };
        let head = Head::parse(whole).map_err(Failure::Handshake)?;
        let Some(head) = head else {
            client.extra().head = whole.to_vec();
            return Ok(None);
        };
        let after = &bytes[head.bytes.saturating_sub(before_bytes)..];
        self.clients[position].shrink();
        self.accept(position, &head)?;
        Ok(Some(after))
    }

    fn accept(&mut self, position: usize, head: &Head<'_>) -> Result<(), Failure> {
        let status = if self.setting.transport == Transport::WebSocket { 101 } else { 200 };
        if head.status != status {
            return Err(Failure::Status(head.status));
        }
        if status == 101 {
            if head.header("sec-websocket-accept") != Some(&*self.setting.requests.accept) {
                return Err(Failure::Handshake("Sec-WebSocket-Accept is wrong"));
            }
            return self.hello(position);
        }
        let length = head.length().map_err(Failure::Handshake)?;
        self.clients[position].is_chunked = length == Length::Chunked;
        if self.setting.transport == Transport::Sse {
            let content_type = head.header("content-type").unwrap_or_default().trim_start();
            let is_event_stream = content_type
                .get(..17)
                .is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"));
            if !is_event_stream {
                return Err(Failure::Handshake("the answer is not an event stream"));
            }
            if let Some(id) = head.header("throng-id") {
                let resume = &mut self.clients[position].resume;
                self.ids.set(resume, Kind::LastEventId, id.as_bytes());
            }
        }
        Ok(())
    }

    fn hello(&mut self, position: usize) -> Result<(), Failure> {
        let mut hello = std::mem::take(&mut self.scratch);
        hello.clear();
        self.with_values(position, |values| self.setting.requests.write_hello(values, &mut hello));
        let sent = if hello.is_empty() { Ok(()) } else { self.send(position, &hello) };
        self.scratch = hello;
        sent
    }
}

/// How many bytes the socket took; none if it is not connected yet or full.
fn send_some(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error),
    }
}
