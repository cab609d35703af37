//! Makes the changes of requests that wait, with one commit for as many as possible.
//!
//! A user has at most one change in a commit: the next one is planned when it is made. Where each
//! commit takes a way to other servers and back, changes of other users do not wait for that.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};

use throng_access::kept::SharedKept;
use throng_access::{KeptChange, KeptChanged, KeptPlan, KeptSubscriptions, ServerKey};
use throng_core::records::{Change, Records};
use throng_core::{ChannelName, Channels, Ticket};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::oneshot;

use super::job::{Announced, ChangeJob, ChangeOrder, Made, RefusedChange, When, check_covered};
use super::live::{self, Held};

mod shared;
#[cfg(test)]
mod tests;

/// A commit takes no more changes once it adds and removes this many subscriptions. One change more
/// than that, which names 20,000 channels or ends 10,000, is still far less than what the store
/// lets wait.
const CHANGED_PER_COMMIT: usize = 10_000;

/// A user has one change in a commit. Several servers store each by itself.
pub(super) const USERS_PER_COMMIT: usize = 1_000;

/// Where changes are kept beside the memory.
#[derive(Clone)]
pub(super) enum ChangeStore {
    /// Nowhere: they end with the process.
    Memory,
    /// In a store of this server, over a restart.
    Records(Arc<dyn Records>),
    /// Where other servers read them, too.
    Shared(Arc<SharedKept>),
}

/// Makes changes on a thread that may wait.
pub(super) struct Maker {
    kept: Arc<KeptSubscriptions>,
    engine: Arc<Channels>,
    store: ChangeStore,
}

/// A request whose changes are being made.
struct RunningJob {
    key: Option<Arc<ServerKey>>,
    orders: Vec<ChangeOrder>,
    made: Made,
    /// Why the store has not taken its changes.
    failure: Option<ErrorResponse>,
    done: oneshot::Sender<Result<Made, ErrorResponse>>,
}

/// Changes that are to be stored and made together.
#[derive(Default)]
struct ChangeBatch {
    /// Each with the indexes of its request and its order.
    plans: Vec<(usize, usize, KeptPlan)>,
    users: HashSet<String>,
    added: usize,
    /// How many they add and remove.
    changed: usize,
    /// Changes that come after them, of the same users: each by the indexes of its request and its
    /// order.
    later: Vec<(usize, usize)>,
}

impl Maker {
    pub(super) fn new(
        kept: Arc<KeptSubscriptions>,
        engine: Arc<Channels>,
        store: ChangeStore,
    ) -> Maker {
        Maker { kept, engine, store }
    }

    /// Makes the changes of requests in their order, and answers each.
    pub(super) fn make_all(&self, jobs: Vec<ChangeJob>) {
        let (mut all, mut batch) = (Vec::new(), ChangeBatch::default());
        for ChangeJob { key, orders, when, done, .. } in jobs {
            let mut running =
                RunningJob { key, orders, made: Made::default(), failure: None, done };
            if when != When::Possible {
                // It has to see what the others have changed.
                self.finish(&mut all, &mut batch);
                running.made.refused = self.find_refused(&running);
            }
            let is_made = match when {
                When::Possible => true,
                When::AllPossible => running.made.refused.is_empty(),
                When::Never => false,
            };
            let count = if is_made { running.orders.len() } else { 0 };
            let request = all.len();
            all.push(running);
            for order in 0..count {
                self.add(&mut all, &mut batch, request, order);
            }
        }
        self.finish(&mut all, &mut batch);
        for RunningJob { made, failure, done, .. } in all {
            // A client that has gone wants no answer.
            let _ = done.send(failure.map_or(Ok(made), Err));
        }
    }

    /// Plans a change of a request.
    fn add(&self, all: &mut [RunningJob], batch: &mut ChangeBatch, request: usize, index: usize) {
        let is_known = batch.users.contains(&all[request].orders[index].user);
        if is_known && matches!(self.store, ChangeStore::Shared(_)) {
            return batch.later.push((request, index));
        }
        let is_full = batch.changed >= CHANGED_PER_COMMIT || batch.users.len() >= USERS_PER_COMMIT;
        if is_known || is_full {
            self.finish(all, batch);
        }
        let running = &mut all[request];
        if running.failure.is_some() {
            return;
        }
        let order @ ChangeOrder { user, change, line } = &running.orders[index];
        let plan = self.check(running.key.as_deref(), order);
        let plan = plan.and_then(|()| Ok(self.kept.plan(user, change, batch.added)?));
        match plan {
            Err(error) => running.made.refused.push(RefusedChange { line: *line, error }),
            Ok(plan) => {
                batch.added += plan.added();
                batch.changed += plan.added() + plan.removed();
                batch.users.insert(user.clone());
                batch.plans.push((request, index, plan));
                if matches!(self.store, ChangeStore::Memory) {
                    self.finish(all, batch);
                }
            }
        }
    }

