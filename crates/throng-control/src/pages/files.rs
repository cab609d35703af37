//! The static files: the demo, the status page and the JavaScript client.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, VARY,
};

/// Pages may load their own scripts and styles, and connect to this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; \
    frame-ancestors 'none'";

/// A file that is compiled into the program.
pub(super) struct File {
    pub(super) path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// A hash of the content, computed once. No attacker can choose the content.
    etag: LazyLock<HeaderValue>,
}

macro_rules! file {
    ($path:literal, $content_type:expr, $source:literal) => {{
        static BYTES: &[u8] = include_bytes!($source);
        File {
            path: $path,
            content_type: $content_type,
            bytes: BYTES,
            etag: LazyLock::new(|| etag(BYTES)),
        }
    }};
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// The demo: the chat page.
pub(super) static DEMO: [File; 6] = [
    file!("/chat", HTML, "../../../../web/chat.html"),
    file!("/chat-list.js", JAVASCRIPT, "../../../../web/chat-list.js"),
    file!("/chat-pieces.js", JAVASCRIPT, "../../../../web/chat-pieces.js"),
    file!("/chat-view.js", JAVASCRIPT, "../../../../web/chat-view.js"),
    file!("/chat.css", CSS, "../../../../web/chat.css"),
    file!("/chat.js", JAVASCRIPT, "../../../../web/chat.js"),
];

/// Files that every client may load. They reveal nothing about this server.
pub(super) static FILES: [File; 10] = [
    // Browsers request this path if a page names no icon, and accept any type of image.
    file!("/favicon.ico", SVG, "../../../../web/icon.svg"),
    file!("/icon.svg", SVG, "../../../../web/icon.svg"),
    file!("/throng.js", JAVASCRIPT, "../../../../clients/javascript/dist/throng.js"),
    file!("/status.css", CSS, "../../../../web/status.css"),
    file!("/status.js", JAVASCRIPT, "../../../../web/status.js"),
    file!("/status-charts.js", JAVASCRIPT, "../../../../web/status-charts.js"),
    // As text, because browsers would download Markdown.
    file!("/status.md", TEXT, "../../../../docs/reference/status.md"),
    file!("/status-words.js", JAVASCRIPT, "../../../../web/status-words.js"),
    file!("/uplot.css", CSS, "../../../../web/vendor/uplot/uPlot.min.css"),
    file!("/uplot.js", JAVASCRIPT, "../../../../web/vendor/uplot/uPlot.iife.min.js"),
];

/// The status page. The files that it loads are in `FILES`.
pub(super) static STATUS: File = file!("/status", HTML, "../../../../web/status.html");

fn etag(bytes: &[u8]) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    let text = format!("\"{:016x}\"", hasher.finish());
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"\""))
}

/// The response with a file, or `304` if the client has it already.
pub(super) fn serve(file: &'static File, request: &HeaderMap) -> Response {
    let etags = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = etags.flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.trim_start_matches("W/").as_bytes() == file.etag.as_bytes()
    });
    let mut response = Response::new(if is_known { Body::empty() } else { file.bytes.into() });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(ETAG, file.etag.clone());
    // Browsers store the file and revalidate it each time: after an update, pages and client must
    // match the server.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}
