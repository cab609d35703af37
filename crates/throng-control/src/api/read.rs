//! `GET` and `PUT` of `/users/{user}/read` and `/channels/{channel}/read`: how far a user has read
//! the inbox or a channel.

use std::convert::Infallible;

use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use throng_access::{Action, Client};
use throng_core::{ChannelName, Kind, Later, Mark, MarkerKey, Mover, ReadMarker, clock};
use throng_wire::{ErrorResponse, check_name, v1};

use super::limit::Limited;
use super::log::FETCH_TIMEOUT;
use super::parameters::id;
use super::permit::Permit;
use super::publish;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{names, query};
use crate::late_answer::within;

/// Answers with the marker, after a `PUT` has moved it. For an inbox both need the right to follow
/// it, and for a channel the right of the user to follow that.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    (kind, segment): (Kind, &str),
) -> Result<Answer, ApiError> {
    let log = names::from_segment(kind, segment)?;
    let is_write = head.method == Method::PUT;
    if is_write {
        Limited::of(control, head, client)?.begin(head, 1).map_err(ApiError::limited)?;
    }
    let known = ["reader", "id", "back"];
    let known = &known[usize::from(kind == Kind::User)..if is_write { 3 } else { 1 }];
    let query = query::of(head, known)?;
    let reader = query::find(query, "reader")?;
    let mark = is_write.then(|| mark(&head.headers, query)).transpose()?;
    let mut permit = Permit::of(control, head, client)?.with_user(reader.as_deref());
    let (of, inbox) = marker_of(&permit, log, reader.as_deref())?;
    let all: Vec<_> = [Some(of.log()), inbox.as_ref()].into_iter().flatten().collect();
    for name in &all {
        permit.ask(Action::Subscribe(name)).await?;
    }
    for name in all {
        permit.recheck(Action::Subscribe(name))?;
    }
    let engine = &control.engine;
    let ask = |later: Later<'_, _>| {
        Ok::<_, Infallible>(engine.read_marker(clock::now_ms(), &of, mark, later))
    };
    let Ok(answer) = within(FETCH_TIMEOUT, ask).await;
    let Some(marked) = answer else { return Err(ErrorResponse::unanswered().into()) };
    let ReadMarker { read, unread, .. } = marked?;
    let read = read.map(|id| id.to_string());
    let mut body = Vec::with_capacity(96);
    v1::read_body(&mut body, &names::target(of.log()), (read.as_deref(), unread));
    Ok(answer::json(StatusCode::OK, body))
}

/// The marker of a request. A client that names another reader than its own user needs the right to
/// follow that reader's inbox, which is returned beside it.
fn marker_of(
    permit: &Permit<'_>,
    log: ChannelName,
    reader: Option<&str>,
) -> Result<(MarkerKey, Option<ChannelName>), ApiError> {
    if log.kind() == Kind::User {
        return Ok((MarkerKey::inbox(log.name()), None));
    }
    let own = permit.user();
    let user = reader.or(own).ok_or_else(|| {
        ApiError::parameter("a read marker is a user's: show the user's token, or set `reader`")
    })?;
    check_name(user, Kind::User.noun())?;
    let inbox = Some(ChannelName::user(user)).filter(|_| own != Some(user));
    Ok((MarkerKey::channel(log, user), inbox))
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
