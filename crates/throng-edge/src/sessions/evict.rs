//! Closes the connections that buffer most while all together buffer too much.

use throng_wire::{ErrorCode, ErrorResponse};

use super::error_response::Reader;
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
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
