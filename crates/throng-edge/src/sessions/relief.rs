//! The steps by which a worker gives up memory when the server is short of it.

use std::sync::Arc;

use throng_core::{MemoryPressure, MemoryStep, RefusedForMemory};

/// The steps of the server, as one worker follows them.
#[derive(Debug)]
pub(crate) struct Relief {
    pressure: Arc<MemoryPressure>,
    /// The step that the worker has acted upon.
    step: MemoryStep,
}

impl Relief {
    pub(crate) fn new(pressure: Arc<MemoryPressure>) -> Relief {
        Relief { pressure, step: MemoryStep::None }
    }

    /// The step of now if it is another than at the last call.
    pub(crate) fn change(&mut self) -> Option<MemoryStep> {
        let step = self.pressure.step();
        (std::mem::replace(&mut self.step, step) != step).then_some(step)
    }

    /// True if the worker has to do with less memory than it has a right to.
    pub(crate) fn is_short(&self) -> bool {
        self.step >= MemoryStep::Shrink
    }

    pub(crate) fn refuses(&self, what: RefusedForMemory) -> bool {
        self.pressure.refuses(what)
    }
}
