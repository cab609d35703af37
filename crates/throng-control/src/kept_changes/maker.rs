//! Makes the changes of requests that wait, with one commit for as many as possible.
//!
//! A user has at most one change in a commit: the next one is planned when it is made.

use std::collections::HashSet;
use std::iter;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use throng_access::{KeptChange, KeptChanged, KeptPlan, KeptSubscriptions, ServerKey};
use throng_core::records::{Change, Records};
use throng_core::{
    Answer, ChannelName, Engine, Fetched, KeptNotice, Later, Notification, Reading, StartAt,
    Ticket, clock,
};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::oneshot;

use super::job::{Announced, Job, Made, Order, Refused, When, check_covered};

#[cfg(test)]
mod tests;

/// A commit takes no more changes once it adds and removes this many subscriptions. One change more
/// than that, which names 20,000 channels or ends 10,000, is still far less than what the store
/// lets wait.
const CHANGED_PER_COMMIT: usize = 10_000;

/// How long a change waits for the engine to fetch what live connections need for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes changes on a thread that may wait.
pub(super) struct Maker {
    kept: Arc<KeptSubscriptions>,
    engine: Arc<dyn Engine>,
    records: Option<Arc<dyn Records>>,
}

/// A request whose changes are being made.
struct Running {
    key: Option<Arc<ServerKey>>,
    orders: Vec<Order>,
    made: Made,
    /// Why the store has not taken its changes.
    failure: Option<ErrorResponse>,
    done: oneshot::Sender<Result<Made, ErrorResponse>>,
}

/// Changes that are to be stored and made together.
#[derive(Default)]
struct Batch {
    /// Each with the indexes of its request and its order.
    plans: Vec<(usize, usize, KeptPlan)>,
    users: HashSet<String>,
    /// How many subscriptions they add.
    added: usize,
    /// How many they add and remove.
    changed: usize,
}

impl Maker {
    pub(super) fn new(
        kept: Arc<KeptSubscriptions>,
        engine: Arc<dyn Engine>,
        records: Option<Arc<dyn Records>>,
    ) -> Maker {
        Maker { kept, engine, records }
    }

    /// Makes the changes of requests in their order, and answers each.
    pub(super) fn make_all(&self, jobs: Vec<Job>) {
        let (mut all, mut batch) = (Vec::new(), Batch::default());
        for Job { key, orders, when, done, .. } in jobs {
            let mut running = Running { key, orders, made: Made::default(), failure: None, done };
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
            all.push(running);
            for order in 0..count {
                self.add(&mut all, &mut batch, order);
            }
        }
        self.finish(&mut all, &mut batch);
        for Running { made, failure, done, .. } in all {
            // A client that has gone wants no answer.
            let _ = done.send(failure.map_or(Ok(made), Err));
        }
    }

    /// Plans a change of the last request.
    fn add(&self, all: &mut [Running], batch: &mut Batch, index: usize) {
        let Some(last) = all.len().checked_sub(1) else { return };
        let is_known = batch.users.contains(&all[last].orders[index].user);
        if is_known || batch.changed >= CHANGED_PER_COMMIT {
            self.finish(all, batch);
        }
        let running = &mut all[last];
        if running.failure.is_some() {
            return;
        }
        let order @ Order { user, change, line } = &running.orders[index];
        let plan = self.check_all_covered(running.key.as_deref(), order);
        let plan = plan.and_then(|()| Ok(self.kept.plan(user, change, batch.added)?));
        match plan {
            Err(error) => running.made.refused.push(Refused { line: *line, error }),
            Ok(plan) => {
                batch.added += plan.added();
                batch.changed += plan.added() + plan.removed();
                batch.users.insert(user.clone());
                batch.plans.push((last, index, plan));
                if self.records.is_none() {
                    self.finish(all, batch);
                }
            }
        }
    }

    /// Stores what is planned, and makes it.
    fn finish(&self, all: &mut [Running], batch: &mut Batch) {
        let Batch { plans, .. } = std::mem::take(batch);
        let stored = match &self.records {
            None => Ok(()),
            Some(records) => {
                let changes = plans.iter().flat_map(|(request, order, plan)| {
                    plan.changes(&all[*request].orders[*order].user)
                });
                store(&**records, changes.collect())
            }
        };
        for (request, order, plan) in plans {
            let Running { orders, made, failure, .. } = &mut all[request];
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

    /// Lets the engine fetch what live connections of a user need to follow more channels.
    fn fetch_added(&self, inbox: &ChannelName, plan: &KeptPlan) -> Vec<Fetched> {
        if !self.engine.fetches() || self.engine.audience(inbox).workers.is_empty() {
            return Vec::new();
        }
        let (sender, fetched) = mpsc::channel();
        for channel in plan.added_channels() {
            let mut issue = || {
                let sender = sender.clone();
                // The send fails only if it takes too long.
                Ticket::new(move |part| drop(part.map(|part| sender.send(part))))
            };
            let reading = Reading::Start(StartAt::Live);
            let later = Later::new(&mut issue);
            if let Answer::Now(part) = self.engine.fetch(clock::now_ms(), &channel, reading, later)
            {
                let _ = sender.send(part);
            }
        }
        drop(sender);
        let until = Instant::now() + FETCH_TIMEOUT;
        let next = || fetched.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        iter::from_fn(next).collect()
    }

    /// Makes a change, and tells the workers that have connections of the user.
    fn make(&self, order: &Order, plan: KeptPlan) -> (KeptChanged, Announced) {
        let Order { user, change, .. } = order;
        let inbox = ChannelName::user(user);
        let held = Arc::new(Mutex::new(self.fetch_added(&inbox, &plan)));
        let announce = |channels: Vec<ChannelName>| {
            let channels: Arc<[ChannelName]> = channels.into();
            let mut announced = Announced::default();
            for (worker, local, channel) in self.engine.audience(&inbox).workers {
                let (sender, receiver) = oneshot::channel();
                let held = Arc::clone(&held);
                // Dropped by the worker when it is done, which is an answer, too.
                let done = Ticket::new(move |_| drop((sender, held)));
                let (inbox, names) = (inbox.clone(), Arc::clone(&channels));
                let notice = KeptNotice { inbox, local, channel, names, done };
                self.engine.post(worker, Notification::Kept(Box::new(notice)));
                announced.push(receiver);
            }
            announced
        };
        self.kept.make(user, change, plan, announce)
    }

    /// What would be refused if the changes were made in their order.
    fn find_refused(&self, Running { key, orders, .. }: &Running) -> Vec<Refused> {
        let covered = |order: &Order| {
            let error = self.check_all_covered(key.as_deref(), order).err()?;
            Some(Refused { line: order.line, error })
        };
        let mut refused: Vec<_> = orders.iter().filter_map(covered).collect();
        let beyond = self.kept.check_all(orders.iter().map(|order| (&*order.user, &order.change)));
        refused.extend(beyond.into_iter().map(|(index, error)| {
            let line = orders.get(index).map_or(0, |order| order.line);
            Refused { line, error: error.into() }
        }));
        refused.sort_by_key(|refused| refused.line);
        // One reason is enough for each.
        refused.dedup_by_key(|refused| refused.line);
        refused
    }

    /// Fails unless the key is for all channels that a change may end without naming them: one for
    /// some of them must not end the others.
    fn check_all_covered(
        &self,
        key: Option<&ServerKey>,
        order: &Order,
    ) -> Result<(), ErrorResponse> {
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
