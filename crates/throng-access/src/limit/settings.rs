//! The limits of a server's clients, as its settings give them.

use super::rate::RateMeter;
use super::refusal::{Quantity, Subject};

/// The limits of each client of one kind. 0 stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientLimits {
    /// Connections at a time.
    pub connections: u32,
    /// New connections per second.
    pub connects_per_s: u32,
    /// Subscriptions at a time, over all connections.
    pub subscriptions: u32,
    /// Published messages per second.
    pub publishes_per_s: u32,
    /// Bytes of published messages per second.
    pub published_bytes_per_s: u32,
    /// Bytes of what is read per second: history, presence.
    pub read_bytes_per_s: u32,
}

impl ClientLimits {
    /// No limit.
    const NONE: ClientLimits = ClientLimits {
        connections: 0,
        connects_per_s: 0,
        subscriptions: 0,
        publishes_per_s: 0,
        published_bytes_per_s: 0,
        read_bytes_per_s: 0,
    };

    /// True if there is none.
    pub fn is_none(&self) -> bool {
        *self == ClientLimits::NONE
    }

    /// The limit of one quantity; 0 for none.
    pub(super) fn limit(&self, quantity: Quantity) -> u32 {
        match quantity {
            Quantity::Connections => self.connections,
            Quantity::Connects => self.connects_per_s,
            Quantity::Subscriptions => self.subscriptions,
            Quantity::Publishes => self.publishes_per_s,
            Quantity::PublishedBytes => self.published_bytes_per_s,
            Quantity::ReadBytes => self.read_bytes_per_s,
            Quantity::BadTokens | Quantity::Questions => 0,
        }
    }

    /// True if these and others limit the same quantities, if to other numbers.
    pub fn limits_same(&self, other: &ClientLimits) -> bool {
        let is_same = |quantity| (self.limit(quantity) == 0) == (other.limit(quantity) == 0);
        Quantity::ALL.into_iter().all(is_same)
    }
}

/// The limits of all kinds of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitSettings {
    /// Of each address; of IPv6 addresses, of each /64.
    pub address: ClientLimits,
    /// Of each user of a token.
    pub user: ClientLimits,
    pub key: ClientLimits,
    /// Tokens with a bad signature per second of an address. 0 for no limit.
    pub bad_tokens_per_s: u32,
    /// Questions of an address that are asked elsewhere, at a time. 0 for no limit.
    pub questions: u32,
}

impl LimitSettings {
    /// True if these and others limit the same quantities, if to other numbers.
    pub fn limits_same(&self, other: &LimitSettings) -> bool {
        let is_same = |subject, quantity| {
            (self.limit(subject, quantity) == 0) == (other.limit(subject, quantity) == 0)
        };
        let mut subjects = Subject::ALL.into_iter();
        subjects.all(|subject| Quantity::ALL.into_iter().all(|quantity| is_same(subject, quantity)))
    }

    /// The limits of clients of one kind.
    pub(super) fn of(&self, subject: Subject) -> &ClientLimits {
        match subject {
            Subject::Address => &self.address,
            Subject::User => &self.user,
            Subject::Key => &self.key,
            // Each has its own.
            Subject::App => &ClientLimits::NONE,
        }
    }

    /// The limit of one quantity; 0 for none.
    pub(super) fn limit(&self, subject: Subject, quantity: Quantity) -> u32 {
        match quantity {
            Quantity::BadTokens => self.bad_tokens_per_s,
            Quantity::Questions => self.questions,
            _ => self.of(subject).limit(quantity),
        }
    }
}

/// The rate that a setting gives: a second's worth may come at once. `None` without a limit.
pub(super) fn rate(per_second: u32) -> Option<RateMeter> {
    (per_second > 0).then_some(RateMeter { per_second, burst: per_second })
}
