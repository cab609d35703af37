//! A client, once it is known who it is.

use std::sync::Arc;

use throng_core::Sender;

use crate::access_control::AccessControl;
use crate::limit::ClientKeys;
use crate::policy::Credentials;
use crate::server_key::ServerKey;
use crate::token::Identity;

/// A client whose credential was checked.
#[derive(Debug, Clone)]
pub enum Client {
    /// It has shown nothing, or the server has no keys.
    Anonymous,
    /// It has shown a valid token or a certificate, or the application has said who it is.
    Token(Arc<Identity>),
    /// It has shown a server key.
    Key(Arc<ServerKey>),
}

impl Client {
    /// The access policy's view of it.
    pub fn credentials(&self) -> Credentials<'_> {
        match self {
            Client::Anonymous => Credentials::Anonymous,
            Client::Token(identity) => {
                Credentials::Known { user: identity.user(), grants: identity.grants() }
            }
            Client::Key(key) => Credentials::Known { user: None, grants: key.grants() },
        }
    }

    /// The publisher of a message of this client, as messages show it. Only a user that was
    /// verified is one.
    pub fn sender(&self, shown: Sender) -> Option<&str> {
        match (self, shown) {
            (Client::Token(identity), Sender::User) => identity.user(),
            (Client::Token(identity), Sender::Name) => identity.name(),
            _ => None,
        }
    }
}

impl AccessControl {
    /// The parts of a client that have limits by what it has shown: its user, its application or
    /// its server key.
    pub fn limited_by(&self, client: &Client) -> ClientKeys {
        let limiter = &self.clients.limiter;
        match client {
            Client::Token(identity) if limiter.limits_users() || limiter.limits_apps() => {
                let user = identity.user().filter(|_| limiter.limits_users());
                let user = limiter.user(user.map(|user| self.tagger.user(user)));
                let app = identity.app().filter(|_| limiter.limits_apps());
                let app = limiter.app(app.map(|id| self.tagger.token(id)));
                user.and(app).and(limiter.confined(identity.grants()))
            }
            Client::Key(key) if limiter.limits_keys() => {
                limiter.server_key(Some(self.tagger.server_key(key.name())))
            }
            Client::Anonymous | Client::Token(_) | Client::Key(_) => ClientKeys::default(),
        }
    }
}
