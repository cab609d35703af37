//! Revokes tokens: on the disk first, then for new requests, then on live connections.
//!
//! One task owns the file. It writes the revocations of all requests that wait at the same time in
//! one step, so that a thousand of them take little longer than one. The disk is waited for on a
//! thread that serves no connections.
//!
//! Once the control plane is held and at rest, nothing is written, and another process can go on
//! with the file: an order counts as acting until it is done, and tidying waits.
//!
//! Those of [several servers](shared) have no file.

mod outcome;
mod shared;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use throng_access::revocation::{
    FileStorage, Forgetting, PassedFile, SharedChange, SharedRevocations,
};
use throng_access::{AccessControl, Revocation, RevocationLog, Revocations, Subject};
use throng_core::{Later, ScanAction, ScanClose, ScanTarget, Ticket, clock};
use throng_wire::websocket::close_code;
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::edge::Edge;
use crate::hold::{Acting, Hold};
use outcome::{Outcome, refusal};

/// Requests that may wait for the disk. Beyond it they are refused with `busy`.
const WAITING_MAX: usize = 1024;

/// How often revocations are forgotten that concern no living token.
const TIDY_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Debug)]
enum RevocationChange {
    /// `true` if clients with newer tokens may have connections that are closed, too.
    Revoke(Revocation, bool),
    Lift(Subject),
}

impl From<RevocationChange> for SharedChange {
    fn from(change: RevocationChange) -> SharedChange {
        match change {
            RevocationChange::Revoke(revocation, spares_newer) => {
                SharedChange::Revoke { revocation, spares_newer }
            }
            RevocationChange::Lift(subject) => SharedChange::Lift(subject),
        }
    }
}

#[derive(Debug)]
struct RevocationOrder {
    change: RevocationChange,
    done: oneshot::Sender<Outcome>,
    /// The request that it belongs to may have ended.
    _acting: Acting,
}

#[derive(Debug)]
enum Keeper {
    /// Nothing keeps them: the settings name no file, and revoking is refused.
    Nobody {
        has_tokens: bool,
    },
    File(mpsc::Sender<RevocationOrder>, Arc<Revocations>),
    /// All of several servers.
    Shared(Arc<SharedRevocations>),
}

/// The way to who keeps the revocations.
#[derive(Debug)]
pub(crate) struct Revoker {
    keeper: Keeper,
    /// The file, while it has an owner.
    log: Weak<Mutex<RevocationLog<FileStorage>>>,
    hold: Arc<Hold>,
}

pub(crate) struct RevocationTask {
    log: Arc<Mutex<RevocationLog<FileStorage>>>,
    orders: mpsc::Receiver<RevocationOrder>,
    access: Arc<AccessControl>,
    edge: Arc<dyn Edge>,
    hold: Arc<Hold>,
    forgetting: Forgetting,
}

/// The two ends. There is no owner if the settings name no file.
pub(crate) fn new(
    access: &Arc<AccessControl>,
    edge: Arc<dyn Edge>,
    hold: &Arc<Hold>,
) -> (Revoker, Option<RevocationTask>) {
    let log = access.revocations.lock().ok().and_then(|mut log| log.take());
    let hold = Arc::clone(hold);
    let Some(log) = log else {
        let has_tokens = access.tokens.is_some();
        let shared = access.shared_revocations.get().cloned();
        let keeper = shared.map_or(Keeper::Nobody { has_tokens }, Keeper::Shared);
        return (Revoker { keeper, log: Weak::new(), hold }, None);
    };
    let (sender, orders) = mpsc::channel(WAITING_MAX);
    let keeper = Keeper::File(sender, Arc::clone(log.revocations()));
    let log = Arc::new(Mutex::new(log));
    let revoker = Revoker { keeper, log: Arc::downgrade(&log), hold: Arc::clone(&hold) };
    let (access, forgetting) = (Arc::clone(access), Forgetting::default());
    (revoker, Some(RevocationTask { log, orders, access, edge, hold, forgetting }))
}

