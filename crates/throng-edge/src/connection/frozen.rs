//! A connection as frozen state: one record, which travels beside its socket.
//!
//! Left out is what the worker finds anew: which events of the socket it awaits, in which of its
//! lists the connection is, and what the connection buffers. A message that was written in part is
//! named by its number among the [`RecordKind::PartialMessage`] records before: many connections
//! may share it. A request that waits for answers is frozen as input that is not read yet: it is
//! asked again.
//!
//! A new state or field is added here, to `docs/reference/frozen-state.md`, and to the events that
//! the simulation must have frozen.

use std::net::{IpAddr, Ipv6Addr};

use throng_access::Lead;
use throng_core::frozen::{Decoder, Encoder, RecordKind, ThawError};
use throng_core::subscriptions::FrozenSubscription;
use throng_core::{ConnectionName, SubscriptionId};
use throng_dialect::{Encoding, Framing};
use throng_wire::subscribe::Options;
use throng_wire::websocket::{HalfFrame, HalfRead};

use super::flags::Flags;
use super::id::{ConnectionId, Generation, SideIndex};
use super::io::{Io, LongPoll};
use super::outbound::{Left, OutboundRest, Progress};
use super::state::{Connection, Phase, State};

/// A connection without its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrozenConnection {
    pub(crate) id: ConnectionId,
    pub(crate) generation: Generation,
    /// The tick at which it is due, apart from its expiry.
    pub(crate) due: u32,
    /// The tick at which what it may do ends, if it does. Only a stream has one.
    pub(crate) expires: Option<u32>,
    /// The tick until which the client has to show who it is, if it has not. Only a WebSocket has
    /// one.
    pub(crate) identify_by: Option<u32>,
    /// What the client has chosen for as long as the connection streams.
    pub(crate) options: Options,
    /// Only a parked connection has one.
    pub(crate) session: Option<FrozenSession>,
    /// The address of its client, if that is kept.
    pub(crate) address: Option<IpAddr>,
    pub(crate) state: State,
    pub(crate) encoding: Encoding,
    pub(crate) flags: Flags,
    /// In the order in which the connection subscribed.
    pub(crate) subscriptions: Vec<FrozenSubscription>,
    /// The code of a close frame that the client has sent and that is not answered yet.
    pub(crate) pending_close: Option<Option<u16>>,
    pub(crate) io: Option<FrozenIo>,
    /// Its TLS, as it travels in handoffs, too.
    pub(crate) tls: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrozenSession {
    pub(crate) tags: u64,
    /// The number of its grants among the records of such.
    pub(crate) grants: u32,
    pub(crate) expires_s: u32,
    pub(crate) lead: Lead,
}

impl FrozenSession {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u64(self.tags);
        encoder.u32(self.grants);
        encoder.u32(self.expires_s);
        encoder.u8(self.lead.code());
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<FrozenSession, ThawError> {
        let (tags, grants, expires_s) = (decoder.u64()?, decoder.u32()?, decoder.u32()?);
        let lead = Lead::from_code(decoder.u8()?).ok_or(ThawError::Invalid("a lead"))?;
        Ok(FrozenSession { tags, grants, expires_s, lead })
    }
}

/// Input, output and answers that are not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrozenIo {
    pub(crate) inbound: Vec<u8>,
    pub(crate) half_read: Option<HalfRead>,
    pub(crate) message_since: u32,
    pub(crate) partial: Option<FrozenPartial>,
    pub(crate) outbound: Option<OutboundRest>,
    pub(crate) long_poll: Option<LongPoll>,
    /// When the frames were written that the client has not acknowledged, in milliseconds since
    /// 1970, oldest first.
    pub(crate) unacknowledged_ms: Vec<u64>,
}

