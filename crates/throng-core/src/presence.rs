//! Who is in a channel.
//!
//! No list of users is kept: the workers that follow the channel look through their subscriptions
//! when somebody asks, and the last to answer completes the answer. Looking costs far more than
//! asking, so what strangers can make the server do is bounded by the [`PresenceCache`]:
//!
//! * Questions about a channel with many followers share one walk: those that come while one is
//!   under way wait for its answer.
//! * That answer is remembered, the longer the more followers had to be looked at, so that at most
//!   about 4,000 subscriptions of a channel are looked at in a second, however many ask.
//! * A channel with few followers costs no more than the request. It is asked each time, so that
//!   whoever has just come is there.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_wire::{ErrorCode, ErrorResponse};

use crate::name::ChannelName;

/// With fewer followers than this a channel is asked each time: looking through them takes no
/// longer than reading the request.
pub const SHARED_FOLLOWERS_MIN: usize = 64;

/// Followers that a remembered answer pays for, a millisecond of its life each.
const FOLLOWERS_PER_MS: usize = 4;

/// No answer is older than this.
const REMEMBERED_MS_MAX: u64 = 1000;

/// Users in all remembered answers together. Beyond it answers are not remembered.
const REMEMBERED_USERS_MAX: usize = 100_000;

/// Users that an answer can name: what one request may ask for.
const USERS_MAX: usize = throng_wire::v1::LIMIT_MAX as usize;

/// Questions that wait for workers, of all clients together: each keeps what its answer needs.
pub const OPEN_MAX: usize = 16_384;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Presence {
    /// Connections that follow the channel.
    pub connections: usize,
    /// The users they belong to, each once, in order.
    pub users: Vec<Arc<str>>,
    /// Whether there are more users than were asked for.
    pub is_cut: bool,
}

/// Why a question is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many ask who is there; try again later")]
pub struct PresenceBusy;

impl From<PresenceBusy> for ErrorResponse {
    fn from(error: PresenceBusy) -> ErrorResponse {
        ErrorResponse::new(ErrorCode::Busy, error.to_string())
    }
}

/// Takes the answer, perhaps on a worker's thread.
pub type PresenceDone = Box<dyn FnOnce(Presence) + Send>;

/// What workers have found.
#[derive(Debug, Default)]
struct Found {
    users: BTreeSet<Arc<str>>,
    is_cut: bool,
}

/// Takes what all workers have found.
type FoundAll = Box<dyn FnOnce(Found) + Send>;

/// A question on its way through the workers.
pub struct PresenceQuery {
    users_max: usize,
    found: Mutex<Found>,
    unanswered: AtomicUsize,
    done: Mutex<Option<FoundAll>>,
}

impl std::fmt::Debug for PresenceQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PresenceQuery").field("users_max", &self.users_max).finish_non_exhaustive()
    }
}

impl PresenceQuery {
    /// A question to `workers` workers, at least one.
    fn new(
        users_max: usize,
        workers: usize,
        done: impl FnOnce(Found) + Send + 'static,
    ) -> Arc<PresenceQuery> {
        Arc::new(PresenceQuery {
            users_max,
            found: Mutex::default(),
            unanswered: AtomicUsize::new(workers),
            done: Mutex::new(Some(Box::new(done))),
        })
    }

    /// The most users worth naming.
    pub fn users_max(&self) -> usize {
        self.users_max
    }

    /// One worker's answer: the users that it found, `is_cut` if it stopped looking.
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

/// One client's question.
struct Asker {
    users_max: usize,
    connections: usize,
    done: PresenceDone,
}

impl Asker {
    fn answer(self, found: &Found) {
        let users = found.users.iter().take(self.users_max).cloned().collect();
        let is_cut = found.is_cut || found.users.len() > self.users_max;
        (self.done)(Presence { connections: self.connections, users, is_cut });
    }
}

/// What is known of a channel's presence.
enum Entry {
    /// The workers are asked, for all of these.
    Asked(Vec<Asker>),
    /// They have answered.
    Remembered { found: Arc<Found>, until_ms: u64 },
}

/// Shares answers between the clients that ask about the same channel.
#[derive(Default)]
pub struct PresenceCache {
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

    /// Takes a question about a channel with `connections` followers of `workers` workers. Returns
    /// the question to be sent to each of these, unless an answer is known or on its way.
    pub fn ask(
        self: &Arc<Self>,
        now_ms: u64,
        channel: &ChannelName,
        connections: usize,
        workers: usize,
        users_max: usize,
        done: PresenceDone,
    ) -> Result<Option<Arc<PresenceQuery>>, PresenceBusy> {
        let asker = Asker { users_max, connections, done };
        if workers == 0 {
            asker.answer(&Found::default());
            return Ok(None);
        }
        if connections < SHARED_FOLLOWERS_MIN {
            self.open()?;
            let cache = Arc::clone(self);
            return Ok(Some(PresenceQuery::new(users_max, workers, move |found| {
                cache.open.fetch_sub(1, Ordering::Relaxed);
                asker.answer(&found);
            })));
        }
        let known = {
            let mut channels = self.lock();
            match channels.get_mut(channel) {
                Some(Entry::Remembered { found, until_ms }) if now_ms < *until_ms => {
                    Arc::clone(found)
                }
                Some(Entry::Asked(askers)) => {
                    self.open()?;
                    askers.push(asker);
                    return Ok(None);
                }
                stale => {
                    self.open()?;
                    let asked = Entry::Asked(vec![asker]);
                    match stale {
                        Some(stale) => self.uncount(&std::mem::replace(stale, asked)),
                        None => drop(channels.insert(channel.clone(), asked)),
                    }
                    let (cache, channel) = (Arc::clone(self), channel.clone());
                    let lifetime_ms = (connections / FOLLOWERS_PER_MS) as u64;
                    let until_ms = now_ms + lifetime_ms.min(REMEMBERED_MS_MAX);
                    return Ok(Some(PresenceQuery::new(USERS_MAX, workers, move |found| {
                        cache.answered(&channel, found, until_ms);
                    })));
                }
            }
        };
        asker.answer(&known);
        Ok(None)
    }

    /// Forgets answers that are too old.
    pub fn expire(&self, now_ms: u64) {
        self.lock().retain(|_, entry| match entry {
            Entry::Remembered { until_ms, .. } if *until_ms <= now_ms => {
                self.uncount(entry);
                false
            }
            _ => true,
        });
    }

    /// All workers have answered.
    fn answered(&self, channel: &ChannelName, found: Found, until_ms: u64) {
        let found = Arc::new(found);
        let asked = {
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
        if let Some(Entry::Asked(askers)) = asked {
            self.open.fetch_sub(askers.len(), Ordering::Relaxed);
            askers.into_iter().for_each(|asker| asker.answer(&found));
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
