//! The tests that every engine passes.

use super::*;
use crate::conformance;

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
