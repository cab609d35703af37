//! The interface of an access policy: who asks, what for, and the decision.

use std::sync::Arc;

use arc_swap::ArcSwap;
use throng_core::later::{Answer, Later};
use throng_core::name::ChannelName;
use throng_core::{Listener, Replacement};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::connect::Details;
use crate::grants::Grants;
use crate::permission::Permission;

/// The verified credential of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Credentials<'a> {
    #[default]
    Anonymous,
    /// It has named a user, and nothing backs the name: the server has no keys.
    Claimed {
        /// The user that it has named.
        user: &'a str,
    },
    /// It has shown a valid token or a server key.
    Known {
        /// The user that the token names.
        user: Option<&'a str>,
        /// The grants of the token or the key.
        grants: &'a Grants,
    },
}

impl<'a> Credentials<'a> {
    /// The user that the client is, or says that it is.
    pub fn user(self) -> Option<&'a str> {
        match self {
            Credentials::Anonymous => None,
            Credentials::Claimed { user } => Some(user),
            Credentials::Known { user, .. } => user,
        }
    }

    /// How many channels they let a connection follow, beyond what the settings allow to everybody;
    /// 0 if they say nothing of it.
    pub fn max_channels(self) -> usize {
        match self {
            Credentials::Known { grants, .. } => grants.max_channels(),
            Credentials::Anonymous | Credentials::Claimed { .. } => 0,
        }
    }

    /// True if they are a server key.
    fn are_of_key(self) -> bool {
        matches!(self, Credentials::Known { grants, .. } if grants.is_of_key())
    }
}

/// The client that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asker<'a> {
    /// The listener that accepted its connection.
    pub listener: Listener,
    pub credentials: Credentials<'a>,
    /// The rest of its request, as far as a policy gets it.
    pub details: Details<'a>,
    /// It was allowed this before, and only its token is new: a policy need not ask elsewhere
    /// again.
    pub is_repeated: bool,
}

/// A client's request to do something.
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
    /// Erase messages of a channel.
    Erase(&'a ChannelName),
    /// Replace a message of another publisher in a channel. The client needs [`Action::Publish`],
    /// too.
    Edit(&'a ChannelName),
    /// Set or remove a key of a channel's state. The client needs [`Action::Publish`], too.
    SetState(&'a ChannelName),
    /// End a channel, or open it again.
    End(&'a ChannelName),
    /// Choose what the client shows of itself to the other members of a channel. The client needs
    /// [`Action::Subscribe`], too.
    UpdateMember(&'a ChannelName),
    /// Create a channel.
    Create(&'a ChannelName),
}

impl<'a> Action<'a> {
    /// The permission that it needs, and on which channel. `None` for a batch, because each of its
    /// lines needs a permission of its own.
    pub fn permission(self) -> Option<(Permission, &'a ChannelName)> {
        match self {
            Action::Subscribe(name) => Some((Permission::Subscribe, name)),
            Action::Publish(name) => Some((Permission::Publish, name)),
            Action::ReadHistory(name) => Some((Permission::History, name)),
            Action::ReadPresence(name) => Some((Permission::Presence, name)),
            Action::Erase(name) => Some((Permission::Erase, name)),
            Action::Edit(name) => Some((Permission::Edit, name)),
            Action::SetState(name) => Some((Permission::State, name)),
            Action::End(name) => Some((Permission::End, name)),
            Action::UpdateMember(name) => Some((Permission::Update, name)),
            Action::Create(name) => Some((Permission::Create, name)),
            Action::PublishBatch => None,
        }
    }
}

/// The answer to an [`Action`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    /// The client may do it until this time, in milliseconds since 1970. A connection whose
    /// subscription is allowed so is closed then, with all that it follows. For any other action it
    /// is the same as [`Decision::Allowed`].
    AllowedUntil(u64),
    /// The client may publish, and its message has this content instead. Only for
    /// [`Action::Publish`], by a policy that [reads content](Access::reads_content).
    AllowedAs(Arc<Replacement>),
    /// The client may follow the channel, and shows this to the other members: a JSON object. Only
    /// for [`Action::Subscribe`]; for any other one it is allowed, as above.
    AllowedShowing {
        info: Arc<str>,
        /// As [`Decision::AllowedUntil`].
        until_ms: Option<u64>,
    },
    /// The client may not, and gets this error. The code is mostly [`ErrorCode::Unauthorized`] if
    /// a token could help, and [`ErrorCode::Forbidden`] otherwise. The message has at most 123
    /// bytes, so that it fits into the close frame of a WebSocket.
    Denied(ErrorResponse),
}

impl Decision {
    /// A denial that no token changes, with this message of at most 123 bytes.
    pub fn forbidden(message: &'static str) -> Decision {
        Decision::Denied(ErrorResponse::new(ErrorCode::Forbidden, message))
    }

    /// Until when it is allowed, in milliseconds since 1970; `None` if it does not end.
    ///
    /// # Errors
    ///
    /// The error for the client, if it is denied; also where other content is not expected, because
    /// the client's own must not pass for it.
    pub fn allowed_until_ms(self) -> Result<Option<u64>, ErrorResponse> {
        match self {
            Decision::AllowedAs(_) => Err(ErrorResponse::unanswered()),
            Decision::Allowed => Ok(None),
            Decision::AllowedUntil(ms) => Ok(Some(ms)),
            Decision::AllowedShowing { until_ms, .. } => Ok(until_ms),
            Decision::Denied(error) => Err(error),
        }
    }
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

    /// True if the decision about a publication depends on its content, which
    /// [`Details::content`] then has.
    fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        let _ = (asker, action);
        false
    }
}

/// A policy that can be replaced while it is asked.
impl<A: Access> Access for Arc<ArcSwap<A>> {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        self.load().may(asker, action, later)
    }

    fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        self.load().reads_content(asker, action)
    }
}

/// The policy that allows every action.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn may(&self, _: &Asker<'_>, _: Action<'_>, _: Later<'_, Decision>) -> Answer<Decision> {
        Decision::Allowed.into()
    }
}

