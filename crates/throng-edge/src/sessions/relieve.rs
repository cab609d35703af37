//! Gives up memory: by steps when the server is short of it, and by closing the connections that
//! buffer most while all together buffer too much.

use throng_core::MemoryStep;
use throng_dialect::CloseReason;
use throng_wire::{ErrorCode, ErrorResponse};

use super::Sessions;
use super::error_response::Reader;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
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
            let workers = self.metrics().all().workers().len().max(1);
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
            self.buffers().return_output(Vec::new());
            self.shrink(DROPPED_PER_TICK);
            self.evict_excess();
        }
        self.relief.is_short()
    }

    /// Closes the connections that buffer most until all together are within the limit.
    pub(crate) fn evict_excess(&mut self) {
        while let Some(id) = self.connections().to_evict() {
            self.turn(|sessions| sessions.evict(id));
        }
    }

    /// Closes a connection, with an error response if its socket takes one.
    fn evict(&mut self, id: ConnectionId) {
        let connection = &self[id];
        let what = "too many unread responses and incomplete messages";
        match connection.state() {
            // The client does not read, and would not read an error response either.
            _ if connection.has(Flags::BLOCKED) => self.cut_off(id),
            State::Streaming if connection.is_websocket() => {
                self.close_for_now(id, CloseReason::Overload, what, false);
            }
            State::Head | State::Waiting | State::LongPolling => {
                self.count(Counter::ClosedOverload);
                let message = format!("{what}; try again later");
                self.refuse(id, &ErrorResponse::new(ErrorCode::Busy, message), &Reader::default());
            }
            State::Streaming | State::Closing | State::Condemned => self.cut_off(id),
        }
        self.connections_mut().update_buffered(id);
    }
}