impl Revoker {
    /// Makes a revocation hold. When it returns, the revocation survives a restart, no request with
    /// such a token is accepted any more, and the workers know that they have to close connections.
    ///
    /// A connection does not know when its token was issued. With `spares_newer`, for a revocation
    /// of what was issued before a moment in the past, all connections of the user are closed in a
    /// way after which clients come back: those with an older token are refused then, and the
    /// others go on.
    pub(crate) async fn revoke(
        &self,
        revocation: Revocation,
        spares_newer: bool,
    ) -> Result<(), ErrorResponse> {
        self.order(RevocationChange::Revoke(revocation, spares_newer)).await.map(drop)
    }

    /// Takes a revocation back. Returns whether there was one.
    pub(crate) async fn lift(&self, subject: Subject) -> Result<bool, ErrorResponse> {
        self.order(RevocationChange::Lift(subject)).await
    }

    pub(crate) fn count(&self) -> usize {
        match &self.keeper {
            Keeper::Nobody { .. } => 0,
            Keeper::File(_, revocations) => revocations.len(),
            Keeper::Shared(shared) => shared.revocations().len(),
        }
    }

    /// How far beyond its moment a revocation of a user reaches, in seconds.
    pub(crate) fn ahead_s(&self) -> u64 {
        self.revocations().map_or(0, |revocations| revocations.ahead_s().into())
    }

    /// The revocations that hold, as far as this server knows.
    pub(crate) fn revocations(&self) -> Result<&Arc<Revocations>, ErrorResponse> {
        match &self.keeper {
            Keeper::Nobody { has_tokens } => Err(no_file(*has_tokens)),
            Keeper::File(_, revocations) => Ok(revocations),
            Keeper::Shared(shared) => shared::known(shared),
        }
    }

    /// Copies of the open file for another process, if there is one. Call it while the control
    /// plane is held and at rest.
    ///
    /// # Errors
    ///
    /// The process is short of descriptors.
    pub(crate) fn pass(&self) -> io::Result<Option<PassedFile>> {
        let Some(log) = self.log.upgrade() else { return Ok(None) };
        let passed = lock(&log).storage().pass()?;
        Ok(Some(passed))
    }

    /// Calls `act` while nothing is written to the file. The disk may be waited for.
    pub(crate) fn at_rest<T>(&self, act: impl FnOnce() -> T) -> T {
        let log = self.log.upgrade();
        let _at_rest = log.as_deref().map(lock);
        act()
    }

    async fn order(&self, change: RevocationChange) -> Outcome {
        let sender = match &self.keeper {
            Keeper::Nobody { has_tokens } => return Err(no_file(*has_tokens)),
            Keeper::File(sender, _) => sender,
            Keeper::Shared(shared) => return shared::change(shared, change.into()).await,
        };
        let (done, outcome) = oneshot::channel();
        let order = RevocationOrder { change, done, _acting: self.hold.count() };
        if sender.try_send(order).is_err() {
            let message = "too many revocations wait for the disk; try again later";
            return Err(ErrorResponse::new(ErrorCode::Busy, message));
        }
        // The owner answers each order unless the server ends.
        outcome.await.unwrap_or_else(|_| Err(ErrorCode::Draining.into()))
    }
}

fn no_file(has_tokens: bool) -> ErrorResponse {
    let message = if has_tokens {
        "this server keeps no revocations: start it with --data or --revocations-file"
    } else {
        "this server keeps no revocations: give it keys for tokens, and start it with --data or \
         --revocations-file"
    };
    ErrorResponse::new(ErrorCode::Forbidden, message)
}

