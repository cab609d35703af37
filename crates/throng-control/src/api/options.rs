//! `OPTIONS`: the methods of a path, and the preflight requests of browsers (CORS).

use http::StatusCode;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ALLOW, HeaderName, HeaderValue,
    ORIGIN, VARY,
};
use http::request::Parts;

use crate::http::answer::{self, Answer};
use crate::http::names::Resource;

/// Request headers that pages may set. `Authorization` is there for proxies that check it.
const HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, Throng-Exclude, \
    Throng-Expires-In, Throng-Event, Throng-Tags, Throng-State-Key, If-Match, If-None-Match, \
    Last-Event-ID, Prefer, X-Request-Id";
/// How long browsers may cache the response, in seconds: the longest that Chromium accepts.
const MAX_AGE: &str = "7200";

/// How many further headers a page of a listed origin may set.
const ASKED_MAX: usize = 32;
/// How long their names may be, all together with their commas.
const ASKED_BYTES_MAX: usize = 1024;

/// Pages may also set the headers `passed`, which callouts see. Pages of listed origins may set any
/// header that they ask for: libraries that trace requests add headers to all, and the server
/// ignores them.
pub(crate) fn answer(
    head: &Parts,
    resource: Resource<'_>,
    passed: &[Box<str>],
    is_listed: bool,
) -> Answer {
    let mut answer = answer::empty(StatusCode::NO_CONTENT);
    let methods = HeaderValue::from_static(resource.methods());
    let headers = answer.headers_mut();
    let is_preflight = head.headers.contains_key(ORIGIN)
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods.clone());
        let asked = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|_| is_listed);
        let asked = asked.and_then(|asked| asked.to_str().ok()).unwrap_or_default();
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed(passed, asked));
        headers.insert(VARY, HeaderValue::from_static("Origin, Access-Control-Request-Headers"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    }
    headers.insert(ALLOW, methods);
    answer
}

/// The headers that pages may set, and the names in `asked`, unless that is no list of names or
/// beyond the limits. A `Cookie` is not theirs to set.
fn allowed(passed: &[Box<str>], asked: &str) -> HeaderValue {
    let is_known = |name: &str| HEADERS.split(", ").any(|known| known.eq_ignore_ascii_case(name));
    let others = passed.iter().filter(|name| !is_known(name) && ***name != *"cookie");
    let is_name = |name: &&str| HeaderName::from_bytes(name.as_bytes()).is_ok();
    let asked: Vec<&str> = asked.split(',').map(str::trim).collect();
    let is_taken = asked.len() <= ASKED_MAX
        && asked.iter().map(|name| name.len() + 2).sum::<usize>() <= ASKED_BYTES_MAX
        && asked.iter().all(is_name);
    let is_passed = |name: &str| passed.iter().any(|passed| passed.eq_ignore_ascii_case(name));
    let asked = asked.into_iter().filter(|name| is_taken && !is_known(name) && !is_passed(name));
    let names = std::iter::once(HEADERS).chain(others.map(|name| &**name)).chain(asked);
    let names: Vec<&str> = names.collect();
    HeaderValue::from_str(&names.join(", ")).unwrap_or(HeaderValue::from_static(HEADERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_listed_origins_may_set_any_header() {
        let asked = "baggage, content-type,sentry-trace";
        assert_eq!(allowed(&[], asked), format!("{HEADERS}, baggage, sentry-trace"));
        let passed = ["baggage"].map(Into::into);
        assert_eq!(allowed(&passed, asked), format!("{HEADERS}, baggage, sentry-trace"));
        let many = vec!["a"; ASKED_MAX + 1].join(",");
        for refused in ["a b", "a,,b", "a\"", &many, &"a".repeat(ASKED_BYTES_MAX)] {
            assert_eq!(allowed(&[], refused), HEADERS, "{refused}");
        }
    }

    #[test]
    fn pages_may_set_headers_that_are_passed_on() {
        let allowed = |passed: &[Box<str>]| super::allowed(passed, "");
        assert_eq!(allowed(&[]), HEADERS);
        let passed = ["authorization", "cookie", "x-session"].map(Into::into);
        assert_eq!(allowed(&passed), format!("{HEADERS}, x-session"));
    }
}
