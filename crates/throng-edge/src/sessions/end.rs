//! Ends the subscriptions to channels that have ended, once their connections have all messages.
//!
//! A client with commands goes on with its other channels. So does one that follows several
//! channels otherwise; when the last of them has ended, its connection closes as complete. A
//! browser connects again when a stream of events ends, and is answered `204` then: that ends it
//! for good.

use throng_core::{Followed, SubscriptionId};
use throng_dialect::{CloseReason, Saying};
use throng_wire::response::{self, SubscriptionHeaders};
use throng_wire::subscribe::{Request, Transport};

use crate::connection::{ConnectionId, Ending, State};
use crate::delivery::name_of;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// Ends the subscriptions that have come to the end of their channels since the last call.
    pub(crate) fn end_over(&mut self) {
        for subscription in self.take_over() {
            if let Some(id) = self.cursors().connection(subscription) {
                match self[id].state() {
                    State::Streaming => self.end_subscription(id, subscription),
                    State::LongPolling if self.has_ended(id) => {
                        self.answer_long_poll(id, true, &[]);
                    }
                    _ => {}
                }
            }
        }
    }

    fn end_subscription(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        let Some(end) = self.cursors().end(subscription) else { return };
        let Some(target) = self.target_of(subscription) else { return };
        self.unfollow_channel(id, subscription, &name_of(&target));
        // The client may not have learnt yet that it began.
        if let Some(many) = self.connections_mut().holder_mut(id) {
            many.ended.push((target, Ending::OfChannel(end)));
            return;
        }
        let is_last = self.newest_subscription(id).is_none() && !self[id].has_commands();
        self.say(id, &Saying::Ended { target: &target, id: &end.to_string(), is_last });
        if is_last {
            self.close_for(id, CloseReason::Ended);
        }
    }

    /// True if nothing comes on a stream that begins now: all of its channels have ended, and the
    /// client has all messages.
    pub(super) fn begins_at_end(&self, request: &Request, followed: &[Followed]) -> bool {
        let is_over = |followed: &Followed| {
            followed.is_ended && followed.backlog.iter().all(|message| message.is_end())
        };
        let is_http = matches!(request.transport, Transport::Sse | Transport::Stream);
        is_http && !request.wants_state() && followed.iter().all(is_over)
    }

    /// Answers that nothing comes.
    pub(super) fn answer_ended(&mut self, id: ConnectionId, headers: &SubscriptionHeaders<'_>) {
        let mut out = Vec::new();
        let headers = SubscriptionHeaders { has_ended: true, connection: None, ..*headers };
        response::poll(&mut out, None, false, None, &headers);
        self.close_after(id, &out, CloseReason::Ended);
    }
}
