//! `OPTIONS`: the methods of a path, and the preflight requests of browsers (CORS).

use http::StatusCode;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ALLOW, HeaderValue, ORIGIN,
};
use http::request::Parts;

use crate::http::answer::{self, Answer};
use crate::http::names::Resource;

/// Request headers that pages may set. `Authorization` is there for proxies that check it.
const HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, Throng-Exclude, \
    Throng-Expires-In, Last-Event-ID, Prefer, X-Request-Id";
/// How long browsers may cache the response, in seconds: the longest that Chromium accepts.
const MAX_AGE: &str = "7200";

/// Pages may also set the headers `passed`, which those get who decide about clients.
pub(crate) fn answer(head: &Parts, resource: Resource<'_>, passed: &[Box<str>]) -> Answer {
    let mut answer = answer::empty(StatusCode::NO_CONTENT);
    let methods = HeaderValue::from_static(resource.methods());
    let headers = answer.headers_mut();
    let is_preflight = head.headers.contains_key(ORIGIN)
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed(passed));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    }
    headers.insert(ALLOW, methods);
    answer
}

/// The headers that pages may set. A `Cookie` is not theirs to set.
fn allowed(passed: &[Box<str>]) -> HeaderValue {
    let is_known = |name: &str| HEADERS.split(", ").any(|known| known.eq_ignore_ascii_case(name));
    let others = passed.iter().filter(|name| !is_known(name) && ***name != *"cookie");
    let names: Vec<&str> = std::iter::once(HEADERS).chain(others.map(|name| &**name)).collect();
    HeaderValue::from_str(&names.join(", ")).unwrap_or(HeaderValue::from_static(HEADERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_may_set_what_is_passed_on() {
        assert_eq!(allowed(&[]), HEADERS);
        let passed = ["authorization", "cookie", "x-session"].map(Into::into);
        assert_eq!(allowed(&passed), format!("{HEADERS}, x-session"));
    }
}
