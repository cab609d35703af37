//! How far connections are behind.

use throng_core::{FoundLag, Lag, clock};

use super::Delivery;
use crate::connection::ConnectionId;
use crate::counters::Parked;
use crate::net::Net;
use crate::sockets::TICKS_PER_S;

impl<N: Net> Delivery<N> {
    /// The lag of a connection in all of its channels, and the number of channels.
    pub(crate) fn lag(&self, id: ConnectionId) -> (Lag, usize) {
        self.subscriptions(id).fold((Lag::default(), 0), |(sum, count), subscription| {
            let lag = self.subscriptions.lag(subscription);
            let (messages, bytes) = (sum.messages + lag.messages, sum.bytes + lag.bytes);
            (Lag { messages, bytes }, count + 1)
        })
    }

    /// How far a connection is behind; `None` if it is not.
    pub(crate) fn found_lag(&self, id: ConnectionId) -> Option<FoundLag> {
        let since = self.connections().behind_since(id).filter(|_| self.is_listed_behind(id))?;
        let (lag, subscriptions) = self.lag(id);
        let left = self.left(id);
        let ticks = self.clock().tick().saturating_sub(since);
        let since_ms = u64::from(ticks) * 1000 / u64::from(TICKS_PER_S);
        let user = self.connections().user_name(&self[id]);
        let inbox = self.user_of(id);
        let names = self.subscriptions(id).take(FoundLag::CHANNELS_MAX);
        let channels = names.filter_map(|subscription| {
            let (channel, _) = self.subscriptions.channel(subscription)?;
            self.engine.name(channel)
        });
        Some(FoundLag {
            since_ms: clock::wall_ms(self.clock().unix_ms().saturating_sub(since_ms)),
            messages: lag.messages,
            bytes: lag.bytes + left.here as u64,
            kernel_bytes: left.in_kernel as u64,
            user: user.or(inbox.as_ref().map(|inbox| inbox.name())).map(Into::into),
            channels: channels.collect(),
            subscriptions,
        })
    }

    /// True if a connection that is behind belongs to a subscriber. The canary has no reader but
    /// the server.
    pub(crate) fn is_listed_behind(&self, id: ConnectionId) -> bool {
        let parked = self[id].parked();
        parked.is_some_and(|parked| parked != Parked::Canary)
    }
}
