//! Who may use the server, by the page's origin and the host that it asks for, and what a page may
//! see of an answer.

use std::net::Ipv4Addr;

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HOST, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::uri::Authority;
use throng_core::Listener;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorResponse, Site, is_local};

use crate::control::Settings;
use crate::http::answer::{Answer, Refused};
use crate::http::caller::Caller;
use throng_wire::ErrorCode;

/// Response headers that a page may read.
const EXPOSED: &str = "Throng-Id, Throng-Recovered, Throng-Connection, Retry-After";

/// The one path that answers under every host name, as probes ask under names of their own. It
/// tells nothing but that the server runs.
const HEALTH: &str = "/health";

/// Whether a page of this origin may talk to the server under this host.
pub(crate) fn is_allowed(
    settings: &Settings,
    listener: Listener,
    origin: &str,
    host: Option<&str>,
) -> bool {
    site(settings, listener).allows_page(origin, host)
}

fn site(settings: &Settings, listener: Listener) -> Site<'_> {
    match listener {
        Listener::Public => Site {
            listen: settings.listen,
            origins: &settings.allowed_origins,
            hosts: &settings.allowed_hosts,
            is_same_port_only: false,
        },
        // Its pages are its own alone. A browser may reach it wherever it listens, so that it is as
        // strict about names as a server on loopback.
        Listener::Admin => Site {
            listen: Ipv4Addr::LOCALHOST.into(),
            origins: &[],
            hosts: &settings.admin_hosts,
            is_same_port_only: true,
        },
    }
}

/// Refuses a request for the samples that came in at the admin listener, unless it may be answered.
pub(crate) fn check_viewer(settings: &Settings, request: &Request) -> Result<(), Refused> {
    if !request.is_status() {
        let sentence = "channels are not followed at the admin listener, but at the public one";
        return Err(Refused::new(ErrorCode::NotFound, sentence));
    }
    let site = site(settings, Listener::Admin);
    Ok(site.check(request.origin.as_deref(), request.host.as_deref())?)
}

/// The host that a request is for. An authority in the target stands above the header, as it does
/// for the workers.
fn host(head: &Parts) -> Option<&str> {
    let host = head.uri.authority().map(Authority::as_str);
    host.or_else(|| head.headers.get(HOST).and_then(|host| host.to_str().ok()))
}

/// Refuses a request that may not see the status. [`check`] has been passed.
pub(crate) fn check_status(settings: &Settings, head: &Parts) -> Result<(), Refused> {
    let is_shown = match Caller::of(head).listener {
        Listener::Admin => true,
        Listener::Public => !settings.has_admin_listener && is_local(host(head), settings.listen),
    };
    if is_shown { Ok(()) } else { Err(ErrorResponse::not_local().into()) }
}

/// Refuses a request that may not see the metrics. [`check`] has been passed.
pub(crate) fn check_metrics(settings: &Settings, head: &Parts) -> Result<(), Refused> {
    let is_shown = match Caller::of(head).listener {
        Listener::Admin => true,
        Listener::Public => {
            !settings.has_admin_listener && settings.listen.to_canonical().is_loopback()
        }
    };
    if is_shown { Ok(()) } else { Err(ErrorResponse::not_local().into()) }
}

/// The origin of a request that is answered, if it has one.
pub(crate) fn check(settings: &Settings, head: &Parts) -> Result<Option<HeaderValue>, Refused> {
    let mut origins = head.headers.get_all(ORIGIN).iter();
    let origin = origins.next();
    if origins.next().is_some() {
        return Err(Refused::new(ErrorCode::BadRequest, "the header `Origin` is given twice"));
    }
    if origin.is_none() && head.uri.path() == HEALTH {
        return Ok(None);
    }
    // Bytes that are not text are the origin of nobody.
    let text = origin.map(|origin| origin.to_str().unwrap_or_default());
    site(settings, Caller::of(head).listener).check(text, host(head))?;
    Ok(origin.cloned())
}

/// Lets a page of `origin` read the answer.
pub(crate) fn expose(answer: &mut Answer, origin: HeaderValue) {
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