    /// Stores what is planned, and makes it; and what comes after it.
    fn finish(&self, all: &mut [RunningJob], batch: &mut ChangeBatch) {
        self.commit(all, batch);
        while !batch.later.is_empty() {
            for (request, order) in std::mem::take(&mut batch.later) {
                self.add(all, batch, request, order);
            }
            self.commit(all, batch);
        }
    }

    /// Stores what is planned, and makes it.
    fn commit(&self, all: &mut [RunningJob], batch: &mut ChangeBatch) {
        let later = std::mem::take(&mut batch.later);
        let planned = ChangeBatch { later, ..ChangeBatch::default() };
        let ChangeBatch { plans, .. } = std::mem::replace(batch, planned);
        let stored = match &self.store {
            ChangeStore::Memory => Ok(()),
            ChangeStore::Shared(shared) => {
                let orders = plans.into_iter().map(|(request, order, _)| (request, order));
                return self.make_shared(shared, all, orders.collect());
            }
            ChangeStore::Records(records) => {
                let changes = plans.iter().flat_map(|(request, order, plan)| {
                    plan.changes(&all[*request].orders[*order].user)
                });
                store(&**records, changes.collect())
            }
        };
        for (request, order, plan) in plans {
            let RunningJob { orders, made, failure, .. } = &mut all[request];
            match &stored {
                Ok(()) => {
                    let (changed, announced) = self.make(&orders[order], plan);
                    made.changed.push(changed);
                    made.announced.extend(announced);
                }
                Err(error) => *failure = Some(error.clone()),
            }
        }
    }

    /// Makes a change, and tells the workers that have connections of the user.
    fn make(&self, order: &ChangeOrder, plan: KeptPlan) -> (KeptChanged, Announced) {
        let ChangeOrder { user, change, .. } = order;
        let inbox = ChannelName::user(user);
        let held = if live::has_connections(&self.engine, &inbox) {
            live::fetch(&self.engine, plan.added_channels())
        } else {
            Held::default()
        };
        let announce =
            |channels: Vec<ChannelName>| live::announce(&self.engine, &inbox, channels, &held);
        self.kept.make(user, change, plan, announce)
    }

    /// The changes that would be refused if all were made in their order.
    fn find_refused(&self, RunningJob { key, orders, .. }: &RunningJob) -> Vec<RefusedChange> {
        let covered = |order: &ChangeOrder| {
            let error = self.check(key.as_deref(), order).err()?;
            Some(RefusedChange { line: order.line, error })
        };
        let mut refused: Vec<_> = orders.iter().filter_map(covered).collect();
        let beyond = self.kept.check_all(orders.iter().map(|order| (&*order.user, &order.change)));
        refused.extend(beyond.into_iter().map(|(index, error)| {
            let line = orders.get(index).map_or(0, |order| order.line);
            RefusedChange { line, error: error.into() }
        }));
        refused.sort_by_key(|refused| refused.line);
        // One reason is enough for each.
        refused.dedup_by_key(|refused| refused.line);
        refused
    }

    /// Fails if a connection could have no position in all that the user would follow, or if the
    /// key is not for all channels that a change may end without naming them: one for some of them
    /// must not end the others.
    fn check(&self, key: Option<&ServerKey>, order: &ChangeOrder) -> Result<(), ErrorResponse> {
        let (KeptChange::Replace(added) | KeptChange::Update { add: added, .. }) = &order.change;
        let inbox = (!added.is_empty()).then(|| ChannelName::user(&order.user));
        let all = added.iter().map(|name| ChannelName::channel(name)).chain(inbox);
        if let Some(other) = all.into_iter().find(|name| !self.engine.has_positions(name)) {
            let (noun, name) = (other.kind().noun(), other.name());
            let message = format!(
                "subscriptions that are kept cannot have the {noun} `{name}`: its messages are in \
                 another journal than `records` names"
            );
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
        }
        let (Some(key), KeptChange::Replace(_)) = (key, &order.change) else {
            return Ok(());
        };
        let page = self.kept.channels_page(&order.user, None, usize::MAX);
        page.names.iter().try_for_each(|name| check_covered(Some(key), name))
    }
}

/// Makes changes in a store, and waits for it.
fn store(records: &dyn Records, changes: Vec<Change>) -> Result<(), ErrorResponse> {
    if changes.is_empty() {
        return Ok(());
    }
    let (sender, outcome) = mpsc::channel();
    let done = Ticket::new(move |outcome| {
        // It cannot fail: this thread waits for it.
        let _ = sender.send(outcome);
    });
    records.change(changes, done);
    match outcome.recv() {
        Ok(Some(outcome)) => Ok(outcome?),
        _ => {
            let message = "the server ends, and it is not known whether the change is stored; \
                send it again";
            Err(ErrorResponse::new(ErrorCode::OutcomeUnknown, message))
        }
    }
}
