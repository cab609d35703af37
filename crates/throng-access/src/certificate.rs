//! The identity of a client by the certificate of its TLS handshake.
//!
//! The certificate names the user. A token besides says what is granted, and until when; it may not
//! name another user. A server key stands for an application, whatever the certificate says.

use std::fmt;
use std::sync::Arc;

use throng_wire::{ErrorCode, ErrorResponse};

use crate::revocation::Revocations;
use crate::token::Identity;

/// The identity in a client's certificate, after TLS has verified it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certified<'a> {
    pub user: &'a str,
    /// From when on the certificate is valid, in seconds since 1970. It counts as issued then.
    pub from_s: u32,
    /// Until when it is valid, in seconds since 1970.
    pub until_s: u32,
}

/// Takes clients for the users that their certificates name.
pub struct CertificateUsers {
    revocations: Arc<Revocations>,
}

impl CertificateUsers {
    /// Refuses the users of `revocations` whose certificates are older than their revocation.
    pub fn new(revocations: Arc<Revocations>) -> CertificateUsers {
        CertificateUsers { revocations }
    }

    /// The identity of a client that shows this certificate and nothing else.
    ///
    /// # Errors
    ///
    /// The certificate has expired since its handshake, its user is revoked, or the name cannot be
    /// a user's.
    pub fn identify(
        &self,
        shown: Certified<'_>,
        now_s: u64,
    ) -> Result<Arc<Identity>, ErrorResponse> {
        let Certified { user, from_s, until_s } = shown;
        throng_wire::name::check_name(user, "user").map_err(|_| {
            let message = "the certificate names no user: the name is too long, or has characters \
                           that names may not have";
            ErrorResponse::new(ErrorCode::Forbidden, message)
        })?;
        let identity = Identity::of_certificate(user.into(), from_s, until_s);
        self.recheck(&identity, now_s)?;
        Ok(Arc::new(identity))
    }

    /// The identity of a client that shows this certificate and a valid token: the user of the
    /// certificate, with the grants of the token, until the first of them ends.
    ///
    /// # Errors
    ///
    /// The token is of another user; or as [`CertificateUsers::identify`] says, except that a token
    /// of the user counts although their older certificate is revoked.
    pub(crate) fn confirm(
        &self,
        shown: Certified<'_>,
        token: &Arc<Identity>,
        now_s: u64,
    ) -> Result<Arc<Identity>, ErrorResponse> {
        match token.user() {
            Some(user) if user != shown.user => {
                let message = "the token is of another user than the certificate";
                return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
            }
            Some(_) if token.expires_s() <= shown.until_s => return Ok(Arc::clone(token)),
            Some(_) if has_ended(shown.until_s, now_s) => return Err(expired()),
            Some(_) => {}
            None => drop(self.identify(shown, now_s)?),
        }
        Ok(Arc::new(token.certified(shown.user, shown.until_s)))
    }

    /// Fails if what a certificate said is not to be believed any more.
    ///
    /// # Errors
    ///
    /// It has expired, or its user is revoked.
    pub fn recheck(&self, identity: &Identity, now_s: u64) -> Result<(), ErrorResponse> {
        if has_ended(identity.expires_s(), now_s) {
            return Err(expired());
        }
        if self.revocations.is_revoked(identity) {
            let message = "certificates of this user that are as old as this one are revoked";
            return Err(ErrorResponse::new(ErrorCode::TokenRevoked, message));
        }
        Ok(())
    }
}

fn has_ended(until_s: u32, now_s: u64) -> bool {
    u64::from(until_s) <= now_s
}

fn expired() -> ErrorResponse {
    let message = "the certificate has expired; connect again with a newer one";
    ErrorResponse::new(ErrorCode::TokenExpired, message)
}

impl fmt::Debug for CertificateUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateUsers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Revocation;

    const ANN: Certified<'_> = Certified { user: "ann", from_s: 100, until_s: 1000 };

    fn token(user: Option<&str>, expires_s: u32) -> Arc<Identity> {
        let user = user.map(Box::from);
        Arc::new(Identity::of_application(user, Arc::default(), 0, expires_s))
    }

    fn users() -> CertificateUsers {
        CertificateUsers::new(Arc::default())
    }

    fn code<T>(result: Result<T, ErrorResponse>) -> Option<ErrorCode> {
        result.err().map(|error| error.code)
    }

    #[test]
    fn a_certificate_names_the_user_until_it_expires() {
        let identity = users().identify(ANN, 999).unwrap();
        assert_eq!((identity.user(), identity.expires_s()), (Some("ann"), 1000));
        assert!(identity.is_of_certificate() && !identity.is_of_application());
        assert_eq!(code(users().identify(ANN, 1000)), Some(ErrorCode::TokenExpired));
        let name = "x".repeat(10_000);
        let long = Certified { user: &name, ..ANN };
        assert_eq!(code(users().identify(long, 500)), Some(ErrorCode::Forbidden));
    }

    #[test]
    fn a_token_may_not_name_another_user() {
        let confirm = |token| users().confirm(ANN, &token, 500);
        assert_eq!(code(confirm(token(Some("bob"), 2000))), Some(ErrorCode::Forbidden));
        for (name, token_until_s, until_s) in
            [(None, 2000, 1000), (None, 700, 700), (Some("ann"), 2000, 1000), (Some("ann"), 7, 7)]
        {
            let identity = confirm(token(name, token_until_s)).unwrap();
            assert_eq!((identity.user(), identity.expires_s()), (Some("ann"), until_s));
        }
        let late = |name| code(users().confirm(ANN, &token(name, 2000), 1000));
        assert_eq!([late(None), late(Some("ann"))], [Some(ErrorCode::TokenExpired); 2]);
    }

    #[test]
    fn a_revocation_is_about_certificates_that_are_older() {
        let users = users();
        users.revocations.add(&Revocation::User { user: "ann".into(), before_s: 101 });
        assert_eq!(code(users.identify(ANN, 500)), Some(ErrorCode::TokenRevoked));
        let tokenless = users.confirm(ANN, &token(None, 2000), 500);
        assert_eq!(code(tokenless), Some(ErrorCode::TokenRevoked));
        assert_eq!(code(users.confirm(ANN, &token(Some("ann"), 2000), 500)), None);
        let newer = Certified { from_s: 101, ..ANN };
        assert_eq!(code(users.identify(newer, 500)), None);
    }
}
