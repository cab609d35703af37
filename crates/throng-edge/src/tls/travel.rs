//! State that leaves with its socket, or comes with it.

use throng_tls::{End, StreamEnd};

use super::connection::{Carried, TlsConnection};
use super::half::{Half, Outbound, Stage};
use super::read::has_record;
use super::slots::{Slot, Taken};
use super::{Numbered, TlsNet};
use crate::counters::Counter;
use crate::net::{HandoffHeader, Leaving, Net};

impl<N: Net> TlsNet<N>
where
    N::Socket: Numbered,
{
    /// A socket begins with a handshake, perhaps behind a PROXY header. Returns whether there is
    /// memory for it.
    pub(super) fn begin(&mut self, socket: &N::Socket, awaits_proxy_header: bool) -> bool {
        self.forget(socket);
        self.put(socket, Carried::New(Vec::new()), awaits_proxy_header)
    }

    /// The PROXY header has come, and `rest` behind it. Returns whether that is for the handshake.
    pub(super) fn end_passing(&mut self, socket: &N::Socket, rest: &[u8]) -> bool {
        let slot = self.slots.find(socket.number());
        let half = slot.and_then(|slot| self.slots.half_mut(slot));
        let Some(half) = half.filter(|half| half.is_passing) else { return false };
        half.is_passing = false;
        half.inbound = rest.to_vec();
        true
    }

    /// The socket is a plain one from now on, or closed.
    pub(super) fn forget(&mut self, socket: &N::Socket) {
        if !self.slots.is_empty() {
            drop(self.take(socket));
        }
    }

    fn take(&mut self, socket: &N::Socket) -> Option<Taken> {
        let taken = self.slots.take(socket.number())?;
        if let Some(Half { stage: Stage::Shaking(..), .. }) = taken.half {
            self.set_shaking(self.shaking - 1);
            self.count(Counter::TlsHandshakesAbandoned);
        }
        Some(taken)
    }

    /// Sends a socket away with its state, in front of the bytes. If it is not taken, both are here
    /// again.
    pub(super) fn travel(
        &mut self,
        header: HandoffHeader,
        socket: N::Socket,
        bytes: &[u8],
        send: impl FnOnce(&mut N, HandoffHeader, N::Socket, &[u8]) -> Result<(), N::Socket>,
    ) -> Result<(), N::Socket> {
        let Some(slot) = self.slots.find(socket.number()) else {
            return send(&mut self.net, header, socket, bytes);
        };
        let is_passing = self.slots.half(slot).is_some_and(|half| half.is_passing);
        if !self.can_travel(slot) {
            // Only closing is left. The peer is told why, unless it shakes hands.
            self.send_goodbye(slot, &socket);
        }
        let Some(packed) = self.take_carried(&socket).and_then(|carried| carried.pack(bytes).ok())
        else {
            self.net.close(socket);
            return Ok(());
        };
        let header = HandoffHeader { is_tls: true, ..header };
        let Err(socket) = send(&mut self.net, header, socket, packed.bytes()) else {
            return Ok(());
        };
        // Without its state it would pass for a plain one.
        let is_back = packed.unpack().is_ok_and(|carried| self.put(&socket, carried, is_passing));
        if is_back {
            Err(socket)
        } else {
            self.net.close(socket);
            Ok(())
        }
    }

    /// The state of a connection that is frozen.
    pub(super) fn pack(&mut self, socket: &N::Socket) -> Leaving {
        if self.slots.find(socket.number()).is_none() {
            return Leaving::Plain;
        }
        let packed = self.take_carried(socket).and_then(|carried| carried.pack(&[]).ok());
        packed.map_or(Leaving::Unfinished, |packed| Leaving::Tls(packed.bytes().to_vec()))
    }

    /// Takes the state of a socket that came, from the front of its bytes. Returns its length;
    /// `None` if the socket can only be closed.
    pub(super) fn arrive(
        &mut self,
        awaits_proxy_header: bool,
        socket: &N::Socket,
        bytes: &mut [u8],
    ) -> Option<usize> {
        let (carried, used) = Carried::read(bytes).ok()?;
        self.put(socket, carried, awaits_proxy_header).then_some(used)
    }

    /// True if the state of a connection can travel: not in the middle of its handshake, and not
    /// once one of the sides has failed.
    pub(super) fn can_travel(&self, slot: Slot) -> bool {
        self.slots.half(slot).is_none_or(|half| match (&half.stage, half.end) {
            (Stage::Shaking(..) | Stage::Failed, _) => false,
            (Stage::Waiting, Some(End::Failed(_) | End::PeerFailed(_))) => false,
            (Stage::Waiting, Some(End::Closed) | None) => true,
        })
    }

    /// Takes the state of a socket out of its slot; `None` if it cannot travel.
    fn take_carried(&mut self, socket: &N::Socket) -> Option<Carried> {
        let Taken { halves, half, user } = self.take(socket)?;
        let half = half.unwrap_or_default();
        let Half { inbound, outbound, stage, end, .. } = half;
        match (halves, stage, end) {
            (_, _, Some(End::Failed(_) | End::PeerFailed(_))) => None,
            (Some((outgoing, incoming)), Stage::Waiting, _) => {
                let outbound = outbound.rest().to_vec();
                let connection = TlsConnection { outgoing, incoming, inbound, outbound, user };
                Some(Carried::Established(Box::new(connection)))
            }
            (None, Stage::Waiting, None) => Some(Carried::New(inbound)),
            _ => None,
        }
    }

    fn put(&mut self, socket: &N::Socket, carried: Carried, is_passing: bool) -> bool {
        if self.acceptor.is_none() {
            return false;
        }
        match carried {
            Carried::New(inbound) => {
                // Its peer waits for an answer, so that no event comes.
                let is_queued = !is_passing && has_record(&inbound);
                let half = Half { inbound, is_passing, is_queued, ..Half::default() };
                let is_kept = self.slots.insert(socket.number(), half).is_ok();
                if is_kept && is_queued {
                    self.queued.push_back(socket.number());
                }
                is_kept
            }
            Carried::Established(connection) => {
                let TlsConnection { outgoing, incoming, inbound, outbound, user } = *connection;
                let is_closed = incoming.stream_end() == StreamEnd::Clean;
                let end = is_closed.then_some(End::Closed);
                let outbound = Outbound::resume(outbound);
                let half = Half { inbound, outbound, end, ..Half::default() };
                let Ok(slot) = self.slots.insert(socket.number(), half) else { return false };
                let is_kept = self.slots.establish(slot, outgoing, incoming, user).is_ok();
                self.slots.trim(slot);
                is_kept
            }
        }
    }
}
