//! Presence: the users in a channel.
//!
//! The server keeps no list of users. The workers that follow a channel scan their subscriptions
//! when a client asks, and the last worker completes the answer. A scan costs far more than a
//! request, so the [`PresenceCache`] limits what clients can cause:
//!
//! * Queries about a channel with many followers share one scan: a query that comes while a scan is
//!   under way waits for its answer.
//! * The answer is remembered, longer the more followers were scanned: at most about 4,000
//!   subscriptions of a channel are scanned in a second.
//! * A channel with few followers is scanned for each query, so that a new follower is in the
//!   answer. Such a scan costs no more than the request.
//! * Presence events need scans of their own: what is remembered lacks the change that they are
//!   about. They have few of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_wire::v1::Present;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::later::{Answer, Later, Ticket};
use crate::name::ChannelName;
use crate::watched_presence::WatchedPresence;

/// The number of followers from which on queries share a scan. Scanning fewer takes no longer than
/// reading the request.
pub(crate) const SHARED_FOLLOWERS_MIN: usize = 64;

/// Followers scanned for each millisecond that an answer is remembered.
const FOLLOWERS_PER_MS: usize = 4;

/// The longest time that an answer is remembered.
const REMEMBERED_MS_MAX: u64 = 1000;

/// Users in all remembered answers together. Beyond it an answer is not remembered.
const REMEMBERED_USERS_MAX: usize = 100_000;

/// Users that an answer can name: the most that a request may ask for.
const USERS_MAX: usize = throng_wire::v1::LIMIT_MAX as usize;

/// Queries of all clients that may wait for workers. Beyond it queries are refused.
pub(crate) const OPEN_MAX: usize = 16_384;

/// The scope of a presence query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresenceAsk {
    /// Users that the answer names, at most.
    pub max_users: usize,
    /// True if no earlier scan may answer: everybody who follows the channel now is in the answer.
    /// The caller limits how often it asks so.
    pub is_anew: bool,
}

impl From<usize> for PresenceAsk {
    fn from(max_users: usize) -> PresenceAsk {
        PresenceAsk { max_users, is_anew: false }
    }
}

/// The connections and users of a channel: the answer to a query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Presence {
    /// The number of connections that follow the channel.
    pub connections: usize,
    /// The users that they belong to, each once and in alphabetical order.
    pub users: Vec<Arc<str>>,
    /// True if there are more users than were asked for.
    pub is_cut: bool,
    /// True if other nodes have not said who is there on them.
    pub is_partial: bool,
}

impl Presence {
    /// The answer to a client. `is_local` as in [`Present`].
    pub fn answer(&self, is_local: bool) -> Present<'_, Arc<str>> {
        Present {
            connections: self.connections,
            users: &self.users,
            members: None,
            next: None,
            more: self.is_cut,
            is_partial: self.is_partial,
            is_local,
        }
    }
}

/// Too many queries wait for workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many presence queries are waiting; try again later")]
pub struct PresenceBusy;

impl From<PresenceBusy> for ErrorResponse {
    fn from(error: PresenceBusy) -> ErrorResponse {
        ErrorResponse::new(ErrorCode::Busy, error.to_string())
    }
}

/// The users that workers have found.
#[derive(Debug, Default)]
struct Found {
    users: BTreeSet<Arc<str>>,
    is_cut: bool,
}

/// Called with the users that all workers have found.
type FoundAll = Box<dyn FnOnce(Found) + Send>;

/// A query on its way through the workers.
pub struct PresenceQuery {
    channel: ChannelName,
    max_users: usize,
    found: Mutex<Found>,
    unanswered: AtomicUsize,
    done: Mutex<Option<FoundAll>>,
}

impl std::fmt::Debug for PresenceQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PresenceQuery").field("max_users", &self.max_users).finish_non_exhaustive()
    }
}

impl PresenceQuery {
    /// A query about a channel to `workers` workers, at least one.
    fn new(
        channel: ChannelName,
        max_users: usize,
        workers: usize,
        done: impl FnOnce(Found) + Send + 'static,
    ) -> Arc<PresenceQuery> {
        Arc::new(PresenceQuery {
            channel,
            max_users,
            found: Mutex::default(),
            unanswered: AtomicUsize::new(workers),
            done: Mutex::new(Some(Box::new(done))),
        })
    }

    /// The channel. The ids that come with the query may be another one's by now.
    pub fn channel(&self) -> &ChannelName {
        &self.channel
    }

    /// The maximum number of users that the answer names.
    pub fn max_users(&self) -> usize {
        self.max_users
    }

    /// Adds one worker's answer: the users that it found, and whether there may be more.
    pub fn answer(&self, users: impl IntoIterator<Item = Arc<str>>, is_cut: bool) {
        {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.users.extend(users);
            found.is_cut |= is_cut;
        }
        if self.unanswered.fetch_sub(1, Ordering::AcqRel) == 1 {
            let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
            let found =
                std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(done) = done {
                done(found);
            }
        }
    }
}

/// One client's query.
struct Requester {
    max_users: usize,
    connections: usize,
    ticket: Ticket<Presence>,
}

impl Requester {
    fn answer(self, found: &Found) {
        self.ticket.answer(found.answer(self.connections, self.max_users));
    }
}

