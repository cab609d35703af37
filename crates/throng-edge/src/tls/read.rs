//! Handshakes, and records from the peer.

use std::io::IoSlice;

use throng_tls::{
    Alert, CONTENT_BYTES_MAX, End, Established, HEADER_BYTES, Handshake, HandshakeError, Incoming,
    Outgoing, Peer, RECORD_BYTES_MAX, StreamEnd, Suite,
};

use super::half::{Half, Stage};
use super::slots::Slot;
use super::{Numbered, STALLED_TICKS, TlsNet};
use crate::connection::Token;
use crate::counters::Counter;
use crate::net::{Net, Read, Transfer};

const _: () = assert!(CONTENT_BYTES_MAX < RECORD_BYTES_MAX);

/// The content type of a handshake's records, and the major version of all.
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;

/// The name of the protocol that a certificate authority checks a name with (RFC 8737). The answer
/// is the certificate: nothing follows it.
const ACME_TLS: &[u8] = b"acme-tls/1";

/// The handshakes that began and were not looked at yet: room for as many is kept.
const BEGUN_KEPT: usize = 256;

/// The record that refuses a handshake: a fatal alert, `access_denied`.
const REFUSAL: &[u8] = &[21, MAJOR_VERSION, 3, 0, 2, 2, 49];

/// The number of bytes of a handshake that are read to be refused: a closed socket with unread
/// input is reset, and the refusal lost. A `ClientHello` has fewer.
const REFUSED_BYTES: usize = 4096;

enum Step {
    /// This many bytes of content, at the front of the buffer.
    Content(usize),
    /// The handshake is done; its records had this many bytes.
    Shaken(usize),
    /// Nothing to pass on: more has to come.
    Nothing,
    /// Nothing more is read now, for this reason.
    Stop(Read),
}

