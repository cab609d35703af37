//! The static files: the demo, the status page and the JavaScript client.

use std::sync::LazyLock;

use axum::response::Response;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
};
use serde_json::Value;

use crate::http::file::{FileContent, POLICY, REFERRERS, REVALIDATE};

/// A file that is compiled into the program.
pub(super) struct File {
    pub(super) path: &'static str,
    content_type: &'static str,
    cache_control: &'static str,
    /// Built on first use.
    content: LazyLock<FileContent>,
}

/// For a path whose content never changes.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";

macro_rules! file {
    ($path:literal, $content_type:expr, $source:literal) => {
        File {
            path: $path,
            content_type: $content_type,
            cache_control: REVALIDATE,
            content: LazyLock::new(|| {
                FileContent::new(Bytes::from_static(include_bytes!($source)))
            }),
        }
    };
}

/// A file of the JavaScript client.
macro_rules! client {
    ($path:expr, $cache_control:expr, $name:expr) => {
        File {
            path: $path,
            content_type: JAVASCRIPT,
            cache_control: $cache_control,
            content: LazyLock::new(|| {
                FileContent::with_gzip(
                    include_bytes!(concat!("../../../../clients/javascript/dist/", $name)),
                    include_bytes!(concat!("../../../../clients/javascript/dist/", $name, ".gz")),
                )
            }),
        }
    };
}

/// A document for programs, in the version of this server.
macro_rules! document {
    ($path:literal, $source:literal) => {
        File {
            path: $path,
            content_type: "application/json",
            cache_control: REVALIDATE,
            content: LazyLock::new(|| FileContent::new(versioned(include_str!($source)))),
        }
    };
}

/// The document with the version of this server, on one line.
fn versioned(document: &str) -> Bytes {
    // A test reads the documents as they are served.
    let mut document: Value = serde_json::from_str(document).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document.to_string().into()
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// The chat page as written, with a link to the status page.
const CHAT: &str = include_str!("../../../../web/chat.html");

/// The line of the chat page that links the status page.
const STATUS_LINK: &str = r#"<a class="quiet" href="status">Server status</a>"#;

/// The demo: the chat page, for clients that may see the status page.
pub(super) static CHAT_WITH_STATUS: File = File {
    path: "/chat",
    content_type: HTML,
    cache_control: REVALIDATE,
    content: LazyLock::new(|| FileContent::new(CHAT.into())),
};

/// The same without the link, for all other clients. The page cannot find out by itself: browsers
/// log a request that is refused as an error of the page.
pub(super) static CHAT_WITHOUT_STATUS: File = File {
    path: "/chat",
    content_type: HTML,
    cache_control: REVALIDATE,
    content: LazyLock::new(|| FileContent::new(CHAT.replace(STATUS_LINK, "").into())),
};

pub(super) static CHAT_FILES: [File; 5] = [
    file!("/chat-list.js", JAVASCRIPT, "../../../../web/chat-list.js"),
    file!("/chat-pieces.js", JAVASCRIPT, "../../../../web/chat-pieces.js"),
    file!("/chat-view.js", JAVASCRIPT, "../../../../web/chat-view.js"),
    file!("/chat.css", CSS, "../../../../web/chat.css"),
    file!("/chat.js", JAVASCRIPT, "../../../../web/chat.js"),
];

/// Files that every client may load. They reveal nothing about this server.
pub(super) static FILES: [File; 20] = [
    document!("/asyncapi.json", "../../../../docs/reference/asyncapi.json"),
    // Browsers request this path if a page names no icon, and accept any type of image.
    file!("/favicon.ico", SVG, "../../../../web/icon.svg"),
    file!("/icon.svg", SVG, "../../../../web/icon.svg"),
    file!("/login.js", JAVASCRIPT, "../../../../web/login.js"),
    document!("/openapi.json", "../../../../docs/reference/openapi.json"),
    client!("/throng.js", REVALIDATE, "throng.js"),
    client!(concat!("/throng-", env!("CARGO_PKG_VERSION"), ".js"), IMMUTABLE, "throng.js"),
    // The client loads it where it has no WebSocket, of its own version.
    client!(
        concat!("/throng-http-", env!("CARGO_PKG_VERSION"), ".js"),
        IMMUTABLE,
        concat!("throng-http-", env!("CARGO_PKG_VERSION"), ".js")
    ),
    client!("/throng-tabs.js", REVALIDATE, "throng-tabs.js"),
    // It imports the client of its own version.
    client!(
        concat!("/throng-tabs-", env!("CARGO_PKG_VERSION"), ".js"),
        IMMUTABLE,
        "throng-tabs.js"
    ),
    file!("/status.css", CSS, "../../../../web/status.css"),
    file!("/status.js", JAVASCRIPT, "../../../../web/status.js"),
    file!("/status-behind.js", JAVASCRIPT, "../../../../web/status-behind.js"),
    file!("/status-certificates.js", JAVASCRIPT, "../../../../web/status-certificates.js"),
    file!("/status-cluster.js", JAVASCRIPT, "../../../../web/status-cluster.js"),
    file!("/status-charts.js", JAVASCRIPT, "../../../../web/status-charts.js"),
    // As text, because browsers would download Markdown.
    file!("/status.md", TEXT, "../../../../docs/reference/status.md"),
    file!("/status-words.js", JAVASCRIPT, "../../../../web/status-words.js"),
    file!("/uplot.css", CSS, "../../../../web/vendor/uplot/uPlot.min.css"),
    file!("/uplot.js", JAVASCRIPT, "../../../../web/vendor/uplot/uPlot.iife.min.js"),
];

/// The status page as written, with a button that ends a login.
const STATUS: &str = include_str!("../../../../web/status.html");

/// The lines of the status page that end a login.
const LOG_OUT: &str = r#"
      <form method="post" action="status/logout"><button class="quiet">Log out</button></form>"#;

/// The status page of a server where operators log in. The files that it loads are in `FILES`.
pub(super) static STATUS_WITH_LOGIN: File = File {
    path: "/status",
    content_type: HTML,
    cache_control: REVALIDATE,
    content: LazyLock::new(|| FileContent::new(STATUS.into())),
};

/// The same where they need not.
pub(super) static STATUS_WITHOUT_LOGIN: File = File {
    path: "/status",
    content_type: HTML,
    cache_control: REVALIDATE,
    content: LazyLock::new(|| FileContent::new(STATUS.replace(LOG_OUT, "").into())),
};

/// The login page, with a place for the sentence that says why a login was refused.
const LOGIN: &str = include_str!("../../../../web/login.html");

/// The place on the login page.
const REFUSAL: &str = r#"<p id="refusal" class="refusal" role="alert" hidden></p>"#;

/// Turns the response to a request that needs a login into the login page. The page says `refusal`.
pub(super) fn into_login_page(answer: &mut Response, refusal: Option<&str>) {
    let shown = refusal.map_or(REFUSAL.to_owned(), |refusal| {
        let text = refusal.replace('&', "&amp;").replace('<', "&lt;");
        REFUSAL.replace(" hidden></p>", &format!(">{text}</p>"))
    });
    *answer.body_mut() = LOGIN.replace(REFUSAL, &shown).into();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static(REFERRERS));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
}

