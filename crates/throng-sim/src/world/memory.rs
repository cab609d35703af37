//! The memory of the server, and how short it is.

use std::sync::Arc;

use throng_core::{MemoryPressure, MemoryStep};

use crate::random::Random;

/// The memory of the server.
pub(super) struct Memory {
    pub(super) pressure: Arc<MemoryPressure>,
    random: Random,
    /// True if it is ever short.
    pub(super) is_scarce: bool,
    /// The furthest step so far.
    pub(super) furthest: MemoryStep,
}

impl Memory {
    pub(super) fn new(mut random: Random) -> Memory {
        let is_scarce = random.percent(25);
        Memory { pressure: Arc::default(), random, is_scarce, furthest: MemoryStep::None }
    }

    /// The step that comes next.
    pub(super) fn next(&mut self) -> MemoryStep {
        let is_enough = self.random.percent(40);
        let step = self.random.pick(&MemoryStep::ALL);
        if is_enough { MemoryStep::None } else { step }
    }
}
