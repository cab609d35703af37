//! Changes what users follow, and waits until their connections do.
//!
//! A change may take milliseconds, so none is made on a thread that serves requests. One thread at
//! a time makes the changes of all requests that wait, with one sync of the disk for all of them.
//!
//! # Store first, memory second
//!
//! With a data directory, a change is planned in memory, stored, and made in memory once it is as
//! safe as the store promises; then connections and the client are told. In this order a store that
//! refuses leaves memory as it was, without anything to take back from connections; what a client
//! was told survives the process; and what was stored when the process ends is found at the next
//! start, told or not, which a client that got no answer has to expect. The other order would show
//! connections what is perhaps not kept. Plans hold because nobody else changes anything until they
//! are made: a user who has a plan gets no other one.
//!
//! A store that fails after it has taken a change makes it as soon as it works again. Until then
//! the change is neither refused nor made: its client is told so after a while, the thread goes on
//! waiting, and all other changes are refused. So memory and disk never differ.

use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_access::kept::SharedKept;
use throng_access::{KeptSubscriptions, ServerKey};
use throng_core::Channels;
use throng_core::records::{Records, StoreError};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::hold::Hold;
use job::ChangeJob;
pub(crate) use job::{
    Announced, ChangeOrder, Made, RefusedChange, When, check_covered, check_user,
};
use maker::{ChangeStore, Maker, USERS_PER_COMMIT};
pub use taker::{KeptState, KeptTaker};

mod job;
mod live;
mod maker;
mod taker;

/// Lines of a request after which other changes get their turn.
const LINES_PER_TURN: usize = 64;

/// The same where each turn takes a way to the servers and back, which is the same for all of its
/// lines.
const LINES_PER_SHARED_TURN: usize = 1_000;

const _: () = assert!(LINES_PER_SHARED_TURN <= USERS_PER_COMMIT, "one commit for each turn");

/// How long a request waits for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for one whose changes are all made or none: the store makes thousands of them at once;
/// and for reading what thousands of users follow.
const ALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the changes of all requests in one order.
pub(crate) struct KeptChanges {
    kept: Arc<KeptSubscriptions>,
    engine: Arc<Channels>,
    store: ChangeStore,
    waiting: Mutex<Vec<ChangeJob>>,
    next_id: AtomicU64,
    /// Held by the thread that makes changes.
    turn: Arc<AsyncMutex<()>>,
    hold: Arc<Hold>,
}

impl fmt::Debug for KeptChanges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeptChanges")
    }
}

impl KeptChanges {
    /// Changes of `kept`, about which the workers of `engine` are told.
    pub(crate) fn new(
        kept: Arc<KeptSubscriptions>,
        engine: Arc<Channels>,
        hold: Arc<Hold>,
    ) -> KeptChanges {
        let (waiting, next_id, turn) = (Mutex::default(), AtomicU64::new(0), Arc::default());
        KeptChanges { kept, engine, store: ChangeStore::Memory, waiting, next_id, turn, hold }
    }

    /// Stores changes before they are made.
    pub(crate) fn store_in(&mut self, records: Arc<dyn Records>) {
        self.store = ChangeStore::Records(records);
    }

    pub(crate) fn share(&mut self, shared: Arc<SharedKept>) {
        self.store = ChangeStore::Shared(shared);
    }

    /// How many lines of a request are made before other changes get their turn.
    pub(crate) fn lines_per_turn(&self) -> usize {
        match self.store {
            ChangeStore::Memory | ChangeStore::Records(_) => LINES_PER_TURN,
            ChangeStore::Shared(_) => LINES_PER_SHARED_TURN,
        }
    }

    /// Fails as long as it is not known here what the servers share.
    pub(crate) fn check_known(&self) -> Result<(), ErrorResponse> {
        if let ChangeStore::Shared(shared) = &self.store
            && !shared.is_known()
        {
            let message = "this server has not read the subscriptions from NATS yet; try again \
                later";
            return Err(ErrorResponse::new(ErrorCode::Unavailable, message));
        }
        Ok(())
    }

