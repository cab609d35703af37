//! `/status.json`: the newest sample, with the history if the request asks for it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::get;
use http::request::Parts;
use throng_wire::ErrorCode;

use super::history::{SAMPLES_MAX, StatusHistory};
use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{Answer, ApiError};
use crate::http::{large_answer, query};

pub(crate) fn route(history: Arc<StatusHistory>) -> Router<Arc<Control>> {
    let handler = async move |State(control): State<Arc<Control>>, request: Request| {
        let (head, _) = request.into_parts();
        let answer = answer(&control, &history, &head);
        let answer = answer.unwrap_or_else(|error| control.refusals.answer(error));
        Response::map(answer, Body::new)
    };
    Router::new().route("/status.json", get(handler))
}

/// Answers `GET /status.json?history=N`.
fn answer(control: &Control, history: &StatusHistory, head: &Parts) -> Result<Answer, ApiError> {
    control.authentication.check_operator(&control.settings, head, Operation::Status)?;
    let query = query::of(head, &["history"])?;
    let count = query::find(query, "history")?;
    let count = match count.map(|text| text.parse::<usize>()).transpose() {
        Ok(count) if count.unwrap_or(0) <= SAMPLES_MAX => count,
        _ => {
            let message = format!("`history` is a number of samples, 0 to {SAMPLES_MAX}");
            return Err(ApiError::parameter(message));
        }
    };
    let no_sample =
        || ApiError::new(ErrorCode::Busy, "there is no sample yet; try again in a second");
    let json = history.json(count).ok_or_else(no_sample)?;
    large_answer::json(&control.read_answers, json)
}