/// A message that was written in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrozenPartial {
    /// Its number among the records of such messages.
    pub(crate) message: u32,
    /// True if it is written compressed. The record of the message has those bytes: another
    /// version of the library might make others.
    pub(crate) is_compressed: bool,
    /// The first byte of its encoding that is not written.
    pub(crate) from: u32,
    /// The length of the encoding, which must be the same in the other process.
    pub(crate) encoded_bytes: u32,
}

// Parts after the fixed part of a record, one bit each.
const HAS_PENDING_CLOSE: u8 = 1;
const HAS_CLOSE_CODE: u8 = 1 << 1;
const HAS_IO: u8 = 1 << 2;
const HAS_EXPIRY: u8 = 1 << 3;
const HAS_SESSION: u8 = 1 << 4;
const HAS_ADDRESS: u8 = 1 << 5;
const HAS_TLS: u8 = 1 << 6;

/// Another byte of such bits follows, for what few connections have. Since version 2.
const HAS_MORE: u8 = 1 << 7;

// The bits of the second byte.
const HAS_IDENTITY_DEADLINE: u8 = 1;

const HAS_OPTIONS: u8 = 1 << 1;

const MORE_KNOWN: u8 = HAS_IDENTITY_DEADLINE | HAS_OPTIONS;

// Parts after the fixed part of an `Io`, one bit each.
const HAS_HALF_READ: u8 = 1;
const HAS_PARTIAL: u8 = 1 << 1;
const HAS_OUTBOUND: u8 = 1 << 2;
const HAS_LONG_POLL: u8 = 1 << 3;
const IS_PARTIAL_COMPRESSED: u8 = 1 << 4;
/// Since version 4.
const HAS_UNACKNOWLEDGED: u8 = 1 << 5;

const IO_FACTS: u8 = HAS_HALF_READ
    | HAS_PARTIAL
    | HAS_OUTBOUND
    | HAS_LONG_POLL
    | IS_PARTIAL_COMPRESSED
    | HAS_UNACKNOWLEDGED;

// Facts about a message that is half read, one bit each.
const IS_TEXT: u8 = 1;
const HAS_FRAGMENTS: u8 = 1 << 1;
const HAS_FRAME: u8 = 1 << 2;
const IS_FINAL: u8 = 1 << 3;
const IS_COMPRESSED: u8 = 1 << 4;

// Facts about a long-poll, one bit each.
const HAS_ORIGIN: u8 = 1;
const HAS_RECOVERED: u8 = 1 << 1;
const IS_RECOVERED: u8 = 1 << 2;
const NO_REFERRER: u8 = 1 << 3;
const ALLOW_CREDENTIALS: u8 = 1 << 4;
const HAS_REQUEST_ID: u8 = 1 << 5;

const LONG_POLL_FACTS: u8 =
    HAS_ORIGIN | HAS_RECOVERED | IS_RECOVERED | NO_REFERRER | ALLOW_CREDENTIALS | HAS_REQUEST_ID;

/// A byte of facts, of which only `known` ones may be set.
fn facts(decoder: &mut Decoder<'_>, known: u8) -> Result<u8, ThawError> {
    let facts = decoder.u8()?;
    if facts & !known == 0 { Ok(facts) } else { Err(ThawError::Invalid("an unknown fact")) }
}

fn bit(mask: u8, is_set: bool) -> u8 {
    if is_set { mask } else { 0 }
}

impl State {
    const ALL: [(State, u8); 4] =
        [(State::Head, 1), (State::Streaming, 2), (State::LongPolling, 3), (State::Closing, 4)];

    fn number(self) -> u8 {
        State::ALL.into_iter().find(|(state, _)| *state == self).map_or(0, |(_, number)| number)
    }

    fn numbered(number: u8) -> Option<State> {
        State::ALL.into_iter().find(|(_, other)| *other == number).map(|(state, _)| state)
    }
}

