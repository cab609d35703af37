//! The handshake: from the start of a connect to the response head.
//!
//! The request is sent right after `connect`. Over loopback the socket is connected by then, which
//! saves an event. The rest is sent when the connection is writable.

use super::client::ClientState;
use super::outbox::Publisher;
use super::resume::IdKind;
use super::thread::ClientThread;
use crate::failure::Failure;
use crate::marker::now_ns;
use crate::plan::Transport;
use crate::protocol::http::{BodyEnd, ResponseHead};
use crate::protocol::{moment, refusal};
use crate::template::TemplateValues;

/// Unsent pongs and requests, above which the server counts as one that does not read. Messages to
/// publish wait instead.
pub(super) const UNSENT_BYTES_MAX: usize = 1 << 20;

impl ClientThread {
    /// Starts to connect a client.
    pub(super) fn open(&mut self, position: usize) {
        let now = now_ns();
        self.counts.attempts += 1;
        self.counts.connecting.note(now);
        self.clients[position].since_ns = now;
        self.set_state(position, ClientState::Connecting);
        self.has_begun(position, now);
        let request = self.request(position);
        let begun = self.network.open(position, &request, now);
        if let Ok(sent) = begun
            && sent < request.len()
        {
            self.clients[position].extra().unsent = request[sent..].to_vec();
        }
        self.scratch = request;
        match begun {
            Ok(0) => {}
            Ok(_) => self.requested(position),
            Err(failure) => self.fail(position, failure),
        }
    }

    /// The client's request, in the thread's scratch buffer. The caller returns the buffer.
    fn request(&mut self, position: usize) -> Vec<u8> {
        let mut request = std::mem::take(&mut self.scratch);
        request.clear();
        if self.shared.publisher.as_ref().is_some_and(Publisher::is_http) {
            // The first message is the first request.
            return request;
        }
        let resume = self.clients[position].resume.get();
        self.with_values(position, |values| {
            self.shared.requests.write(values, resume, &mut request);
        });
        request
    }

