//! The connections of a user or a channel, and those that are behind, for operators: who is there,
//! and how to end it.
//!
//! No plane keeps a list of a user's. All workers pass their connections, in time slices, and the
//! last one answers. A worker that is stopping does not, which ends the wait with `busy`.

use std::convert::Infallible;

use http::request::Parts;
use serde_json::json;
use throng_core::{
    ChannelName, ConnectionName, FoundConnection, Kind, Later, OtherNodes, ScanAction, ScanClose,
    ScanTarget, Scanned,
};
use throng_wire::ErrorCode;
use throng_wire::websocket::close_code;

use super::parameters::{WORKERS_TIMEOUT, limit};
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{large_answer, names, query};
use crate::late_answer::{ask, within};

/// The longest reason: a close frame has 125 bytes, two of which are the code.
const REASON_BYTES_MAX: usize = 123;

/// The reason where the request gives none.
const REASON: &str = "an operator has closed this connection";

/// `GET /users/{user}/connections` and `/channels/{channel}/connections`.
pub(crate) async fn list(
    control: &Control,
    head: &Parts,
    kind: Kind,
    segment: &str,
) -> Result<Answer, ApiError> {
    let name = names::from_segment(kind, segment)?;
    let query = query::of(head, &["limit"])?;
    let most = limit(query)?;
    let action = ScanAction::List { limit: most };
    let found = scan(control, target(control, &name), action).await?;
    let ScannedNodes { scanned: Scanned { count, mut connections }, is_complete } = found;
    // The newest first. Those whose age is not known are older than all others.
    connections.sort_by_key(|found| (std::cmp::Reverse(found.since_ms), found.name));
    connections.truncate(most);
    let has_more = count > connections.len() as u64;
    let connections: Vec<_> = connections.iter().map(entry).collect();
    let mut body = json!({
        kind.noun(): name.name(),
        "count": count,
        "connections": connections,
        "more": has_more,
    });
    mark_partial(&mut body, is_complete);
    large_answer::json(&control.read_answers, body.to_string())
}

/// `GET /connections?sort=behind`: who is behind, those that hold most first.
pub(crate) async fn list_behind(control: &Control, head: &Parts) -> Result<Answer, ApiError> {
    let query = query::of(head, &["sort", "limit"])?;
    if query::find(query, "sort")?.as_deref() != Some("behind") {
        let message = "only connections that are behind are listed: add `sort=behind`";
        return Err(ApiError::parameter(message));
    }
    let most = limit(query)?;
    let action = ScanAction::List { limit: most };
    let found = scan(control, ScanTarget::Behind, action).await?;
    let ScannedNodes { scanned: Scanned { count, mut connections }, is_complete } = found;
    connections.sort_by_key(FoundConnection::behind_order);
    connections.truncate(most);
    let has_more = count > connections.len() as u64;
    let connections: Vec<_> = connections.iter().map(entry).collect();
    let mut body = json!({ "count": count, "connections": connections, "more": has_more });
    mark_partial(&mut body, is_complete);
    large_answer::json(&control.read_answers, body.to_string())
}

fn entry(found: &FoundConnection) -> serde_json::Value {
    let peer = found.peer.map(|peer| peer.to_string());
    let mut entry = json!({
        "connection": found.name.to_string(),
        "transport": found.transport.word(),
        "since": found.since_ms,
        "address": peer,
    });
    if let Some(client) = found.proxied {
        entry["address"] = client.to_string().into();
        entry["proxy"] = peer.into();
    }
    if let Some(lag) = &found.lag {
        let of = |kind| -> Vec<&str> {
            let channels = lag.channels.iter().filter(|name| name.kind() == kind);
            channels.map(ChannelName::name).collect()
        };
        entry["user"] = lag.user.as_deref().into();
        entry["channels"] = of(Kind::Channel).into();
        entry["inboxes"] = of(Kind::User).into();
        entry["subscriptions"] = lag.subscriptions.into();
        entry["behind_since"] = lag.since_ms.into();
        entry["messages"] = lag.messages.into();
        entry["bytes"] = lag.bytes.into();
        entry["kernel_bytes"] = lag.kernel_bytes.into();
    }
    entry
}

/// `DELETE /users/{user}/connections` and `/channels/{channel}/connections`.
pub(crate) async fn disconnect_all(
    control: &Control,
    head: &Parts,
    kind: Kind,
    segment: &str,
) -> Result<Answer, ApiError> {
    let name = names::from_segment(kind, segment)?;
    let close = close(head)?;
    let found = scan(control, target(control, &name), ScanAction::Close(close)).await?;
    Ok(disconnected(found.scanned, found.is_complete))
}

