//! The identity of a client by the certificate of its TLS handshake.

use std::sync::Arc;

use throng_access::{CertificateUsers, Certified, Identity};
use throng_wire::ErrorResponse;
use throng_wire::credential::{CookieRequest, check_certificate};
use throng_wire::head::Head;
use throng_wire::subscribe::{Request, Transport};

use super::client::Client;
use crate::connection::ConnectionId;
use crate::net::Net;
use crate::worker::Worker;

impl<N: Net> Worker<N> {
    /// The client that subscribes with a certificate and no other credential; `None` without one.
    pub(super) fn identify_by_certificate(
        &self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
    ) -> Result<Option<Client>, ErrorResponse> {
        let Some((users, certified)) = self.certified(id) else { return Ok(None) };
        let pages = self.settings.pages.load();
        check_certificate(&self.settings.origin_policy(&pages), cookie_request(request, head))?;
        Ok(Some(Client::Token(users.identify(certified, self.clock.wall_s())?)))
    }

    /// The identity by a valid token, of a client that may have a certificate, too.
    pub(super) fn with_certificate(
        &self,
        id: ConnectionId,
        token: Arc<Identity>,
    ) -> Result<Arc<Identity>, ErrorResponse> {
        match self.certified(id) {
            Some((users, certified)) => users.confirm(certified, &token, self.clock.wall_s()),
            None => Ok(token),
        }
    }

    /// The user of the certificate of a connection, if such users count.
    fn certified(&self, id: ConnectionId) -> Option<(&CertificateUsers, Certified<'_>)> {
        let users = self.access.certificates.as_ref()?;
        let shown = self.net.certified_user(&self.connections[id].socket)?;
        let (from_s, until_s) = (shown.from_s, shown.until_s);
        Some((users, Certified { user: &shown.name, from_s, until_s }))
    }
}

/// The part of a request that decides whether its cookie counts.
pub(super) fn cookie_request<'a>(request: &'a Request, head: &Head<'a>) -> CookieRequest<'a> {
    CookieRequest {
        origin: request.origin.as_deref(),
        fetch_site: head.header("sec-fetch-site"),
        is_read: !matches!(request.transport, Transport::WebSocket { .. }),
    }
}
