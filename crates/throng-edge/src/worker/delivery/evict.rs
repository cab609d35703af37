//! Closes the connections that buffer most while all together buffer too much.

use throng_wire::{ErrorCode, ErrorResponse};

use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;
use crate::worker::Worker;
use crate::worker::error_response::Reader;

impl<N: Net> Worker<N> {
    /// Closes the connections that buffer most until all together are within the limit.
    pub(in crate::worker) fn evict_excess(&mut self) {
        while let Some(id) = self.connections.to_evict() {
            self.turn(|worker| worker.evict(id));
        }
    }

    /// Closes a connection, with an error response if its socket takes one.
    fn evict(&mut self, id: ConnectionId) {
        let connection = &self.connections[id];
        let what = "too many unread responses and incomplete messages";
        match connection.state {
            // The client does not read, and would not read an error response either.
            _ if connection.has(Flags::BLOCKED) => self.cut_off(id),
            State::Streaming if connection.has(Flags::WEBSOCKET) => {
                self.close_overloaded(id, what);
            }
            State::Head | State::Waiting | State::LongPolling => {
                self.count(Counter::ClosedOverload);
                let message = format!("{what}; try again later");
                self.refuse(id, &ErrorResponse::new(ErrorCode::Busy, message), &Reader::default());
            }
            State::Streaming | State::Closing | State::Condemned => self.cut_off(id),
        }
        self.connections.update_buffered(id);
    }

    /// Ends a connection without a response.
    fn cut_off(&mut self, id: ConnectionId) {
        if self.connections[id].state == State::Closing {
            // It began to close for another reason, but overload loses its final response.
            self.count(Counter::ClosedOverload);
        }
        self.condemn(id, CloseReason::Overload);
    }
}
