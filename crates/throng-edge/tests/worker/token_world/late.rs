//! An access policy that asks the application about what the rules allow: some answers come later,
//! in any order, and some never.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_access::{Access, AccessRules, Action, Asker, Decision};
use throng_core::{Answer, Later, Ticket};

use super::random::Random;
use super::{APP_ALLOWS_BRIEFLY, APP_DENIES, BRIEF_MS};

/// The application's reason for a channel that it denies.
const DENIED: &str = "the application says no";

struct State {
    random: Random,
    open: Vec<(Ticket<Decision>, Box<str>)>,
}

pub(super) struct LatePolicy {
    rules: AccessRules,
    /// How many of a hundred questions are answered later.
    percent: usize,
    now_ms: AtomicU64,
    state: Mutex<State>,
}

impl LatePolicy {
    pub(super) fn new(percent: usize, random: Random) -> LatePolicy {
        let state = Mutex::new(State { random, open: Vec::new() });
        LatePolicy { rules: AccessRules::default(), percent, now_ms: AtomicU64::new(0), state }
    }

    pub(super) fn is_late(&self) -> bool {
        self.percent > 0
    }

    pub(super) fn set_now(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The number of questions without an answer.
    pub(super) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Answers one question, or says that there is no answer to it.
    pub(super) fn answer_one(&self, random: &mut Random) {
        let at = match self.open() {
            0 => return,
            open => random.below(open),
        };
        let (ticket, channel) = self.lock().open.swap_remove(at);
        if !random.percent(10) {
            ticket.answer(self.decide(&channel));
        }
    }

    fn decide(&self, channel: &str) -> Decision {
        match channel {
            APP_DENIES => Decision::forbidden(DENIED),
            APP_ALLOWS_BRIEFLY => {
                Decision::AllowedUntil(self.now_ms.load(Ordering::Relaxed) + BRIEF_MS)
            }
            _ => Decision::Allowed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Access for LatePolicy {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let mut issue = || Ticket::new(drop);
        let by_rules = self.rules.may(asker, action, Later::new(&mut issue));
        let decision = by_rules.now().expect("rules decide at once");
        let Action::Subscribe(name) = action else { return decision.into() };
        if decision != Decision::Allowed || asker.is_repeated {
            return decision.into();
        }
        let mut state = self.lock();
        if !state.random.percent(self.percent) {
            drop(state);
            return self.decide(name.name()).into();
        }
        let (ticket, promised) = later.ticket();
        state.open.push((ticket, name.name().into()));
        promised
    }
}
