//! What several endpoints have in common: permission, query parameters, `Throng-Id`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::request::Parts;
use throng_access::{Action, Asker, Credentials, Details};
use throng_core::id::IdError;
use throng_core::{Later, MessageId};
use throng_wire::ErrorResponse;

use crate::authentication::Client;
use crate::control::Control;
use crate::http::answer::{Answer, ApiError, THRONG_ID};
use crate::http::caller::Caller;
use crate::http::{origin, query};
use crate::late_answer::within;

/// How long an endpoint waits for the workers to answer a query before it gives up with `busy`.
pub(super) const WORKERS_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of entries of a page.
const LIMIT_MAX: usize = throng_wire::v1::LIMIT_MAX as usize;

/// Number of entries of a page if the request does not say.
const LIMIT: usize = 100;

/// How long a request waits for the access policy to decide before it is refused with `busy`.
pub(super) const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// Fails unless the client may do this.
pub(super) async fn permit(
    control: &Control,
    head: &Parts,
    client: &Client<'_>,
    action: Action<'_>,
) -> Result<(), ErrorResponse> {
    permit_within(control, head, client.credentials(), action, &mut { DECISION_TIMEOUT }).await
}

/// Fails unless a client with these credentials may do this. The decision may take `wait_left`,
/// from which the time that it takes is subtracted.
pub(super) async fn permit_within(
    control: &Control,
    head: &Parts,
    credentials: Credentials<'_>,
    action: Action<'_>,
    wait_left: &mut Duration,
) -> Result<(), ErrorResponse> {
    let listener = Caller::of(head).listener;
    let mut passed = control.authentication.passed(head)?;
    passed.headers.keep_ambient_if(|| origin::check_cookie(&control.settings, head).is_ok());
    let details = Details { address: passed.address, headers: Some(&passed.headers) };
    let asker = Asker { listener, credentials, details, is_repeated: false };
    let ask = |later: Later<'_, _>| Ok::<_, Infallible>(control.policy.may(&asker, action, later));
    let started = Instant::now();
    let Ok(decision) = within(*wait_left, ask).await;
    *wait_left = wait_left.saturating_sub(started.elapsed());
    match decision {
        Some(decision) => decision.allowed_until_ms().map(drop),
        None => Err(ErrorResponse::unanswered()),
    }
}

/// The parameter `limit`: the number of entries of a page.
pub(super) fn limit(query: &str) -> Result<usize, ApiError> {
    match query::find(query, "limit")? {
        None => Ok(LIMIT),
        Some(text) => match text.parse() {
            Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            _ => Err(ApiError::parameter(format!("`limit` is a number from 1 to {LIMIT_MAX}"))),
        },
    }
}

/// A parameter that is a message id.
pub(super) fn id(query: &str, name: &str) -> Result<Option<MessageId>, ApiError> {
    let id = query::find(query, name)?.map(|text| text.parse()).transpose();
    id.map_err(|error: IdError| error.into())
}

/// Adds the header `Throng-Id`.
pub(super) fn set_id(answer: &mut Answer, id: impl std::fmt::Display) {
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        answer.headers_mut().insert(THRONG_ID, value);
    }
}