/// True if a page or the client loads a file at this path.
pub(super) fn is_file(path: &str) -> bool {
    FILES.iter().chain(&CHAT_FILES).any(|file| file.path == path)
}

/// The response with a file, or `304` if the client has it already.
pub(super) fn serve(file: &'static File, request: &HeaderMap) -> Response {
    file.content.response(file.content_type, file.cache_control, request)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::header::ETAG;

    use super::*;

    #[test]
    fn the_chat_page_links_the_status_page_once() {
        assert_eq!(CHAT.matches(STATUS_LINK).count(), 1);
        assert_eq!(CHAT.matches("href=\"status\"").count(), 1);
        let files = [&CHAT_WITH_STATUS, &CHAT_WITHOUT_STATUS];
        let [with, without] = files.map(|file| file.content.len());
        assert_eq!(with, without + STATUS_LINK.len());
        let [with, without] =
            files.map(|file| serve(file, &HeaderMap::new()).headers()[ETAG].clone());
        assert_ne!(with, without, "a browser must not keep the other page");
    }

    #[test]
    fn the_status_page_ends_a_login_where_there_are_logins() {
        assert_eq!(STATUS.matches(LOG_OUT).count(), 1);
        assert_eq!(STATUS_WITHOUT_LOGIN.content.len(), STATUS.len() - LOG_OUT.len());
    }

    #[test]
    fn the_login_page_says_why_a_login_was_refused() {
        assert_eq!(LOGIN.matches(REFUSAL).count(), 1);
        let page = |refusal| {
            let mut answer = Response::new(Body::empty());
            into_login_page(&mut answer, refusal);
            answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().len()
        };
        assert_eq!(page(None), page(Some("<b>&")));
    }
}
