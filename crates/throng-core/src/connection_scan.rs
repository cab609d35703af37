//! Scans of the server's connections: to list a user's, to list the ones that are behind, to close
//! them, or to close connections with revoked tokens.
//!
//! The server keeps no list of a user's connections. The control plane posts a scan to every
//! worker, which passes all of its connections, some in each slice, and the last worker answers.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::connection_name::ConnectionName;
use crate::later::Ticket;
use crate::name::ChannelName;

/// The connections that a scan is about. It acts on those that were there when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanTarget {
    /// Connections with a token whose tags match any of these.
    Sessions(Vec<WantedTags>),
    /// The connections of a user: those with a token of the user, and without keys those that
    /// follow the user's inbox.
    User {
        inbox: ChannelName,
        /// The tags of the user's tokens.
        tags: WantedTags,
    },
    Connections(Vec<ConnectionName>),
    /// Connections with unwritten messages, because their sockets take no more. A list has the ones
    /// that hold most.
    Behind,
    /// All connections that follow a channel.
    Channel(ChannelName),
    /// All connections that follow something.
    All,
}

/// The tags of sessions that are looked for: a session matches if its tags have these values in the
/// bits of the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedTags {
    /// The bits that count.
    pub mask: u64,
    /// The values of these bits.
    pub tags: u64,
}

impl WantedTags {
    /// Those of all sessions, and of connections without one.
    pub const ALL: WantedTags = WantedTags { mask: 0, tags: 0 };
}

/// The action of a scan on the connections that it finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanAction {
    /// Lists them, at most this many in all.
    List {
        /// The maximum number of connections in the answer.
        limit: usize,
    },
    /// Closes them: their tokens are revoked.
    Revoke,
    /// Closes them for the application.
    Close(ScanClose),
    /// Resets connections that are behind: memory is short, and they hold much of it.
    CloseForMemory,
    /// Ends what the access policy does not allow them any more.
    Recheck,
    /// Tells them whether messages come late, as far as their transport has a form for it.
    TellLate(bool),
}

/// How a scan closes connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanClose {
    /// The close code of a WebSocket. Clients obey the ranges of the application's codes.
    pub code: u16,
    /// The reason, at most 123 bytes.
    pub reason: Box<str>,
    /// True if the clients may come back: a long-poll gets an empty answer then, and otherwise an
    /// error.
    pub may_return: bool,
}

/// How a connection gets its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundTransport {
    WebSocket,
    Sse,
    Stream,
    LongPoll,
}

impl FoundTransport {
    /// The word for it in answers and requests.
    pub fn word(self) -> &'static str {
        match self {
            FoundTransport::WebSocket => "websocket",
            FoundTransport::Sse => "sse",
            FoundTransport::Stream => "stream",
            FoundTransport::LongPoll => "poll",
        }
    }
}

/// A connection that a scan has listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundConnection {
    pub name: ConnectionName,
    pub transport: FoundTransport,
    /// When it was accepted, to about a second, in milliseconds since 1970; `None` if that is too
    /// long ago to be known.
    pub since_ms: Option<u64>,
    /// The other end of the TCP connection, if the system still knows it.
    pub peer: Option<SocketAddr>,
    /// The client's address, if the other end is a trusted proxy that names it.
    pub proxied: Option<IpAddr>,
    /// How far it is behind, in the list of those that are.
    pub lag: Option<Box<FoundLag>>,
}

impl FoundConnection {
    /// Bytes that wait for it.
    fn held_bytes(&self) -> u64 {
        self.lag.as_ref().map_or(0, |lag| lag.held_bytes())
    }

    /// Its place in the list of connections that are behind.
    pub fn behind_order(&self) -> (Reverse<u64>, ConnectionName) {
        (Reverse(self.held_bytes()), self.name)
    }
}

/// How far a connection is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLag {
    /// Since when it has not had all that it is to get, in milliseconds since 1970.
    pub since_ms: u64,
    /// The number of messages that it lacks, in all of its channels.
    pub messages: u64,
    /// The size of these messages, as lag limits count it, and of other output that waits for its
    /// socket.
    pub bytes: u64,
    /// Bytes that its socket has taken and its peer has not acknowledged.
    pub kernel_bytes: u64,
    /// Its user, if the server knows the name.
    pub user: Option<Box<str>>,
    /// The first channels and inboxes that it follows, at most [`FoundLag::CHANNELS_MAX`].
    pub channels: Vec<ChannelName>,
    /// The number of all that it follows.
    pub subscriptions: usize,
}

