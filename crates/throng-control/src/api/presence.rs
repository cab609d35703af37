//! `GET /channels/{channel}/presence`: the subscribers of a channel.

use http::request::Parts;
use throng_access::{Action, Client};
use throng_core::{ChannelName, HistoryQuery, Kind, Later, clock};
use throng_wire::ErrorCode;
use throng_wire::v1;

use super::limit::Limited;
use super::log;
use super::parameters::{WORKERS_TIMEOUT, limit, set_id};
use super::permit::Permit;
use crate::control::Control;
use crate::http::answer::{Answer, ApiError};
use crate::http::{large_answer, names, query};
use crate::late_answer::within;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    kind: Kind,
    segment: &str,
) -> Result<Answer, ApiError> {
    let channel = names::from_segment(kind, segment)?;
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::ReadPresence(&channel)).await?;
    let members = control.engine.memory().rules().members(&channel);
    let query = query::of(head, &["limit", "after"])?;
    let after = query::find(query, "after")?;
    if after.is_some() && members.is_none() {
        return Err(ApiError::parameter("`after` is for channels with a list of members"));
    }
    let limited = Limited::of(control, head, client)?;
    limited.begin_reading().map_err(ApiError::limited)?;
    log::check_exists(&control.engine, &channel).await?;
    let max_users = limit(query)?;
    let now_ms = clock::now_ms();
    if members.is_some() {
        let counted = count(control, &channel).await?;
        permit.recheck(Action::ReadPresence(&channel))?;
        return list_members(control, &limited, &channel, (after.as_deref(), max_users), counted);
    }
    let ask = |later: Later<'_, _>| control.engine.presence(now_ms, &channel, max_users, later);
    let presence = within(WORKERS_TIMEOUT, ask).await?.ok_or_else(busy)?;
    let present = presence.answer(control.engine.is_local(&channel));
    let mut body = Vec::new();
    v1::presence_body(&mut body, &names::target(&channel), present);
    limited.charge_read(body.len());
    let mut answer = large_answer::json(&control.read_answers, body)?;
    let (engine, newest) = (&control.engine, HistoryQuery::Newest);
    let history = log::read(engine, &channel, newest, 0, &mut { log::FETCH_TIMEOUT }).await?;
    // The workers and the log may have taken seconds.
    permit.recheck(Action::ReadPresence(&channel))?;
    set_id(&mut answer, history.head);
    Ok(answer)
}

fn busy() -> ApiError {
    let message = "the workers are too busy to count the subscribers; try again later";
    ApiError::new(ErrorCode::Busy, message)
}

/// The subscribers of a channel with members, and whether other nodes may have more of both. Once
/// it is known, so are the members.
async fn count(control: &Control, channel: &ChannelName) -> Result<(u64, bool), ApiError> {
    let engine = &control.engine;
    if !engine.memory().shares_members(channel) {
        return Ok((engine.audience(channel).subscribers, false));
    }
    let ask = |later: Later<'_, _>| engine.presence(clock::now_ms(), channel, 0, later);
    let presence = within(WORKERS_TIMEOUT, ask).await?.ok_or_else(busy)?;
    Ok((presence.connections as u64, presence.is_partial))
}

/// Answers with a page of the members of a channel, which the server has in a list.
fn list_members(
    control: &Control,
    limited: &Limited<'_>,
    channel: &ChannelName,
    (after, limit): (Option<&str>, usize),
    (subscribers, is_partial): (u64, bool),
) -> Result<Answer, ApiError> {
    let engine = &control.engine;
    let page = engine.memory().members(clock::now_ms(), channel, after, limit);
    let present = page.answer(subscribers, (is_partial, engine.is_local(channel)));
    let mut body = Vec::new();
    v1::presence_body(&mut body, &names::target(channel), present);
    limited.charge_read(body.len());
    let mut answer = large_answer::json(&control.read_answers, body)?;
    set_id(&mut answer, engine.memory().state(&ChannelName::members(channel.name())).head);
    Ok(answer)
}
