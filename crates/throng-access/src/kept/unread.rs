//! Stored subscriptions that are not in memory yet.
//!
//! A server serves before it has read all of them. One thread reads them in the order of their
//! keys; a request about a user has that user's entries read first.
//!
//! # Invariants
//!
//! * A user's channels are neither looked up nor changed before the user is read:
//!   [`KeptSubscriptions::ask`] and [`KeptSubscriptions::read_user`] come first. Only lists of
//!   followers and totals may be looked at earlier, and are [partial](KeptSubscriptions::is_whole).
//! * Entries that were found in the store are added only while their user is not read, which is
//!   looked up under the lock of the addition. As the entries of a user change only once the user
//!   is read, nothing is added that was removed meanwhile.
//! * A user that is not read when the last part is read has nothing in the store.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_core::records::{Records, Table};
use throng_core::{Answer, Later};
use throng_wire::{ErrorCode, ErrorResponse};

use super::source::{KeptRead, Queue, Source, Unread};
use super::stored::{LoadError, parse_stored, user_key};
use super::{CHANGED_PER_LOCK, KeptSubscriptions};

/// Entries of one part, which ends with a user: some milliseconds, for which users wait who are
/// asked for.
const PART: usize = 2_048;

/// Entries that are read before the server serves, which takes no longer than opening the store.
/// Most servers have no more, and then nothing is partial.
const FIRST: usize = 20_000;

/// Entries beside subscriptions make the estimate too large; it stays below the whole.
const PERCENT_MAX: u64 = 99;

impl From<LoadError> for ErrorResponse {
    /// The log has the cause once the thread has come to it, which is not for clients.
    fn from(_: LoadError) -> ErrorResponse {
        let message = "the user's subscriptions cannot be read from the disk; try again later";
        ErrorResponse::new(ErrorCode::Unavailable, message)
    }
}

/// How far reading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptProgress {
    /// Entries that the thread has passed.
    pub read: u64,
    /// About how many it has yet to pass, at least one.
    pub left: u64,
}

impl KeptProgress {
    /// About how much is read.
    pub fn percent(self) -> u64 {
        (self.read * 100 / (self.read + self.left)).min(PERCENT_MAX)
    }
}

/// Channels of users, one after the other.
#[derive(Default)]
struct Part {
    users: Vec<(Box<str>, Vec<Box<str>>)>,
    entries: usize,
    /// The user behind them; `None` at the end.
    next: Option<Box<str>>,
    is_broken: bool,
}

