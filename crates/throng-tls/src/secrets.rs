//! Catches the traffic secrets of TLS 1.3 while rustls makes them.
//!
//! rustls gives keys away after the handshake, but not the secrets that the next keys follow from.
//! Those it tells only to a [`KeyLog`], on the thread that runs the handshake. One configuration
//! serves all connections and threads, so the secrets wait in a variable of the thread until the
//! call into rustls returns; nothing else ever reads it.

use std::cell::RefCell;

use rustls::KeyLog;

use crate::incoming::Role;
use crate::keys::Secret;

/// The secrets of one connection, as far as they are known.
#[derive(Default)]
pub(crate) struct Secrets {
    client: Option<Secret>,
    server: Option<Secret>,
}

impl Secrets {
    /// The peer's secret and the own one, of this role.
    pub(crate) fn into_in_and_out(self, role: Role) -> Option<(Secret, Secret)> {
        let (client, server) = (self.client?, self.server?);
        Some(match role {
            Role::Server => (client, server),
            Role::Client => (server, client),
        })
    }

    fn merge(&mut self, newer: Self) {
        self.client = newer.client.or(self.client.take());
        self.server = newer.server.or(self.server.take());
    }
}

thread_local! {
    static CAUGHT: RefCell<Secrets> = RefCell::default();
}

/// Calls into rustls, and adds the secrets that it tells meanwhile to `secrets`.
pub(crate) fn catch<R>(secrets: &mut Secrets, call: impl FnOnce() -> R) -> R {
    CAUGHT.take();
    let result = call();
    secrets.merge(CAUGHT.take());
    result
}

/// The [`KeyLog`] of our configurations.
#[derive(Debug)]
pub(crate) struct SecretCatcher;

/// The labels of the NSS key log format (RFC 9850).
const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for SecretCatcher {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let secret = Secret::of_bytes(secret);
        CAUGHT.with_borrow_mut(|caught| match label {
            CLIENT => caught.client = secret,
            SERVER => caught.server = secret,
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        label == CLIENT || label == SERVER
    }
}
