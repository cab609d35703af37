//! Pages of other origins: which may use the server, and what they may see of an answer.

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HOST, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::uri::Authority;
use throng_wire::{Refusal, is_local, origin_allowed};

use crate::answer::{Answer, Code, Refused};
use crate::control::Settings;

/// Response headers that a page may read.
const EXPOSED: &str = "Throng-Id, Throng-Recovered, Throng-Connection, Retry-After";

/// Whether a page of this origin may talk to the server under this host.
pub(crate) fn is_allowed(settings: &Settings, origin: &str, host: Option<&str>) -> bool {
    origin_allowed(Some(origin), host, &settings.allowed_origins, settings.listen)
}

/// The host that a request is for. An authority in the target stands above the header, as it does
/// for the workers.
fn host(head: &Parts) -> Option<&str> {
    let host = head.uri.authority().map(Authority::as_str);
    host.or_else(|| head.headers.get(HOST).and_then(|host| host.to_str().ok()))
}

/// Refuses whoever may not see what the server tells about itself.
pub(crate) fn check_local(settings: &Settings, head: &Parts) -> Result<(), Refused> {
    match is_local(host(head), settings.listen) {
        true => Ok(()),
        false => Err(Refusal::not_local().into()),
    }
}

/// The origin of a request, if it has one and is answered.
pub(crate) fn check(settings: &Settings, head: &Parts) -> Result<Option<HeaderValue>, Refused> {
    let mut origins = head.headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(None) };
    if origins.next().is_some() {
        return Err(Refused::new(Code::BadRequest, "the header `Origin` is given twice"));
    }
    // Bytes that are not text are the origin of nobody.
    let text = origin.to_str().unwrap_or_default();
    if is_allowed(settings, text, host(head)) {
        return Ok(Some(origin.clone()));
    }
    let sentence = format!(
        "pages of {text} may not use this server; allow them with --allowed-origins {text}"
    );
    Err(Refused::new(Code::OriginRefused, sentence))
}

/// Lets a page of `origin` read the answer.
pub(crate) fn expose(answer: &mut Answer, origin: HeaderValue) {
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
