//! Why a client is refused: which limit of which kind of client it has reached.

use throng_wire::{ErrorCode, ErrorResponse};

/// The subject of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Subject {
    /// An address; of IPv6, a /64.
    Address,
    User,
    Key,
    /// An application: all of its clients and requests.
    App,
}

/// A limited quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Quantity {
    /// Connections at a time.
    Connections,
    /// New connections per second.
    Connects,
    /// Subscriptions at a time.
    Subscriptions,
    /// Published messages per second.
    Publishes,
    /// Bytes of published messages per second.
    PublishedBytes,
    /// Bytes of what is read per second.
    ReadBytes,
    /// Tokens with a bad signature per second.
    BadTokens,
    /// Questions at a time that are asked elsewhere: of the application, or for keys.
    Questions,
}

impl Subject {
    /// All of them.
    pub const ALL: [Subject; 4] = [Subject::Address, Subject::User, Subject::Key, Subject::App];

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Address => "address",
            Subject::User => "user",
            Subject::Key => "key",
            Subject::App => "app",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Subject::Address => "this address",
            Subject::User => "this user",
            Subject::Key => "this server key",
            Subject::App => "this application",
        }
    }
}

impl Quantity {
    /// All of them.
    pub const ALL: [Quantity; 8] = [
        Quantity::Connections,
        Quantity::Connects,
        Quantity::Subscriptions,
        Quantity::Publishes,
        Quantity::PublishedBytes,
        Quantity::ReadBytes,
        Quantity::BadTokens,
        Quantity::Questions,
    ];

    /// Those that clients of one kind may have a limit of.
    pub fn of(subject: Subject) -> impl Iterator<Item = Quantity> {
        let is_of = move |quantity: &Quantity| {
            let is_of_address = matches!(quantity, Quantity::BadTokens | Quantity::Questions);
            subject == Subject::Address || !is_of_address
        };
        Quantity::ALL.into_iter().filter(is_of)
    }

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Connections => "connections",
            Quantity::Connects => "connects",
            Quantity::Subscriptions => "subscriptions",
            Quantity::Publishes => "publishes",
            Quantity::PublishedBytes => "published_bytes",
            Quantity::ReadBytes => "read_bytes",
            Quantity::BadTokens => "bad_tokens",
            Quantity::Questions => "questions",
        }
    }

    fn excess(self) -> &'static str {
        match self {
            Quantity::Connections => "has too many connections",
            Quantity::Connects => "connects too often",
            Quantity::Subscriptions => "has too many subscriptions",
            Quantity::Publishes => "publishes too often",
            Quantity::PublishedBytes => "publishes too many bytes",
            Quantity::ReadBytes => "reads too much",
            Quantity::BadTokens => "has sent too many bad tokens",
            Quantity::Questions => "waits for too many decisions",
        }
    }
}

/// A client has reached a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} {}", self.subject.noun(), self.quantity.excess())]
pub struct Refusal {
    pub subject: Subject,
    pub quantity: Quantity,
    /// After this time there is room again if nothing else happens, in milliseconds; `None` if that
    /// depends on when others leave.
    pub after_ms: Option<u64>,
}

impl Refusal {
    /// The moment to come back: `default_ms`, which spreads clients, but not before there is room.
    pub fn retry_ms(&self, default_ms: u64) -> u64 {
        self.after_ms.map_or(default_ms, |after_ms| after_ms.max(default_ms))
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(refusal: Refusal) -> ErrorResponse {
        ErrorResponse::new(ErrorCode::TooManyRequests, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_which_limit_is_reached() {
        let refusal =
            Refusal { subject: Subject::User, quantity: Quantity::Publishes, after_ms: Some(40) };
        let error = ErrorResponse::from(refusal);
        assert_eq!(error.to_string(), "429 too_many_requests: this user publishes too often");
        assert_eq!((refusal.retry_ms(1000), refusal.retry_ms(7)), (1000, 40));
        assert_eq!(Refusal { after_ms: None, ..refusal }.retry_ms(7), 7);
    }
}
