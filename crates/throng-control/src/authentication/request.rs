//! A request, as the identification of its sender sees it.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::HeaderValue;
use http::request::Parts;
use throng_access::identification::PageCheck;
use throng_access::{AccessControl, Certified, Shown};
use throng_core::Listener;
use throng_wire::ErrorResponse;
use throng_wire::credential::{self, Credential};
use throng_wire::head::Head;
use throng_wire::subscribe::Request;

use crate::http::caller::{Caller, Certificate};
use crate::http::origin;
use crate::settings::Settings;

/// The word for a request that does not subscribe.
const TRANSPORT: &str = "http";

/// A request and all that is known of its sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownRequest<'a> {
    pub(super) access: &'a AccessControl,
    pub(super) settings: &'a Settings,
    pub(super) head: &'a Parts,
    /// The request that would subscribe, of a `HEAD`: it has more places for a credential.
    pub(super) subscription: Option<(&'a Head<'a>, &'a Request)>,
}

impl Shown for ShownRequest<'_> {
    fn credential(&self, cookie: Option<&str>) -> Result<Option<Credential<'_>>, ErrorResponse> {
        match self.subscription {
            Some((head, request)) => credential::of_subscription(head, request, cookie),
            None => credential::of_request(|name| values(&self.head.headers, name), cookie),
        }
    }

    fn header(&self, name: &str) -> Vec<&[u8]> {
        self.head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    fn check_page(&self, check: PageCheck) -> Result<(), ErrorResponse> {
        origin::check_page(self.settings, self.head, check)
    }

    fn certified(&self) -> Option<Certified<'_>> {
        let Certificate(shown) = self.head.extensions.get()?;
        let (from_s, until_s) = (shown.from_s, shown.until_s);
        Some(Certified { user: &shown.name, from_s, until_s })
    }

    /// The address that a proxy names, or the connection's, kept from before or of its peer.
    fn address(&self) -> Result<Option<IpAddr>, ErrorResponse> {
        let (caller, source) = (Caller::of(self.head), &self.access.clients.source);
        let known = caller.address(source, self.head)?;
        Ok(known.or_else(|| source.of_connection(caller.peer?.ip())))
    }

    fn listener(&self) -> Listener {
        Caller::of(self.head).listener
    }

    fn transport(&self) -> &'static str {
        TRANSPORT
    }
}

/// All values of a header, as the wire formats take them.
pub(super) fn values<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}
