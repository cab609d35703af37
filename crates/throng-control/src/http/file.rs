//! Responses with a file: compressed, revalidated, and with a policy for what it may load.

use std::hash::{DefaultHasher, Hasher};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY,
};

use super::gzip;

/// Pages may load their own scripts and styles, and connect to this server only.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; \
    frame-ancestors 'none'";

/// Sends no `Referer` to other origins. Not `no-referrer`: forms would then send `Origin: null`,
/// which the server refuses.
pub(crate) const REFERRERS: &str = "same-origin";

/// Browsers store the file and revalidate it each time: after an update, pages and client must
/// match the server.
pub(crate) const REVALIDATE: &str = "no-cache";

pub(crate) struct FileContent {
    bytes: Bytes,
    /// A hash of the bytes. No attacker can choose them.
    etag: HeaderValue,
    /// The same compressed, for clients that accept it, if that is worth it.
    gzip: Option<Bytes>,
}

impl FileContent {
    pub(crate) fn new(bytes: Bytes) -> FileContent {
        let gzip = gzip::compress_file(&bytes).map(Bytes::from);
        FileContent { etag: etag(&bytes), bytes, gzip }
    }

    /// A file that was compressed before.
    pub(crate) fn with_gzip(bytes: &'static [u8], gzip: &'static [u8]) -> FileContent {
        let bytes = Bytes::from_static(bytes);
        FileContent { etag: etag(&bytes), bytes, gzip: Some(Bytes::from_static(gzip)) }
    }

    /// The size of the file, in bytes, without compression.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The response with the file, or `304` if the client has it already.
    pub(crate) fn response(
        &self,
        content_type: &'static str,
        cache_control: &'static str,
        request: &HeaderMap,
    ) -> Response {
        let gzip = self.gzip.as_ref().filter(|_| gzip::is_accepted(request));
        let is_known = self.is_known(request);
        let body =
            if is_known { Body::empty() } else { gzip.unwrap_or(&self.bytes).clone().into() };
        let mut response = Response::new(body);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        let (etag, vary) = if self.gzip.is_some() {
            // One tag for both encodings: they are equivalent, which a weak tag says.
            (weak(&self.etag), "Accept-Encoding, Origin")
        } else {
            (self.etag.clone(), "Origin")
        };
        if gzip.is_some() && !is_known {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        headers.insert(ETAG, etag);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(VARY, HeaderValue::from_static(vary));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static(REFERRERS));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        response
    }

    /// True if the client says that it has the file.
    fn is_known(&self, request: &HeaderMap) -> bool {
        let etags = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        etags.flat_map(|value| value.split(',')).any(|tag| {
            // This header compares weakly: `W/` makes no difference (RFC 9110 section 13.1.2).
            let tag = tag.trim();
            tag == "*" || tag.trim_start_matches("W/").as_bytes() == self.etag.as_bytes()
        })
    }
}

fn etag(bytes: &[u8]) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    let text = format!("\"{:016x}\"", hasher.finish());
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"\""))
}

fn weak(etag: &HeaderValue) -> HeaderValue {
    let weak = [b"W/", etag.as_bytes()].concat();
    HeaderValue::from_bytes(&weak).unwrap_or_else(|_| etag.clone())
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT_ENCODING;

    use super::*;

    fn answer(request: &HeaderMap) -> Response {
        let content = FileContent::new(Bytes::from("a file ".repeat(500)));
        content.response("text/plain", REVALIDATE, request)
    }

    #[test]
    fn gzip_is_used_only_if_it_is_accepted() {
        for (value, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
            ("br", false),
            ("", false),
        ] {
            let mut request = HeaderMap::new();
            request.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(gzip::is_accepted(&request), expected, "{value}");
            let response = answer(&request);
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), expected, "{value}");
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again_whatever_its_encoding() {
        let mut request = HeaderMap::new();
        let etag = answer(&request).headers()[ETAG].clone();
        assert!(etag.as_bytes().starts_with(b"W/\""));
        request.insert(IF_NONE_MATCH, etag);
        request.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(answer(&request).status(), StatusCode::NOT_MODIFIED);
    }
}