impl FoundLag {
    /// The channels that are listed of a connection: it may follow a thousand.
    pub const CHANNELS_MAX: usize = 8;

    /// Bytes that wait for it, here and in the kernel. Connections may share some of them.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.kernel_bytes)
    }
}

/// The result of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scanned {
    /// How many connections it was about.
    pub count: u64,
    pub connections: Vec<FoundConnection>,
}

/// A scan on its way through the workers.
#[derive(Debug)]
pub struct ConnectionScan {
    pub target: ScanTarget,
    pub action: ScanAction,
    found: Mutex<Scanned>,
    unanswered: AtomicUsize,
    ticket: Mutex<Option<Ticket<Scanned>>>,
}

impl ConnectionScan {
    /// A scan by `workers` workers, at least one. The last of them answers with the ticket. If a
    /// worker ends before it has answered, there is no answer.
    pub fn new(
        target: ScanTarget,
        action: ScanAction,
        workers: usize,
        ticket: Ticket<Scanned>,
    ) -> Arc<ConnectionScan> {
        debug_assert!(workers > 0);
        Arc::new(ConnectionScan {
            target,
            action,
            found: Mutex::default(),
            unanswered: AtomicUsize::new(workers),
            ticket: Mutex::new(Some(ticket)),
        })
    }

    /// Adds what one worker has found.
    pub fn answer(&self, count: u64, connections: Vec<FoundConnection>) {
        let limit = match self.action {
            ScanAction::List { limit } => limit,
            ScanAction::Revoke
            | ScanAction::Close(_)
            | ScanAction::CloseForMemory
            | ScanAction::Recheck
            | ScanAction::TellLate(_) => 0,
        };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.count += count;
        if self.target == ScanTarget::Behind {
            found.connections.extend(connections);
            found.connections.sort_by_key(FoundConnection::behind_order);
            found.connections.truncate(limit);
        } else {
            let left = limit.saturating_sub(found.connections.len());
            found.connections.extend(connections.into_iter().take(left));
        }
        if self.unanswered.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let scanned = std::mem::take(&mut *found);
        drop(found);
        if let Some(ticket) = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take() {
            ticket.answer(scanned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn found(number: u32) -> FoundConnection {
        FoundConnection {
            name: ConnectionName::numbered(number.into()),
            transport: FoundTransport::Sse,
            since_ms: None,
            peer: None,
            proxied: None,
            lag: None,
        }
    }

    #[test]
    fn the_last_worker_answers_with_what_all_have_found() {
        let (sender, answer) = mpsc::channel();
        let ticket = Ticket::new(move |scanned| drop(sender.send(scanned)));
        let target = ScanTarget::Channel(ChannelName::channel("a"));
        let scan = ConnectionScan::new(target, ScanAction::List { limit: 3 }, 2, ticket);
        scan.answer(2, vec![found(1), found(2)]);
        assert!(answer.try_recv().is_err());
        scan.answer(2, vec![found(3), found(4)]);
        let scanned = answer.try_recv().unwrap().unwrap();
        assert_eq!((scanned.count, scanned.connections.len()), (4, 3));
    }
    #[test]
    fn of_those_behind_the_ones_that_hold_most_are_listed() {
        let (sender, answer) = mpsc::channel();
        let ticket = Ticket::new(move |scanned| drop(sender.send(scanned)));
        let scan =
            ConnectionScan::new(ScanTarget::Behind, ScanAction::List { limit: 3 }, 2, ticket);
        let behind = |number, bytes, kernel_bytes| FoundConnection {
            lag: Some(Box::new(FoundLag {
                since_ms: 0,
                messages: 1,
                bytes,
                kernel_bytes,
                user: None,
                channels: Vec::new(),
                subscriptions: 1,
            })),
            ..found(number)
        };
        scan.answer(9, vec![behind(1, 5, 5), behind(2, 4, 0)]);
        scan.answer(2, vec![behind(3, 0, 11), behind(4, 3, 1)]);
        let scanned = answer.try_recv().unwrap().unwrap();
        let names: Vec<_> = scanned.connections.iter().map(|found| found.name.number()).collect();
        assert_eq!((scanned.count, names), (11, vec![3, 1, 2]));
    }
}
