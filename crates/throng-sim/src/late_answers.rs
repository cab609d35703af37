//! Answers that come later than their questions: in any order, and some never.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{Answer, Later};

use crate::random::Random;

/// A question without an answer.
struct Open {
    /// Answers it. Dropped, it says that no answer comes.
    answer: Box<dyn FnOnce() + Send>,
    /// It is answered only after all that the asker may wait for.
    is_never: bool,
}

/// Decides when questions are answered, and keeps those that are open.
pub(crate) struct LateAnswers {
    /// How many of a hundred questions are answered later.
    percent: usize,
    state: Mutex<(Random, Vec<Open>)>,
}

impl fmt::Debug for LateAnswers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LateAnswers")
    }
}

impl LateAnswers {
    /// No questions. Of those to come, `percent` of a hundred are answered later.
    pub(crate) fn new(percent: usize, random: Random) -> LateAnswers {
        LateAnswers { percent, state: Mutex::new((random, Vec::new())) }
    }

    fn lock(&self) -> MutexGuard<'_, (Random, Vec<Open>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a question at once, or keeps it.
    pub(crate) fn answer<T: Send + 'static>(
        &self,
        later: Later<'_, T>,
        answer: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<T> {
        let mut state = self.lock();
        let (random, open) = &mut *state;
        if !random.percent(self.percent) {
            return answer().into();
        }
        let is_never = random.percent(10);
        let (ticket, promised) = later.ticket();
        open.push(Open { answer: Box::new(move || ticket.answer(answer())), is_never });
        promised
    }

    /// The number of questions without an answer.
    pub(crate) fn open(&self) -> usize {
        self.lock().1.len()
    }

    /// Answers some of the questions. Returns how many.
    pub(crate) fn answer_some(&self, random: &mut Random) -> u64 {
        let mut answered = 0;
        let open = std::mem::take(&mut self.lock().1);
        let mut kept = Vec::new();
        for open in open {
            // Even what is never answered comes at last, when nothing waits for it.
            let percent = if open.is_never { 1 } else { 50 };
            if random.percent(percent) {
                (open.answer)();
                answered += 1;
            } else {
                kept.push(open);
            }
        }
        self.lock().1.extend(kept);
        answered
    }

    /// Answers all questions, and gives up those that are never answered. Returns how many there
    /// were.
    pub(crate) fn answer_all(&self) -> usize {
        let open = std::mem::take(&mut self.lock().1);
        let count = open.len();
        for open in open {
            if !open.is_never {
                (open.answer)();
            }
        }
        count
    }
}
