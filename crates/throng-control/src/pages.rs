//! Everything that is not the API: static pages, the JavaScript client, health, metrics.

mod files;
mod health;
mod metrics;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use http::request::Parts;
use http::{Method, StatusCode};
use http_body_util::Either;
use throng_core::Listener;
use throng_wire::ErrorCode;

use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{Answer, ApiError, Refused};
use crate::http::caller::Caller;
use crate::http::names;
use files::File;
pub(crate) use metrics::{name as metric_name, text as metrics_text};

/// Where the site of the documentation is.
const DOCS: &str = "/docs/";

const METHODS: &str = "GET, HEAD, OPTIONS";

/// The body of `/` where the demo is not served.
const GREETING: &str = "This is a Throng push server. \
    Follow a channel at /channels/NAME; the JavaScript client is at /throng.js.\n";

/// The routes of all pages, with the additional routes of `others`.
pub(crate) fn router(control: Arc<Control>, others: Router<Arc<Control>>) -> Router {
    let mut router = Router::new()
        .route("/", get(root))
        .route("/status", get(status_page))
        .route("/metrics", get(metrics_page))
        .route("/docs", get(docs_directory))
        .route("/docs/", get(docs_page))
        .route("/docs/{*path}", get(docs_page))
        .merge(health::routes())
        .merge(others);
    for file in &files::FILES {
        let answer = async |headers: HeaderMap| files::serve(file, &headers);
        router = router.route(file.path, get(answer));
    }
    router = router.route(files::CHAT_WITH_STATUS.path, get(chat_page));
    for file in &files::CHAT_FILES {
        let answer = async |State(control): State<Arc<Control>>, request: Request| {
            serve_demo(&control, file, &request.into_parts().0)
        };
        router = router.route(file.path, get(answer));
    }
    let control_of_methods = Arc::clone(&control);
    router
        .fallback(async |State(control): State<Arc<Control>>, request: Request| {
            refuse(&control, names::nothing_at(request.uri().path()))
        })
        .with_state(control)
        .layer(from_fn(move |request: Request, next: Next| {
            let control = Arc::clone(&control_of_methods);
            async move { methods(&control, request, next).await }
        }))
}

/// Replaces the router's own response to a method that a path does not take, and answers `OPTIONS`.
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
    refuse(control, ApiError::method(METHODS))
}

/// True if a page or the client loads a file at this path.
pub(crate) fn is_file(path: &str) -> bool {
    files::is_file(path) || path.starts_with(DOCS)
}

/// True if the demo is served to this client. The demo subscribes to channels, which the admin
/// listener does not serve.
fn has_demo(control: &Control, head: &Parts) -> bool {
    control.settings.has_demo && Caller::of(head).listener == Listener::Public
}

/// The response with a file of the demo, where the demo is served.
fn serve_demo(control: &Control, file: &'static File, head: &Parts) -> Response {
    if has_demo(control, head) {
        files::serve(file, &head.headers)
    } else {
        refuse(control, ErrorCode::NotFound)
    }
}

/// Links of the site are relative to its directory, whose path ends with a slash.
async fn docs_directory(State(control): State<Arc<Control>>) -> Response {
    if control.site.is_some() { redirect(DOCS) } else { refuse(&control, ErrorCode::NotFound) }
}

/// A file of the documentation, where it is served.
async fn docs_page(State(control): State<Arc<Control>>, request: Request) -> Response {
    let path = request.uri().path().strip_prefix(DOCS).unwrap_or_default();
    let response = control.site.as_ref().and_then(|site| site.response(path, request.headers()));
    response.unwrap_or_else(|| refuse(&control, ErrorCode::NotFound))
}

/// The chat page. It links the status page only for clients that may see it.
async fn chat_page(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let may_see_status = check(&control, &head, Operation::Status).is_ok();
    let file = if may_see_status { &files::CHAT_WITH_STATUS } else { &files::CHAT_WITHOUT_STATUS };
    serve_demo(&control, file, &head)
}

async fn root(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match Caller::of(&head).listener {
        Listener::Admin => redirect("/status"),
        Listener::Public if has_demo(&control, &head) => redirect("/chat"),
        Listener::Public => plain(StatusCode::OK, GREETING),
    }
}

async fn status_page(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let needs_login = control.authentication.demands_key(Caller::of(&head).listener);
    match check(&control, &head, Operation::Status) {
        Ok(()) if needs_login => files::serve(&files::STATUS_WITH_LOGIN, &head.headers),
        Ok(()) => files::serve(&files::STATUS_WITHOUT_LOGIN, &head.headers),
        Err(error) if error.error.code == ErrorCode::Unauthorized => {
            let mut answer = refuse(&control, error);
            // A page that is opened before the login is no news.
            answer.extensions_mut().remove::<Refused>();
            files::into_login_page(&mut answer, None);
            answer
        }
        Err(error) => refuse(&control, error),
    }
}

/// The response to a login that is refused: the login page, which says why.
pub(crate) fn refused_login(control: &Control, error: ApiError) -> Answer {
    let message = error.error.message.clone();
    let mut answer = refuse(control, error);
    files::into_login_page(&mut answer, Some(&message));
    answer.map(Either::Right)
}

fn check(control: &Control, head: &Parts, operation: Operation) -> Result<(), ApiError> {
    control.authentication.check_operator(&control.settings, head, operation).map(drop)
}

async fn metrics_page(State(control): State<Arc<Control>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    if let Err(error) = check(&control, &head, Operation::Metrics) {
        return refuse(&control, error);
    }
    let mut response = plain(StatusCode::OK, metrics::text(&control));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn refuse(control: &Control, error: impl Into<ApiError>) -> Response {
    control.refusals.answer(error.into()).map(Body::new)
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