impl Found {
    /// The answer about a channel with `connections` followers that names at most `max_users`.
    fn answer(&self, connections: usize, max_users: usize) -> Presence {
        let users = self.users.iter().take(max_users).cloned().collect();
        let is_cut = self.is_cut || self.users.len() > max_users;
        Presence { connections, users, is_cut, is_partial: false }
    }
}

/// The result of a query: the answer, and the query to send to each worker, if it is needed.
pub(crate) type Asked = (Answer<Presence>, Option<Arc<PresenceQuery>>);

/// The state of a channel's shared answer.
enum Entry {
    /// A scan is under way for these queries.
    Scanning(Vec<Requester>),
    /// The scan is done.
    Remembered { found: Arc<Found>, until_ms: u64 },
}

/// Shares answers between clients that ask about the same channel.
#[derive(Default)]
pub struct PresenceCache {
    /// The source of presence events.
    pub watched: WatchedPresence,
    channels: Mutex<HashMap<ChannelName, Entry>>,
    remembered_users: AtomicUsize,
    open: AtomicUsize,
}

impl std::fmt::Debug for PresenceCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PresenceCache").field("open", &self.open).finish_non_exhaustive()
    }
}

impl PresenceCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<ChannelName, Entry>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a query about a channel with `connections` followers of `workers` workers. It is
    /// answered at once if an answer is remembered; if one is on its way, no other query is sent.
    pub(crate) fn ask(
        self: &Arc<Self>,
        now_ms: u64,
        channel: &ChannelName,
        (connections, workers): (usize, usize),
        ask: PresenceAsk,
        later: Later<'_, Presence>,
    ) -> Result<Asked, PresenceBusy> {
        let PresenceAsk { max_users, is_anew } = ask;
        if workers == 0 || is_anew || connections < SHARED_FOLLOWERS_MIN {
            return self.ask_anew(channel, (connections, workers), max_users, later);
        }
        // Held until the entry is in place, so that only one of two simultaneous requests starts a
        // scan.
        let mut channels = self.lock();
        let entry = channels.get_mut(channel);
        if let Some(Entry::Remembered { found, until_ms }) = &entry
            && now_ms < *until_ms
        {
            let found = Arc::clone(found);
            drop(channels);
            return Ok((found.answer(connections, max_users).into(), None));
        }
        self.open()?;
        let (ticket, answer) = later.ticket();
        let requester = Requester { max_users, connections, ticket };
        let stale = match entry {
            Some(Entry::Scanning(requesters)) => {
                requesters.push(requester);
                return Ok((answer, None));
            }
            stale => stale,
        };
        let scanning = Entry::Scanning(vec![requester]);
        match stale {
            Some(stale) => self.uncount(&std::mem::replace(stale, scanning)),
            None => drop(channels.insert(channel.clone(), scanning)),
        }
        let (cache, name) = (Arc::clone(self), channel.clone());
        // The more a scan costs, the longer its result serves.
        let lifetime_ms = (connections / FOLLOWERS_PER_MS) as u64;
        let until_ms = now_ms + lifetime_ms.min(REMEMBERED_MS_MAX);
        // Not `max_users`: requests with other limits share the result.
        let query = PresenceQuery::new(channel.clone(), USERS_MAX, workers, move |found| {
            cache.complete(&name, found, until_ms);
        });
        Ok((answer, Some(query)))
    }

    /// Takes a query that no earlier scan may answer.
    fn ask_anew(
        self: &Arc<Self>,
        channel: &ChannelName,
        (connections, workers): (usize, usize),
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Asked, PresenceBusy> {
        if workers == 0 {
            return Ok((Found::default().answer(connections, max_users).into(), None));
        }
        self.open()?;
        let (ticket, answer) = later.ticket();
        let requester = Requester { max_users, connections, ticket };
        let cache = Arc::clone(self);
        let query = PresenceQuery::new(channel.clone(), max_users, workers, move |found| {
            cache.open.fetch_sub(1, Ordering::Relaxed);
            requester.answer(&found);
        });
        Ok((answer, Some(query)))
    }

    /// Removes expired answers.
    pub fn expire(&self, now_ms: u64) {
        self.lock().retain(|_, entry| match entry {
            Entry::Remembered { until_ms, .. } if *until_ms <= now_ms => {
                self.uncount(entry);
                false
            }
            _ => true,
        });
    }

    /// Answers the waiting queries after the last worker has answered.
    fn complete(&self, channel: &ChannelName, found: Found, until_ms: u64) {
        let found = Arc::new(found);
        let replaced = {
            let mut channels = self.lock();
            let users = found.users.len();
            if self.remembered_users.load(Ordering::Relaxed) + users > REMEMBERED_USERS_MAX {
                channels.remove(channel)
            } else {
                self.remembered_users.fetch_add(users, Ordering::Relaxed);
                let entry = Entry::Remembered { found: Arc::clone(&found), until_ms };
                channels.insert(channel.clone(), entry)
            }
        };
        if let Some(Entry::Scanning(requesters)) = replaced {
            self.open.fetch_sub(requesters.len(), Ordering::Relaxed);
            requesters.into_iter().for_each(|requester| requester.answer(&found));
        }
    }

    fn open(&self) -> Result<(), PresenceBusy> {
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < OPEN_MAX).then_some(open + 1)
        });
        taken.map(drop).map_err(|_| PresenceBusy)
    }

    fn uncount(&self, entry: &Entry) {
        if let Entry::Remembered { found, .. } = entry {
            self.remembered_users.fetch_sub(found.users.len(), Ordering::Relaxed);
        }
    }
}
