//! `GET` and `PUT /users/{user}/read`: how far a user has read the inbox.

use std::convert::Infallible;

use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use throng_access::{Action, Client};
use throng_core::{Kind, Later, Mark, Mover, ReadMarker, clock};
use throng_wire::{ErrorResponse, v1};

use super::limit::Limited;
use super::log::FETCH_TIMEOUT;
use super::parameters::id;
use super::permit::Permit;
use super::publish;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{names, query};
use crate::late_answer::within;

/// Answers with the marker, after a `PUT` has moved it. Whoever may follow the inbox may do both.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    segment: &str,
) -> Result<Answer, ApiError> {
    let inbox = names::from_segment(Kind::User, segment)?;
    let is_write = head.method == Method::PUT;
    if is_write {
        Limited::of(control, head, client)?.begin(head, 1).map_err(ApiError::limited)?;
    }
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::Subscribe(&inbox)).await?;
    permit.recheck(Action::Subscribe(&inbox))?;
    let query = query::of(head, if is_write { &["id", "back"] } else { &[] })?;
    let mark = is_write.then(|| mark(&head.headers, query)).transpose()?;
    let engine = &control.engine;
    let ask = |later: Later<'_, _>| {
        Ok::<_, Infallible>(engine.read_marker(clock::now_ms(), &inbox, mark, later))
    };
    let Ok(answer) = within(FETCH_TIMEOUT, ask).await;
    let Some(marked) = answer else { return Err(ErrorResponse::unanswered().into()) };
    let ReadMarker { read, unread, .. } = marked?;
    let read = read.map(|id| id.to_string());
    let mut body = Vec::with_capacity(96);
    v1::read_body(&mut body, &names::target(&inbox), (read.as_deref(), unread));
    Ok(answer::json(StatusCode::OK, body))
}

/// Reads the marker from the parameters, and the connection that is not told.
fn mark(headers: &HeaderMap, query: &str) -> Result<Mark, ApiError> {
    let id = id(query, "id")?;
    let id = id.ok_or_else(|| ApiError::parameter("`id` is missing: the last message read"))?;
    let may_go_back = query::flag(query, "back")?.unwrap_or(false);
    let connection = publish::excluded(headers)?;
    let mover = connection.map(|connection| Mover { connection, is_follower: false });
    Ok(Mark { id, may_go_back, mover })
}
