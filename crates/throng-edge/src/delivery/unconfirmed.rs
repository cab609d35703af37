//! The clients of a worker that have to confirm what they have had.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::connection::{ConnectionId, Token};

/// The clients that have to confirm something, and those whose users are awaited.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    /// True for a connection that has been asked, false for one in the queue.
    are_asked: HashMap<ConnectionId, bool>,
    /// When connections are asked, the next one first. Some may not be listed any more.
    queue: VecDeque<(u32, ConnectionId)>,
    /// When the wait for the user of a connection ends.
    waits: VecDeque<(u32, Token)>,
}

impl Unconfirmed {
    /// Lists a connection that has something to confirm, unless it is listed or asked.
    pub(super) fn list(&mut self, id: ConnectionId, due: u32) {
        if let Entry::Vacant(entry) = self.are_asked.entry(id) {
            entry.insert(false);
            self.queue.push_back((due, id));
        }
    }

    /// The next connection to ask, which is not listed any more.
    pub(super) fn take_due(&mut self, tick: u32) -> Option<ConnectionId> {
        loop {
            let (_, id) = self.queue.pop_front_if(|(due, _)| *due <= tick)?;
            if self.are_asked.get(&id) == Some(&false) {
                self.are_asked.remove(&id);
                return Some(id);
            }
        }
    }

    /// A connection has been asked.
    pub(super) fn note_asked(&mut self, id: ConnectionId) {
        self.are_asked.insert(id, true);
    }

    /// A connection answers. Returns whether it was asked.
    pub(super) fn take_asked(&mut self, id: ConnectionId) -> bool {
        let is_asked = self.are_asked.get(&id) == Some(&true);
        if is_asked {
            self.are_asked.remove(&id);
        }
        is_asked
    }

    /// A connection ends.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.are_asked.remove(&id);
    }

    /// A connection waits for its user. When the wait ends, all of its subscriptions are looked at:
    /// so it counts once, however many begin at the same time.
    pub(super) fn wait(&mut self, token: Token, due: u32) {
        if self.waits.back() != Some(&(due, token)) {
            self.waits.push_back((due, token));
        }
    }

    /// The next connection whose wait is over.
    pub(super) fn take_wait(&mut self, tick: u32) -> Option<Token> {
        self.waits.pop_front_if(|(due, _)| *due <= tick).map(|(_, token)| token)
    }
}
