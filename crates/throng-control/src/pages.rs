//! Everything that is not the API: the pages, the client, health and figures.

use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue,
    IF_NONE_MATCH, LOCATION, REFERRER_POLICY, RETRY_AFTER, VARY,
};
use http::request::Parts;
use http::{Method, StatusCode};
use throng_core::Listener;

use crate::control::Control;
use crate::http::answer::{self, Answer, Refused};
use crate::http::caller::Caller;
use crate::http::{origin, query};
use crate::status::SAMPLES_MAX;
use throng_wire::ErrorCode;

mod metrics;

/// What the pages may load: their own scripts and styles, and connections to this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; \
    frame-ancestors 'none'";

/// Methods of everything here.
const METHODS: &str = "GET, HEAD, OPTIONS";

/// A file that is part of the program.
struct File {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// Computed once. It need not withstand an attacker: all files are ours.
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

/// What `/` says where there is no page to lead to.
const GREETING: &str = "This is a Throng push server. \
    Follow a channel at /channels/NAME; the JavaScript client is at /throng.js.\n";

/// The demo.
static DEMO: [File; 6] = [
    file!("/chat", HTML, "../../../web/chat.html"),
    file!("/chat-list.js", JAVASCRIPT, "../../../web/chat-list.js"),
    file!("/chat-pieces.js", JAVASCRIPT, "../../../web/chat-pieces.js"),
    file!("/chat-view.js", JAVASCRIPT, "../../../web/chat-view.js"),
    file!("/chat.css", CSS, "../../../web/chat.css"),
    file!("/chat.js", JAVASCRIPT, "../../../web/chat.js"),
];

/// What everybody may load: it tells nothing of this server.
static FILES: [File; 10] = [
    // Browsers ask for it where a page names no icon, and take any type of image.
    file!("/favicon.ico", SVG, "../../../web/icon.svg"),
    file!("/icon.svg", SVG, "../../../web/icon.svg"),
    file!("/throng.js", JAVASCRIPT, "../../../clients/javascript/dist/throng.js"),
    file!("/status.css", CSS, "../../../web/status.css"),
    file!("/status.js", JAVASCRIPT, "../../../web/status.js"),
    file!("/status-charts.js", JAVASCRIPT, "../../../web/status-charts.js"),
    // For reading, not for a download, as browsers would make of Markdown.
    file!("/status.md", TEXT, "../../../docs/reference/status.md"),
    file!("/status-words.js", JAVASCRIPT, "../../../web/status-words.js"),
    file!("/uplot.css", CSS, "../../../web/vendor/uplot/uPlot.min.css"),
    file!("/uplot.js", JAVASCRIPT, "../../../web/vendor/uplot/uPlot.iife.min.js"),
];

/// The status page itself; what it loads is among the files for everybody.
static STATUS: File = file!("/status", HTML, "../../../web/status.html");

fn etag(bytes: &[u8]) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    let text = format!("\"{:016x}\"", hasher.finish());
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"\""))
}

/// The routes.
pub(crate) fn router(control: Arc<Control>) -> Router {
    let mut router = Router::new()
        .route("/", get(root))
        .route("/status", get(status_page))
        .route("/status.json", get(status_json))
        .route("/health", get(health))
        .route("/metrics", get(figures));
    for file in &FILES {
        router = router.route(file.path, get(async |headers: HeaderMap| serve(file, &headers)));
    }
    for file in &DEMO {
        let answer = async |State(control): State<Arc<Control>>, request: Request| {
            let (head, _) = request.into_parts();
            match has_demo(&control, &head) {
                true => serve(file, &head.headers),
                false => refuse(&control, Refused::from(ErrorCode::NotFound)),
            }
        };
        router = router.route(file.path, get(answer));
    }
    let refusals = Arc::clone(&control);
    router
        .fallback(async |State(control): State<Arc<Control>>| {
            refuse(&control, Refused::from(ErrorCode::NotFound))
        })
        .with_state(control)
        .layer(from_fn(move |request: Request, next: Next| {
            let control = Arc::clone(&refusals);
            async move { methods(&control, request, next).await }
        }))
}

/// Words the router's own refusal of a method as the reference has it, and answers `OPTIONS`.
async fn methods(control: &Control, request: Request, next: Next) -> Response {
    let is_options = request.method() == Method::OPTIONS;
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    if is_options {
        let mut response = plain(StatusCode::NO_CONTENT, "");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(METHODS));
        return response;
    }
    refuse(control, Refused::method(METHODS))
}

/// The demo follows channels, which the admin listener does not serve.
fn has_demo(control: &Control, head: &Parts) -> bool {
    control.settings.has_demo && Caller::of(head).listener == Listener::Public
}

async fn root(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match Caller::of(&head).listener {
        Listener::Admin => redirect("/status"),
        Listener::Public if has_demo(&control, &head) => redirect("/chat"),
        Listener::Public => plain(StatusCode::OK, GREETING),
    }
}

fn refuse(control: &Control, refused: Refused) -> Response {
    refused.into_answer(control).map(Body::new)
}

fn redirect(location: &'static str) -> Response {
    let mut response = plain(StatusCode::FOUND, "");
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(location));
    response
}

fn plain(status: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn serve(file: &'static File, request: &HeaderMap) -> Response {
    let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.trim_start_matches("W/").as_bytes() == file.etag.as_bytes()
    });
    let mut response = Response::new(if is_known { Body::empty() } else { file.bytes.into() });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(ETAG, file.etag.clone());
    // Kept, but asked for each time: after an update page and client must match the server.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

async fn status_page(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match origin::check_status(&control.settings, &head) {
        Ok(()) => serve(&STATUS, &head.headers),
        Err(refused) => refuse(&control, refused),
    }
}

async fn status_json(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match sample(&control, &head) {
        Ok(answer) => answer.map(Body::new),
        Err(refused) => refuse(&control, refused),
    }
}

fn sample(control: &Control, head: &Parts) -> Result<Answer, Refused> {
    origin::check_status(&control.settings, head)?;
    let query = head.uri.query().unwrap_or_default();
    query::check(query, &["history"])?;
    let history = query::find(query, "history")?;
    let history = match history.map(|text| text.parse::<usize>()).transpose() {
        Ok(count) if count.unwrap_or(0) <= SAMPLES_MAX => count,
        _ => {
            let sentence = format!("`history` is a number of samples, 0 to {SAMPLES_MAX}");
            return Err(Refused::parameter(sentence));
        }
    };
    let too_early =
        || Refused::new(ErrorCode::Busy, "nothing has been sampled yet; try again later");
    let json = control.status.json(history).ok_or_else(too_early)?;
    let room = answer::room(control, &control.figures.pages, json.len())?;
    Ok(answer::large(answer::JSON, json, room))
}

async fn health(State(control): State<Arc<Control>>) -> Response {
    if !control.is_draining() {
        return plain(StatusCode::OK, "ok\n");
    }
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    if let Some(retry_after) = answer::retry_after(&control, ErrorCode::Draining) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after.seconds()));
    }
    response
}

async fn figures(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    if let Err(refused) = origin::check_metrics(&control.settings, &head) {
        return refuse(&control, refused);
    }
    let mut response = plain(StatusCode::OK, metrics::text(&control));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
