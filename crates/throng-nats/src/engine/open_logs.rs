//! Requests about logs that the journal has not answered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{ChangeError, ChangeOutcome, ChannelName, EraseOutcome, LogState, Ticket};

use super::under_way::Load;

/// Waits for the outcome of a request.
pub(super) enum LogTicket {
    /// Of so many messages.
    Change(Ticket<ChangeOutcome>, u64),
    State(Ticket<Result<LogState, ChangeError>>),
    Erase(Ticket<EraseOutcome>),
}

/// A request, and the places that it takes.
pub(super) struct OpenLog {
    pub(super) channel: ChannelName,
    pub(super) load: Load,
    pub(super) ticket: LogTicket,
}

/// Requests without an outcome, by token.
#[derive(Default)]
pub(super) struct OpenLogs(Mutex<HashMap<u64, OpenLog>>);

impl OpenLogs {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, OpenLog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, token: u64, open: OpenLog) {
        self.lock().insert(token, open);
    }

    pub(super) fn end(&self, token: u64) -> Option<OpenLog> {
        self.lock().remove(&token)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
