//! The id of a request, by which its answer and its line in the log are found: `X-Request-Id`.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use throng_wire::request_id;

/// In requests and answers: the id of the request.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Makes ids for requests that come without one.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// Begins all ids of this process.
    tag: u32,
    made: AtomicU64,
}

impl RequestIds {
    /// Ids that another process makes hardly ever.
    pub(crate) fn random() -> RequestIds {
        RequestIds { tag: RandomState::new().hash_one(0) as u32, made: AtomicU64::new(0) }
    }

    /// The id of a request: the one that it comes with, or else a new one.
    pub(crate) fn of(&self, head: &Parts) -> HeaderValue {
        let values = head.headers.get_all(X_REQUEST_ID);
        let given = request_id::given(values.iter().map(HeaderValue::as_bytes));
        given.and_then(|id| id.parse().ok()).unwrap_or_else(|| self.make())
    }

    fn make(&self) -> HeaderValue {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}{number:08x}", self.tag);
        // Cannot fail: hexadecimal digits are text.
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &RequestIds, given: &[&str]) -> String {
        let mut request = http::Request::new(());
        for id in given {
            let id = HeaderValue::from_bytes(id.as_bytes()).unwrap();
            request.headers_mut().append(X_REQUEST_ID, id);
        }
        let (head, ()) = request.into_parts();
        ids.of(&head).to_str().unwrap().to_owned()
    }

    #[test]
    fn a_sane_id_is_kept_and_any_other_replaced() {
        let made = RequestIds { tag: 0xa, made: AtomicU64::new(7) };
        assert_eq!(ids(&made, &["Root=1-67891233-abc"]), "Root=1-67891233-abc");
        for (index, given) in [&["a b"][..], &["a", "a"], &[]].into_iter().enumerate() {
            assert_eq!(ids(&made, given), format!("0000000a{:08x}", 7 + index), "{given:?}");
        }
    }
}
