//! Operators: they may see the status and the metrics, list channels, disconnect clients and revoke
//! tokens.
//!
//! On a server with keys, an operator shows a server key with the scope for it. A browser shows a
//! key once, on the login page, and has a cookie from then on.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use throng_access::limit::{LimitKeys, RateLimiter, RateMeter};
use throng_access::server_key::{LOGIN_S, Logins};
use throng_access::session::Tagger;
use throng_access::{AccessControl, Scope, ServerKey};
use throng_core::clock;
use throng_wire::credential::of_request;
use throng_wire::{ErrorCode, ErrorResponse};

use super::verification::now;

const COOKIE: &str = "throng-status";

/// Failed logins of one address. A key cannot be guessed: the limit is for what guessing costs.
const FAILED_LOGINS: RateMeter = RateMeter { per_second: 1, burst: 5 };

/// Addresses whose failed logins are remembered.
const FAILED_ADDRESSES_MIN: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Status,
    Metrics,
    /// To see and disconnect clients, and to revoke tokens. A login does not count for it.
    Administration,
    /// To list channels and users. A login does not count for it.
    Listing,
    /// To say what users follow, and to see it. A login does not count for it.
    Subscriptions,
}

impl Operation {
    /// The scope of the server keys that may do it.
    pub(super) fn scope(self) -> Scope {
        match self {
            Operation::Status | Operation::Metrics | Operation::Administration => {
                Scope::Administration
            }
            Operation::Listing => Scope::Listing,
            Operation::Subscriptions => Scope::Subscriptions,
        }
    }

    /// True if a login is enough.
    pub(super) fn accepts_login(self) -> bool {
        matches!(self, Operation::Status | Operation::Metrics)
    }
}

pub(super) struct LoginDesk {
    logins: Logins,
    failed: Mutex<RateLimiter>,
    addresses: LimitKeys,
}

impl LoginDesk {
    pub(super) fn new(tagger: &Tagger) -> LoginDesk {
        LoginDesk {
            logins: Logins::with_secret(tagger.secret("logins")),
            failed: Mutex::new(RateLimiter::new(FAILED_LOGINS, FAILED_ADDRESSES_MIN)),
            addresses: LimitKeys::default(),
        }
    }

    /// The header `Set-Cookie` for an operator who has shown `key` on the login page. `is_secure`
    /// keeps the browser from ever sending it without TLS.
    pub(super) fn log_in(
        &self,
        access: &AccessControl,
        key: &str,
        address: Option<IpAddr>,
        is_secure: bool,
    ) -> Result<String, ErrorResponse> {
        let address = match address {
            Some(address) => self.addresses.address(address),
            None => self.addresses.name(""),
        };
        // Held until the key is found or charged: parallel attempts cannot all pass the check.
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = clock::now_ms();
        if failed.check(address, 1, now_ms).is_err() {
            let message = "too many logins have failed; try again in a few seconds";
            return Err(ErrorResponse::new(ErrorCode::TooManyRequests, message));
        }
        let found = access.server_keys.load().find(key).map_err(|error| {
            failed.charge(address, 1, now_ms);
            ErrorResponse::new(ErrorCode::InvalidToken, error.to_string())
        });
        drop(failed);
        let key = require_scope(found?, Scope::Administration)?;
        let login = self.logins.issue(&key, now().unix_s);
        let secure = if is_secure { "; Secure" } else { "" };
        Ok(format!(
            "{COOKIE}={login}; Max-Age={LOGIN_S}; Path=/; HttpOnly; SameSite=Strict{secure}"
        ))
    }

    /// The server key of the login among these headers.
    pub(super) fn find<'a, V: Iterator<Item = &'a [u8]>>(
        &self,
        access: &AccessControl,
        headers: impl Fn(&'static str) -> V,
    ) -> Result<Option<Arc<ServerKey>>, ErrorResponse> {
        // No header but the cookie is left to find: the caller has looked for keys.
        let login = of_request(headers, Some(COOKIE))?;
        let (keys, now_s) = (access.server_keys.load(), now().unix_s);
        let find = |login: &str| self.logins.find(login, &keys, now_s);
        Ok(login.as_ref().and_then(|login| login.texts().find_map(find)))
    }
}

/// The header `Set-Cookie` that makes a browser forget its login.
pub(crate) fn logged_out() -> String {
    format!("{COOKIE}=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict")
}

/// The key, if it has this scope.
pub(super) fn require_scope(
    key: Arc<ServerKey>,
    scope: Scope,
) -> Result<Arc<ServerKey>, ErrorResponse> {
    if key.has(scope) {
        return Ok(key);
    }
    let message = format!("this server key does not have the scope `{}`", scope.word());
    Err(ErrorResponse::new(ErrorCode::Forbidden, message))
}
