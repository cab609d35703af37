//! Changes what users follow, and waits until their connections do.
//!
//! A change may take milliseconds, so none is made on a thread that serves requests. One request's
//! changes are made at a time, so that those that count together find nothing changed in between.

use std::sync::Arc;

use throng_access::{KeptChange, KeptChanged, KeptSubscriptions, ServerKey};
use throng_core::{ChannelName, Engine, KeptNotice, Notification, Ticket};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::body::check_covered;
use crate::api::parameters::WORKERS_TIMEOUT;
use crate::control::Control;
use crate::http::answer::ApiError;

/// A change of what one user follows.
#[derive(Debug)]
pub(super) struct Order {
    /// The line of the request that has it, counted from 1; 0 if it is all of the request.
    pub(super) line: usize,
    pub(super) user: String,
    pub(super) change: KeptChange,
}

/// When changes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Each that can be.
    Possible,
    /// All of them if each can be, and none otherwise.
    AllPossible,
    /// Never: only what would be refused is found out.
    Never,
}

/// A change that was refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) line: usize,
    pub(super) error: ErrorResponse,
}

/// What became of changes.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// What each that was made has changed.
    pub(super) changed: Vec<KeptChanged>,
    pub(super) refused: Vec<Refused>,
    pub(super) announced: Announced,
}

/// What is never sent.
#[derive(Debug)]
enum Never {}

/// Changes that connections are being told of.
#[derive(Debug, Default)]
pub(super) struct Announced(Vec<oneshot::Receiver<Never>>);

impl Announced {
    /// Adds those of other changes.
    pub(super) fn extend(&mut self, others: Announced) {
        self.0.extend(others.0);
    }

    /// Waits until all connections have been told.
    pub(super) async fn wait(self) -> Result<(), ApiError> {
        let all = async {
            for told in self.0 {
                // It never comes: its sender is dropped.
                let _ = told.await;
            }
        };
        timeout(WORKERS_TIMEOUT, all).await.map_err(|_| {
            let message = "the change is made, but the workers are too busy to tell all \
                connections of it yet; send it again to wait for them";
            ApiError::new(ErrorCode::Busy, message)
        })
    }
}

/// Makes changes in their order, for a client that has shown `key`.
///
/// # Cancel safety
///
/// Dropped, it still makes the changes that it has begun with.
pub(super) async fn make(
    control: &Control,
    key: Option<Arc<ServerKey>>,
    orders: Vec<Order>,
    when: When,
) -> Result<Made, ApiError> {
    let turn = Arc::clone(&control.kept_changes).lock_owned().await;
    let maker = Maker { kept: Arc::clone(&control.kept), engine: Arc::clone(&control.engine), key };
    let making = spawn_blocking(move || {
        let _turn = turn;
        maker.make_all(&orders, when)
    });
    making.await.map_err(|_| ApiError::new(ErrorCode::Busy, "the server is ending"))
}

struct Maker {
    kept: Arc<KeptSubscriptions>,
    engine: Arc<dyn Engine>,
    key: Option<Arc<ServerKey>>,
}

impl Maker {
    fn make_all(&self, orders: &[Order], when: When) -> Made {
        let mut made = Made::default();
        if when != When::Possible {
            made.refused = self.find_refused(orders);
        }
        let is_made = match when {
            When::Possible => true,
            When::AllPossible => made.refused.is_empty(),
            When::Never => false,
        };
        for order in orders.iter().filter(|_| is_made) {
            match self.make_one(order) {
                Ok((changed, announced)) => {
                    made.changed.push(changed);
                    made.announced.extend(announced);
                }
                Err(error) => made.refused.push(Refused { line: order.line, error }),
            }
        }
        made
    }

    /// What would be refused if the changes were made in their order.
    fn find_refused(&self, orders: &[Order]) -> Vec<Refused> {
        let covered = |order: &Order| {
            let error = self.check_all_covered(order).err()?;
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

    /// Makes a change, and tells the workers that have connections of the user.
    fn make_one(&self, order: &Order) -> Result<(KeptChanged, Announced), ErrorResponse> {
        self.check_all_covered(order)?;
        let Order { user, change, .. } = order;
        let announce = |channels: Vec<ChannelName>| {
            let inbox = ChannelName::user(user);
            let channels: Arc<[ChannelName]> = channels.into();
            let mut announced = Announced::default();
            for (worker, local, channel) in self.engine.audience(&inbox).workers {
                let (sender, receiver) = oneshot::channel();
                // Dropped by the worker when it is done, which is an answer, too.
                let done = Ticket::new(move |_| drop(sender));
                let (inbox, names) = (inbox.clone(), Arc::clone(&channels));
                let notice = KeptNotice { inbox, local, channel, names, done };
                self.engine.post(worker, Notification::Kept(Box::new(notice)));
                announced.0.push(receiver);
            }
            announced
        };
        Ok(self.kept.change(user, change, announce)?)
    }

    /// Fails unless the key is for all channels that a change may end without naming them: one for
    /// some of them must not end the others.
    fn check_all_covered(&self, order: &Order) -> Result<(), ErrorResponse> {
        let (Some(key), KeptChange::Replace(_)) = (&self.key, &order.change) else {
            return Ok(());
        };
        let page = self.kept.channels_page(&order.user, None, usize::MAX);
        page.names.iter().try_for_each(|name| check_covered(Some(key), name))
    }
}
