//! Copies of sockets that come ahead of an arriving worker, while the other process serves.

use std::iter::Flatten;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use std::vec;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use throng_core::ConnectionName;
use throng_handover::channel::{Channel, ChannelError, Received};
use throng_handover::message::Kind;

use super::error::{StartError, system};
use super::gate::Gate;
use super::succession::CHANNEL_TIMEOUT;
use crate::connection::Token;
use crate::sys::epoll::Epoll;
use crate::sys::handoff::HandoffReceiver;
use crate::worker::connection_token;

/// How often a thread that waits for its channel looks whether the other process has given up.
const LOOK: Duration = Duration::from_millis(20);

const TOKEN_BYTES: usize = size_of::<u64>();

/// Sockets that have come ahead of a worker's state.
pub(super) struct Ahead {
    channel: Channel,
    /// In the order of the places of their connections, as they came.
    sockets: Vec<Vec<CopiedSocket>>,
    /// Reports events of the sockets already.
    epoll: Epoll,
}

/// A copy of a connection's socket. There are as many as connections.
pub(super) struct CopiedSocket {
    /// The place of the connection, and [`UNWATCHED`].
    place: u32,
    generation: u32,
    pub(super) socket: OwnedFd,
}

const _: () = assert!(size_of::<CopiedSocket>() == 12);

/// Marks a socket whose events were not asked for.
const UNWATCHED: u32 = 1 << 31;
const PLACES: usize = ConnectionName::INDICES_MAX;
const _: () = assert!(PLACES <= UNWATCHED as usize);

impl CopiedSocket {
    /// Asks for its events, if the kernel allows it; otherwise the worker asks again.
    fn new(token: Token, socket: OwnedFd, epoll: &Epoll) -> CopiedSocket {
        let is_watched = epoll.add_connection(&socket, token.bits()).is_ok();
        let mark = if is_watched { 0 } else { UNWATCHED };
        let generation = (token.bits() >> u32::BITS) as u32;
        CopiedSocket { place: token.id().index() | mark, generation, socket }
    }

    fn index(&self) -> u32 {
        self.place & !UNWATCHED
    }

    fn is_of(&self, token: Token) -> bool {
        u64::from(self.generation) << u32::BITS | u64::from(self.index()) == token.bits()
    }

    /// True if its events were asked for.
    pub(super) fn is_watched(&self) -> bool {
        self.place & UNWATCHED == 0
    }
}

impl Ahead {
    /// Receives copies of sockets until all have come that do.
    pub(super) fn receive(handoffs: &HandoffReceiver, gate: &Gate) -> Result<Ahead, StartError> {
        let channel = await_channel(handoffs, gate)?;
        let channel =
            Channel::new(channel, CHANNEL_TIMEOUT).map_err(system("take over a worker"))?;
        let epoll = Epoll::new().map_err(system("make an epoll instance"))?;
        let mut ahead = Ahead { channel, sockets: Vec::new(), epoll };
        loop {
            let Received { kind, content, descriptors } = ahead.channel.receive().map_err(lost)?;
            if kind != Kind::Ahead || content.len() != TOKEN_BYTES * descriptors.len() {
                return Err(out_of_order());
            }
            if descriptors.is_empty() {
                return Ok(ahead);
            }
            let tokens = content.chunks_exact(TOKEN_BYTES).map(|bits| {
                let token =
                    Token::from_bits(u64::from_le_bytes(std::array::from_fn(|at| bits[at])));
                let is_place = |token: &Token| (token.id().index() as usize) < PLACES;
                token.filter(is_place).ok_or_else(out_of_order)
            });
            let sockets = tokens.zip(descriptors);
            let copied = |(token, socket)| Ok(CopiedSocket::new(token?, socket, &ahead.epoll));
            let sockets = sockets.map(copied).collect::<Result<Vec<_>, StartError>>()?;
            ahead.sockets.push(sockets);
        }
    }

    /// The channel that the state comes through, the copies, and what reports their events.
    pub(super) fn into_parts(self) -> (Channel, Copies, Epoll) {
        let Ahead { channel, sockets, epoll } = self;
        let sockets = sockets.into_iter().flatten();
        (channel, Copies { sockets, next: None, left: Vec::new() }, epoll)
    }
}

