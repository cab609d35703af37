//! What an application can be told of.

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Webhook {
    ChannelOccupied,
    ChannelVacated,
    MemberAdded,
    MemberRemoved,
    ClientEvent,
    CacheMiss,
    SubscriptionCount,
}

impl Webhook {
    /// All of them.
    pub const ALL: [Webhook; 7] = [
        Webhook::ChannelOccupied,
        Webhook::ChannelVacated,
        Webhook::MemberAdded,
        Webhook::MemberRemoved,
        Webhook::ClientEvent,
        Webhook::CacheMiss,
        Webhook::SubscriptionCount,
    ];

    /// The word for it in settings and requests.
    pub fn word(self) -> &'static str {
        match self {
            Webhook::ChannelOccupied => "channel_occupied",
            Webhook::ChannelVacated => "channel_vacated",
            Webhook::MemberAdded => "member_added",
            Webhook::MemberRemoved => "member_removed",
            Webhook::ClientEvent => "client_event",
            Webhook::CacheMiss => "cache_miss",
            Webhook::SubscriptionCount => "subscription_count",
        }
    }
}
