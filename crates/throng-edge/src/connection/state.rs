//! One connection: what it costs while it is parked.

use throng_core::SubscriptionId;
use throng_dialect::{Encoding, Framing};

use super::buffers::Buffered;
use super::flags::Flags;
use super::id::{ConnectionId, Generation, SideIndex, Token};
use super::io::Io;
use super::unacknowledged::Unacknowledged;
use crate::counters::{Counter, Parked};

/// Where a connection is in its life. `Streaming` and `LongPolling` are parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The worker awaits or reads a request head.
    Head,
    /// The request waits for answers: whether it is allowed, or what the engine fetches for it. It
    /// has a place among the subscribers, and further requests wait behind it.
    Waiting,
    /// The connection follows channels and gets what is published to them.
    Streaming,
    /// The connection follows channels until its one answer.
    LongPolling,
    /// The final response is written or queued. Input is thrown away until the peer has closed its
    /// side, or a deadline is over.
    Closing,
    /// It ends with the worker's turn: nothing is read from it or written to it.
    Condemned,
}

/// Where a connection is in its life, and how it is spoken to once it is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Phase(u8);

impl Default for Phase {
    fn default() -> Phase {
        Phase::new(State::Head, Encoding::default())
    }
}

const _: () = assert!(State::Condemned as u32 >> (u8::BITS - Encoding::BITS) == 0);

impl Phase {
    pub(crate) fn new(state: State, encoding: Encoding) -> Phase {
        Phase((state as u8) << Encoding::BITS | encoding.number())
    }

    fn state(self) -> State {
        match self.0 >> Encoding::BITS {
            0 => State::Head,
            1 => State::Waiting,
            2 => State::Streaming,
            3 => State::LongPolling,
            4 => State::Closing,
            _ => State::Condemned,
        }
    }

    fn encoding(self) -> Encoding {
        // It was made from one.
        Encoding::numbered(self.0 & ((1 << Encoding::BITS) - 1)).unwrap_or_default()
    }
}

/// A connection. There may be a million: state that only some of them need is in [`Io`].
#[derive(Debug)]
pub struct Connection<S> {
    /// The client's end. Dropping it closes the connection.
    pub(crate) socket: S,
    /// Distinguishes the [`Token`](super::Token) of this connection from earlier and later ones in
    /// the same place.
    pub(crate) generation: Generation,
    /// The tick of its one deadline: of its head, its answer, its next heartbeat check or its
    /// close, depending on `state`.
    pub(crate) due: u32,
    /// State of only some connections: see [`side_table`](super::side_table).
    pub(crate) side: SideIndex,
    /// Its newest subscription, which links to the one before, and so on.
    pub(crate) newest_subscription: Option<SubscriptionId>,
    /// `None` for an idle connection, which owns no buffers.
    pub(crate) io: Option<Box<Io>>,
    /// State and encoding. The state is changed only by [`Connections`](super::Connections).
    pub(crate) phase: Phase,
    pub(crate) flags: Flags,
}

// With `OwnedFd` as the socket. The slab adds nothing: it uses a niche.
const _: () =
    assert!(throng_core::slab::Slab::<Connection<std::os::fd::OwnedFd>>::ENTRY_BYTES == 32);

impl<S> Connection<S> {
    pub(crate) fn has(&self, flag: Flags) -> bool {
        self.flags.has(flag)
    }

    pub(crate) fn state(&self) -> State {
        self.phase.state()
    }

    pub(super) fn set_state(&mut self, state: State) {
        self.phase = Phase::new(state, self.phase.encoding());
    }

    /// Dialect and framing, once it is parked.
    pub(crate) fn encoding(&self) -> Encoding {
        self.phase.encoding()
    }

    /// True if its client sends commands, and is told what becomes of each channel.
    pub(crate) fn has_commands(&self) -> bool {
        self.encoding().dialect().has_commands()
    }

    /// True if the confirmation of a subscription has the members of its channel.
    pub(crate) fn confirms_with_members(&self) -> bool {
        self.encoding().dialect().confirms_with_members()
    }

    /// True if it has been upgraded, and reads and writes frames.
    pub(crate) fn is_websocket(&self) -> bool {
        self.state() == State::Streaming && self.encoding().framing() == Framing::WebSocket
    }

    /// The token of the connection, which is in the place `id`.
    pub(crate) fn token(&self, id: ConnectionId) -> Token {
        Token::new(id, self.generation)
    }

    /// The kind of subscriber that it counts as; `None` unless it is parked.
    pub(crate) fn parked(&self) -> Option<Parked> {
        Some(match (self.state(), self.encoding().framing()) {
            (State::Head | State::Waiting | State::Closing | State::Condemned, _) => return None,
            _ if self.has(Flags::CANARY) => Parked::Canary,
            (State::LongPolling, _) => Parked::Poll,
            (State::Streaming, _) if self.has(Flags::VIEWER) => Parked::Status,
            (State::Streaming, Framing::WebSocket) => Parked::WebSocket,
            (State::Streaming, Framing::Sse) => Parked::Sse,
            (State::Streaming, Framing::Line) => Parked::Stream,
        })
    }

    /// True if messages can be written to it now.
    pub(crate) fn takes_messages(&self) -> bool {
        self.state() == State::Streaming && !self.has(Flags::BLOCKED)
    }

    /// True if its first request head has not arrived in full.
    pub(super) fn is_head_unfinished(&self) -> bool {
        self.state() == State::Head && !self.has(Flags::SERVED) && !self.has(Flags::AWAITS_CONTROL)
    }

    /// The counter of the messages written to it.
    pub(crate) fn delivery_counter(&self) -> Counter {
        match (self.has(Flags::CANARY), self.has(Flags::VIEWER)) {
            (true, _) => Counter::CanaryDeliveries,
            (false, true) => Counter::StatusDeliveries,
            (false, false) => Counter::Deliveries,
        }
    }

    /// True if it has had its final response, or has none.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.state(), State::Closing | State::Condemned)
    }

    /// True if it gets messages.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(self.state(), State::Streaming | State::LongPolling)
    }

    /// Its [`Io`], made on demand.
    pub(crate) fn io_mut(&mut self) -> &mut Io {
        self.io.get_or_insert_with(Box::default)
    }

    /// The frames that its client owes acknowledgements of, if there are any.
    pub(crate) fn unacknowledged(&self) -> Option<&Unacknowledged> {
        self.io.as_ref()?.unacknowledged.as_deref()
    }

    /// True if messages are held until its client acknowledges some.
    pub(crate) fn holds_for_acks(&self) -> bool {
        self.unacknowledged().is_some_and(|owed| owed.holds)
    }

    /// Its share of the worker's quota.
    pub(super) fn buffered(&self) -> Buffered {
        self.io.as_ref().map_or(Buffered::default(), |io| io.buffered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_encoding_do_not_change_each_other() {
        let states = [
            State::Head,
            State::Waiting,
            State::Streaming,
            State::LongPolling,
            State::Closing,
            State::Condemned,
        ];
        for state in states {
            for encoding in (0..32).filter_map(Encoding::numbered) {
                let phase = Phase::new(state, encoding);
                assert_eq!((phase.state(), phase.encoding()), (state, encoding));
            }
        }
    }
}
