//! Connections and what they share as records.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use throng_access::GrantsId;
use throng_core::frozen::{Encoder, RecordKind, encode_content, encode_name};
use throng_core::{Body, Message, clock};
use throng_wire::websocket::{Opcode, write_masked_frame};

use super::Sessions;
use crate::connection::{
    Asked, Connection, ConnectionId, Flags, FrozenConnection, FrozenIo, FrozenPartial,
    FrozenSession, Io, State,
};
use crate::counters::Counter;
use crate::net::Net;
use throng_dialect::Encoding;

/// The numbers of messages that are written in part, by their addresses.
type PartialNumbers = HashMap<*const Message, u32>;

/// The numbers of grants, by their places in the worker's table. They keep their places: the
/// sessions that hold them are frozen one after the other, and none begins meanwhile.
type GrantsNumbers = HashMap<GrantsId, u32>;

/// The numbers of what several connections share.
struct Numbers<'n> {
    partials: &'n PartialNumbers,
    grants: &'n GrantsNumbers,
}

impl<N: Net> Sessions<N> {
    /// The first record: what belongs to no connection.
    pub(crate) fn freeze_worker(&self) -> Vec<u8> {
        let mut encoder = Encoder::first(RecordKind::Worker);
        encoder.u16(self.metrics().worker().0);
        encoder.u32(self.connections().newest_generation());
        encoder.u32(self.questions.newest());
        encoder.u32(self.clock().tick());
        encoder.u64(clock::wall_ms(self.clock().unix_ms()));
        encoder.raw(&self.access.tagger.seed());
        let long_poll_ended = self.poll_ended();
        encoder.u8(u8::from(long_poll_ended.is_some()) | u8::from(self.is_late()) << 1);
        encoder.u32(long_poll_ended.unwrap_or_default());
        encoder.u16(Counter::ALL.len() as u16);
        for &counter in Counter::ALL {
            encoder.bytes(counter.metric().as_bytes());
            encoder.bytes(counter.label_value().as_bytes());
            encoder.u64(self.metrics().get(counter));
        }
        encoder.finish()
    }

    pub(crate) fn freeze_acceptances(&self) -> Vec<u8> {
        let mut encoder = Encoder::new(RecordKind::Acceptances);
        let marks = self.connections().acceptances();
        encoder.u32(marks.len() as u32);
        for (generation, at_ms) in marks {
            encoder.u32(generation);
            encoder.u64(clock::wall_ms(at_ms));
        }
        encoder.finish()
    }

    /// Writes the message that the connection has been written in part, unless an earlier one has
    /// had the same.
    fn freeze_partial(
        &self,
        connection: &Connection<N::Socket>,
        partials: &mut PartialNumbers,
        write: &mut dyn FnMut(Vec<u8>),
    ) {
        let Some(partial) = connection.io.as_ref().and_then(|io| io.shared_partial()) else {
            return;
        };
        let number = partials.len() as u32;
        // The subscription table or this connection keeps the message, so no other one gets its
        // address meanwhile.
        let message = &partial.message;
        if partials.contains_key(&Arc::as_ptr(message)) {
            return;
        }
        partials.insert(Arc::as_ptr(message), number);
        let mut encoder = Encoder::new(RecordKind::PartialMessage);
        encode_name(&mut encoder, &message.channel);
        encoder.u64(message.id.epoch.number());
        encode_content(&mut encoder, message);
        // Its compressed bytes: another version of the library might make others.
        for encoding in Encoding::COMPRESSED {
            encoder.bytes(message.made_encoding(encoding.slot()).unwrap_or_default());
        }
        for encoding in Encoding::compressed_by_others() {
            let made = message.made_encoding(encoding.slot());
            if let Some(bytes) = made.filter(|bytes| !bytes.is_empty()) {
                encoder.u8(encoding.number());
                encoder.bytes(bytes);
            }
        }
        write(encoder.finish());
    }

    /// Writes what the token of the connection grants, unless an earlier one has granted the same.
    fn freeze_grants(
        &self,
        id: ConnectionId,
        grants: &mut GrantsNumbers,
        write: &mut dyn FnMut(Vec<u8>),
    ) {
        // Without a session nothing was granted.
        let Some(session) = self.connections().session(id) else { return };
        let number = grants.len() as u32;
        if let Entry::Vacant(vacant) = grants.entry(session.grants()) {
            vacant.insert(number);
            let granted = self.connections().side().grants_of(session);
            let mut encoder = Encoder::new(RecordKind::Grants);
            encoder.u8(u8::from(granted.is_of_key()));
            encoder.bytes(granted.to_frozen().as_bytes());
            write(encoder.finish());
        }
    }

    /// Writes the names of the connection's user, if they are kept.
    fn freeze_user(&self, id: ConnectionId, write: &mut dyn FnMut(Vec<u8>)) {
        let Some(session) = self.connections().session(id) else { return };
        if let Some(user) = self.connections().side().user_of(session) {
            let mut encoder = Encoder::new(RecordKind::User);
            encoder.bytes(user.as_bytes());
            let shown = self.connections().side().shown_name_of(session);
            encoder.bytes(shown.unwrap_or_default().as_bytes());
            let info = self.connections().side().info_of(session);
            encoder.bytes(info.unwrap_or_default().as_bytes());
            write(encoder.finish());
        }
    }