    fn with_values(&self, position: usize, write: impl FnOnce(&TemplateValues<'_>)) {
        let number = self.shared.number(self.index, position);
        let run = self.shared.share.run;
        let values = TemplateValues { client: number, run, ..TemplateValues::default() };
        match self.shared.stream(number) {
            Some(stream) => write(&TemplateValues { stream, streams: &[stream], ..values }),
            None => {
                let streams = self.shared.streams(number);
                let stream = streams.first().copied().unwrap_or_default();
                write(&TemplateValues { stream, streams: &streams, ..values });
            }
        }
    }

    /// Records that the request, or its first part, is sent.
    fn requested(&mut self, position: usize) {
        self.set_state(position, ClientState::Handshaking);
        if self.shared.transport == Transport::LongPoll {
            // A long-poll gets no response before the first message.
            let is_first = !self.clients[position].resume.is_some();
            self.join(position, now_ns());
            self.clients[position].is_unsure = is_first;
        }
    }

    /// Sends the next long-poll on the same connection.
    pub(super) fn ask_again(&mut self, position: usize) -> Result<(), Failure> {
        let request = self.request(position);
        let sent = self.send(position, &request);
        self.scratch = request;
        sent
    }

    /// Sends bytes, or keeps what the connection does not accept.
    pub(super) fn send(&mut self, position: usize, bytes: &[u8]) -> Result<(), Failure> {
        if !self.network.is_open(position) {
            return Ok(());
        }
        let client = &mut self.clients[position];
        let is_waiting = client.unsent() > 0;
        let sent = if is_waiting { 0 } else { self.network.send(position, bytes)? };
        if sent == bytes.len() {
            return Ok(());
        }
        if !is_waiting {
            self.network.watch_writable(position)?;
        }
        let unsent = &mut client.extra().unsent;
        if unsent.len() > UNSENT_BYTES_MAX {
            return Err(Failure::Protocol("the server does not read"));
        }
        unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends what was kept, once the connection is writable.
    pub(super) fn flush(&mut self, position: usize) {
        let client = &mut self.clients[position];
        if client.unsent() == 0 {
            match self.network.flush(position) {
                Err(failure) => self.fail(position, failure),
                // A publisher by HTTP has no request to send.
                Ok(()) if client.state == ClientState::Connecting => {
                    if self.network.is_ready(position) {
                        self.requested(position);
                    }
                }
                Ok(()) => {}
            }
            return;
        }
        let Some(extra) = &mut client.extra else { return };
        match self.network.send(position, &extra.unsent) {
            Ok(sent) => {
                extra.unsent.drain(..sent);
                if extra.unsent.is_empty() {
                    extra.unsent = Vec::new();
                    client.shrink();
                }
                if sent > 0 && self.clients[position].state == ClientState::Connecting {
                    self.requested(position);
                }
            }
            Err(failure) => self.fail(position, failure),
        }
    }

    /// Takes bytes of the response head. Returns those after it once it is complete.
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
        let head = ResponseHead::parse(whole).map_err(Failure::Handshake)?;
        let Some(head) = head else {
            client.extra().head = whole.to_vec();
            return Ok(None);
        };
        if head.status != self.shared.transport.status() {
            let Some(refusal) = refusal::of_response(&head, &whole[head.bytes..]) else {
                client.extra().head = whole.to_vec();
                return Ok(None);
            };
            let moment = moment::of_response(&head, &whole[head.bytes..], position);
            return Err(refusal.with_moment(moment));
        }
        let after = &bytes[head.bytes.saturating_sub(before_bytes)..];
        self.clients[position].shrink();
        self.accept(position, &head, after)?;
        Ok(Some(after))
    }

    /// The rejection that has arrived in part, if the connection ends now.
    pub(super) fn partial_refusal(&self, position: usize) -> Option<Failure> {
        let client = &self.clients[position];
        let bytes =
            &client.extra.as_ref().filter(|_| client.state == ClientState::Handshaking)?.head;
        let head = ResponseHead::parse(bytes).ok()??;
        Some(refusal::of_last(&head, &bytes[head.bytes..]))
    }

    /// Handles a complete head with the expected status, and `after` it what has come.
    fn accept(
        &mut self,
        position: usize,
        head: &ResponseHead<'_>,
        after: &[u8],
    ) -> Result<(), Failure> {
        let transport = self.shared.transport;
        let is_turned_away = head.header("retry-after").is_some();
        if is_turned_away && matches!(transport, Transport::WebSocket | Transport::Sse) {
            // Throng accepts a connection it must reject if a browser could not read the status,
            // and says in the response when to come back.
            let refusal = Failure::Handshake("told to come back later");
            return Err(refusal.with_moment(moment::of_response(head, after, position)));
        }
        if transport == Transport::WebSocket {
            self.shared.requests.check_accept(head)?;
            return self.hello(position);
        }
        let length = head.body_end().map_err(Failure::Handshake)?;
        self.clients[position].is_chunked = length == BodyEnd::Chunked;
        if self.shared.transport == Transport::Sse {
            let content_type = head.header("content-type").unwrap_or_default().trim_start();
            let is_event_stream = content_type
                .get(..17)
                .is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"));
            if !is_event_stream {
                return Err(Failure::Handshake("the answer is not an event stream"));
            }
            if let Some(id) = head.header("throng-id") {
                let resume = &mut self.clients[position].resume;
                self.ids.set(resume, IdKind::LastEventId, id.as_bytes());
            }
            if head.has_gap() {
                self.announce_gap(position);
            }
        }
        Ok(())
    }

    fn hello(&mut self, position: usize) -> Result<(), Failure> {
        let mut hello = std::mem::take(&mut self.scratch);
        hello.clear();
        self.with_values(position, |values| self.shared.requests.write_hello(values, &mut hello));
        let sent = if hello.is_empty() { Ok(()) } else { self.send(position, &hello) };
        self.scratch = hello;
        sent
    }
}
