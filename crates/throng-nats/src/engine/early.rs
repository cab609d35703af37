//! News from the servers before the node serves; delivered once it does.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::link::LinkState;
use super::shared::NodeShared;
use crate::client::{Notice, version};
use crate::journal::JournalReport;

/// Questions of other nodes that wait, at most.
const QUESTIONS_MAX: usize = 4_096;

#[derive(Default)]
struct SlotState {
    notices: Vec<Notice>,
    questions: usize,
    /// How many other nodes are there. It is reported only when it changes.
    nodes: usize,
    is_open: bool,
    trouble: Option<String>,
}

#[derive(Default)]
pub(super) struct Early {
    state: Mutex<SlotState>,
    changed: Condvar,
    serves: OnceLock<Weak<NodeShared>>,
}

impl Early {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the node, or keeps it for the node. Called on the thread of the connection.
    pub(super) fn take(&self, notice: Notice) {
        let mut notice = Some(notice);
        if self.serves.get().is_none() {
            let mut state = self.lock();
            // The node may have begun meanwhile.
            if self.serves.get().is_none()
                && let Some(notice) = notice.take()
            {
                state.keep(notice);
                self.changed.notify_all();
            }
        }
        let node = self.serves.get().and_then(Weak::upgrade);
        if let (Some(node), Some(notice)) = (node, notice) {
            node.take(notice);
        }
    }

    /// Tells the node what has come, and everything that comes from now on.
    pub(super) fn begin(&self, node: &Arc<NodeShared>) {
        let mut state = self.lock();
        let notices = std::mem::take(&mut state.notices).into_iter();
        let last = [Notice::Report(JournalReport::Nodes(state.nodes)), Notice::Rest];
        notices.chain(last).for_each(|notice| node.take(notice));
        let is_first = self.serves.set(Arc::downgrade(node)).is_ok();
        debug_assert!(is_first);
    }

    /// True if the stream can be used now.
    pub(super) fn is_open(&self) -> bool {
        self.lock().is_open
    }

    /// Waits until the stream can be used.
    pub(super) fn wait_until_open(&self, patience: Duration) -> Result<(), Option<String>> {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        while !state.is_open {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(state.trouble.clone());
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl SlotState {
    fn keep(&mut self, notice: Notice) {
        match &notice {
            // All nodes say it again.
            Notice::Turn
            | Notice::Rest
            | Notice::CaughtUp
            | Notice::Lag { .. }
            | Notice::Report(
                JournalReport::Heard { .. }
                | JournalReport::Gone { .. }
                | JournalReport::Standing(_),
            ) => {
                return;
            }
            Notice::Report(JournalReport::Nodes(nodes)) => {
                self.nodes = *nodes;
                return;
            }
            // News that was missed is asked for.
            Notice::Report(JournalReport::Question { reply, .. }) if reply.is_empty() => return,
            Notice::Report(JournalReport::Question { .. }) => {
                self.questions += 1;
                if self.questions > QUESTIONS_MAX {
                    return;
                }
            }
            Notice::Report(JournalReport::Opened { .. }) => {
                (self.is_open, self.trouble) = (true, None)
            }
            Notice::Report(JournalReport::Away) => self.is_open = false,
            Notice::Trouble { server, error } => self.trouble = Some(format!("{server}: {error}")),
            Notice::Old { version, .. } => self.trouble = Some(version::sentence(version)),
            Notice::Report(JournalReport::Refused { reason, .. }) => {
                (self.is_open, self.trouble) = (false, Some(reason.clone()));
            }
            Notice::Report(JournalReport::TableRefused { reason, .. }) => {
                self.trouble = Some(reason.clone())
            }
            Notice::Report(_) | Notice::Limit(_) => {}
        }
        self.notices.push(notice);
    }
}

/// Why the stream cannot be used, for a sentence.
pub(super) fn reason(state: LinkState) -> String {
    match state {
        LinkState::Open => "it can".into(),
        LinkState::Away { trouble } => trouble.unwrap_or_else(|| "no server answers".into()),
        LinkState::Old { version } => version::sentence(&version),
        LinkState::Refused { reason, .. } => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(number: usize) -> Notice {
        let (reply, question) = (number.to_string(), Vec::new());
        Notice::Report(JournalReport::Question { reply, question })
    }

    #[test]
    fn what_is_heard_early_is_kept_within_bounds() {
        let early = Early::default();
        for number in 0..2 * QUESTIONS_MAX {
            early.take(question(number));
            early.take(Notice::Turn);
            early.take(Notice::Report(JournalReport::Nodes(number)));
        }
        assert_eq!(early.lock().notices.len(), QUESTIONS_MAX);
        assert_eq!(early.lock().nodes, 2 * QUESTIONS_MAX - 1, "the last number counts");
        assert!(!early.is_open());
    }

    #[test]
    fn it_says_why_the_stream_cannot_be_used() {
        let early = Early::default();
        assert_eq!(early.wait_until_open(Duration::ZERO), Err(None));
        let (server, error) = ("nats1".to_owned(), "refused".to_owned());
        early.take(Notice::Trouble { server, error });
        let found = early.wait_until_open(Duration::ZERO);
        assert_eq!(found, Err(Some("nats1: refused".into())));
        early.take(Notice::Report(JournalReport::Opened { epoch: 7, last: 9 }));
        assert_eq!(early.wait_until_open(Duration::ZERO), Ok(()));
        let reason = "it differs".into();
        early.take(Notice::Report(JournalReport::Refused { reason, limit: None }));
        assert!(!early.is_open());
        assert_eq!(early.wait_until_open(Duration::ZERO), Err(Some("it differs".into())));
    }
}