impl FrozenConnection {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new(RecordKind::Connection);
        encoder.u32(self.id.index());
        encoder.u32(self.generation.number());
        encoder.u32(self.due);
        encoder.u8(self.state.number());
        let (encoding, flags) = self.written_encoding();
        encoder.u8(encoding.number());
        encoder.u32(flags.facts());
        encoder.u16(self.subscriptions.len() as u16);
        self.subscriptions.iter().for_each(|subscription| subscription.encode(&mut encoder));
        let more = bit(HAS_IDENTITY_DEADLINE, self.identify_by.is_some())
            | bit(HAS_OPTIONS, !self.options.are_none());
        // Says which of the optional fields follow. `decode` reads them in the same order.
        encoder.u8(bit(HAS_PENDING_CLOSE, self.pending_close.is_some())
            | bit(HAS_CLOSE_CODE, self.pending_close.flatten().is_some())
            | bit(HAS_IO, self.io.is_some())
            | bit(HAS_EXPIRY, self.expires.is_some())
            | bit(HAS_SESSION, self.session.is_some())
            | bit(HAS_ADDRESS, self.address.is_some())
            | bit(HAS_TLS, self.tls.is_some())
            | bit(HAS_MORE, more != 0));
        if more != 0 {
            encoder.u8(more);
        }
        if let Some(code) = self.pending_close.flatten() {
            encoder.u16(code);
        }
        if let Some(expires) = self.expires {
            encoder.u32(expires);
        }
        if let Some(identify_by) = self.identify_by {
            encoder.u32(identify_by);
        }
        if !self.options.are_none() {
            encoder.u8(self.options.numbered().count() as u8);
            self.options.numbered().for_each(|(number, value)| {
                encoder.u8(number);
                encoder.u32(value);
            });
        }
        if let Some(session) = &self.session {
            session.encode(&mut encoder);
        }
        if let Some(address) = self.address {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            encoder.raw(&address.octets());
        }
        if let Some(io) = &self.io {
            io.encode(&mut encoder);
        }
        if let Some(tls) = &self.tls {
            encoder.bytes(tls);
        }
        encoder.finish()
    }

    /// Reads the record behind its kind. Checks what the code relies on, as far as that needs no
    /// worker.
    pub(crate) fn decode(mut decoder: Decoder<'_>) -> Result<FrozenConnection, ThawError> {
        let id = ConnectionId::new(decoder.u32()?);
        let generation = Generation::from_number(decoder.u32()?);
        let due = decoder.u32()?;
        let state = State::numbered(decoder.u8()?).ok_or(ThawError::Invalid("a state"))?;
        let encoding =
            Encoding::numbered(decoder.u8()?).ok_or(ThawError::Invalid("an encoding"))?;
        let flags = Flags::from_facts(decoder.u32()?).ok_or(ThawError::Invalid("flags"))?;
        let (encoding, flags) = read_encoding(state, encoding, flags)?;
        let mut subscriptions = Vec::new();
        for _ in 0..decoder.u16()? {
            subscriptions.push(FrozenSubscription::decode(&mut decoder)?);
        }
        let what = decoder.u8()?;
        let more = if what & HAS_MORE == 0 { 0 } else { facts(&mut decoder, MORE_KNOWN)? };
        let code = if what & HAS_CLOSE_CODE == 0 { None } else { Some(decoder.u16()?) };
        let pending_close = (what & HAS_PENDING_CLOSE != 0).then_some(code);
        let expires = if what & HAS_EXPIRY == 0 { None } else { Some(decoder.u32()?) };
        let has_deadline = more & HAS_IDENTITY_DEADLINE != 0;
        let identify_by = if has_deadline { Some(decoder.u32()?) } else { None };
        let has_options = more & HAS_OPTIONS != 0;
        let options = if has_options { decode_options(&mut decoder)? } else { Options::default() };
        let has_session = what & HAS_SESSION != 0;
        let session = if has_session { Some(FrozenSession::decode(&mut decoder)?) } else { None };
        let address =
            if what & HAS_ADDRESS == 0 { None } else { Some(decode_address(&mut decoder)?) };
        let io = if what & HAS_IO == 0 { None } else { Some(FrozenIo::decode(&mut decoder)?) };
        let tls = if what & HAS_TLS == 0 { None } else { Some(decoder.bytes()?.to_vec()) };
        decoder.finish()?;
        let generation = generation.ok_or(ThawError::Invalid("a generation"))?;
        let frozen = FrozenConnection {
            id,
            generation,
            due,
            expires,
            identify_by,
            options,
            session,
            address,
            state,
            encoding,
            flags,
            subscriptions,
            pending_close,
            io,
            tls,
        };
        if frozen.is_sound() { Ok(frozen) } else { Err(ThawError::Invalid("a connection")) }
    }

    /// True if it has been upgraded. One that closes may have been.
    fn is_websocket(&self) -> bool {
        matches!(self.state, State::Streaming | State::Closing)
            && self.encoding.framing() == Framing::WebSocket
    }

    /// The encoding and the facts as the record has them: there a WebSocket and `throng.v1` are
    /// facts, and a long-poll has the encoding of a stream.
    fn written_encoding(&self) -> (Encoding, Flags) {
        let (encoding, is_v1) = match self.encoding {
            Encoding::V1 => (Encoding::WEBSOCKET_ENVELOPE, true),
            Encoding::V1_DEFLATE => (Encoding::WEBSOCKET_ENVELOPE_DEFLATE, true),
            Encoding::POLL => (Encoding::LINE, false),
            Encoding::POLL_ENVELOPE => (Encoding::LINE_ENVELOPE, false),
            other => (other, false),
        };
        let flags = self.flags.with(Flags::FROZEN_V1, is_v1);
        (encoding, flags.with(Flags::FROZEN_WEBSOCKET, self.is_websocket()))
    }

    /// True if a worker can have such a connection.
    fn is_sound(&self) -> bool {
        let is_parked = matches!(self.state, State::Streaming | State::LongPolling);
        let is_closing = self.state == State::Closing;
        let io = self.io.as_ref();
        let has_output = io.is_some_and(|io| {
            let outbound = io.outbound.as_ref();
            io.partial.is_some() || outbound.is_some_and(|outbound| !outbound.bytes.is_empty())
        });
        let is_compressed = self.encoding.is_compressed();
        let partial = io.and_then(|io| io.partial.as_ref());
        let has_compressed = partial.is_some_and(|partial| partial.is_compressed);
        // A client that reads an answer has a deadline, which is kept beside the answer. A request
        // that waits for messages has none yet.
        let may_be_blocked = match self.state {
            State::Head | State::Closing => io.is_some_and(|io| io.outbound.is_some()),
            State::Streaming => true,
            State::Waiting | State::LongPolling | State::Condemned => false,
        };
        // It keeps the flag if it is refused or timed out before the control plane has room.
        let may_await_control = self.state == State::Head || is_closing;
        let is_half_read = io.is_some_and(|io| io.half_read.is_some());
        let reads_frames = self.state == State::Streaming && self.is_websocket();
        let is_asked = io.is_some_and(|io| !io.unacknowledged_ms.is_empty());
        (self.id.index() as usize) < ConnectionName::INDICES_MAX
            && (is_parked || self.subscriptions.is_empty())
            && (self.state == State::Streaming || self.expires.is_none())
            && (is_parked || self.session.is_none())
            && (reads_frames || self.identify_by.is_none())
            && (self.session.is_none() || self.identify_by.is_none())
            && (self.state == State::Streaming || self.options.are_none())
            && (!is_closing || self.address.is_none())
            && (!self.flags.has(Flags::AWAITS_PROXY_HEADER) || self.state == State::Head)
            && (!self.flags.has(Flags::IN_RESERVE) || self.flags.has(Flags::SERVED))
            && (!is_parked || self.flags.has(Flags::SERVED))
            && (!self.flags.has(Flags::AWAITS_CONTROL) || may_await_control)
            && (!is_compressed || self.is_websocket())
            && (!has_compressed || is_compressed)
            && (!has_output || self.flags.has(Flags::BLOCKED))
            && (!self.flags.has(Flags::BLOCKED) || may_be_blocked)
            && (!self.flags.has(Flags::FINISHED) || (is_closing && !has_output))
            && (!is_half_read || reads_frames)
            && (!is_asked || (reads_frames && self.encoding.joins()))
            && self.has_distinct_channels()
    }

    /// A connection follows no channel twice: writes to one socket would run in parallel.
    fn has_distinct_channels(&self) -> bool {
        let mut locals: Vec<_> =
            self.subscriptions.iter().map(|subscription| subscription.local().0).collect();
        locals.sort_unstable();
        locals.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// The connection with its socket. It has no subscription yet, what it buffers is not counted,
    /// and `io` is the caller's to make.
    pub(crate) fn connection<S>(&self, socket: S, io: Option<Io>) -> Connection<S> {
        let newest_subscription: Option<SubscriptionId> = None;
        Connection {
            socket,
            generation: self.generation,
            due: self.due,
            side: SideIndex::NONE,
            newest_subscription,
            io: io.map(Box::new),
            phase: Phase::new(self.state, self.encoding),
            flags: self.flags.with(Flags::WATCHES_WRITABLE, false),
        }
    }
}

