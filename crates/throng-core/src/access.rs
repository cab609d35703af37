//! Access control: which client may do what.

use crate::later::{Answer, Later};
use crate::name::ChannelName;

/// The listener that accepted a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listener {
    /// The address that clients connect to.
    #[default]
    Public,
    /// The address for operators, and for the application where clients may only read.
    Admin,
}

/// The client that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asker<'a> {
    /// The listener that accepted its connection.
    pub listener: Listener,
    /// The user that its connection belongs to, by its own account: no key or token backs the name.
    /// `None` if it named no user.
    pub user: Option<&'a str>,
}

/// What a client asks to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// Follow a channel or a user's inbox.
    Subscribe(&'a ChannelName),
    /// Publish to a channel or a user.
    Publish(&'a ChannelName),
    /// Publish a batch. Asked before the batch is read; each of its lines asks for
    /// [`Action::Publish`].
    PublishBatch,
    /// Read the messages that a channel keeps.
    ReadHistory(&'a ChannelName),
    /// Read the users that follow a channel.
    ReadPresence(&'a ChannelName),
}

/// The answer to an [`Action`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The client may do it.
    Allowed,
    /// The client may do it until this time, in milliseconds since 1970. A connection whose
    /// subscription is allowed so is closed then, with all that it follows. For any other action it
    /// is the same as [`Decision::Allowed`].
    AllowedUntil(u64),
    /// The client may not, and gets this message. It has at most 123 bytes, so that it fits into
    /// the close frame of a WebSocket.
    Denied(String),
}

/// The policy that both planes consult before they act for a client.
pub trait Access: Send + Sync {
    /// Whether `asker` may perform `action`. A policy that has to ask elsewhere answers later; the
    /// client waits for it, up to a deadline that the planes set, and is refused with `busy` then.
    /// A policy must not wait itself: a worker with all of its connections would wait with it.
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision>;
}

/// The policy that allows every action.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn may(&self, _: &Asker<'_>, _: Action<'_>, _: Later<'_, Decision>) -> Answer<Decision> {
        Decision::Allowed.into()
    }
}

/// The policy that allows publishing at the admin listener only, and reading everywhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOnlyClients;

impl Access for ReadOnlyClients {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        _: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let decision = match (asker.listener, action) {
            (Listener::Public, Action::Publish(_) | Action::PublishBatch) => Decision::Denied(
                "clients of this server may only read; publish at its admin listener".into(),
            ),
            _ => Decision::Allowed,
        };
        decision.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::later::Ticket;

    fn ask(asker: &Asker<'_>, action: Action<'_>) -> Decision {
        let mut issue = || Ticket::new(drop);
        let answer = ReadOnlyClients.may(asker, action, Later::new(&mut issue));
        answer.now().expect("it asks nowhere else")
    }

    #[test]
    fn clients_that_may_only_read_cannot_publish() {
        let [client, operator] = [Listener::Public, Listener::Admin]
            .map(|listener| Asker { listener, ..Asker::default() });
        let channel = ChannelName::channel("a");
        for action in [Action::Publish(&channel), Action::PublishBatch] {
            let decision = ask(&client, action);
            assert!(matches!(decision, Decision::Denied(message) if message.len() <= 123));
            assert_eq!(ask(&operator, action), Decision::Allowed);
        }
        let reads = [
            Action::Subscribe(&channel),
            Action::ReadHistory(&channel),
            Action::ReadPresence(&channel),
        ];
        for action in reads {
            assert_eq!(ask(&client, action), Decision::Allowed);
        }
    }
}