impl<N: Net> TlsNet<N>
where
    N::Socket: Numbered,
{
    /// Reads content. The buffer has room for the longest record.
    pub(super) fn read_tls(&mut self, slot: Slot, socket: &N::Socket, buffer: &mut [u8]) -> Read {
        debug_assert!(buffer.len() >= RECORD_BYTES_MAX, "no progress with a long record");
        let mut was_drained = false;
        loop {
            match self.slots.half(slot) {
                Some(half) if half.is_passing => return self.net.read(socket, buffer),
                // Input after its first record stays in the kernel.
                Some(half) if half.is_queued => return Read::Blocked,
                Some(Half { stage: Stage::Failed, .. }) => return self.discard(socket, buffer),
                Some(Half { end: Some(end), .. }) => {
                    let end = *end;
                    return self.read_end(slot, end, socket, buffer);
                }
                _ => {}
            }
            if let Some(half) = self.slots.half_mut(slot) {
                half.read_at = self.tick;
            }
            let (kept, has_more) = self.take_kept(slot, buffer);
            let read = if has_more {
                self.net.resume(socket);
                Read::More(0)
            } else {
                self.net.read(socket, &mut buffer[kept..])
            };
            let (count, is_drained) = match read {
                Read::Bytes(count) => (count, count < buffer.len() - kept),
                Read::More(count) => (count, false),
                Read::Blocked => (0, true),
                Read::End | Read::Gone if kept > 0 => (0, false),
                Read::End => return self.stream_ended(slot),
                other => return other,
            };
            let step = self.take_in(slot, socket, buffer, kept + count);
            if self.slots.find(socket.number()) == Some(slot) {
                self.slots.trim(slot);
            }
            // The end is behind the content, and no event reports it.
            let has_end = self.slots.half(slot).is_some_and(|half| half.end.is_some());
            match step {
                Step::Content(count) if is_drained && !has_end => return Read::Bytes(count),
                Step::Content(count) => return Read::More(count),
                Step::Stop(read) => return read,
                Step::Nothing | Step::Shaken(_) => {}
            }
            // The kept input is still incomplete, or a record told that nothing follows.
            match read {
                _ if has_end => {}
                Read::End => return self.stream_ended(slot),
                Read::Gone => return Read::Gone,
                Read::Blocked => return Read::Blocked,
                // The event may have reported an end behind records without content, of which the
                // caller does not hear: only a second read finds it.
                _ if is_drained && was_drained => return Read::Blocked,
                _ => was_drained |= is_drained,
            }
        }
    }

    /// Moves what was kept to the front of the buffer. Returns its length, and whether there is
    /// more than the buffer holds.
    fn take_kept(&mut self, slot: Slot, buffer: &mut [u8]) -> (usize, bool) {
        let Some(half) = self.slots.half_mut(slot) else { return (0, false) };
        let count = half.inbound.len().min(buffer.len());
        buffer[..count].copy_from_slice(&half.inbound[..count]);
        let has_more = count < half.inbound.len();
        half.inbound.drain(..count);
        (count, has_more)
    }

    /// Keeps what is incomplete, before what has not been looked at.
    fn keep(&mut self, slot: Slot, rest: &[u8]) {
        if !rest.is_empty() {
            let half = self.slots.half_or_new(slot);
            let behind = std::mem::take(&mut half.inbound);
            half.inbound = [rest, &behind].concat();
        }
    }

    /// Acts on the records at the front of the buffer, of which `length` bytes are input.
    fn take_in(
        &mut self,
        slot: Slot,
        socket: &N::Socket,
        buffer: &mut [u8],
        mut length: usize,
    ) -> Step {
        if length == 0 {
            return Step::Nothing;
        }
        if !self.slots.is_established(slot) {
            let used = match self.shake_hands(slot, socket, &buffer[..length]) {
                Step::Shaken(used) => used,
                other => return other,
            };
            buffer.copy_within(used..length, 0);
            length -= used;
        }
        let open = |outgoing: &mut Outgoing, incoming: &mut Incoming| {
            incoming.open(outgoing, &mut buffer[..length])
        };
        let Some(opened) = self.slots.with_both(slot, open) else { return Step::Nothing };
        self.keep(slot, &buffer[opened.used_bytes..length]);
        if opened.end.is_some() {
            self.slots.half_or_new(slot).end = opened.end;
        }
        match opened.content_bytes {
            0 => Step::Nothing,
            count => Step::Content(count),
        }
    }

    /// The peer's side has ended, with a record that says so or breaks the protocol.
    fn read_end(&mut self, slot: Slot, end: End, socket: &N::Socket, buffer: &mut [u8]) -> Read {
        match end {
            End::Closed => Read::End,
            End::PeerFailed(_) => {
                self.count(Counter::TlsAlertsReceived);
                self.slots.half_or_new(slot).stage = Stage::Failed;
                Read::Gone
            }
            End::Failed(alert) => {
                self.slots.half_or_new(slot).stage = Stage::Failed;
                if self.send_alert(slot, socket, alert) {
                    self.count(Counter::TlsAlertsSent);
                }
                // Later input is not read as records any more.
                let _ = self.discard(socket, buffer);
                Read::Failed(None)
            }
        }
    }

    fn stream_ended(&mut self, slot: Slot) -> Read {
        let end = self.slots.with_both(slot, |_, incoming| incoming.stream_end());
        if end == Some(StreamEnd::Truncated) {
            self.count(Counter::TlsTruncated);
        }
        Read::End
    }

    /// Reads what has no meaning any more.
    fn discard(&mut self, socket: &N::Socket, buffer: &mut [u8]) -> Read {
        match self.net.read(socket, buffer) {
            Read::Bytes(count) if count < buffer.len() => Read::Blocked,
            Read::Bytes(_) | Read::More(_) => Read::Later,
            other => other,
        }
    }

    fn shake_hands(&mut self, slot: Slot, socket: &N::Socket, input: &[u8]) -> Step {
        let half = self.slots.half_or_new(slot);
        let (mut handshake, since) = match std::mem::take(&mut half.stage) {
            Stage::Shaking(handshake, since) => (handshake, since),
            Stage::Waiting => match self.begin_handshake(slot, socket, input) {
                Ok(handshake) => (handshake, self.tick),
                Err(step) => return step,
            },
            Stage::Failed => {
                half.stage = Stage::Failed;
                return Step::Stop(Read::Failed(None));
            }
        };
        let mut output = std::mem::take(&mut self.scratch);
        output.clear();
        let progress = handshake.advance(input, &mut output);
        self.slots.half_or_new(slot).outbound.push(&output);
        self.scratch = output;
        let step = match progress {
            Ok(progress) if progress.is_done => {
                self.set_shaking(self.shaking - 1);
                match handshake.finish() {
                    Ok(established) => {
                        if self.establish(slot, established) {
                            Step::Shaken(progress.used_bytes)
                        } else {
                            self.fail(slot, &HandshakeError::NotDone)
                        }
                    }
                    Err(error) => self.fail(slot, &error),
                }
            }
            Ok(progress) => {
                self.slots.half_or_new(slot).stage = Stage::Shaking(handshake, since);
                self.keep(slot, &input[progress.used_bytes..]);
                Step::Nothing
            }
            Err(error) => {
                self.set_shaking(self.shaking - 1);
                self.fail(slot, &error)
            }
        };
        match self.flush_tls(slot, socket) {
            Err(Transfer::Gone) => Step::Stop(Read::Gone),
            _ => step,
        }
    }

    /// Begins a handshake once the first record is complete.
    fn begin_handshake(
        &mut self,
        slot: Slot,
        socket: &N::Socket,
        input: &[u8],
    ) -> Result<Box<Handshake>, Step> {
        if input.first().is_some_and(|first| *first != HANDSHAKE)
            || input.get(1).is_some_and(|version| *version != MAJOR_VERSION)
        {
            self.count(Counter::TlsNotSpoken);
            self.forget(socket);
            return Err(Step::Stop(Read::NotTls));
        }
        if !has_record(input) {
            self.keep(slot, input);
            return Err(Step::Nothing);
        }
        if self.shaking >= self.max_handshakes {
            self.keep(slot, input);
            self.slots.half_or_new(slot).is_queued = true;
            self.queued.push_back(socket.number());
            return Err(Step::Stop(Read::Blocked));
        }
        if self.handshakes_left == 0 {
            self.keep(slot, input);
            return Err(Step::Stop(Read::Later));
        }
        self.handshakes_left -= 1;
        let handshake = match self.acceptor.as_ref().map(|acceptor| acceptor.handshake_for(input)) {
            Some(Ok(handshake)) => handshake,
            Some(Err(error)) => return Err(self.fail(slot, &error)),
            None => return Err(self.fail(slot, &HandshakeError::NotDone)),
        };
        self.set_shaking(self.shaking + 1);
        self.begun.push_back((socket.number(), self.tick));
        Ok(Box::new(handshake))
    }

    /// Refuses a connection that is not established; see [`Net::refuse_handshake`].
    pub(super) fn refuse(&mut self, slot: Slot, socket: &N::Socket) -> bool {
        if self.slots.is_established(slot) {
            return false;
        }
        let _ = self.net.read(socket, &mut [0; REFUSED_BYTES]);
        let _ = self.net.write(socket, &[IoSlice::new(REFUSAL)]);
        self.count(Counter::TlsAlertsSent);
        let half = self.slots.half_or_new(slot);
        (half.stage, half.is_passing) = (Stage::Failed, false);
        true
    }

    /// The handshake that has waited longest, if there is room for it now.
    pub(super) fn next_queued(&mut self) -> Option<Token> {
        while self.handshakes_left > 0 && self.shaking < self.max_handshakes {
            let number = self.queued.pop_front()?;
            let slot = self.slots.find(number);
            let half = slot.and_then(|slot| self.slots.half_mut(slot));
            if let Some(half) = half.filter(|half| half.is_queued) {
                half.is_queued = false;
                // Without one, it has not been watched yet, and an event comes.
                if half.token.is_some() {
                    return half.token;
                }
            }
        }
        None
    }

    /// The handshake has failed. The alert is in `outbound`.
    fn fail(&mut self, slot: Slot, error: &HandshakeError) -> Step {
        self.count(Counter::TlsHandshakesFailed);
        tracing::debug!(%error, "a TLS handshake failed");
        let half = self.slots.half_or_new(slot);
        half.stage = Stage::Failed;
        if !half.outbound.is_empty() {
            self.count(Counter::TlsAlertsSent);
        }
        Step::Stop(Read::Failed(error.certificate_flaw()))
    }

    /// Keeps what a handshake has established. Returns whether there is memory for it.
    fn establish(&mut self, slot: Slot, established: Established) -> bool {
        let Established { outgoing, incoming, peer } = established;
        let Peer { alpn, is_resumed, user, .. } = peer;
        let suite = outgoing.suite();
        if self.slots.establish(slot, outgoing, incoming, user.map(Box::new)).is_err() {
            return false;
        }
        let kind = if is_resumed { Counter::TlsHandshakesResumed } else { Counter::TlsHandshakes };
        self.count(kind);
        self.count(counter_of(suite));
        if alpn.as_deref() == Some(ACME_TLS) {
            self.slots.half_or_new(slot).end = Some(End::Closed);
        }
        true
    }

    /// Seals an alert that ends what is sent, and writes it if the socket takes it. Returns whether
    /// there was an alert to send.
    pub(super) fn send_alert(&mut self, slot: Slot, socket: &N::Socket, alert: Alert) -> bool {
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        let outgoing = self.slots.hot(slot).outgoing.as_mut();
        let sealed = outgoing.map(|outgoing| outgoing.seal_alert(alert, &mut record));
        let is_sealed = matches!(sealed, Some(Ok(())));
        if is_sealed {
            self.slots.half_or_new(slot).outbound.push(&record);
            // Bytes that the socket does not take wait, or go with the connection.
            let _ = self.flush_tls(slot, socket);
        }
        self.scratch = record;
        is_sealed
    }

    /// Gives up the handshakes that stall, as long as there is no room for others. This thread may
    /// be the one that is late: each is read once more before.
    pub(super) fn give_up_stalled(&mut self) {
        self.late.clear();
        let mut at = 0;
        while let Some(&(number, since)) = self.begun.get(at) {
            let slot = self.slots.find(number);
            let half = slot.and_then(|slot| self.slots.half_mut(slot));
            let half =
                half.filter(|half| matches!(half.stage, Stage::Shaking(_, at) if at == since));
            let Some(half) = half else {
                // It ended meanwhile.
                self.begun.remove(at);
                continue;
            };
            let is_late = self.tick.saturating_sub(since) > STALLED_TICKS;
            if self.shaking < self.max_handshakes || !is_late {
                break;
            }
            match half.token {
                Some(token) if half.read_at + 1 < self.tick => {
                    self.late.push(token);
                    at += 1;
                }
                _ => {
                    // The connection stays until the time of its first head is over, or its peer
                    // sends more.
                    half.stage = Stage::Failed;
                    half.inbound = Vec::new();
                    self.set_shaking(self.shaking - 1);
                    self.count(Counter::TlsHandshakesStalled);
                    self.begun.remove(at);
                }
            }
        }
        // A storm would leave the memory of all that began in a tick.
        self.begun.shrink_to(BEGUN_KEPT);
    }
}

/// True if the input has a whole record, or a header that will be refused.
pub(super) fn has_record(input: &[u8]) -> bool {
    let Some(header) = input.first_chunk::<HEADER_BYTES>() else { return false };
    let length = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
    length > RECORD_BYTES_MAX || input.len() >= length
}

fn counter_of(suite: Suite) -> Counter {
    match suite {
        Suite::Tls13Aes128Gcm => Counter::Tls13Aes128,
        Suite::Tls13Aes256Gcm => Counter::Tls13Aes256,
        Suite::Tls13ChaCha20Poly1305 => Counter::Tls13ChaCha20,
        Suite::Tls12Aes128Gcm => Counter::Tls12Aes128,
        Suite::Tls12Aes256Gcm => Counter::Tls12Aes256,
        Suite::Tls12ChaCha20Poly1305 => Counter::Tls12ChaCha20,
    }
}
