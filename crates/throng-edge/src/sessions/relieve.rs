//! Gives up memory when the server is short of it.

use throng_core::MemoryStep;

use super::Sessions;
use crate::net::Net;

/// While memory is short, a worker has this part of its share for subscribers that do not read, and
/// at the last step for what connections buffer.
const SHORT_SHARE: usize = 4;

/// Messages that one tick drops at most: some milliseconds of work.
const DROPPED_PER_TICK: usize = 16 << 10;

impl<N: Net> Sessions<N> {
    /// Acts on the step that the server has come to. Returns whether memory is short.
    pub(crate) fn relieve(&mut self) -> bool {
        if let Some(step) = self.relief.change() {
            let workers = self.metrics().workers().max(1);
            let limits = self.settings.limits;
            let share =
                |bytes: usize, is_short| bytes / workers / if is_short { SHORT_SHARE } else { 1 };
            let is_short = step >= MemoryStep::Shrink;
            let blocked = share(limits.max_blocked_bytes, is_short);
            self.set_max_blocked_bytes(blocked);
            let buffered = share(limits.max_buffered_bytes, step >= MemoryStep::CloseSlow);
            self.connections_mut().set_max_buffered_bytes(buffered);
        }
        if self.relief.is_short() {
            self.buffers().shrink();
            self.shrink(DROPPED_PER_TICK);
            self.evict_excess();
        }
        self.relief.is_short()
    }
}
