//! An access policy that decides some questions later, or never.
//!
//! It denies everything about one channel, the secret one, and allows everything else. So clients
//! know what they may do, and only the moment of the answer is random.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_access::{Access, Action, Asker, Decision};
use throng_core::{Answer, Later, Ticket};

use crate::random::Random;
use crate::stamp::Stamp;

/// How often and how a policy answers later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lateness {
    /// How many of a hundred questions are answered later.
    pub(crate) percent: usize,
    /// How many of a hundred subscriptions are allowed for some seconds only.
    pub(crate) brief_percent: usize,
    /// The name of the channel that is denied.
    pub(crate) secret: Option<&'static str>,
}

/// A question without an answer.
#[derive(Debug)]
struct Open {
    ticket: Ticket<Decision>,
    decision: Decision,
    /// It is answered only after all that the asker may wait for.
    is_never: bool,
}

#[derive(Debug)]
struct State {
    random: Random,
    open: Vec<Open>,
    /// Clients, and until when one of their subscriptions is allowed.
    brief: Vec<(usize, u64)>,
}

/// The policy with its open questions.
#[derive(Debug)]
pub(crate) struct LatePolicy {
    lateness: Lateness,
    stamp: Arc<Stamp>,
    state: Mutex<State>,
}

/// What a policy says when a question is to be answered.
pub(crate) const SECRET: &str = "this channel is secret";

impl LatePolicy {
    /// A policy without questions.
    pub(crate) fn new(lateness: Lateness, stamp: &Arc<Stamp>, random: Random) -> Arc<LatePolicy> {
        let state = Mutex::new(State { random, open: Vec::new(), brief: Vec::new() });
        Arc::new(LatePolicy { lateness, stamp: Arc::clone(stamp), state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clients whose permissions end, with the times, since the last call.
    pub(crate) fn take_brief(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.lock().brief)
    }

    /// Answers some of the questions, or gives one up. Returns the number of answers.
    pub(crate) fn answer_some(&self, random: &mut Random) -> u64 {
        let mut answered = 0;
        let open = std::mem::take(&mut self.lock().open);
        let mut kept = Vec::new();
        for open in open {
            // Even what is never answered comes at last, when nothing waits for it.
            let percent = if open.is_never { 1 } else { 50 };
            if random.percent(percent) {
                open.answer();
                answered += 1;
            } else {
                kept.push(open);
            }
        }
        self.lock().open.extend(kept);
        answered
    }

    /// Answers all questions, and gives up those that are never answered. Returns how many there
    /// were.
    pub(crate) fn answer_all(&self) -> usize {
        let open = std::mem::take(&mut self.lock().open);
        let count = open.len();
        for open in open {
            // Dropping the ticket says that no answer comes.
            if !open.is_never {
                open.answer();
            }
        }
        count
    }
}

impl Open {
    fn answer(self) {
        self.ticket.answer(self.decision);
    }
}

impl Access for LatePolicy {
    fn may(
        &self,
        _: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let name = match action {
            Action::Subscribe(name)
            | Action::Publish(name)
            | Action::ReadHistory(name)
            | Action::ReadPresence(name) => Some(name.name()),
            Action::PublishBatch => None,
        };
        let is_secret = name.is_some() && name == self.lateness.secret;
        let decision = if is_secret { Decision::forbidden(SECRET) } else { Decision::Allowed };
        let mut state = self.lock();
        let is_brief = matches!(action, Action::Subscribe(_)) && !is_secret;
        let decision = match self.stamp.touched() {
            Some(client) if is_brief && state.random.percent(self.lateness.brief_percent) => {
                let until_ms = self.stamp.now().now_ms + state.random.between(0, 20_000) as u64;
                state.brief.push((client, until_ms));
                Decision::AllowedUntil(until_ms)
            }
            _ => decision,
        };
        if !state.random.percent(self.lateness.percent) {
            return decision.into();
        }
        let is_never = state.random.percent(10);
        let (ticket, answer) = later.ticket();
        state.open.push(Open { ticket, decision, is_never });
        answer
    }
}
