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
const HEADERS: &str =
    "Authorization, Content-Type, Idempotency-Key, Throng-Exclude, Last-Event-ID, Prefer";
/// How long browsers may cache the response, in seconds: the longest that Chromium accepts.
const MAX_AGE: &str = "7200";

pub(crate) fn answer(head: &Parts, resource: Resource<'_>) -> Answer {
    let mut answer = answer::empty(StatusCode::NO_CONTENT);
    let methods = HeaderValue::from_static(resource.methods());
    let headers = answer.headers_mut();
    let is_preflight = head.headers.contains_key(ORIGIN)
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    }
    headers.insert(ALLOW, methods);
    answer
}
