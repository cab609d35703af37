//! `/users/{user}/erasure`: `POST` erases all of a user, and `GET` says how far that is.

mod run;
mod search;

use std::time::Duration;

use http::request::Parts;
use http::{Method, StatusCode};
use throng_access::Scope;
use throng_core::{Kind, clock};
use throng_wire::{ErrorCode, check_target_name};

use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{names, query};
pub(crate) use run::run;

/// How long the request waits for what it has begun.
const DONE_TIMEOUT: Duration = Duration::from_secs(5);

/// Begins the erasure, or says how far it is.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    segment: &str,
) -> Result<Answer, ApiError> {
    let (authentication, settings) = (&control.authentication, &control.settings);
    let key = authentication.check_operator(settings, head, Operation::Administration)?;
    let user = names::from_segment(Kind::User, segment)?;
    check_target_name(user.name(), Kind::User.noun())?;
    query::of(head, &[])?;
    if head.method != Method::POST {
        let Some(report) = control.user_erasures.report(user.name()) else {
            let message = "no erasure of this user is known here: it was not asked for, its report \
                           is forgotten, or another node has it, which got the request";
            return Err(ApiError::new(ErrorCode::NotFound, message));
        };
        return Ok(answer::json(StatusCode::OK, report.json().to_string().into_bytes()));
    }
    // It may be in any channel.
    if let Some(key) = key
        && !(key.has(Scope::Erase) && key.covers_all())
    {
        let message = "the erasure of a user needs a server key with the scopes `administration` \
                       and `erase`, for all channels and users";
        return Err(ApiError::new(ErrorCode::Forbidden, message));
    }
    control.user_erasures.begin(user.name(), clock::machine_ms()).await?;
    let report = control.user_erasures.wait(user.name(), DONE_TIMEOUT).await.unwrap_or_default();
    let is_done = report.done_ms.is_some();
    let status = if is_done { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(answer::json(status, report.json().to_string().into_bytes()))
}
