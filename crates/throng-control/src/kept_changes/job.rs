//! Changes of one request, and what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use throng_access::{KeptChange, KeptChanged, ServerKey};
use throng_core::ChannelName;
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a request waits until workers have told their connections of its changes.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(2);

/// A change of what one user follows.
#[derive(Debug)]
pub(crate) struct ChangeOrder {
    /// The line of the request that has it, counted from 1; 0 if it is all of the request.
    pub(crate) line: usize,
    pub(crate) user: String,
    pub(crate) change: KeptChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Each that can be.
    Possible,
    /// All of them if each can be, and none otherwise.
    AllPossible,
    /// Never: only what would be refused is found out.
    Never,
}

#[derive(Debug)]
pub(crate) struct RefusedChange {
    pub(crate) line: usize,
    pub(crate) error: ErrorResponse,
}

#[derive(Debug, Default)]
pub(crate) struct Made {
    /// The result of each change that was made.
    pub(crate) changed: Vec<KeptChanged>,
    pub(crate) refused: Vec<RefusedChange>,
    pub(crate) announced: Announced,
}

#[derive(Debug)]
pub(super) enum Never {}

/// Changes that connections are being told of.
#[derive(Debug, Default)]
pub(crate) struct Announced(Vec<oneshot::Receiver<Never>>);

impl Announced {
    pub(crate) fn extend(&mut self, others: Announced) {
        self.0.extend(others.0);
    }

    /// Adds a connection's worker, which drops the sender once it has told the connection.
    pub(super) fn push(&mut self, told: oneshot::Receiver<Never>) {
        self.0.push(told);
    }

    /// Waits until all connections have been told.
    pub(crate) async fn wait(self) -> Result<(), ErrorResponse> {
        let all = async {
            for told in self.0 {
                // It never comes: its sender is dropped.
                let _ = told.await;
            }
        };
        timeout(WORKERS_TIMEOUT, all).await.map_err(|_| {
            let message = "the change is made, but the workers are too busy to tell all \
                connections of it yet; send it again to wait for them";
            ErrorResponse::new(ErrorCode::Busy, message)
        })
    }
}

pub(super) struct ChangeJob {
    /// Names the job while it waits.
    pub(super) id: u64,
    pub(super) key: Option<Arc<ServerKey>>,
    pub(super) orders: Vec<ChangeOrder>,
    pub(super) when: When,
    pub(super) done: oneshot::Sender<Result<Made, ErrorResponse>>,
}

/// Fails if the key is for other users only.
pub(crate) fn check_user(
    key: Option<&ServerKey>,
    inbox: &ChannelName,
) -> Result<(), ErrorResponse> {
    if key.is_none_or(|key| key.may_change_kept_of(inbox)) {
        return Ok(());
    }
    let message = format!("this server key is not for the user `{}`", inbox.name());
    Err(ErrorResponse::new(ErrorCode::Forbidden, message))
}

/// Fails unless the key is for a channel.
pub(crate) fn check_covered(key: Option<&ServerKey>, channel: &str) -> Result<(), ErrorResponse> {
    if key.is_none_or(|key| key.covers(&ChannelName::channel(channel))) {
        return Ok(());
    }
    let message = format!("this server key is not for the channel `{channel}`");
    Err(ErrorResponse::new(ErrorCode::Forbidden, message))
}
