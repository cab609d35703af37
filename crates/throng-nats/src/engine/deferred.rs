//! Work that the connection's thread puts off while there is more to take: waking workers, and
//! answering publishers.
//!
//! A woken thread may get the processor at once, instead of this one, and then finds only one
//! message. If several have come at once, it finds all of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{MemoryEngine, Outcome, Ticket, WorkerId};

use super::rest::CountGuard;

/// Deliveries and answers that are put off at most: about a tenth of a millisecond.
const DEFERRED_MAX: usize = 16;

/// An answer, which counts as being given until it is.
struct Answer {
    ticket: Ticket<Outcome>,
    outcome: Outcome,
    _counted: CountGuard,
}

#[derive(Default)]
struct SlotState {
    /// Which workers are to be woken, by number.
    wakes: Vec<bool>,
    answers: Vec<Answer>,
    count: usize,
}

#[derive(Default)]
pub(super) struct DeferredWork {
    state: Mutex<SlotState>,
}

impl DeferredWork {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts off waking these workers.
    pub(super) fn wake(&self, memory: &MemoryEngine, workers: Vec<WorkerId>) {
        let mut state = self.lock();
        for worker in workers {
            let index = usize::from(worker.0);
            if state.wakes.len() <= index {
                state.wakes.resize(index + 1, false);
            }
            state.wakes[index] = true;
        }
        self.count(state, memory);
    }

    /// Puts off the answer to a publication.
    pub(super) fn answer(
        &self,
        memory: &MemoryEngine,
        (ticket, outcome): (Ticket<Outcome>, Outcome),
        counted: CountGuard,
    ) {
        let mut state = self.lock();
        state.answers.push(Answer { ticket, outcome, _counted: counted });
        self.count(state, memory);
    }

    fn count(&self, mut state: MutexGuard<'_, SlotState>, memory: &MemoryEngine) {
        state.count += 1;
        if state.count >= DEFERRED_MAX {
            drop(state);
            self.act(memory);
        }
    }

    /// Does what was put off.
    pub(super) fn act(&self, memory: &MemoryEngine) {
        let mut state = self.lock();
        if std::mem::take(&mut state.count) == 0 {
            return;
        }
        let answers = std::mem::take(&mut state.answers);
        let wakes = (0..).zip(&mut state.wakes);
        let due: Vec<WorkerId> = wakes
            .filter_map(|(worker, is_due)| std::mem::take(is_due).then_some(WorkerId(worker)))
            .collect();
        drop(state);
        memory.wake(due);
        for Answer { ticket, outcome, _counted } in answers {
            ticket.answer(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use throng_core::worker_queue::WorkerQueue;
    use throng_core::{Epoch, PublishError, Rule, Rules};

    use super::*;

    /// Two workers that sleep, and how often each was woken.
    fn sleepers() -> (MemoryEngine, [Arc<AtomicUsize>; 2]) {
        let woken = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let queues = woken.iter().map(|count| {
            let count = Arc::clone(count);
            let queue = WorkerQueue::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            });
            queue.force_sleep();
            Arc::new(queue)
        });
        let rules = Arc::new(Rules::new(Vec::new(), Rule::default()));
        (MemoryEngine::new(Epoch::numbered(1), rules, queues.collect(), 1 << 20), woken)
    }

    #[test]
    fn workers_are_woken_once_there_is_no_more_to_take() {
        let (memory, woken) = sleepers();
        let counts = || woken.each_ref().map(|count| count.load(Ordering::SeqCst));
        let deferred = DeferredWork::default();
        deferred.wake(&memory, vec![WorkerId(1)]);
        deferred.wake(&memory, vec![WorkerId(1)]);
        assert_eq!(counts(), [0, 0]);
        deferred.act(&memory);
        assert_eq!(counts(), [0, 1]);
        for _ in 0..DEFERRED_MAX {
            assert_eq!(counts(), [0, 1]);
            deferred.wake(&memory, vec![WorkerId(0)]);
        }
        assert_eq!(counts(), [1, 1], "many were put off");
    }

    #[test]
    fn an_answer_that_is_put_off_counts_as_being_given() {
        let (memory, _) = sleepers();
        let (sender, answers) = mpsc::channel();
        let (deferred, count) = (DeferredWork::default(), Arc::new(AtomicUsize::new(0)));
        let ticket = Ticket::new(move |answer| {
            let _ = sender.send(answer);
        });
        let outcome = Err(PublishError::Away);
        deferred.answer(&memory, (ticket, outcome), CountGuard::new(&count));
        assert!(answers.try_recv().is_err());
        assert_eq!(count.load(Ordering::SeqCst), 1);
        deferred.act(&memory);
        assert_eq!(answers.try_recv(), Ok(Some(Err(PublishError::Away))));
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }
}
