//! The client of a connection, by the credential of its request or by its session.

use std::sync::Arc;

use throng_access::{Credentials, Grants, Identity};
use throng_core::ChannelName;

/// A client whose token or key was checked.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    /// The server has no keys: it is the user that it says.
    Unchecked {
        /// The user that it has named.
        user: Option<ChannelName>,
    },
    /// The control plane has checked that it may follow the status samples.
    Viewer,
    /// It has to show who it is on its connection, and may do nothing before.
    Unidentified,
    /// It was identified by its request, or by a command.
    Known(throng_access::Client),
    /// It has shown a token or a key before.
    Session {
        /// The user, if it is known here: a session does not keep the name.
        user: Option<Box<str>>,
        grants: Arc<Grants>,
    },
}

impl Client {
    /// Its identity, if the application has named it, or was asked about its token.
    pub(crate) fn told(&self) -> Option<&Arc<Identity>> {
        let is_told = |identity: &Identity| identity.is_of_application() || identity.is_narrowed();
        match self {
            Client::Known(throng_access::Client::Token(identity)) if is_told(identity) => {
                Some(identity)
            }
            _ => None,
        }
    }

    /// The access policy's view of it.
    pub(crate) fn credentials(&self) -> Credentials<'_> {
        match self {
            Client::Unchecked { user: Some(user) } => Credentials::Claimed { user: user.name() },
            Client::Unchecked { user: None } | Client::Viewer | Client::Unidentified => {
                Credentials::Anonymous
            }
            Client::Known(client) => client.credentials(),
            Client::Session { user, grants } => {
                Credentials::Known { user: user.as_deref(), grants }
            }
        }
    }
}
