//! Lists of the durable channels, by their numbers.

use std::ops::ControlFlow;

use throng_core::{Kind, ListPlace, ListStep, ListedChannel};

use super::shared::EngineShared;

/// Durable channels that one step looks at, at most: some hundred microseconds.
const STEP_CHANNELS: usize = 128;

pub(super) fn step(shared: &EngineShared, kind: Kind, after: u64) -> ListStep {
    let mut found = Vec::new();
    let mut each = |number, name| {
        found.push((number, name));
        if found.len() < STEP_CHANNELS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let mut step = ListStep::default();
    if shared.logs.list(after, &mut each).is_err() {
        return step;
    }
    if found.len() == STEP_CHANNELS {
        step.next = found.last().map(|(number, _)| ListPlace(*number));
    }
    for (number, name) in found {
        if name.kind() != kind || shared.durable(&name).is_none() {
            continue;
        }
        let Ok(bounds) = shared.logs.bounds(&name) else { continue };
        let subscribers = shared.memory.audience(&name).subscribers;
        let messages = usize::try_from(bounds.head.offset - bounds.floor).unwrap_or(usize::MAX);
        if messages > 0 || subscribers > 0 || bounds.has_record {
            let place = ListPlace(number);
            step.channels.push(ListedChannel {
                place,
                name,
                subscribers,
                head: bounds.head,
                messages,
            });
        }
    }
    step
}