/// The inverse of [`FrozenConnection::written_encoding`].
fn read_encoding(
    state: State,
    encoding: Encoding,
    flags: Flags,
) -> Result<(Encoding, Flags), ThawError> {
    let is_v1 = flags.has(Flags::FROZEN_V1);
    let own = match encoding {
        Encoding::WEBSOCKET_ENVELOPE if is_v1 => Encoding::V1,
        Encoding::WEBSOCKET_ENVELOPE_DEFLATE if is_v1 => Encoding::V1_DEFLATE,
        Encoding::LINE if state == State::LongPolling => Encoding::POLL,
        Encoding::LINE_ENVELOPE if state == State::LongPolling => Encoding::POLL_ENVELOPE,
        Encoding::V1 | Encoding::V1_DEFLATE | Encoding::POLL | Encoding::POLL_ENVELOPE => {
            return Err(ThawError::Invalid("an encoding"));
        }
        _ if is_v1 || state == State::LongPolling => {
            return Err(ThawError::Invalid("an encoding"));
        }
        other => other,
    };
    let may_be_websocket = own.framing() == Framing::WebSocket;
    let is_sound = match (state, flags.has(Flags::FROZEN_WEBSOCKET)) {
        (State::Streaming, is_websocket) => is_websocket == may_be_websocket,
        (State::Closing, is_websocket) => may_be_websocket || !is_websocket,
        (_, is_websocket) => !is_websocket,
    };
    let flags = flags.with(Flags::FROZEN_V1, false).with(Flags::FROZEN_WEBSOCKET, false);
    if is_sound { Ok((own, flags)) } else { Err(ThawError::Invalid("an encoding")) }
}

