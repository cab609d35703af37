//! Limits of the servers, or of a node's account there, by how servers refuse what exceeds them.

use super::JetStreamError;

/// A limit of the servers, or of the node's account there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatsLimit {
    Subscriptions,
    Payload,
    Storage,
    Streams,
    Connections,
}

impl NatsLimit {
    /// All of them, in the order of their numbers.
    pub const ALL: [NatsLimit; 5] = [
        NatsLimit::Subscriptions,
        NatsLimit::Payload,
        NatsLimit::Storage,
        NatsLimit::Streams,
        NatsLimit::Connections,
    ];

    /// Its name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            NatsLimit::Subscriptions => "subscriptions",
            NatsLimit::Payload => "payload",
            NatsLimit::Storage => "storage",
            NatsLimit::Streams => "streams",
            NatsLimit::Connections => "connections",
        }
    }

    /// What to do about it, after a refusal.
    pub fn remedy(self) -> &'static str {
        match self {
            NatsLimit::Subscriptions => {
                "raise max_subscriptions of the servers, or the subscriptions of the account"
            }
            NatsLimit::Payload => "raise max_payload of the servers, or of the account",
            NatsLimit::Storage => {
                "raise the storage of the account (max_file) or of the servers (max_file_store), \
                 or lower history.total-bytes"
            }
            NatsLimit::Streams => "raise the number of streams of the account (max_streams)",
            NatsLimit::Connections => "raise max_connections of the servers, or of the account",
        }
    }

    /// The limit that a server complains of before it hangs up.
    pub(crate) fn of_complaint(error: &str) -> Option<NatsLimit> {
        let lower = error.to_ascii_lowercase();
        let is = |words: [&str; 2]| words.iter().all(|word| lower.contains(word));
        if is(["maximum payload", ""]) {
            Some(NatsLimit::Payload)
        } else if is(["connections", "exceeded"]) {
            Some(NatsLimit::Connections)
        } else {
            is(["subscriptions", "exceeded"]).then_some(NatsLimit::Subscriptions)
        }
    }

    /// The limit that a request of JetStream exceeds.
    pub(crate) fn of(error: &JetStreamError) -> Option<NatsLimit> {
        match error.err_code {
            // Larger than the stream takes.
            10054 => Some(NatsLimit::Payload),
            10027 => Some(NatsLimit::Streams),
            // Of the account, of the servers, of memory, of disks, of one stream.
            10002 | 10023 | 10028 | 10047 | 10122 => Some(NatsLimit::Storage),
            // It has other reasons, too, that pass: a server that shuts down.
            10077 if error.description.contains("no space") => Some(NatsLimit::Storage),
            // No server of the cluster can take it: some lack room, or are away.
            10005 if error.description.contains("storage") => Some(NatsLimit::Storage),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_limit_that_they_are_about() {
        for (error, expected) in [
            ("maximum connections exceeded", Some(NatsLimit::Connections)),
            ("maximum account active connections exceeded", Some(NatsLimit::Connections)),
            ("Maximum Payload Violation", Some(NatsLimit::Payload)),
            ("maximum subscriptions exceeded", Some(NatsLimit::Subscriptions)),
            ("Authorization Violation", None),
        ] {
            assert_eq!(NatsLimit::of_complaint(error), expected, "{error}");
        }
        let of = |err_code, description: &str| {
            NatsLimit::of(&JetStreamError { code: 400, err_code, description: description.into() })
        };
        assert_eq!(of(10047, "insufficient storage resources available"), Some(NatsLimit::Storage));
        assert_eq!(of(10027, "maximum number of streams reached"), Some(NatsLimit::Streams));
        let peers = "no suitable peers for placement, insufficient storage";
        assert_eq!(of(10005, peers), Some(NatsLimit::Storage));
        assert_eq!(of(10005, "no suitable peers for placement, peer offline"), None);
        assert_eq!(of(10109, "invalid operation on sealed stream"), None);
    }
}
