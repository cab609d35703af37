//! Pages of other origins: which may use the API, and what they may see of an answer.

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HOST, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::uri::Authority;
use throng_wire::origin_allowed;

use crate::answer::{Answer, Code, Refused};

/// Response headers that a page may read.
const EXPOSED: &str = "Throng-Id, Throng-Recovered, Throng-Connection, Retry-After";

/// Whether a request is answered as far as its origin goes.
pub(crate) fn is_allowed(allowed: &[String], head: &Parts) -> bool {
    let Some(origin) = head.headers.get(ORIGIN) else {
        return true;
    };
    // An authority in the target stands above the header, as it does for the workers.
    let host = head.uri.authority().map(Authority::as_str);
    let host = host.or_else(|| head.headers.get(HOST).and_then(|host| host.to_str().ok()));
    // Text that is none is the origin of nobody.
    origin_allowed(Some(origin.to_str().unwrap_or_default()), host, allowed)
}

/// What the others are told.
pub(crate) fn refusal() -> Refused {
    let sentence = "pages of this origin may not use this server; see the setting allowed-origins";
    Refused::new(Code::OriginRefused, sentence)
}

/// Lets a page of `origin` read the answer.
pub(crate) fn expose(answer: &mut Answer, origin: &HeaderValue) {
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
