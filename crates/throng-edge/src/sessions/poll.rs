//! Begins long-polls: answers what is due at once, and lets the others wait.

use std::sync::Arc;
use std::time::Duration;

use throng_core::Message;
use throng_wire::ErrorCode;
use throng_wire::subscribe::Request;

use super::subscribe::Begun;
use crate::connection::{ConnectionId, LongPoll, State};
use crate::net::Net;
use crate::sessions::Sessions;

/// How long an answer that is due waits for messages which are known and not settled: mostly one
/// slice. After that the next poll gets them.
const UNSETTLED_TICKS: u32 = 2;

impl<N: Net> Sessions<N> {
    /// Answers a long-poll whose channels are followed, or lets it wait.
    pub(super) fn start_long_poll(
        &mut self,
        id: ConnectionId,
        request: &Request,
        wait_ms: u32,
        Begun { is_recovered, position: begin, has_backlog, presence, .. }: Begun,
        backlogs: Vec<Vec<Arc<Message>>>,
    ) {
        let allow_credentials = self.allows_cookies(request.origin.as_deref());
        let wait = Duration::from_millis(u64::from(wait_ms));
        let due = self.clock().deadline(wait);
        let connection = &mut self[id];
        connection.due = due;
        if let Some(long_poll) = LongPoll::of(request, allow_credentials, is_recovered, begin) {
            connection.io_mut().long_poll = Some(Box::new(long_poll));
        }
        // A gap is reported at once, even without a message.
        let is_state = request.wants_state() && is_recovered != Some(true);
        // So is a state, even one without a key.
        let is_due = is_state
            || is_recovered == Some(false)
            || (wait_ms == 0 && !self.shutdown.is_draining());
        if begin.is_some() {
            // This worker's settled position is of its last slice, or there is none yet.
            self.answer_long_poll(id, is_due && !has_backlog, &presence);
            if is_due && self.is_long_polling(id) {
                let due = self.clock().deadline_ticks(UNSETTLED_TICKS).min(self[id].due);
                self[id].due = due;
            }
            self.flush_in_order(id);
        } else {
            self.answer_from(id, &backlogs, is_due, is_state, &presence);
        }
        self.trim_replay_buffers(id);
        if self.is_long_polling(id) && self.shutdown.is_draining() {
            // No message can come any more.
            self.refuse_subscription(id, request, &ErrorCode::Draining.into());
        }
    }

    fn is_long_polling(&self, id: ConnectionId) -> bool {
        self[id].state() == State::LongPolling
    }
}