    /// How many subscriptions are kept for a user.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub(crate) async fn count_of(&self, user: &str) -> Result<u64, ErrorResponse> {
        self.read_users(iter::once(user)).await?;
        Ok(self.kept.channels_of(user) as u64)
    }

    /// Reads what is stored of users and not read yet, which has to come before anything looks at
    /// what they follow.
    ///
    /// # Errors
    ///
    /// It cannot be read, or not in time.
    pub(crate) async fn read_users<'u>(
        &self,
        users: impl Iterator<Item = &'u str>,
    ) -> Result<(), ErrorResponse> {
        if self.kept.is_whole() {
            return Ok(());
        }
        let unread = users.filter(|user| !self.kept.is_read(user));
        let unread: Vec<Box<str>> = unread.map(Box::from).collect();
        if unread.is_empty() {
            return Ok(());
        }
        let kept = Arc::clone(&self.kept);
        let reading = spawn_blocking(move || {
            unread.iter().try_for_each(|user| kept.read_user(user)).map_err(ErrorResponse::from)
        });
        match timeout(ALL_TIMEOUT, reading).await {
            // It does not begin if the runtime ends.
            Ok(read) => read.unwrap_or_else(|_| Err(ErrorCode::Draining.into())),
            Err(_) => {
                let message = "the disk of the data directory does not answer; try again later";
                Err(ErrorResponse::new(ErrorCode::Unavailable, message))
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<ChangeJob>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changes in their order, for a client that has shown `key`.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it still makes the changes that it has begun with, and no others.
    ///
    /// # Errors
    ///
    /// Why the store refuses them, or that it does not answer. Some of them may be made then.
    pub(crate) async fn make(
        &self,
        key: Option<Arc<ServerKey>>,
        orders: Vec<ChangeOrder>,
        when: When,
    ) -> Result<Made, ErrorResponse> {
        self.check_store()?;
        self.read_users(orders.iter().map(|order| &*order.user)).await?;
        let (done, mut made) = oneshot::channel();
        let place = Place { changes: self, id: self.next_id.fetch_add(1, Ordering::Relaxed) };
        self.waiting().push(ChangeJob { id: place.id, key, orders, when, done });
        let max_wait = if when == When::AllPossible { ALL_TIMEOUT } else { STORE_TIMEOUT };
        let making = async {
            tokio::select! {
                biased;
                made = &mut made => made,
                turn = Arc::clone(&self.turn).lock_owned() => {
                    // Those of this request, too, unless somebody else has just done so.
                    self.make_waiting(turn);
                    made.await
                }
            }
        };
        let made = match &self.store {
            // Nothing takes long, or the servers are given up in time.
            ChangeStore::Memory | ChangeStore::Shared(_) => making.await,
            ChangeStore::Records(_) => match timeout(max_wait, making).await {
                Ok(made) => made,
                Err(_) => return Err(self.late(&place)),
            },
        };
        // The thread does not answer if the runtime ends before it begins.
        made.unwrap_or_else(|_| Err(ErrorCode::Draining.into()))
    }

    /// Refuses what the store would not take now.
    fn check_store(&self) -> Result<(), ErrorResponse> {
        if let ChangeStore::Records(records) = &self.store {
            records.state()?;
        }
        self.check_known()
    }

    fn make_waiting(&self, turn: OwnedMutexGuard<()>) {
        let jobs = std::mem::take(&mut *self.waiting());
        if jobs.is_empty() {
            return;
        }
        let (kept, engine) = (Arc::clone(&self.kept), Arc::clone(&self.engine));
        let maker = Maker::new(kept, engine, self.store.clone());
        // The requests may have ended before.
        let acting = self.hold.count();
        spawn_blocking(move || {
            maker.make_all(jobs);
            drop((turn, acting));
        });
    }

    /// The error for a client whose changes are not made in time.
    fn late(&self, place: &Place<'_>) -> ErrorResponse {
        if place.withdraw() {
            let busy = || ErrorResponse::from(StoreError::Busy);
            return self.check_store().err().unwrap_or_else(busy);
        }
        let message = "the disk of the data directory does not answer: the change is made once it \
            does; send it again to know";
        ErrorResponse::new(ErrorCode::OutcomeUnknown, message)
    }
}

/// The place of a job among those that wait.
struct Place<'a> {
    changes: &'a KeptChanges,
    id: u64,
}

impl Place<'_> {
    /// Takes the job back. Returns whether nobody had begun with it.
    fn withdraw(&self) -> bool {
        let mut waiting = self.changes.waiting();
        let before = waiting.len();
        waiting.retain(|job| job.id != self.id);
        waiting.len() < before
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
