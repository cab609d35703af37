//! Connections and what they share from records.

use std::sync::Arc;

use throng_access::{CountedAddress, Grants, Session};
use throng_core::frozen::{Decoder, ThawError};
use throng_core::{ConnectionName, Listener, Message, clock};
use throng_wire::websocket::Reader;

use super::Sessions;
use crate::connection::{
    Connection, ConnectionId, Flags, FrozenConnection, FrozenIo, FrozenPartial, FrozenSession, Io,
    KnownUser, Outbound, Partial, PendingClose, State, Unacknowledged,
};
use crate::counters::Counter;
use crate::net::{HandoffHeader, Net};

/// Bytes of the seed of the sessions' tags.
const SEED_BYTES: usize = 16;

/// The grants of a connection, if it has shown a credential.
pub(crate) fn granted<'g>(
    frozen: &FrozenConnection,
    grants: &'g [Arc<Grants>],
) -> Result<Option<&'g Arc<Grants>>, ThawError> {
    let granted = frozen.session.map(|session| {
        let granted = grants.get(session.grants as usize);
        granted.ok_or(ThawError::Invalid("the grants of a connection"))
    });
    granted.transpose()
}

impl<N: Net> Sessions<N> {
    /// Reads what belongs to no connection. Returns the version of the format, and the newest
    /// generation.
    pub(crate) fn thaw_state(&mut self, mut decoder: Decoder<'_>) -> Result<(u16, u32), ThawError> {
        let version = decoder.version()?;
        if decoder.u16()? != self.metrics().worker().0 {
            return Err(ThawError::Invalid("it is another worker"));
        }
        let (generation, question) = (decoder.u32()?, decoder.u32()?);
        let (tick, frozen_ms) = (decoder.u32()?, clock::from_wall_ms(decoder.u64()?));
        let seed = decoder.raw(SEED_BYTES)?;
        if seed != self.access.tagger.seed() {
            return Err(ThawError::Invalid("the tags of sessions are made from another seed"));
        }
        let flags = decoder.u8()?;
        let (has_ended, is_late) = (flags & 1 != 0, flags & 2 != 0);
        let long_poll_ended = decoder.u32()?;
        let mut counts = Vec::new();
        for _ in 0..decoder.u16()? {
            counts.push((decoder.text()?, decoder.text()?, decoder.u64()?));
        }
        decoder.finish()?;
        self.resume_clock(tick, frozen_ms, has_ended.then_some(long_poll_ended))?;
        self.questions.resume(question);
        self.becomes_late(is_late);
        for (metric, label, count) in counts {
            // One that is not counted any more is left out.
            let is_it =
                |counter: &&Counter| (counter.metric(), counter.label_value()) == (metric, label);
            if let Some(&counter) = Counter::ALL.iter().find(is_it) {
                let counted = self.metrics().get(counter);
                // Leaves room to count on.
                self.metrics().add(counter, count.min(u64::MAX / 2).saturating_sub(counted));
            }
        }
        self.resume_dropped();
        Ok((version, generation))
    }