/// `DELETE /connections/{connection}`, the value of a `Throng-Connection`.
pub(crate) async fn disconnect(
    control: &Control,
    head: &Parts,
    segment: &str,
) -> Result<Answer, ApiError> {
    let name: ConnectionName = segment.parse().map_err(|_| {
        ApiError::new(ErrorCode::BadName, "this is not the value of a `Throng-Connection`")
    })?;
    let close = close(head)?;
    let found =
        scan(control, ScanTarget::Connections(vec![name]), ScanAction::Close(close)).await?;
    if found.scanned.count == 0 && !found.is_complete {
        let message = "it is not on this node, and not all others have answered; try again later";
        return Err(ApiError::new(ErrorCode::Busy, message));
    }
    if found.scanned.count == 0 {
        return Err(ApiError::new(ErrorCode::NotFound, "there is no such connection"));
    }
    Ok(disconnected(found.scanned, true))
}

/// Says that nodes have not answered, if so.
fn mark_partial(body: &mut serde_json::Value, is_complete: bool) {
    if !is_complete {
        body["partial"] = true.into();
    }
}

fn disconnected(scanned: Scanned, is_complete: bool) -> Answer {
    let mut body = json!({ "disconnected": scanned.count });
    mark_partial(&mut body, is_complete);
    answer::json(http::StatusCode::OK, body.to_string().into_bytes())
}

fn target(control: &Control, name: &ChannelName) -> ScanTarget {
    match name.kind() {
        Kind::User => ScanTarget::User {
            inbox: name.clone(),
            tags: control.authentication.tags_of(name.name()),
        },
        Kind::Channel | Kind::Internal => ScanTarget::Channel(name.clone()),
    }
}

/// The result of a scan by the workers of all nodes.
pub(super) struct ScannedNodes {
    pub(super) scanned: Scanned,
    /// True if every node has answered.
    pub(super) is_complete: bool,
}

/// Has the workers of all nodes pass their connections.
pub(super) async fn scan(
    control: &Control,
    target: ScanTarget,
    action: ScanAction,
) -> Result<ScannedNodes, ApiError> {
    let others = |later: Later<'_, _>| {
        Ok::<_, Infallible>(control.engine.scan_elsewhere(&target, &action, later))
    };
    let Ok(others) = ask(others);
    let here = |later: Later<'_, _>| Ok::<_, Infallible>(control.edge.scan(target, action, later));
    let Ok(scanned) = within(WORKERS_TIMEOUT, here).await;
    let mut scanned = scanned.ok_or_else(|| {
        let message = "the workers are too busy to pass all connections; try again later";
        ApiError::new(ErrorCode::Busy, message)
    })?;
    let Some(OtherNodes { found, is_complete }) = others.within(WORKERS_TIMEOUT).await else {
        return Ok(ScannedNodes { scanned, is_complete: false });
    };
    scanned.count = scanned.count.saturating_add(found.count);
    scanned.connections.extend(found.connections);
    Ok(ScannedNodes { scanned, is_complete })
}

/// How a request wants connections to be closed: its parameters `code`, `reason` and `reconnect`.
fn close(head: &Parts) -> Result<ScanClose, ApiError> {
    let query = query::of(head, &["reconnect", "code", "reason"])?;
    let may_return = query::flag(query, "reconnect")?;
    let code = match query::find(query, "code")? {
        None if may_return == Some(false) => close_code::DISCONNECTED_FOR_GOOD,
        None => close_code::DISCONNECTED,
        Some(text) => text
            .parse()
            .ok()
            .filter(|code| (close_code::DISCONNECTED..=close_code::LAST).contains(code))
            .ok_or_else(|| ApiError::parameter("`code` is a close code from 4100 to 4999"))?,
    };
    let code_allows = code < close_code::DISCONNECTED_FOR_GOOD;
    if may_return.is_some_and(|may_return| may_return != code_allows) {
        let message = "clients reconnect after codes from 4100 to 4499, but not after codes from \
            4500 to 4999; `reconnect` contradicts that";
        return Err(ApiError::parameter(message));
    }
    // The reason has what its code leaves of a control frame (RFC 6455 section 5.5).
    let reason = query::find(query, "reason")?.unwrap_or(REASON.into());
    if reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
        return Err(ApiError::parameter(
            "`reason` has at most 123 bytes and no control characters",
        ));
    }
    Ok(ScanClose { code, reason: reason.into(), may_return: code_allows })
}
