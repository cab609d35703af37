//! The TLS of many connections, by position, without I/O.
//!
//! Content comes in and records go out, through the carrier that the caller passes; and the other
//! way round. What a connection needs while it shakes hands, or while a record is half received or
//! half sent, is in a table of its own, so that an idle one has only its session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use throng_tls::{
    ClientSession, End, Established, Handshake, HandshakeError, SealError, SessionTicket,
    StreamEnd, Suite,
};

use super::{TlsFailure, TlsTarget};
use crate::failure::Failure;

/// Records that may wait for the carrier, in bytes; with more, no content is taken.
const OUTBOUND_BYTES_MAX: usize = 64 * 1024;

/// Connections that may wait for a ticket. Each has rustls's object, of 8 KB.
const AWAITING_MAX: usize = 1024;

/// The TLS of the connections of one thread.
pub(crate) struct TlsConnections {
    target: Arc<TlsTarget>,
    sessions: Vec<Option<ClientSession>>,
    /// The connections that shake hands, or have half a record.
    busy: HashMap<usize, Box<Busy>>,
    /// The ticket of each position; empty unless clients resume.
    tickets: Vec<Option<SessionTicket>>,
    /// Positions whose handshake is done and that wait for a ticket, the oldest first; some do not
    /// wait any more.
    awaiting: VecDeque<usize>,
    /// For records that are about to be sent.
    records: Vec<u8>,
}

/// The temporary state of a connection.
#[derive(Default)]
struct Busy {
    /// Until the handshake is done, and a ticket has come if one is wanted.
    handshake: Option<Handshake>,
    is_established: bool,
    /// When the first byte of the handshake was sent.
    since_ns: Option<u64>,
    /// The beginning of a record.
    inbound: Vec<u8>,
    /// Records that the carrier has not accepted.
    outbound: Vec<u8>,
}

/// The outcome of received bytes.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// The handshake is done.
    pub(crate) handshake: Option<Done>,
    /// Nothing more will come.
    pub(crate) end: Option<TlsEnd>,
}

/// A handshake that is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) suite: Suite,
    pub(crate) is_resumed: bool,
    /// From its first byte.
    pub(crate) took_ns: u64,
}

/// Why nothing more will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsEnd {
    /// The server has said so.
    Closed,
    /// The connection failed. What waits for the carrier may have an alert.
    Failed(TlsFailure),
}

impl TlsConnections {
    /// For at most `capacity` connections.
    pub(crate) fn new(target: Arc<TlsTarget>, capacity: usize) -> TlsConnections {
        // Pages become resident as connections are opened.
        let sessions = Vec::with_capacity(capacity);
        let tickets = Vec::with_capacity(if target.resumes { capacity } else { 0 });
        TlsConnections {
            target,
            sessions,
            busy: HashMap::new(),
            tickets,
            awaiting: VecDeque::new(),
            records: Vec::new(),
        }
    }

    /// Starts a handshake. Its first records are passed to [`flush`](Self::flush).
    pub(crate) fn start(&mut self, position: usize) -> Result<(), TlsFailure> {
        let ticket = self.tickets.get_mut(position).and_then(Option::take);
        let handshake = self.target.connector.resume(self.target.name.clone(), ticket);
        let mut handshake = handshake.map_err(|error| TlsFailure::of(&error))?;
        let mut outbound = Vec::new();
        handshake.advance(&[], &mut outbound).map_err(|error| TlsFailure::of(&error))?;
        self.close(position);
        let busy = Busy { handshake: Some(handshake), outbound, ..Busy::default() };
        self.busy.insert(position, Box::new(busy));
        Ok(())
    }

    /// True if a handshake has begun and is not done.
    pub(crate) fn is_shaking_hands(&self, position: usize) -> bool {
        self.busy.get(&position).is_some_and(|busy| {
            busy.handshake.is_some() && !busy.is_established && busy.since_ns.is_some()
        })
    }

    /// True if the handshake is done.
    pub(crate) fn is_ready(&self, position: usize) -> bool {
        self.sessions.get(position).is_some_and(Option::is_some)
            || self.busy.get(&position).is_some_and(|busy| busy.is_established)
    }

    /// True if records wait for the carrier.
    pub(crate) fn has_records(&self, position: usize) -> bool {
        self.busy.get(&position).is_some_and(|busy| !busy.outbound.is_empty())
    }

