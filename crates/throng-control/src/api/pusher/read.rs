//! `GET /apps/{id}/channels`, `/apps/{id}/channels/{channel}` and its `/users`.

use std::convert::Infallible;

use serde_json::{Map, Value, json};
use throng_access::Client;
use throng_core::{ChannelName, HistoryQuery, Later, Message, clock};
use throng_pusher::Channel;
use throng_pusher::channel::Access;
use throng_pusher::trigger::{Info, TriggerError};
use throng_wire::ErrorCode;

use super::signed::{Signed, malformed, named};
use crate::api::count::{CountedNodes, Elsewhere};
use crate::api::limit::Limited;
use crate::api::parameters::WORKERS_TIMEOUT;
use crate::api::{listing, log};
use crate::http::answer::ApiError;
use crate::late_answer::within;

/// The most channels of a list, which has no pages.
const CHANNELS_MAX: usize = 10_000;

/// The members of a channel that are read in one step.
const MEMBERS_STEP: usize = 1000;

/// All channels of the application that somebody follows.
pub(super) async fn channels(signed: &Signed<'_>) -> Result<Value, ApiError> {
    begin_reading(signed)?;
    let info = info_of(signed)?;
    let begin = signed.parameter("filter_by_prefix")?.unwrap_or_default();
    // `.` and `..` are no names, but names begin so.
    if !matches!(begin, "" | "." | "..") && Channel::of(begin).is_none() {
        return Err(ApiError::parameter("`filter_by_prefix` is the beginning of a name"));
    }
    if info.user_count && !begin.starts_with("presence-") {
        let message = "`user_count` is of presence channels: filter_by_prefix=presence-";
        return Err(ApiError::parameter(message));
    }
    let app = signed.app.app();
    let pattern = app.own(&format!("{begin}*"));
    let (found, is_partial) = listing::followed(signed.control, &pattern, CHANNELS_MAX).await?;
    signed.lacks(is_partial);
    let mut channels = Map::new();
    if info.user_count {
        // All at once.
        let memory = signed.control.engine.memory();
        found.iter().for_each(|listed| memory.follow_members(clock::now_ms(), &listed.name));
    }
    for listed in found {
        let Some(channel) = app.shown(listed.name.name()).and_then(Channel::of) else { continue };
        let mut own = Map::new();
        if info.user_count {
            own.insert("user_count".into(), users_of(signed, &listed.name).await.into());
        }
        if info.subscription_count {
            own.insert("subscription_count".into(), listed.subscribers.into());
        }
        channels.insert(channel.name().to_owned(), own.into());
    }
    Ok(json!({ "channels": channels }))
}

/// One channel.
pub(super) async fn channel(signed: &Signed<'_>, segment: &str) -> Result<Value, ApiError> {
    begin_reading(signed)?;
    let info = info_of(signed)?;
    let name = named(segment)?;
    let channel = Channel::of(&name);
    let channel = channel.ok_or_else(|| malformed(TriggerError::Channel))?;
    let is_other = info.user_count && channel.access() != Access::Presence;
    if is_other || info.cache && !channel.is_cache() {
        let message = "this channel does not have the attribute that `info` asks for";
        return Err(ApiError::parameter(message));
    }
    let own = signed.own(channel)?;
    let count = subscribers_of(signed, &own).await;
    let mut object = Map::new();
    object.insert("occupied".into(), (count > 0).into());
    object.extend(attributes(signed, channel, info).await?);
    Ok(object.into())
}

/// The users of a presence channel.
pub(super) async fn users(signed: &Signed<'_>, segment: &str) -> Result<Value, ApiError> {
    begin_reading(signed)?;
    let name = named(segment)?;
    let channel = Channel::of(&name).filter(|channel| channel.access() == Access::Presence);
    let Some(channel) = channel else {
        let message = "only presence channels have users";
        return Err(ApiError::new(ErrorCode::BadRequest, message));
    };
    let (own, app) = (signed.own(channel)?, signed.app.app());
    know_members(signed, &own).await;
    let (mut users, mut after) = (Vec::new(), None);
    loop {
        let memory = signed.control.engine.memory();
        let page = memory.members(clock::now_ms(), &own, after.as_deref(), MEMBERS_STEP);
        let own = page.users.iter().filter_map(|user| app.shown(user));
        users.extend(own.map(|id| json!({ "id": id })));
        after = page.next;
        if after.is_none() {
            return Ok(json!({ "users": users }));
        }
    }
}

/// The attributes of a channel that it has.
pub(super) async fn attributes(
    signed: &Signed<'_>,
    channel: Channel<'_>,
    info: Info,
) -> Result<Map<String, Value>, ApiError> {
    let own = signed.own(channel)?;
    let mut object = Map::new();
    if info.user_count && channel.access() == Access::Presence {
        object.insert("user_count".into(), users_of(signed, &own).await.into());
    }
    if info.subscription_count {
        let count = subscribers_of(signed, &own).await;
        object.insert("subscription_count".into(), count.into());
    }
    if info.cache && channel.is_cache() {
        object.insert("cache".into(), cached(signed, &own).await?);
    }
    Ok(object)
}

/// The newest event of a cache channel, and how long it stays, in seconds.
async fn cached(signed: &Signed<'_>, own: &ChannelName) -> Result<Value, ApiError> {
    let engine = &signed.control.engine;
    let mut wait_left = log::FETCH_TIMEOUT;
    let history = log::read(engine, own, HistoryQuery::Newest, 1, &mut wait_left).await?;
    let Some(message) = history.messages.last() else { return Ok(Value::Null) };
    let rules = engine.memory().rules();
    let age_ms = clock::now_ms().saturating_sub(message.time_ms);
    let ttl_ms = rules.get(rules.find(own)).retention.max_age_ms.saturating_sub(age_ms);
    Ok(json!({ "data": text_of(message), "ttl": ttl_ms / 1000 }))
}

fn text_of(message: &Message) -> String {
    String::from_utf8_lossy(message.body.bytes()).into_owned()
}

async fn users_of(signed: &Signed<'_>, channel: &ChannelName) -> u64 {
    know_members(signed, channel).await;
    signed.control.engine.memory().members_of(channel)
}

/// Waits until the members of a channel on other nodes are known here, or cannot be.
async fn know_members(signed: &Signed<'_>, channel: &ChannelName) {
    let memory = signed.control.engine.memory();
    let ready = |later: Later<'_, _>| Ok(memory.members_ready(clock::now_ms(), channel, later));
    let Ok(is_partial): Result<_, Infallible> = within(WORKERS_TIMEOUT, ready).await;
    signed.lacks(is_partial.unwrap_or(true));
}

/// The subscribers of a channel on all nodes.
async fn subscribers_of(signed: &Signed<'_>, channel: &ChannelName) -> u64 {
    let control = signed.control;
    let elsewhere = Elsewhere::ask(control, CountedNodes::All, channel);
    let counted = elsewhere.and(control.engine.audience(channel).subscribers).await;
    signed.lacks(counted.is_partial);
    counted.subscribers
}

fn info_of(signed: &Signed<'_>) -> Result<Info, ApiError> {
    let names = signed.parameter("info")?.unwrap_or_default();
    Info::read(names).map_err(|error| ApiError::parameter(error.to_string()))
}

fn begin_reading(signed: &Signed<'_>) -> Result<(), ApiError> {
    let client = Client::Key(signed.app.server_key().clone());
    let limited = Limited::of(signed.control, signed.head, &client)?.of_app(&signed.app);
    limited.begin_reading().map_err(ApiError::limited)
}
