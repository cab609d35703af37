//! Checks the `Origin` and `Host` of requests, and lets pages read the responses (CORS).

use http::Method;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    HOST, HeaderName, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::uri::Authority;
use throng_access::AllowedPages;
use throng_access::identification::PageCheck;
use throng_core::Listener;
use throng_wire::credential::CookieRequest;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse, OriginPolicy, is_local, proxied};

use super::answer::{Answer, ApiError};
use super::caller::Caller;
use crate::settings::Settings;

/// Response headers that pages may read.
const EXPOSED: &str = "Throng-Id, Throng-Recovered, Throng-Ended, Throng-State, \
                       Throng-Connection, Retry-After, X-Request-Id";

/// The only paths that answer under any host name, because probes use names of their own. They
/// reveal nothing but how the server is.
const PROBES: [&str; 3] = ["/health", "/health/live", "/health/ready"];

/// True if pages of this origin may use the server under this host name.
pub(crate) fn is_allowed(
    settings: &Settings,
    listener: Listener,
    origin: &str,
    host: Option<&str>,
) -> bool {
    policy(settings, &settings.pages.load(), listener).allows_page(origin, host)
}

fn policy<'p>(
    settings: &Settings,
    pages: &'p AllowedPages,
    listener: Listener,
) -> OriginPolicy<'p> {
    match listener {
        Listener::Public => pages.public(settings.listen),
        Listener::Admin => pages.admin(),
    }
}

/// Checks a subscription to the status on either listener, or any on the admin listener, which
/// serves no others.
pub(crate) fn check_viewer(
    settings: &Settings,
    listener: Listener,
    request: &Request,
) -> Result<(), ApiError> {
    if !request.is_status() {
        let message = "the admin listener serves no subscriptions to channels; subscribe at the \
            public listener";
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    if listener == Listener::Public && settings.has_admin_listener {
        return Err(ErrorResponse::not_local().into());
    }
    let pages = settings.pages.load();
    let policy = policy(settings, &pages, listener);
    Ok(policy.check(request.origin.as_deref(), request.host.as_deref())?)
}

/// The host that a request is for. An authority in the target overrides the header, as it does in
/// the workers.
fn host(head: &Parts) -> Option<&str> {
    let host = head.uri.authority().map(Authority::as_str);
    host.or_else(|| head.headers.get(HOST).and_then(|host| host.to_str().ok()))
}

/// Refuses a request that may not see the status of a server without keys. Call it after [`check`].
pub(crate) fn check_status(settings: &Settings, head: &Parts) -> Result<(), ApiError> {
    let is_shown = match Caller::of(head).listener {
        Listener::Admin => true,
        Listener::Public => !settings.has_admin_listener && is_local(host(head), settings.listen),
    };
    if is_shown { Ok(()) } else { Err(ErrorResponse::not_local().into()) }
}

/// Refuses a request that may not see the metrics of a server without keys. Call it after
/// [`check`].
pub(crate) fn check_metrics(settings: &Settings, head: &Parts) -> Result<(), ApiError> {
    let is_shown = match Caller::of(head).listener {
        Listener::Admin => true,
        Listener::Public => {
            !settings.has_admin_listener && settings.listen.to_canonical().is_loopback()
        }
    };
    if is_shown { Ok(()) } else { Err(ErrorResponse::not_local().into()) }
}

/// Checks origin and host of a request. Returns the origin, if there is one: its pages may read the
/// response.
pub(crate) fn check(settings: &Settings, head: &Parts) -> Result<Option<HeaderValue>, ApiError> {
    let mut origins = head.headers.get_all(ORIGIN).iter();
    let origin = origins.next();
    if origins.next().is_some() {
        return Err(ApiError::new(ErrorCode::BadRequest, "the header `Origin` is given twice"));
    }
    if origin.is_none() && PROBES.contains(&head.uri.path()) {
        return Ok(None);
    }
    let refuses_proxies = match Caller::of(head).listener {
        Listener::Public => settings.refuses_proxies,
        Listener::Admin => settings.admin_refuses_proxies,
    };
    if refuses_proxies {
        proxied::refuse(head.headers.keys().map(HeaderName::as_str))?;
    }
    // An `Origin` that is not text becomes the empty string, which no setting allows.
    let text = origin.map(|origin| origin.to_str().unwrap_or_default());
    let pages = settings.pages.load();
    policy(settings, &pages, Caller::of(head).listener).check(text, host(head))?;
    Ok(origin.cloned())
}

/// The origin whose pages may read why `error` refuses them. The answer is one sentence about
/// the origin, the host or the proxy of the request: nothing that its page does not know, or that
/// any other program could not ask for. It is read without credentials.
pub(crate) fn of_refused(error: &ApiError, head: &Parts) -> Option<HeaderValue> {
    use ErrorCode::{ForwardedRefused, HostRefused, OriginRefused};
    let is_about_origin =
        matches!(error.error.code, OriginRefused | HostRefused | ForwardedRefused);
    head.headers.get(ORIGIN).filter(|origin| is_about_origin && !origin.is_empty()).cloned()
}

/// Applies a check of something that browsers send by themselves to the page that sends a request.
pub(crate) fn check_page(
    settings: &Settings,
    head: &Parts,
    check: PageCheck,
) -> Result<(), ErrorResponse> {
    let pages = settings.pages.load();
    check(&policy(settings, &pages, Caller::of(head).listener), cookie_request(head))
}

fn cookie_request(head: &Parts) -> CookieRequest<'_> {
    let text = |name| head.headers.get(name).map(HeaderValue::as_bytes);
    CookieRequest {
        origin: text(ORIGIN.as_str()).map(|origin| str::from_utf8(origin).unwrap_or_default()),
        fetch_site: text("sec-fetch-site"),
        is_read: head.method == Method::GET || head.method == Method::HEAD,
    }
}

/// True if the settings list the origin by name, so that its pages may send cookies. `*` lists
/// none.
pub(crate) fn lists(settings: &Settings, listener: Listener, origin: &str) -> bool {
    policy(settings, &settings.pages.load(), listener).lists_origin(origin)
}

/// Lets pages of `origin` read the response, and send cookies if `allows_cookies`.
pub(crate) fn expose(answer: &mut Answer, origin: HeaderValue, allows_cookies: bool) {
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if allows_cookies {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    // A file has a `Vary` of its own, which includes the origin.
    headers.entry(VARY).or_insert(HeaderValue::from_static("Origin"));
}