/// Sockets that have come ahead, in the order of the records.
pub(super) struct Copies {
    sockets: Flatten<vec::IntoIter<Vec<CopiedSocket>>>,
    /// The next one, if it was looked at.
    next: Option<CopiedSocket>,
    /// Those whose connections have ended since.
    left: Vec<CopiedSocket>,
}

impl Copies {
    /// Takes the copy of a record's socket; call it for each. Copies before it have no record: they
    /// are left.
    pub(super) fn take(&mut self, record: &[u8]) -> Option<CopiedSocket> {
        let token = connection_token(record)?;
        loop {
            let next = self.next.take().or_else(|| self.sockets.next())?;
            if next.is_of(token) {
                return Some(next);
            }
            if next.index() > token.id().index() {
                self.next = Some(next);
                return None;
            }
            self.left.push(next);
        }
    }

    /// Takes those that are left, so far.
    pub(super) fn take_left(&mut self) -> impl Iterator<Item = CopiedSocket> {
        self.left.drain(..)
    }

    /// Those that no record has taken.
    pub(super) fn into_left(self) -> impl Iterator<Item = CopiedSocket> {
        self.left.into_iter().chain(self.next).chain(self.sockets)
    }
}

/// Waits for the worker's channel, which comes as handoffs do.
fn await_channel(handoffs: &HandoffReceiver, gate: &Gate) -> Result<OwnedFd, StartError> {
    let deadline = Instant::now() + 4 * CHANNEL_TIMEOUT;
    let mut buffer = Vec::new();
    while !gate.is_shut() && Instant::now() < deadline {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        // An error means a turn without a wait.
        let _ = poll(&mut [PollFd::new(handoffs, PollFlags::IN)], Some(&wait));
        match handoffs.receive(&mut buffer).map_err(system("take over a worker"))? {
            Some((header, Some(socket))) if header.is_channel => return Ok(socket),
            Some(_) => return Err(StartError::TakeOver("a worker's channel is lost".to_owned())),
            None => {}
        }
    }
    Err(StartError::TakeOver("the running server has given up".to_owned()))
}

pub(super) fn lost(error: ChannelError) -> StartError {
    StartError::TakeOver(error.to_string())
}

pub(super) fn out_of_order() -> StartError {
    StartError::TakeOver("a message came out of order".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use throng_core::frozen::{Encoder, RecordKind};

    use super::*;

    fn copy(index: u32, generation: u32) -> CopiedSocket {
        let bits = u64::from(generation) << u32::BITS | u64::from(index);
        let token = Token::from_bits(bits).unwrap();
        let (socket, _) = UnixStream::pair().unwrap();
        CopiedSocket::new(token, socket.into(), &Epoll::new().unwrap())
    }

    fn record(index: u32, generation: u32) -> Vec<u8> {
        let mut encoder = Encoder::new(RecordKind::Connection);
        encoder.u32(index);
        encoder.u32(generation);
        encoder.finish()
    }

    #[test]
    fn each_record_finds_its_own_copy_and_the_others_are_left() {
        let sockets = vec![copy(0, 1), copy(2, 1), copy(3, 7), copy(5, 1), copy(9, 1)];
        assert!(sockets.iter().all(CopiedSocket::is_watched));
        let sockets = vec![sockets].into_iter().flatten();
        let mut copies = Copies { sockets, next: None, left: Vec::new() };
        let mut find =
            |index, generation| copies.take(&record(index, generation)).map(|copy| copy.index());
        assert_eq!(find(0, 1), Some(0));
        // The connection with index 2 has ended, and nothing came ahead of 1.
        assert_eq!(find(1, 1), None);
        // Another connection has the place.
        assert_eq!(find(3, 8), None);
        let left: Vec<_> = copies.take_left().map(|copy| copy.index()).collect();
        assert_eq!(left, [2, 3]);
        let found = copies.take(&record(5, 1)).map(|copy| copy.index());
        assert_eq!(found, Some(5));
        assert!(copies.take(&Encoder::new(RecordKind::WorkerEnd).finish()).is_none());
        let left: Vec<_> = copies.into_left().map(|copy| copy.index()).collect();
        assert_eq!(left, [9]);
    }
}
