//! `POST /status/login` and `/status/logout`: the login of the status page.
//!
//! The form of the login page sends a server key, and the browser gets a cookie. That happens over
//! TLS or on loopback only, where no one on the way can read the key. The header `Origin` decides:
//! it has the scheme and the host of the page as the browser sees them, whatever proxies there are.

use http::header::{CONTENT_TYPE, HeaderValue, LOCATION, ORIGIN, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use throng_wire::{ErrorCode, is_loopback_origin};

use crate::authentication::logged_out;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::caller::Caller;
use crate::http::{body, query};
use crate::pages;

/// The type of the form's body.
const FORM: &str = "application/x-www-form-urlencoded";

/// The largest form. A key has 60 bytes.
const FORM_BYTES_MAX: usize = 1 << 10;

/// `POST /status/login`, with the form of the login page as body. A refusal is the login page.
pub(crate) async fn log_in(control: &Control, head: &Parts, body: &mut Incoming) -> Answer {
    let answer = try_to_log_in(control, head, body).await;
    answer.unwrap_or_else(|error| pages::refused_login(control, error))
}

async fn try_to_log_in(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answer, ApiError> {
    let caller = Caller::of(head);
    if !control.authentication.demands_key(caller.listener) {
        return Err(ApiError::new(ErrorCode::NotFound, "this server has no keys to log in with"));
    }
    let is_secure = is_secure(&head.headers)?;
    let is_form = head
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case(FORM));
    if !is_form {
        return Err(ApiError::parameter("the login is a form with the field `key`"));
    }
    let kind = body::BodyKind::Message;
    let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
    if bytes.len() > FORM_BYTES_MAX {
        return Err(ErrorCode::TooLarge.into());
    }
    let form = std::str::from_utf8(&bytes).unwrap_or_default();
    let key = query::find(form, "key")?.unwrap_or_default();
    // Where a proxy does not say whom it speaks for, all its clients share its limit.
    let address = caller.address(&control.clients.source, head)?;
    let address = address.or(caller.peer.map(|peer| peer.ip()));
    let cookie = control.authentication.log_in(key.trim(), address, is_secure)?;
    Ok(to_status(cookie))
}

/// `POST /status/logout`: makes the browser forget its login, and shows the login page.
pub(crate) fn log_out() -> Answer {
    to_status(logged_out())
}

/// True if the page was loaded over TLS. Fails if it was loaded over neither TLS nor loopback.
fn is_secure(headers: &HeaderMap) -> Result<bool, ApiError> {
    let origin = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()).unwrap_or_default();
    let is_secure = origin.starts_with("https://");
    if is_secure || is_loopback_origin(origin) {
        return Ok(is_secure);
    }
    let message = "log in over HTTPS, or on the machine itself: others could read the key";
    Err(ApiError::new(ErrorCode::Forbidden, message))
}

/// Sends the browser to the status page with this cookie.
fn to_status(cookie: String) -> Answer {
    let mut answer = answer::empty(StatusCode::SEE_OTHER);
    let headers = answer.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("/status"));
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        headers.insert(SET_COOKIE, cookie);
    }
    answer
}
