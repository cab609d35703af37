//! Query parameters and `Throng-Id`, for several endpoints.

use std::time::Duration;

use http::HeaderValue;
use throng_core::MessageId;
use throng_core::id::IdError;

use crate::http::answer::{Answer, ApiError, THRONG_ID};
use crate::http::query;

/// How long an endpoint waits for the workers to answer a query before it gives up with `busy`.
pub(super) const WORKERS_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of entries of a page.
pub(super) const LIMIT_MAX: usize = throng_wire::v1::LIMIT_MAX as usize;

/// Number of entries of a page if the request does not say.
const LIMIT: usize = 100;

/// The parameter `limit`: the number of entries of a page.
pub(super) fn limit(query: &str) -> Result<usize, ApiError> {
    limit_from(1, query)
}

/// The same of a page of history, which may be empty: a client may only ask where the channel is.
pub(super) fn page_limit(query: &str) -> Result<usize, ApiError> {
    limit_from(0, query)
}

fn limit_from(min: usize, query: &str) -> Result<usize, ApiError> {
    match query::find(query, "limit")? {
        None => Ok(LIMIT),
        Some(text) => match text.parse() {
            Ok(limit) if (min..=LIMIT_MAX).contains(&limit) => Ok(limit),
            _ => Err(ApiError::parameter(format!("`limit` is a number from {min} to {LIMIT_MAX}"))),
        },
    }
}

/// A parameter that is a message id.
pub(super) fn id(query: &str, name: &str) -> Result<Option<MessageId>, ApiError> {
    let id = query::find(query, name)?.map(|text| text.parse()).transpose();
    id.map_err(|error: IdError| error.into())
}

pub(super) fn set_id(answer: &mut Answer, id: impl std::fmt::Display) {
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        answer.headers_mut().insert(THRONG_ID, value);
    }
}
