//! The way to the authority: our own client of HTTP under the library's ACME.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use throng_outbound::{Trust, send};

use crate::schedule::ASKED_MAX;

/// When the authority may be asked again, by its last refusal.
pub(crate) type AskedWait = Arc<Mutex<Option<SystemTime>>>;

/// Sends the library's requests, and keeps what errors say about the next attempt.
pub(crate) struct AuthorityClient {
    pub(crate) trust: Trust,
    pub(crate) asked: AskedWait,
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (trust, asked) = (self.trust.clone(), Arc::clone(&self.asked));
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let request = Request::from_parts(head, body.to_bytes());
            let response = send(&trust, request).await;
            let mut response = response.map_err(|error| Error::Other(Box::new(error)))?;
            let wait = retry_after(response.headers(), SystemTime::now());
            bound(response.headers_mut());
            if !response.status().is_success() {
                *asked.lock().unwrap_or_else(PoisonError::into_inner) = wait;
            }
            Ok(response.map(Full::new).into())
        })
    }
}

/// Shortens a wait that is too long. The library adds any number of seconds to the time of now,
/// which may overflow.
fn bound(headers: &mut HeaderMap) {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if seconds.is_some_and(|seconds: u64| seconds > ASKED_MAX.as_secs()) {
        headers.insert(RETRY_AFTER, HeaderValue::from(ASKED_MAX.as_secs()));
    }
}

/// The moment that the header `Retry-After` names: seconds from `now`, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let at = match text.parse::<u64>() {
        Ok(seconds) => now + Duration::from_secs(seconds).min(ASKED_MAX),
        Err(_) => httpdate::parse_http_date(text).ok()?,
    };
    Some(at.min(now + ASKED_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_a_number_of_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let at = |text: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            retry_after(&headers, now).map(|at| at.duration_since(now).unwrap_or_default())
        };
        assert_eq!(at("120"), Some(Duration::from_secs(120)));
        assert_eq!(at("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(at("18446744073709551615"), Some(ASKED_MAX));
        assert_eq!(at("soon"), None);
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn a_wait_is_bounded_before_the_library_sees_it() {
        for (sent, left) in [("120", "120"), ("18446744073709551615", "2678400"), ("soon", "soon")]
        {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(sent));
            bound(&mut headers);
            assert_eq!(headers[RETRY_AFTER], left);
        }
    }
}
