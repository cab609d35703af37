//! The tests that every engine passes.

use std::sync::Weak;

use super::*;
use crate::conformance;
use crate::conformance::{Fate, LateJournal};

fn engine(rules: Arc<Rules>, queues: Vec<Arc<WorkerQueue>>) -> MemoryEngine {
    MemoryEngine::new(Epoch::numbered(7), rules, queues, usize::MAX)
}

#[test]
fn the_memory_engine_conforms() {
    conformance::run(|rules, queues| Box::new(engine(rules, queues)));
}

#[test]
fn an_engine_whose_offsets_skip_conforms() {
    for max_step in [2, 1000, 1 << 40] {
        let make = |rules, queues| engine(rules, queues).with_skipping_offsets(max_step);
        conformance::run(|rules, queues| Box::new(make(rules, queues)));
    }
}

/// Publishes what waits in a journal until it is dropped: the newest channel first.
fn settle_until_dropped(journal: &Weak<LateJournal>) {
    while let Some(journal) = journal.upgrade() {
        while let Some(newest) = journal.open().pop() {
            journal.settle(&newest.channel, Fate::Published);
        }
        std::thread::yield_now();
    }
}

#[test]
fn an_engine_that_answers_later_conforms() {
    conformance::run(|rules, queues| {
        let journal = Arc::new(LateJournal::new(Arc::new(engine(rules, queues))));
        let weak = Arc::downgrade(&journal);
        std::thread::spawn(move || settle_until_dropped(&weak));
        Box::new(journal)
    });
}
