//! The tests that every journal passes, of logs in memory and in a journal for tests.

use std::sync::Weak;

use super::*;
use crate::Channels;
use crate::conformance::{self, Fate, Lateness, Profile, TestJournal};

fn engine(rules: Arc<Rules>, queues: Vec<Arc<WorkerQueue>>) -> MemoryEngine {
    MemoryEngine::new(Epoch::numbered(7), rules, queues, usize::MAX)
}

#[test]
fn the_memory_engine_conforms() {
    conformance::run(|rules, queues| engine(rules, queues).into());
}

#[test]
fn an_engine_whose_offsets_skip_conforms() {
    // Steps beyond the reach of a cursor would have values published again between two checks.
    for max_step in [2, 1000, 1 << 24, 1 << 40] {
        let profile =
            Profile { journal: None, keeps_states: max_step <= 1 << 24, ..Profile::JOURNAL };
        let make = |rules, queues| engine(rules, queues).with_skipping_offsets(max_step);
        conformance::run_with(profile, |rules, queues| make(rules, queues).into());
    }
}

/// Publishes what waits in a journal until it is dropped: the newest channel first.
fn settle_until_dropped(journal: &Weak<TestJournal>) {
    while let Some(journal) = journal.upgrade() {
        while let Some(newest) = journal.open().pop() {
            journal.settle(&newest.channel, Fate::Published);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_journal_conforms_at_once_and_later() {
    for of_publications in [false, true] {
        conformance::run_with(Profile::JOURNAL, |rules, queues| {
            let memory = Arc::new(engine(rules, queues));
            let lateness = Lateness { of_publications, ..Lateness::default() };
            let journal = TestJournal::new(Arc::clone(&memory), usize::MAX);
            let journal = Arc::new(journal.with_lateness(lateness));
            let weak = Arc::downgrade(&journal);
            std::thread::spawn(move || settle_until_dropped(&weak));
            Channels::new(memory, vec![journal])
        });
    }
}
