//! Receives from clients' connections: one read per event, and no allocation for a message that
//! arrives completely.

use rustix::event::epoll::EventFlags;
use throng_wire::websocket::{Opcode, write_masked_frame};

use super::activity;
use super::client::ClientState;
use super::compact;
use super::network::Carrier;
use super::request::MASK;
use super::resume::IdKind;
use super::thread::ClientThread;
use crate::failure::Failure;
use crate::marker::{MARK_BYTES, Mark, now_ns};
use crate::plan::Transport;
use crate::protocol::moment;
use crate::protocol::{self, Event, Framing, Response};
use crate::tls::TlsEnd;

/// How messages of `throng.v1` begin that say that others were skipped.
const V1_SKIPPED: [&[u8]; 2] = [br#"{"type":"gap""#, br#"{"type":"conflated""#];

impl ClientThread {
    /// Handles an event of a client's socket.
    pub(super) fn handle(&mut self, position: usize, flags: EventFlags) {
        if !self.network.is_open(position) {
            // Closed by an earlier event of the same batch.
            return;
        }
        let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        // What a server says before it gives up a handshake can be read after it has.
        let may_explain = is_over && self.network.is_shaking_hands(position);
        if self.clients[position].state == ClientState::Connecting && is_over && !may_explain {
            let failure = self.network.failure(position).unwrap_or(Failure::ClosedInHandshake);
            return self.fail(position, failure);
        }
        if flags.contains(EventFlags::OUT) && !may_explain {
            self.flush(position);
        }
        let is_readable = flags.intersects(EventFlags::IN | EventFlags::RDHUP) || is_over;
        if is_readable && (is_over || !self.is_paused(position)) {
            self.receive(position, flags, usize::MAX);
        }
        self.pump(position);
    }

    /// True if a client currently does not read.
    pub(super) fn is_paused(&self, position: usize) -> bool {
        let client = &self.clients[position];
        client.is_slow && client.state == ClientState::Active
    }

    /// Reads what has arrived on a client's socket, at most so many bytes. A read that does not
    /// fill the buffer has emptied the socket, and later bytes make a new event.
    pub(super) fn receive(&mut self, position: usize, flags: EventFlags, most: usize) {
        let ends = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut left = most;
        while let (1.., Carrier::Sockets(sockets)) = (left, &self.network.carrier) {
            let room = left.min(buffer.len());
            match sockets.receive(position, &mut buffer[..room]) {
                Ok(None) => break,
                Ok(Some(0)) => self.end(position),
                Ok(Some(bytes)) => {
                    left -= bytes;
                    let is_going_on = self.received(position, &buffer[..bytes]);
                    if is_going_on && bytes < room && !ends {
                        break;
                    }
                }
                Err(failure) => self.fail(position, failure),
            }
        }
        self.buffer = buffer;
    }

    /// Handles received bytes. Returns whether the connection continues.
    pub(super) fn received(&mut self, position: usize, bytes: &[u8]) -> bool {
        self.counts.received_bytes += bytes.len() as u64;
        if self.network.is_secure() {
            self.received_records(position, bytes)
        } else {
            self.received_content(position, bytes)
        }
    }

    /// Opens records, and handles what they contain.
    fn received_records(&mut self, position: usize, bytes: &[u8]) -> bool {
        let mut content = std::mem::take(&mut self.content);
        let arrived = self.network.open_records(position, bytes, &mut content);
        if let Some(done) = arrived.handshake {
            self.counts.tls.add(done.suite, done.is_resumed, done.took_ns);
        }
        // The last records of the handshake go out with the request.
        if arrived.handshake.is_some() || arrived.end.is_some() || content.is_empty() {
            self.flush(position);
        }
        let mut goes_on = self.network.is_open(position);
        if goes_on && !content.is_empty() {
            goes_on = self.received_content(position, &content);
        }
        self.content = content;
        match arrived.end.filter(|_| goes_on) {
            None => return goes_on,
            Some(TlsEnd::Closed) => self.end(position),
            Some(TlsEnd::Failed(failure)) => self.fail(position, failure.into()),
        }
        false
    }

    fn received_content(&mut self, position: usize, bytes: &[u8]) -> bool {
        let taken = self.take(position, bytes);
        let goes_on = taken.is_ok();
        if let Err(failure) = taken {
            self.fail(position, failure);
        }
        goes_on
    }

    /// Handles the end of a connection, closed by the server.
    pub(super) fn end(&mut self, position: usize) {
        if self.shared.transport == Transport::LongPoll {
            // The last response may end with the connection.
            let (partial, mut last) = (self.clients[position].take_partial(), Ok(()));
            protocol::finish(partial, &mut |event| last = self.event(position, event, now_ns()));
            if last.is_ok() && self.is_idle_publisher(position) {
                last = Err(Failure::Reconnect);
            }
            if let Err(failure) = last {
                return self.fail(position, failure);
            }
        }
        let failure = match self.network.stream_end(position) {
            Some(failure) if self.clients[position].state != ClientState::Handshaking => {
                failure.into()
            }
            _ => self.ended(position),
        };
        self.fail(position, failure);
    }

    fn ended(&self, position: usize) -> Failure {
        match self.clients[position].state {
            ClientState::Active => Failure::Closed(None),
            _ => Failure::ClosedInHandshake,
        }
    }

    fn take(&mut self, position: usize, bytes: &[u8]) -> Result<(), Failure> {
        let now = now_ns();
        let mut bytes = bytes;
        if self.clients[position].state == ClientState::Handshaking {
            match self.head(position, bytes)? {
                None => return Ok(()),
                Some(after) => bytes = after,
            }
            if self.shared.requests.joined_by.is_some() {
                self.set_state(position, ClientState::Joining);
            } else {
                self.join(position, now);
            }
            if bytes.is_empty() {
                return Ok(());
            }
        }
        let is_chunked = self.clients[position].is_chunked;
        let framing = match self.shared.transport {
            Transport::WebSocket => {
                Framing::WebSocket { may_compress: self.shared.requests.deflate }
            }
            Transport::Sse => Framing::Sse { is_chunked },
            Transport::Stream => Framing::Lines { is_chunked },
            Transport::LongPoll => Framing::Responses,
        };
        let mut partial = self.clients[position].take_partial();
        let mut next = Ok(());
        let fed = protocol::feed(framing, &mut partial, bytes, &mut |event| {
            if next.is_ok() {
                next = self.event(position, event, now);
            }
        });
        self.clients[position].put_partial(partial);
        next.and(fed.map_err(Failure::Protocol))
    }

    fn event(&mut self, position: usize, event: Event<'_>, now: u64) -> Result<(), Failure> {
        match event {
            Event::Message(message) => self.message(position, message, now),
            Event::Compressed(payload) => {
                let mut inflated = std::mem::take(&mut self.inflated);
                let message = inflated.message(payload);
                let taken = message
                    .map_err(|violation| Failure::Protocol(violation.message()))
                    .and_then(|message| self.message(position, message, now));
                self.inflated = inflated;
                taken
            }
            Event::Id(id) => {
                self.ids.set(&mut self.clients[position].resume, IdKind::LastEventId, id);
                Ok(())
            }
            Event::Heartbeat => {
                self.counts.heartbeats += 1;
                Ok(())
            }
            Event::Ping(payload) => {
                let mut pong = std::mem::take(&mut self.scratch);
                pong.clear();
                write_masked_frame(&mut pong, Opcode::Pong, payload, MASK);
                self.counts.pings += 1;
                let sent = self.send(position, &pong);
                self.scratch = pong;
                sent
            }
            Event::Close(code, after_ms) => Err(Failure::Closed(code).with_moment(after_ms)),
            Event::End => Err(self.ended(position)),
            Event::Response(response) if self.shared.publisher.is_some() => {
                self.publish_response(position, &response, now)
            }
            Event::Response(response) => self.poll_response(position, &response, now),
        }
    }

    /// Handles a response to a long-poll, and sends the next request.
    fn poll_response(
        &mut self,
        position: usize,
        response: &Response<'_>,
        now: u64,
    ) -> Result<(), Failure> {
        // Nchan answers 304 or 408 when its timeout is over.
        if !matches!(response.status, 200 | 204 | 304 | 408) {
            let told = |seconds| moment::of_seconds(seconds, position);
            let refusal = response.refusal().with_moment(response.retry_after_s.map(told));
            return Err(refusal);
        }
        self.ids.set_next(&mut self.clients[position].resume, &response.next);
        if response.has_gap {
            self.announce_gap(position);
        }
        if response.status == 200 && !response.body.is_empty() {
            self.message(position, &response.body, now)?;
        }
        self.clients[position].is_unsure = false;
        if !response.keeps_alive {
            return Err(Failure::Reconnect);
        }
        let client = &self.clients[position];
        if let Some(held) = &mut self.held_polls {
            held.push((position as u32, client.since_ns));
            return Ok(());
        }
        self.ask_again(position)
    }

    /// Makes clients wait with their next long-poll from now on; or makes those that wait poll now.
    pub(super) fn hold_polls(&mut self, are_held: bool) {
        if are_held {
            self.held_polls.get_or_insert_default();
            return;
        }
        for (position, since_ns) in self.held_polls.take().unwrap_or_default() {
            let position = position as usize;
            let client = &self.clients[position];
            // A client that has reconnected meanwhile has polled already.
            if client.state != ClientState::Active || client.since_ns != since_ns {
                continue;
            }
            if let Err(failure) = self.ask_again(position) {
                self.fail(position, failure);
            }
        }
    }

    /// True if a message confirms the subscription; if there are several, the last of them.
    fn is_joined_by(&mut self, position: usize, message: &[u8]) -> bool {
        let streams = self.shared.streams(self.shared.number(self.index, position)).len();
        let (found, expected) = self.shared.requests.confirmed(message, streams);
        if expected == 1 {
            return found > 0;
        }
        let confirmed = &mut self.clients[position].extra().confirmed;
        *confirmed += found;
        *confirmed >= expected
    }

    /// Keeps the channels of which a part of a compact frame says that messages were skipped.
    fn skipped(&mut self, position: usize, part: &[u8]) {
        let mut told = compact::skipped(part).peekable();
        if told.peek().is_some() {
            self.clients[position].extra().skipped.extend(told);
        }
    }

    /// True if the server has said that it skipped messages of a channel before this one, of which
    /// `before` has the bytes in front of its mark, and those of other items before it.
    fn are_told(&mut self, position: usize, before: &[u8]) -> bool {
        self.skipped(position, before);
        let Some(extra) = &mut self.clients[position].extra else { return false };
        compact::number(before).is_some_and(|number| extra.skipped.remove(&number))
    }

    fn message(&mut self, position: usize, message: &[u8], now: u64) -> Result<(), Failure> {
        if self.shared.heartbeat.is_some_and(|heartbeat| heartbeat == message) {
            self.counts.heartbeats += 1;
            return Ok(());
        }
        if self.shared.pings_itself {
            if activity::is_pong(message) {
                self.counts.heartbeats += 1;
                return Ok(());
            }
            if self.clients[position].state == ClientState::Joining {
                self.activity.learn(message, now);
            }
        }
        self.counts.arriving.note(now);
        let (mut rest, mut is_marked) = (message, false);
        let is_compact = self.shared.acknowledgement.is_some() && compact::is_compact(message);
        while let Some((mark, after)) = Mark::find(rest) {
            let before = &rest[..rest.len() - after.len() - MARK_BYTES];
            rest = after;
            let are_told = is_compact && self.are_told(position, before);
            if mark.run == self.shared.share.run {
                is_marked = true;
                self.deliver(position, &mark, are_told, now);
            }
        }
        if is_compact {
            self.skipped(position, rest);
        }
        if self.clients[position].state == ClientState::Joining {
            if self.is_joined_by(position, message) {
                self.join(position, now);
            } else {
                self.shared.requests.check_refusal(message)?;
            }
        } else if !is_marked
            && self.shared.requests.joined_by.is_none()
            && self.shared.publisher.is_none()
        {
            self.shared.requests.check_refusal(message)?;
        }
        self.counts.unmarked += u64::from(!is_marked);
        if let Some(acknowledgement) = self.shared.acknowledgement.clone() {
            if !is_marked && V1_SKIPPED.iter().any(|start| message.starts_with(start)) {
                self.announce_gap(position);
            }
            if compact::is_to_be_acknowledged(message) {
                self.send(position, &acknowledgement)?;
            }
        }
        if !self.shared.requests.has_pings() {
            return Ok(());
        }
        let shared = std::sync::Arc::clone(&self.shared);
        for answer in shared.requests.answers(message) {
            self.counts.pings += 1;
            self.send(position, answer)?;
        }
        Ok(())
    }
}