    /// Passes records that wait to `carrier`, which returns how many bytes it accepts.
    pub(crate) fn flush(
        &mut self,
        position: usize,
        now_ns: u64,
        carrier: impl FnOnce(&[u8]) -> Result<usize, Failure>,
    ) -> Result<(), Failure> {
        let Some(busy) = self.busy.get_mut(&position) else { return Ok(()) };
        if busy.outbound.is_empty() {
            return Ok(());
        }
        let sent = carrier(&busy.outbound)?;
        busy.outbound.drain(..sent);
        if sent > 0 {
            busy.since_ns.get_or_insert(now_ns);
        }
        self.tidy(position);
        Ok(())
    }

    /// Seals content, and passes it to `carrier`. Takes all of it or nothing: nothing before the
    /// handshake is done, and while many records wait. Returns how many bytes were taken.
    pub(crate) fn send(
        &mut self,
        position: usize,
        content: &[u8],
        now_ns: u64,
        carrier: impl FnOnce(&[u8]) -> Result<usize, Failure>,
    ) -> Result<usize, Failure> {
        let is_busy = self.busy.get(&position).is_some_and(|busy| {
            let is_shaking_hands = busy.handshake.is_some() && !busy.is_established;
            is_shaking_hands || busy.outbound.len() >= OUTBOUND_BYTES_MAX
        });
        if is_busy {
            return self.flush(position, now_ns, carrier).map(|()| 0);
        }
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        if let Some(busy) = self.busy.get_mut(&position) {
            records.append(&mut busy.outbound);
        }
        self.seal(position, content, &mut records)?;
        let sent = carrier(&records)?;
        if sent < records.len() {
            self.busy.entry(position).or_default().outbound = records[sent..].to_vec();
        } else {
            self.tidy(position);
        }
        self.records = records;
        Ok(content.len())
    }

    fn seal(
        &mut self,
        position: usize,
        content: &[u8],
        records: &mut Vec<u8>,
    ) -> Result<(), TlsFailure> {
        if let Some(busy) = self.busy.get_mut(&position)
            && let Some(handshake) = &mut busy.handshake
        {
            return handshake.send(content, records).map_err(|error| TlsFailure::of(&error));
        }
        let Some(Some(session)) = self.sessions.get_mut(position) else { return Ok(()) };
        session.seal(content, records).map_err(|error| match error {
            SealError::Exhausted => TlsFailure::Exhausted,
            // Alerts are sealed only at the end.
            _ => TlsFailure::Keys,
        })
    }

    /// Opens what the carrier brought. Leaves the content in `content`, and records that answer it
    /// for [`flush`](Self::flush).
    pub(crate) fn receive(
        &mut self,
        position: usize,
        bytes: &[u8],
        now_ns: u64,
        content: &mut Vec<u8>,
    ) -> Arrived {
        content.clear();
        // Hashing costs, and an idle connection is not in the table.
        let mut busy = if self.busy.is_empty() { None } else { self.busy.remove(&position) };
        if let Some(busy) = &mut busy {
            content.append(&mut busy.inbound);
        }
        content.extend_from_slice(bytes);
        let (mut arrived, mut early) = (Arrived::default(), Vec::new());
        let mut used = 0;
        if let Some(half) = &mut busy
            && half.handshake.is_some()
        {
            match self.shake_hands(position, half, content, now_ns, &mut early) {
                Ok((taken, done)) => (used, arrived.handshake) = (taken, done),
                Err(error) => {
                    arrived.end = Some(TlsEnd::Failed(TlsFailure::of(&error)));
                    used = content.len();
                }
            }
        }
        let mut opened_bytes = 0;
        if let Some(Some(session)) = self.sessions.get_mut(position) {
            let opened = session.open(&mut content[used..]);
            opened_bytes = opened.content_bytes;
            let rest = &content[used + opened.used_bytes..];
            if !rest.is_empty() {
                busy.get_or_insert_default().inbound = rest.to_vec();
            }
            arrived.end = opened.end.map(|end| match end {
                End::Closed => TlsEnd::Closed,
                End::PeerFailed(alert) => TlsEnd::Failed(TlsFailure::Alert(alert)),
                End::Failed(alert) => {
                    // If there is no room for the alert, the connection ends without.
                    let _ = session.seal_alert(alert, &mut busy.get_or_insert_default().outbound);
                    TlsEnd::Failed(alert.into())
                }
            });
        } else if let Some(busy) = busy.as_mut().filter(|busy| busy.handshake.is_some()) {
            busy.inbound = content[used..].to_vec();
        } else {
            arrived.end.get_or_insert(TlsEnd::Failed(TlsFailure::Keys));
        }
        content.truncate(used + opened_bytes);
        if used > 0 || !early.is_empty() {
            content.splice(..used, early);
        }
        if let Some(busy) = busy.filter(|busy| !busy.is_idle()) {
            self.busy.insert(position, busy);
        }
        arrived
    }

