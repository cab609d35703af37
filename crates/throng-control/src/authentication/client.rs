//! The sender of a request, after the check of what it shows.

use std::sync::Arc;

use throng_access::{Credentials, Identity, ServerKey};

#[derive(Debug, Clone)]
pub(crate) enum Client {
    /// It has shown nothing, or the server has no keys.
    Anonymous,
    /// It has shown a valid token.
    Token(Arc<Identity>),
    /// It has shown a server key.
    Key(Arc<ServerKey>),
}

impl Client {
    /// The credentials that an access policy sees.
    pub(crate) fn credentials(&self) -> Credentials<'_> {
        match self {
            Client::Anonymous => Credentials::Anonymous,
            Client::Token(identity) => {
                Credentials::Known { user: identity.user(), grants: identity.grants() }
            }
            Client::Key(key) => Credentials::Known { user: None, grants: key.grants() },
        }
    }
}