impl KeptSubscriptions {
    /// Begins to read what is stored, with a part that is all of it on most servers. Call it once,
    /// before anything is kept or looked at. Limits do not apply: what was accepted stays.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    pub fn begin_reading(&self, records: Arc<dyn Records>) -> Result<(), LoadError> {
        self.begin_with(records, FIRST)
    }

    fn begin_with(&self, records: Arc<dyn Records>, entries: usize) -> Result<(), LoadError> {
        let source = Arc::new(Source::new(records));
        self.write().unread = Some(Unread { next: Box::default(), early: HashSet::new() });
        self.source.store(Some(Arc::clone(&source)));
        self.read_part(&source, entries)
    }

    /// True if all that is stored is in memory. Costs nothing.
    pub fn is_whole(&self) -> bool {
        self.source.load().is_none()
    }

    /// How far reading has come; `None` if all is read.
    pub fn progress(&self) -> Option<KeptProgress> {
        let source = self.source.load_full()?;
        let read = source.read.load(Ordering::Relaxed);
        Some(KeptProgress { read, left: source.expected.saturating_sub(read).max(1) })
    }

    /// True if a user's subscriptions are in memory.
    pub fn is_read(&self, user: &str) -> bool {
        self.is_whole() || self.read().is_read(user)
    }

    /// Answers once a user's subscriptions are in memory, or cannot be read. Never waits.
    pub fn ask(&self, user: &str, later: Later<'_, KeptRead>) -> Answer<KeptRead> {
        let Some(source) = self.source.load_full() else { return Ok(()).into() };
        let mut queue = source.queue();
        // Under the lock: once all is read, the queue is not served any more.
        if self.is_read(user) {
            return Ok(()).into();
        }
        let (ticket, answer) = later.ticket();
        if !queue.is_ended {
            queue.asked.push_back((user.into(), ticket));
            source.is_asked.notify_one();
        }
        answer
    }

    /// Reads a user's subscriptions, unless they are in memory.
    ///
    /// # Errors
    ///
    /// Why they cannot be read.
    pub fn read_user(&self, user: &str) -> Result<(), LoadError> {
        match self.source.load_full() {
            Some(source) if !self.is_read(user) => self.read_of_user(&source, user),
            _ => Ok(()),
        }
    }

    /// Reads the users that are asked for, then the next part. Returns false once nothing is left.
    /// One thread calls it again and again.
    ///
    /// # Errors
    ///
    /// Why the part cannot be read. Users that are asked for may be readable all the same.
    pub fn read_on(&self) -> Result<bool, LoadError> {
        let Some(source) = self.source.load_full() else { return Ok(false) };
        self.answer_asked(&source);
        self.read_part(&source, PART)?;
        Ok(!self.is_whole())
    }

    /// Waits until users are asked for, for this time at most.
    pub fn wait_until_asked(&self, at_most: Duration) {
        let Some(source) = self.source.load_full() else { return };
        let is_idle = |queue: &mut Queue| queue.asked.is_empty() && !queue.is_ended;
        let waited = source.is_asked.wait_timeout_while(source.queue(), at_most, is_idle);
        drop(waited);
    }

    /// Stops reading, because the server ends. Requests that wait for a user get no answer.
    pub fn end_reading(&self) {
        let Some(source) = self.source.load_full() else { return };
        let mut queue = source.queue();
        queue.is_ended = true;
        let asked = std::mem::take(&mut queue.asked);
        source.is_asked.notify_all();
        drop(queue);
        drop(asked);
    }

    /// True once reading has been stopped, even if entries are left.
    pub fn has_ended_reading(&self) -> bool {
        self.source.load_full().is_some_and(|source| source.queue().is_ended)
    }

    fn answer_asked(&self, source: &Source) {
        let next = || source.queue().asked.pop_front();
        while let Some((user, ticket)) = next() {
            ticket.answer(self.read_user(&user).map_err(ErrorResponse::from));
        }
    }

    /// Reads at least this many entries, and the remaining ones of the last user it comes to.
    fn read_part(&self, source: &Source, entries: usize) -> Result<(), LoadError> {
        let first = match &self.read().unread {
            Some(unread) => unread.next.clone(),
            None => return Ok(()),
        };
        let part = Part::read(source, &first, entries)?;
        for (user, channels) in &part.users {
            self.add_unread(user, channels);
        }
        source.read.fetch_add(part.entries as u64, Ordering::Relaxed);
        let mut state = self.write();
        match (part.next, &mut state.unread) {
            (Some(next), Some(unread)) => {
                unread.next = next;
                for (user, _) in &part.users {
                    unread.early.remove(user);
                }
            }
            _ => state.unread = None,
        }
        let is_whole = state.unread.is_none();
        drop(state);
        if is_whole {
            let asked = std::mem::take(&mut source.queue().asked);
            self.source.store(None);
            asked.into_iter().for_each(|(_, ticket)| ticket.answer(Ok(())));
        }
        if part.is_broken { Err(LoadError::Entry) } else { Ok(()) }
    }

    fn read_of_user(&self, source: &Source, user: &str) -> Result<(), LoadError> {
        let (prefix, mut channels) = (user_key(user), Vec::new());
        let mut is_broken = false;
        let mut each = |key: &[u8], _: &[u8]| {
            if !key.starts_with(&prefix) {
                return ControlFlow::Break(());
            }
            match parse_stored(key) {
                Some((_, channel)) => channels.push(channel.into()),
                None => is_broken = true,
            }
            ControlFlow::Continue(())
        };
        let read = source.records.read_from(Table::Subscriptions, &prefix, &mut each);
        read.map_err(LoadError::Store)?;
        self.add_unread(user, &channels);
        let mut state = self.write();
        if !state.is_read(user)
            && let Some(unread) = &mut state.unread
        {
            unread.early.insert(user.into());
        }
        if is_broken { Err(LoadError::Entry) } else { Ok(()) }
    }

    /// Adds stored channels of a user, as long as the user is not read.
    fn add_unread(&self, user: &str, channels: &[Box<str>]) {
        for names in channels.chunks(CHANGED_PER_LOCK) {
            let mut state = self.write();
            if state.is_read(user) {
                return;
            }
            let added = state.add(user, names.iter().map(|name| &**name));
            drop(state);
            self.count.fetch_add(added, Ordering::Relaxed);
        }
    }
}

impl Part {
    /// Reads entries from the first one of a user on.
    fn read(source: &Source, first: &str, entries: usize) -> Result<Part, LoadError> {
        let mut part = Part::default();
        let mut each = |key: &[u8], _: &[u8]| match parse_stored(key) {
            Some((user, channel)) => part.add(user, channel, entries),
            None => {
                part.is_broken = true;
                ControlFlow::Continue(())
            }
        };
        // Of no user, the lowest key.
        let from = if first.is_empty() { Vec::new() } else { user_key(first) };
        let read = source.records.read_from(Table::Subscriptions, &from, &mut each);
        read.map_err(LoadError::Store)?;
        Ok(part)
    }

    fn add(&mut self, user: &str, channel: &str, entries: usize) -> ControlFlow<()> {
        match self.users.last_mut() {
            Some((last, channels)) if **last == *user => channels.push(channel.into()),
            _ if self.entries >= entries => {
                self.next = Some(user.into());
                return ControlFlow::Break(());
            }
            _ => self.users.push((user.into(), vec![channel.into()])),
        }
        self.entries += 1;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