    /// Adds a connection and its subscriptions. Fails without any effect but on the socket, which
    /// is closed.
    pub(crate) fn thaw_connection(
        &mut self,
        mut frozen: FrozenConnection,
        socket: N::Socket,
        (partials, grants, user): (&[Arc<Message>], &[Arc<Grants>], Option<KnownUser<'_>>),
    ) -> Result<(), ThawError> {
        // Nothing may fail after `put_at`: it could not be undone.
        let granted = granted(&frozen, grants)?;
        if !self.can_thaw(&frozen.subscriptions) {
            return Err(ThawError::Invalid("the subscriptions of a connection"));
        }
        let (io, tls) = (frozen.io.take(), frozen.tls.take());
        self.thaw_tls(&frozen, tls, &socket)?;
        let mut connection = frozen.connection(socket, None);
        if let Some(io) = io {
            let io = self.thaw_io(&connection, io, partials)?;
            connection.io = Some(Box::new(io));
        }
        let id = frozen.id;
        let (flags, token) = (connection.flags, connection.token(id));
        let clients = &self.access.clients;
        let address = frozen.address.filter(|_| clients.keeps_addresses());
        let client = address.map(|address| CountedAddress::resume(clients, address));
        let put = self.delivery.connections_mut().put_at(id, connection, frozen.expires, client);
        put.map_err(|_| ThawError::Invalid("the place of a connection is taken"))?;
        let connections = self.delivery.connections_mut();
        connections.set_options(id, frozen.options);
        if frozen.identify_by.is_some() {
            connections.await_identity(id, frozen.identify_by);
        }
        if let (Some(FrozenSession { tags, expires_s, lead, .. }), Some(granted)) =
            (frozen.session, granted)
        {
            let session = |place| Session::from_parts(tags, place, expires_s, lead);
            self.delivery.connections_mut().begin_session(id, granted, user, session);
            if let Some(session) = self.connections().session(id) {
                let grants = self.connections().side().grants_of(session);
                clients.limiter.resume_connection(clients.of_session(session, grants));
            }
        }
        let subscriptions = frozen.subscriptions.len() as u32;
        let limited = self.connections().limited_client(id);
        self.access.clients.limiter.resume_subscriptions(limited, subscriptions);
        // A blocked connection waits for its socket and a deferred one for its turn, not for a
        // pass.
        let takes_more = !flags.has(Flags::BLOCKED) && !flags.has(Flags::DELIVERY_DEFERRED);
        self.thaw_subscriptions(id, &frozen.subscriptions, takes_more);
        self.resume_deferred(token, flags);
        self.closes.extend(frozen.pending_close.map(|code| PendingClose { token, code }));
        Ok(())
    }

    /// Gives the socket the TLS that it had, if it had any.
    fn thaw_tls(
        &mut self,
        frozen: &FrozenConnection,
        tls: Option<Vec<u8>>,
        socket: &N::Socket,
    ) -> Result<(), ThawError> {
        let header = HandoffHeader {
            is_tls: tls.is_some(),
            awaits_proxy_header: frozen.flags.has(Flags::AWAITS_PROXY_HEADER),
            ..HandoffHeader::between_planes(Listener::Public)
        };
        let mut state = tls.unwrap_or_default();
        match self.arrived(header, socket, &mut state) {
            Some(used) if used == state.len() => Ok(()),
            _ => Err(ThawError::Invalid("the TLS of a connection")),
        }
    }

    fn thaw_io(
        &self,
        connection: &Connection<N::Socket>,
        frozen: FrozenIo,
        partials: &[Arc<Message>],
    ) -> Result<Io, ThawError> {
        let FrozenIo { inbound, half_read, message_since, partial, outbound, .. } = frozen;
        let limits = self.message_limits(connection);
        let reader = match half_read {
            Some(half_read) => Reader::resume(half_read, limits)
                .map_err(|_| ThawError::Invalid("a message that is half read"))?,
            None => Reader::default(),
        };
        let partial = match partial {
            Some(partial) => Some(thaw_partial(connection, partial, partials)?),
            None => None,
        };
        let mut io = Io::with_inbound(&inbound);
        (io.reader, io.partial, io.message_since) = (reader, partial, message_since);
        io.outbound = outbound.map(|rest| Box::new(Outbound::resume(rest)));
        io.long_poll = frozen.long_poll.map(Box::new);
        let sent_ms = frozen.unacknowledged_ms.into_iter().map(clock::from_wall_ms);
        io.unacknowledged = Unacknowledged::resume(sent_ms);
        Ok(io)
    }

    /// Ends the thaw, once all connections are there: corrects what the engine counts, and asks for
    /// events, which come at once where something is ready. Returns the connections of applications
    /// that the settings do not have any more.
    pub(crate) fn finish_thaw(
        &mut self,
        newest_generation: u32,
        is_watched: impl Fn(ConnectionId) -> bool,
    ) -> Vec<ConnectionName> {
        let mut lost = Vec::new();
        self.finish_channels();
        self.connections_mut().resume_generations(newest_generation);
        for index in 0..self.connections().extent() {
            let id = ConnectionId::new(index);
            // Not every place of the table is taken.
            let Some(connection) = self.connections().get(id) else { continue };
            // As after an attempt to hand it off, it waits for its turn only.
            if connection.state() == State::Head && connection.has(Flags::AWAITS_CONTROL) {
                continue;
            }
            if self.has_lost_app(id) {
                lost.push(self.connections().name(id));
            }
            self.turn(|sessions| {
                sessions.tell_new_numbers(id);
                sessions.watch_again(id, is_watched(id));
            });
        }
        self.end_renumbering();
        self.connections().publish_load();
        lost
    }
}

fn thaw_partial<S>(
    connection: &Connection<S>,
    frozen: FrozenPartial,
    partials: &[Arc<Message>],
) -> Result<Partial, ThawError> {
    let message = partials.get(frozen.message as usize);
    let message = message.ok_or(ThawError::Invalid("a message that was written in part"))?;
    let own = connection.encoding();
    if own.has_numbers() {
        return Err(ThawError::Invalid("a message that was written in part has a number"));
    }
    let encoding = if frozen.is_compressed { own.of(message) } else { own.uncompressed() };
    let encoded_bytes = encoding.begun(message, connection.has(Flags::CHUNKED)).len();
    if encoding.is_compressed() != frozen.is_compressed
        || encoded_bytes != frozen.encoded_bytes as usize
        || frozen.from >= frozen.encoded_bytes
    {
        return Err(ThawError::Invalid("the rest of a message that was written in part"));
    }
    Ok(Partial { message: Arc::clone(message), encoding, from: frozen.from })
}
