//! Ends subscriptions that the rules of access do not allow any more.

use throng_access::Action;
use throng_core::{Kind, SubscriptionId};
use throng_wire::ErrorResponse;

use crate::close_reason::CloseReason;
use crate::connection::ConnectionId;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// Asks the access policy again about all that a connection follows. A client with commands is
    /// told which of it ends. Others have asked for all of it in one request: their connections are
    /// closed, and the error is the one that this request would get now. Returns how many
    /// subscriptions were passed.
    pub(crate) fn recheck_access(&mut self, id: ConnectionId) -> usize {
        let count = self.subscriptions(id).count();
        for subscription in self.subscriptions_to_grant(id) {
            let connection = &self[id];
            if !connection.is_parked() {
                break;
            }
            let has_commands = connection.has_commands();
            let Some(error) = self.denial_now(id, subscription) else { continue };
            if !has_commands {
                let reason = CloseReason::Refused(error.code);
                self.close_subscriber(id, reason, &error.message, || error.clone());
                break;
            }
            self.end_denied(id, subscription, &error);
        }
        count
    }

    /// Why a connection may not have a subscription any more; `None` if it may.
    fn denial_now(&self, id: ConnectionId, subscription: SubscriptionId) -> Option<ErrorResponse> {
        let (channel, _) = self.cursors().channel(subscription)?;
        let name = self.engine.name(channel)?;
        // The control plane has let those in who see the status.
        if name.kind() == Kind::Internal && !name.is_presence_events() {
            return None;
        }
        self.denial(&self.client(id, Action::Subscribe(&name)), subscription)
    }
}
