//! The probes: `/health`, `/health/live` and `/health/ready`.
//!
//! They read a few counters, whatever the number of connections, and are answered under any host
//! name. A server that is full answers them from its reserve.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use throng_wire::ErrorCode;

use crate::control::Control;
use crate::http::answer::JSON;
use crate::readiness::{Finding, Status};

fn code(status: Status) -> StatusCode {
    match status {
        Status::Live | Status::Ready | Status::Degraded => StatusCode::OK,
        Status::Starting | Status::Draining | Status::Stuck => StatusCode::SERVICE_UNAVAILABLE,
    }
}

pub(super) fn routes() -> Router<Arc<Control>> {
    Router::new()
        .route("/health", get(short))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
}

async fn live(State(control): State<Arc<Control>>) -> Response {
    json(&control, &control.liveness())
}

async fn ready(State(control): State<Arc<Control>>) -> Response {
    json(&control, &control.readiness())
}

/// The probe in one word, for people and for balancers that compare the body.
async fn short(State(control): State<Arc<Control>>) -> Response {
    let status = control.readiness().status;
    let word = match status {
        Status::Live | Status::Ready | Status::Degraded => "ok\n",
        Status::Starting => "starting\n",
        Status::Draining => "draining\n",
        Status::Stuck => "stuck\n",
    };
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer(&control, status, text, word.to_owned())
}

fn json(control: &Control, finding: &Finding) -> Response {
    // Cannot fail: the types have no maps, and no numbers.
    let mut text = serde_json::to_string(finding).unwrap_or_default();
    text.push('\n');
    answer(control, finding.status, JSON, text)
}

fn answer(control: &Control, status: Status, content_type: HeaderValue, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code(status);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let retry_after = control.refusals.retry_after(ErrorCode::Draining);
    if let Some(retry_after) = retry_after.filter(|_| status == Status::Draining) {
        headers.insert(RETRY_AFTER, HeaderValue::from(retry_after.seconds()));
    }
    response
}