fn lock(log: &Mutex<RevocationLog<FileStorage>>) -> MutexGuard<'_, RevocationLog<FileStorage>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RevocationTask {
    /// Serves orders until the control plane is dropped.
    pub(crate) async fn run(mut self) {
        let mut tidying = interval_at(Instant::now() + TIDY_INTERVAL, TIDY_INTERVAL);
        tidying.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut orders = Vec::new();
            tokio::select! {
                count = self.orders.recv_many(&mut orders, WAITING_MAX) => {
                    if count == 0 {
                        return;
                    }
                }
                _ = tidying.tick() => {}
            }
            let acting = self.hold.act();
            if orders.is_empty() && acting.is_none() {
                continue;
            }
            let log = Arc::clone(&self.log);
            let forget_s = self.forgetting.now_s(clock::now_ms(), clock::machine_ms());
            let execute = move || execute(&mut lock(&log), orders, forget_s);
            let Ok(made) = tokio::task::spawn_blocking(execute).await else {
                return tracing::error!("the file of revocations is no longer written");
            };
            drop(acting);
            self.enforce(made);
        }
    }

    /// Tells the workers what was revoked, and then the operators that it is.
    fn enforce(&self, made: Vec<(RevocationOrder, Outcome)>) {
        for spares_newer in [false, true] {
            let revoked: Vec<_> = made
                .iter()
                .filter(|(_, outcome)| outcome.is_ok())
                .filter_map(|(order, _)| match &order.change {
                    RevocationChange::Revoke(revocation, spares) if *spares == spares_newer => {
                        Some(self.access.tagger.of_revocation(revocation))
                    }
                    RevocationChange::Revoke(..) | RevocationChange::Lift(_) => None,
                })
                .collect();
            if revoked.is_empty() {
                continue;
            }
            let action = revoke_action(spares_newer);
            // The answer of the workers is not awaited: they act at once, or they have ended.
            let mut issue = || Ticket::new(drop);
            let target = ScanTarget::Sessions(revoked);
            drop(self.edge.scan(target, action, Later::new(&mut issue)));
        }
        // Only now: the answer tells the operator that the workers have been told.
        for (order, outcome) in made {
            // Fails if the operator has gone.
            let _ = order.done.send(outcome);
        }
    }
}

/// How connections are closed whose tokens are revoked. With `spares_newer` clients with newer
/// tokens may have some of them, so that they come back.
pub fn revoke_action(spares_newer: bool) -> ScanAction {
    if !spares_newer {
        return ScanAction::Revoke;
    }
    let reason = "older tokens of this user are revoked; connect with a newer one";
    let code = close_code::DISCONNECTED;
    ScanAction::Close(ScanClose { code, reason: reason.into(), may_return: true })
}

/// Makes changes on the disk. Returns what became of each order. Without orders it only forgets.
fn execute(
    log: &mut RevocationLog<FileStorage>,
    orders: Vec<RevocationOrder>,
    forget_s: u64,
) -> Vec<(RevocationOrder, Outcome)> {
    let now_s = clock::machine_ms() / 1000;
    if orders.is_empty()
        && let Err(error) = log.tidy(forget_s)
    {
        tracing::warn!(%error, "the file of revocations cannot be rewritten");
    }
    let revocation = |order: &RevocationOrder| match &order.change {
        RevocationChange::Revoke(revocation, _) => Some(revocation.clone()),
        RevocationChange::Lift(_) => None,
    };
    // All in one step; if that fails, each by itself, because one of them may be the reason.
    let together: Option<Vec<_>> = orders.iter().map(revocation).collect();
    let is_done = together.is_some_and(|all| log.revoke(&all, now_s).is_ok());
    let outcome = |order: &RevocationOrder| match &order.change {
        RevocationChange::Revoke(..) if is_done => Ok(true),
        RevocationChange::Revoke(one, _) => {
            log.revoke(std::slice::from_ref(one), now_s).map(|()| true).map_err(refusal)
        }
        RevocationChange::Lift(subject) => log.lift(subject, now_s).map_err(refusal),
    };
    let outcomes: Vec<_> = orders.iter().map(outcome).collect();
    orders.into_iter().zip(outcomes).collect()
}