/// The policy that refuses publishing and erasing at the public listener, except with a server key,
/// and asks the inner policy about everything else.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOnlyClients<A>(pub A);

impl<A: Access> Access for ReadOnlyClients<A> {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let is_write = match action {
            Action::Publish(_)
            | Action::PublishBatch
            | Action::Erase(_)
            | Action::Edit(_)
            | Action::SetState(_)
            | Action::End(_)
            | Action::UpdateMember(_)
            | Action::Create(_) => true,
            Action::Subscribe(_) | Action::ReadHistory(_) | Action::ReadPresence(_) => false,
        };
        let is_client = asker.listener == Listener::Public && !asker.credentials.are_of_key();
        if is_write && is_client {
            let message = "clients of this server may only read; publish at its admin listener";
            return Decision::forbidden(message).into();
        }
        self.0.may(asker, action, later)
    }

    fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        self.0.reads_content(asker, action)
    }
}

/// The policy that allows everything at the admin listener, and asks the inner policy elsewhere. It
/// is for servers whose admin listener is protected by its address alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrustAdmin<A>(pub A);

impl<A: Access> Access for TrustAdmin<A> {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        if asker.listener == Listener::Admin {
            return Decision::Allowed.into();
        }
        self.0.may(asker, action, later)
    }

    fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        asker.listener != Listener::Admin && self.0.reads_content(asker, action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_key::ServerKey;
    use throng_core::later::Ticket;

    #[test]
    fn the_admin_listener_may_be_trusted() {
        let channel = ChannelName::channel("a");
        let policy = TrustAdmin(crate::AccessRules::default());
        for (listener, is_allowed) in [(Listener::Public, false), (Listener::Admin, true)] {
            let mut issue = || Ticket::new(drop);
            let asker = Asker { listener, ..Asker::default() };
            let answer = policy.may(&asker, Action::Publish(&channel), Later::new(&mut issue));
            let decision = answer.now().expect("it asks nowhere else");
            assert_eq!(decision == Decision::Allowed, is_allowed);
        }
    }

    fn ask(asker: &Asker<'_>, action: Action<'_>) -> Decision {
        let mut issue = || Ticket::new(drop);
        let answer = ReadOnlyClients(AllowAll).may(asker, action, Later::new(&mut issue));
        answer.now().expect("it asks nowhere else")
    }

    #[test]
    fn clients_that_may_only_read_cannot_publish() {
        let key = ServerKey::for_tests("app", &["publish"]);
        let [client, operator] = [Listener::Public, Listener::Admin]
            .map(|listener| Asker { listener, ..Asker::default() });
        let credentials = Credentials::Known { user: None, grants: key.grants() };
        let application = Asker { credentials, ..client };
        let channel = ChannelName::channel("a");
        let writes = [
            Action::Publish(&channel),
            Action::PublishBatch,
            Action::Erase(&channel),
            Action::Edit(&channel),
            Action::SetState(&channel),
            Action::End(&channel),
            Action::UpdateMember(&channel),
            Action::Create(&channel),
        ];
        for action in writes {
            let error = ask(&client, action).allowed_until_ms().expect_err("a client");
            assert_eq!(error.code, ErrorCode::Forbidden);
            assert!(error.message.len() <= 123);
            assert_eq!(ask(&operator, action), Decision::Allowed);
            assert_eq!(ask(&application, action), Decision::Allowed);
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