/// What a client has chosen, at least one thing.
fn decode_options(decoder: &mut Decoder<'_>) -> Result<Options, ThawError> {
    let mut numbered = Vec::new();
    for _ in 0..decoder.u8()? {
        numbered.push((decoder.u8()?, decoder.u32()?));
    }
    let options = Options::from_numbered(numbered.into_iter()).filter(|read| !read.are_none());
    options.ok_or(ThawError::Invalid("the options of a connection"))
}

/// An address, as 16 bytes; IPv4 as in RFC 4291 section 2.5.5.2.
fn decode_address(decoder: &mut Decoder<'_>) -> Result<IpAddr, ThawError> {
    let octets: [u8; 16] =
        decoder.raw(16)?.try_into().map_err(|_| ThawError::Invalid("an address"))?;
    Ok(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
}

impl FrozenIo {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(&self.inbound);
        encoder.u32(self.message_since);
        let is_compressed = self.partial.is_some_and(|partial| partial.is_compressed);
        encoder.u8(bit(HAS_HALF_READ, self.half_read.is_some())
            | bit(IS_PARTIAL_COMPRESSED, is_compressed)
            | bit(HAS_PARTIAL, self.partial.is_some())
            | bit(HAS_OUTBOUND, self.outbound.is_some())
            | bit(HAS_LONG_POLL, self.long_poll.is_some())
            | bit(HAS_UNACKNOWLEDGED, !self.unacknowledged_ms.is_empty()));
        if let Some(half_read) = &self.half_read {
            encode_half_read(half_read, encoder);
        }
        if let Some(partial) = &self.partial {
            encoder.u32(partial.message);
            encoder.u32(partial.from);
            encoder.u32(partial.encoded_bytes);
        }
        if let Some(outbound) = &self.outbound {
            encode_outbound(outbound, encoder);
        }
        if let Some(long_poll) = &self.long_poll {
            encode_long_poll(long_poll, encoder);
        }
        if !self.unacknowledged_ms.is_empty() {
            encoder.u32(self.unacknowledged_ms.len() as u32);
            self.unacknowledged_ms.iter().for_each(|&sent_ms| encoder.u64(sent_ms));
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<FrozenIo, ThawError> {
        let inbound = decoder.bytes()?.to_vec();
        let message_since = decoder.u32()?;
        let what = facts(decoder, IO_FACTS)?;
        let has = |mask| what & mask != 0;
        let half_read = if has(HAS_HALF_READ) { Some(decode_half_read(decoder)?) } else { None };
        let is_compressed = has(IS_PARTIAL_COMPRESSED);
        if is_compressed && !has(HAS_PARTIAL) {
            return Err(ThawError::Invalid("a compressed message that is not there"));
        }
        let partial =
            if has(HAS_PARTIAL) { Some(decode_partial(decoder, is_compressed)?) } else { None };
        let outbound = if has(HAS_OUTBOUND) { Some(decode_outbound(decoder)?) } else { None };
        let long_poll = if has(HAS_LONG_POLL) { Some(decode_long_poll(decoder)?) } else { None };
        let count = if has(HAS_UNACKNOWLEDGED) { decoder.u32()? } else { 0 };
        let unacknowledged_ms = (0..count).map(|_| decoder.u64()).collect::<Result<_, _>>()?;
        Ok(FrozenIo {
            inbound,
            half_read,
            message_since,
            partial,
            outbound,
            long_poll,
            unacknowledged_ms,
        })
    }
}

fn encode_half_read(half_read: &HalfRead, encoder: &mut Encoder) {
    let is_final = half_read.frame.is_some_and(|frame| frame.is_final);
    encoder.u8(bit(IS_TEXT, half_read.is_text)
        | bit(IS_COMPRESSED, half_read.is_compressed)
        | bit(HAS_FRAGMENTS, half_read.has_fragments)
        | bit(HAS_FRAME, half_read.frame.is_some())
        | bit(IS_FINAL, is_final));
    if let Some(HalfFrame { missing_bytes, mask, .. }) = half_read.frame {
        encoder.u64(missing_bytes as u64);
        encoder.raw(&mask);
    }
    encoder.bytes(&half_read.payload);
}

fn decode_half_read(decoder: &mut Decoder<'_>) -> Result<HalfRead, ThawError> {
    let known = IS_TEXT | HAS_FRAGMENTS | HAS_FRAME | IS_FINAL | IS_COMPRESSED;
    let facts = facts(decoder, known)?;
    let frame = if facts & HAS_FRAME == 0 {
        None
    } else {
        let missing_bytes = usize::try_from(decoder.u64()?).unwrap_or(usize::MAX);
        let mask = decoder.raw(4)?;
        let mask = std::array::from_fn(|at| mask[at]);
        Some(HalfFrame { missing_bytes, mask, is_final: facts & IS_FINAL != 0 })
    };
    Ok(HalfRead {
        is_text: facts & IS_TEXT != 0,
        is_compressed: facts & IS_COMPRESSED != 0,
        has_fragments: facts & HAS_FRAGMENTS != 0,
        frame,
        payload: decoder.bytes()?.to_vec(),
    })
}

fn decode_partial(
    decoder: &mut Decoder<'_>,
    is_compressed: bool,
) -> Result<FrozenPartial, ThawError> {
    let (message, from, encoded_bytes) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
    Ok(FrozenPartial { message, is_compressed, from, encoded_bytes })
}

fn encode_outbound(outbound: &OutboundRest, encoder: &mut Encoder) {
    let Progress { since, left } = outbound.progress;
    encoder.u32(since);
    encoder.u64(left.here as u64);
    encoder.u64(left.in_kernel as u64);
    encoder.bytes(&outbound.bytes);
    encoder.u32(outbound.deliveries.len() as u32);
    for &(end, messages) in &outbound.deliveries {
        encoder.u64(end);
        encoder.u64(messages);
    }
}

fn decode_outbound(decoder: &mut Decoder<'_>) -> Result<OutboundRest, ThawError> {
    let since = decoder.u32()?;
    let (here, in_kernel) = (decoder.u64()?, decoder.u64()?);
    // Half of what a number can be: the two are added.
    let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX).min(usize::MAX / 2);
    let left = Left { here: size(here), in_kernel: size(in_kernel) };
    let bytes = decoder.bytes()?.to_vec();
    let mut deliveries: Vec<(u64, u64)> = Vec::new();
    for _ in 0..decoder.u32()? {
        let (end, messages) = (decoder.u64()?, decoder.u64()?);
        let before = deliveries.last().map_or(0, |(end, _)| *end);
        if end < before || end > bytes.len() as u64 || messages > u64::from(u32::MAX) {
            return Err(ThawError::Invalid("the messages of an answer"));
        }
        deliveries.push((end, messages));
    }
    Ok(OutboundRest { bytes, deliveries, progress: Progress { since, left } })
}

fn encode_long_poll(long_poll: &LongPoll, encoder: &mut Encoder) {
    encoder.u8(bit(HAS_ORIGIN, long_poll.origin.is_some())
        | bit(HAS_RECOVERED, long_poll.is_recovered.is_some())
        | bit(IS_RECOVERED, long_poll.is_recovered == Some(true))
        | bit(NO_REFERRER, long_poll.no_referrer)
        | bit(ALLOW_CREDENTIALS, long_poll.allow_credentials)
        | bit(HAS_REQUEST_ID, long_poll.request_id.is_some()));
    for text in [&long_poll.origin, &long_poll.request_id].into_iter().flatten() {
        encoder.bytes(text.as_bytes());
    }
}

fn decode_long_poll(decoder: &mut Decoder<'_>) -> Result<LongPoll, ThawError> {
    let facts = facts(decoder, LONG_POLL_FACTS)?;
    let mut text = |bit| (facts & bit != 0).then(|| decoder.text().map(str::to_owned)).transpose();
    let (origin, request_id) = (text(HAS_ORIGIN)?, text(HAS_REQUEST_ID)?);
    let is_recovered = (facts & HAS_RECOVERED != 0).then_some(facts & IS_RECOVERED != 0);
    Ok(LongPoll {
        origin,
        request_id,
        allow_credentials: facts & ALLOW_CREDENTIALS != 0,
        no_referrer: facts & NO_REFERRER != 0,
        is_recovered,
        begin: None,
        wants_state: false,
    })
}

#[cfg(test)]
mod tests;
