//! The id of a request, by which its answer and its line in the log are found: `X-Request-Id`.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;

/// In requests and answers: the id of the request.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken from a request.
const BYTES_MAX: usize = 128;

/// Makes ids for requests that come without one.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// Begins all ids of this process.
    tag: u32,
    /// How many were made.
    made: AtomicU64,
}

impl RequestIds {
    /// Ids that another process makes hardly ever.
    pub(crate) fn random() -> RequestIds {
        RequestIds { tag: RandomState::new().hash_one(0) as u32, made: AtomicU64::new(0) }
    }

    /// The id of a request: the one that it comes with, or else a new one. An id that could be
    /// taken for something else in a log counts as none, and so do two.
    pub(crate) fn of(&self, head: &Parts) -> HeaderValue {
        let mut given = head.headers.get_all(X_REQUEST_ID).iter();
        match (given.next(), given.next()) {
            (Some(id), None) if is_sane(id.as_bytes()) => id.clone(),
            _ => self.make(),
        }
    }

    fn make(&self) -> HeaderValue {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}{number:08x}", self.tag);
        // Cannot fail: hexadecimal digits are text.
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("-"))
    }
}

/// Whether it is short, and has only characters that common ids have: no spaces, quotes or escapes.
fn is_sane(id: &[u8]) -> bool {
    let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~:/+=@-".contains(byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(is_known)
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
        let longest = "x".repeat(BYTES_MAX);
        for id in ["1", "2f6b8c1e-7a40-4d1c-9a55-0e3b1f0d7c11", "Root=1-67891233-abc", &longest] {
            assert_eq!(ids(&made, &[id]), id);
        }
        let too_long = "x".repeat(BYTES_MAX + 1);
        let refused = ["", "a b", "a\tb", "a\"b", "a\\n", "ü", &too_long];
        for (index, id) in refused.iter().enumerate() {
            assert_eq!(ids(&made, &[id]), format!("0000000a{:08x}", 7 + index), "{id}");
        }
        assert_eq!(ids(&made, &["a", "a"]), "0000000a0000000e");
        assert_eq!(ids(&made, &[]), "0000000a0000000f");
    }
}
