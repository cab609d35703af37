//! The one place that is asked "may this connection do this?".

use crate::name::ChannelName;

/// Where a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listener {
    /// The address that clients connect to.
    #[default]
    Public,
    /// The address for operators, and for the application where clients only read.
    Admin,
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// Follow a channel or a user's inbox.
    Subscribe(&'a ChannelName),
    /// Publish to a channel or a user.
    Publish(&'a ChannelName),
    /// Publish a batch. Asked before it is read; then [`Action::Publish`] is asked for each line.
    PublishBatch,
    /// Read what a log keeps.
    ReadHistory(&'a ChannelName),
    /// See who is there.
    ReadPresence(&'a ChannelName),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Yes,
    /// No, and the sentence that the client is told. It fits into a WebSocket's close frame, which
    /// holds 123 bytes.
    No(String),
}

/// Decides. Both planes ask it before they do anything for a client.
pub trait Access: Send + Sync {
    /// Whether a client that came in there may do this.
    fn may(&self, listener: Listener, action: Action<'_>) -> Verdict;
}

/// Everybody may do everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allow;

impl Access for Allow {
    fn may(&self, _: Listener, _: Action<'_>) -> Verdict {
        Verdict::Yes
    }
}

/// Everybody may read; only the admin listener takes messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientsRead;

impl Access for ClientsRead {
    fn may(&self, listener: Listener, action: Action<'_>) -> Verdict {
        match (listener, action) {
            (Listener::Public, Action::Publish(_) | Action::PublishBatch) => Verdict::No(
                "clients of this server may only read; publish at its admin listener".into(),
            ),
            _ => Verdict::Yes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_only_read_publish_nothing() {
        let channel = ChannelName::channel("a");
        for action in [Action::Publish(&channel), Action::PublishBatch] {
            let verdict = ClientsRead.may(Listener::Public, action);
            assert!(matches!(verdict, Verdict::No(sentence) if sentence.len() <= 123));
            assert_eq!(ClientsRead.may(Listener::Admin, action), Verdict::Yes);
        }
        let reads = [
            Action::Subscribe(&channel),
            Action::ReadHistory(&channel),
            Action::ReadPresence(&channel),
        ];
        for action in reads {
            assert_eq!(ClientsRead.may(Listener::Public, action), Verdict::Yes);
        }
    }
}
