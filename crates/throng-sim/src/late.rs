//! An access policy that decides some questions later, or never.
//!
//! It denies everything about one channel, the secret one, and allows everything else. So clients
//! know what they may do, and only the moment of the answer is random.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_access::{Access, Action, Asker, Decision};
use throng_core::{Answer, Later};

use crate::late_answers::LateAnswers;
use crate::random::Random;
use crate::stamp::Stamp;

/// How often and how policy and engine answer later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lateness {
    /// How many of a hundred questions the policy answers later.
    pub(crate) percent: usize,
    /// How many of a hundred fetches the engine answers later.
    pub(crate) fetch_percent: usize,
    /// How many of a hundred subscriptions are allowed for some seconds only.
    pub(crate) brief_percent: usize,
    /// The name of the channel that is denied.
    pub(crate) secret: Option<&'static str>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Clients, and until when one of their subscriptions is allowed.
    brief: Vec<(usize, u64)>,
}

impl Lateness {
    /// True if anything is answered later.
    pub(crate) fn is_possible(self) -> bool {
        self.percent > 0 || self.fetch_percent > 0
    }
}

/// The policy with its open questions.
#[derive(Debug)]
pub(crate) struct LatePolicy {
    lateness: Lateness,
    stamp: Arc<Stamp>,
    answers: LateAnswers,
    state: Mutex<State>,
}

/// The policy's refusal.
pub(crate) const SECRET: &str = "this channel is secret";

impl LatePolicy {
    /// A policy without questions.
    pub(crate) fn new(lateness: Lateness, stamp: &Arc<Stamp>, random: Random) -> Arc<LatePolicy> {
        let answers = LateAnswers::new(lateness.percent, random.clone());
        let state = Mutex::new(State { random, brief: Vec::new() });
        Arc::new(LatePolicy { lateness, stamp: Arc::clone(stamp), answers, state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clients whose permissions end, with the times, since the last call.
    pub(crate) fn take_brief(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.lock().brief)
    }

    /// The questions to answer.
    pub(crate) fn answers(&self) -> &LateAnswers {
        &self.answers
    }
}

impl Access for LatePolicy {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let name = match action {
            Action::Subscribe(name)
            | Action::Publish(name)
            | Action::ReadHistory(name)
            | Action::ReadPresence(name)
            | Action::Erase(name)
            | Action::Edit(name)
            | Action::SetState(name)
            | Action::End(name)
            | Action::UpdateMember(name)
            | Action::Create(name) => Some(name.name()),
            Action::PublishBatch => None,
        };
        let is_secret = name.is_some() && name == self.lateness.secret;
        let decision = if is_secret { Decision::forbidden(SECRET) } else { Decision::Allowed };
        if asker.is_repeated {
            return decision.into();
        }
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
        drop(state);
        self.answers.answer(later, move || decision)
    }
}