    /// A connection but for its subscriptions and its TLS.
    fn freeze_connection(
        &self,
        id: ConnectionId,
        connection: &Connection<N::Socket>,
        pending_close: Option<Option<u16>>,
        numbers: &Numbers<'_>,
    ) -> FrozenConnection {
        let mut frozen = FrozenConnection {
            id,
            generation: connection.generation,
            // `connection.due` may be a deadline of the side table, which is frozen by itself.
            due: self.connections().side().own_due(&self[id]),
            expires: self.connections().side().expires(&self[id]),
            identify_by: self.connections().identify_by(id),
            options: self.connections().options(id),
            session: self.connections().session(id).map(|session| FrozenSession {
                tags: session.tags(),
                // No list is that long, so that the reader refuses the connection.
                grants: numbers.grants.get(&session.grants()).copied().unwrap_or(u32::MAX),
                expires_s: session.expires_s(),
                lead: session.lead(),
            }),
            address: self.connections().address(id),
            state: connection.state(),
            encoding: connection.encoding(),
            flags: connection.flags,
            subscriptions: Vec::new(),
            pending_close,
            io: connection.io.as_deref().map(|io| freeze_io(connection, io, numbers.partials)),
            tls: None,
        };
        if let Some(pending) = self.connections().pending(id) {
            // As long as a request that has just begun to come.
            let due = self.clock().deadline(self.settings.head_timeout);
            ask_again(&mut frozen, &pending.asked, due);
            // A client that has shown who it is in time must not be late because it is asked again.
            let waits = self.clock().deadline(self.settings.limits.wait_timeout);
            frozen.identify_by = frozen.identify_by.map(|until| until.max(waits));
        }
        frozen
    }

    /// True if the worker can be frozen: not once it has been told to stop accepting. That clients
    /// are asked to leave is not frozen; whoever asks does so again.
    pub(crate) fn may_freeze(&self) -> bool {
        !self.shutdown.is_ending()
    }

    /// Takes all connections out, and writes a record of each with its socket. Returns their
    /// number.
    pub(crate) fn freeze_connections(
        &mut self,
        write: &mut dyn FnMut(Vec<u8>, Option<N::Socket>),
    ) -> u32 {
        let closes: HashMap<u64, Option<u16>> =
            self.closes.iter().map(|close| (close.token.bits(), close.code)).collect();
        let (mut connections, mut partials) = (0, PartialNumbers::new());
        let mut grants = GrantsNumbers::new();
        for index in 0..self.connections().extent() {
            let id = ConnectionId::new(index);
            // Not every place of the table is taken.
            if self.connections().get(id).is_none() {
                continue;
            }
            let subscriptions = self.take_frozen(id);
            let tls = self.leave(id);
            let connection = &self[id];
            let close = closes.get(&connection.token(id).bits()).copied();
            // The reader needs what a connection refers to before the connection itself.
            self.freeze_partial(connection, &mut partials, &mut |record| write(record, None));
            self.freeze_grants(id, &mut grants, &mut |record| write(record, None));
            self.freeze_user(id, &mut |record| write(record, None));
            let numbers = Numbers { partials: &partials, grants: &grants };
            let mut frozen = self.freeze_connection(id, connection, close, &numbers);
            (frozen.tls, frozen.subscriptions) = (tls, subscriptions);
            let subscriptions = frozen.subscriptions.len() as u32;
            // The worker that reads it counts it again.
            self.connections().end_subscriptions(id, subscriptions);
            // It does not end: another worker goes on with it.
            let (Connection { socket, .. }, address) = self.connections_mut().take(id);
            drop(address);
            write(frozen.encode(), Some(socket));
            connections += 1;
        }
        connections
    }
}

/// Puts what waits for answers before the input that came after it. Nothing of it is done yet (see
/// [`Worker::prepare_to_freeze`]), so that the worker that reads it asks for the answers again.
fn ask_again(frozen: &mut FrozenConnection, asked: &Asked, due: u32) {
    if frozen.state == State::Waiting {
        (frozen.state, frozen.due) = (State::Head, due);
    }
    frozen.flags.set(Flags::READ_DEFERRED, true);
    let mut input = Vec::new();
    match asked {
        Asked::Subscription(asked) => input.extend_from_slice(asked.1.bytes()),
        Asked::Input(rest) => {
            let opcode = if rest.is_text { Opcode::Text } else { Opcode::Binary };
            write_masked_frame(&mut input, opcode, &rest.bytes, [0; 4]);
        }
        Asked::Many(many) => {
            debug_assert!(!many.has_begun(), "it has ended before");
            write_masked_frame(&mut input, Opcode::Text, many.text.as_bytes(), [0; 4]);
        }
        Asked::Message(body) => {
            let is_binary = matches!(body, Body::Binary(_));
            let opcode = if is_binary { Opcode::Binary } else { Opcode::Text };
            write_masked_frame(&mut input, opcode, body.bytes(), [0; 4]);
        }
        Asked::Outcome => debug_assert!(false, "its wait has ended before"),
    }
    if let Some(io) = &mut frozen.io {
        debug_assert!(io.half_read.is_none(), "nothing is read while a message waits");
        input.append(&mut io.inbound);
        io.inbound = input;
    }
}

fn freeze_io<S>(connection: &Connection<S>, io: &Io, partials: &PartialNumbers) -> FrozenIo {
    let is_chunked = connection.has(Flags::CHUNKED);
    let partial = io.shared_partial().map(|partial| FrozenPartial {
        message: partials.get(&Arc::as_ptr(&partial.message)).copied().unwrap_or(u32::MAX),
        is_compressed: partial.encoding.is_compressed(),
        from: partial.from,
        encoded_bytes: partial.encoding.begun(&partial.message, is_chunked).len() as u32,
    });
    FrozenIo {
        inbound: io.inbound.clone(),
        half_read: io.reader.half_read(),
        message_since: io.message_since,
        partial,
        outbound: io.unshared_rest(is_chunked),
        long_poll: io.long_poll.as_deref().cloned(),
        unacknowledged_ms: io
            .unacknowledged
            .iter()
            .flat_map(|owed| owed.sent_ms())
            .map(clock::wall_ms)
            .collect(),
    }
}
