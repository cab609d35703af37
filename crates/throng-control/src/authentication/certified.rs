//! Identifies clients by the certificate of their TLS handshake.

use std::sync::Arc;

use http::request::Parts;
use throng_access::{CertificateUsers, Certified, Identity};
use throng_wire::ErrorResponse;

use super::verification::now_s;
use super::{Authentication, Client};
use crate::http::caller::Certificate;
use crate::http::origin;
use crate::settings::Settings;

impl Authentication {
    /// The sender of a request without another credential; `None` if no certificate says it.
    pub(super) fn identify_by_certificate(
        &self,
        settings: &Settings,
        head: &Parts,
    ) -> Result<Option<Client>, ErrorResponse> {
        let Some((users, certified)) = self.certified(head) else { return Ok(None) };
        origin::check_certificate(settings, head)?;
        Ok(Some(Client::Token(users.identify(certified, now_s())?)))
    }

    /// The identity from a valid token, for a client that may have a certificate, too.
    pub(super) fn with_certificate(
        &self,
        head: &Parts,
        token: Arc<Identity>,
    ) -> Result<Arc<Identity>, ErrorResponse> {
        match self.certified(head) {
            Some((users, certified)) => users.confirm(certified, &token, now_s()),
            None => Ok(token),
        }
    }

    /// The user of the certificate of a request's connection, if such users count.
    fn certified<'a>(&'a self, head: &'a Parts) -> Option<(&'a CertificateUsers, Certified<'a>)> {
        let users = self.access.certificates.as_ref()?;
        let Certificate(shown) = head.extensions.get()?;
        let (from_s, until_s) = (shown.from_s, shown.until_s);
        Some((users, Certified { user: &shown.name, from_s, until_s }))
    }
}