    /// Takes records of the handshake, and those up to the ticket. Returns how many bytes of
    /// `input` were used.
    fn shake_hands(
        &mut self,
        position: usize,
        busy: &mut Busy,
        input: &[u8],
        now_ns: u64,
        early: &mut Vec<u8>,
    ) -> Result<(usize, Option<Done>), HandshakeError> {
        let Some(handshake) = &mut busy.handshake else { return Ok((0, None)) };
        let (mut used, mut is_done) = (0, busy.is_established);
        if !busy.is_established {
            let progress = handshake.advance(input, &mut busy.outbound)?;
            (used, is_done) = (progress.used_bytes, progress.is_done);
        }
        while is_done && handshake.awaits_ticket() {
            match handshake.receive(&input[used..], early, &mut busy.outbound)? {
                0 => break,
                taken => used += taken,
            }
        }
        if !is_done {
            return Ok((used, None));
        }
        let is_first = !std::mem::replace(&mut busy.is_established, true);
        let (suite, is_resumed) = handshake.outcome().ok_or(HandshakeError::UnknownSuite)?;
        let took_ns = now_ns.saturating_sub(busy.since_ns.unwrap_or(now_ns));
        let done = is_first.then_some(Done { suite, is_resumed, took_ns });
        if handshake.awaits_ticket() {
            if is_first {
                self.await_ticket(position);
            }
        } else if let Some(handshake) = busy.handshake.take() {
            self.establish(position, handshake)?;
        }
        Ok((used, done))
    }

    /// Takes the keys out of a handshake, and drops the rest.
    fn establish(&mut self, position: usize, handshake: Handshake) -> Result<(), HandshakeError> {
        let Established { outgoing, incoming, peer } = handshake.finish()?;
        put(&mut self.sessions, position, ClientSession::new(outgoing, incoming));
        if let Some(ticket) = peer.ticket {
            put(&mut self.tickets, position, ticket);
        }
        Ok(())
    }

    /// Lets a connection wait for its ticket. If too many do, the oldest gets none.
    fn await_ticket(&mut self, position: usize) {
        self.awaiting.push_back(position);
        while self.awaiting.len() > AWAITING_MAX {
            let Some(oldest) = self.awaiting.pop_front() else { break };
            let Some(busy) = self.busy.get_mut(&oldest).filter(|busy| busy.is_established) else {
                continue;
            };
            if let Some(handshake) = busy.handshake.take() {
                // After an error it has no session, which `receive` reports.
                let _ = self.establish(oldest, handshake);
                self.tidy(oldest);
            }
        }
    }

    /// The failure that the end of the carrier is; `None` if the server had announced it.
    pub(crate) fn stream_end(&self, position: usize) -> Option<TlsFailure> {
        match self.sessions.get(position) {
            Some(Some(session)) => match session.stream_end() {
                StreamEnd::Clean => None,
                StreamEnd::Truncated => Some(TlsFailure::Truncated),
            },
            _ if self.is_shaking_hands(position) => Some(TlsFailure::ClosedInHandshake),
            _ => Some(TlsFailure::Truncated),
        }
    }

    /// Forgets a connection. Its ticket stays.
    pub(crate) fn close(&mut self, position: usize) {
        if let Some(session) = self.sessions.get_mut(position) {
            *session = None;
        }
        if !self.busy.is_empty() {
            self.busy.remove(&position);
        }
    }

    /// Frees what a connection does not need any more.
    fn tidy(&mut self, position: usize) {
        if self.busy.get(&position).is_some_and(|busy| busy.is_idle()) {
            self.busy.remove(&position);
        }
    }
}

impl Busy {
    fn is_idle(&self) -> bool {
        self.handshake.is_none() && self.inbound.is_empty() && self.outbound.is_empty()
    }
}

fn put<T>(slab: &mut Vec<Option<T>>, position: usize, value: T) {
    if position >= slab.len() {
        slab.resize_with(position + 1, || None);
    }
    slab[position] = Some(value);
}
