//! Events of connections and channels, for applications that subscribe to them.

use std::fmt;

use crate::connection_name::ConnectionName;
use crate::name::ChannelName;
use crate::publication::VolatilePublication;

/// Something that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A client follows something over a WebSocket or a stream. Long-polls are no connections.
    /// Comes again, with the user, for one that becomes a user later.
    Connected {
        connection: ConnectionName,
        /// The user that it belongs to.
        user: Option<&'a str>,
        /// Nothing backs the user's name: the server has no keys.
        is_claimed: bool,
        transport: &'static str,
    },
    /// Such a connection has ended.
    Disconnected {
        connection: ConnectionName,
        /// Why it has ended: a value of the label `reason` in the metrics.
        reason: &'static str,
    },
    /// A channel or an inbox has its first subscriber.
    Occupied(&'a ChannelName),
    /// A channel or an inbox has lost its last subscriber.
    Vacated(&'a ChannelName),
    /// The number of subscribers of a channel or an inbox, for sinks that
    /// [take](EventSink::takes_counts) it.
    Counted(&'a ChannelName, u64),
    /// A channel has a member more, by the key that its list has for it.
    MemberAdded(&'a ChannelName, &'a str),
    /// A member has left, after the grace.
    MemberRemoved(&'a ChannelName, &'a str),
    /// A client of an application has published an event of its own.
    ClientEvent(ConnectionName, &'a VolatilePublication),
    /// A client of an application was to begin with the newest message of a channel, which has
    /// none.
    CacheMiss(&'a ChannelName),
}

/// Takes events from workers and engine. Those of one channel come in their order.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// Takes an event at `now_ms`. Must not wait: it is called by workers, and under a lock of the
    /// engine.
    fn notify(&self, now_ms: u64, event: Event<'_>);

    /// True if it takes the numbers of channels' subscribers, which change with each of them.
    fn takes_counts(&self) -> bool {
        false
    }
}
