//! Subscriptions that the server keeps: what users follow, on every connection.
//!
//! A change is answered once the user's connections follow it: from then on nothing that is
//! published to a channel which the user has ceased to follow is delivered.

mod body;
mod bulk;

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use throng_access::{KeptChange, KeptChanged, KeptPage, ServerKey};
use throng_core::{ChannelName, Kind, ListPlace};
use throng_wire::{ErrorCode, check_name};

use super::parameters::limit;
use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::names::{LogPart, Resource};
use crate::http::{body as request_body, large_answer, names, query};
use crate::kept_changes::{ChangeOrder, Made, RefusedChange, When, check_covered, check_user};
use body::KeptBody;

/// Answers a request about what users follow.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    resource: Resource<'_>,
) -> Result<Answer, ApiError> {
    if !resource.methods().split(", ").any(|method| method == head.method.as_str()) {
        return Err(ApiError::method(resource.methods()));
    }
    match resource {
        Resource::Log(_, user, LogPart::Subscriptions) => {
            answer_user(control, head, body, user).await
        }
        Resource::Log(_, channel, _) => followers(control, head, channel),
        _ => bulk::import(control, head, body, check(control, head)?).await,
    }
}

/// `GET`, `PUT`, `POST` and `DELETE` of `/users/{user}/subscriptions`.
async fn answer_user(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    segment: &str,
) -> Result<Answer, ApiError> {
    let shown = check(control, head)?;
    let key = shown.as_deref();
    let user = names::from_segment(Kind::User, segment)?;
    check_user(key, &user)?;
    let change = match head.method {
        Method::GET | Method::HEAD => return list(control, head, key, &user).await,
        Method::DELETE => delete(head, key)?,
        _ => {
            query::of(head, &[])?;
            let kind = request_body::BodyKind::Batch;
            let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
            let body = KeptBody::parse(&bytes)?;
            if body.user.is_some() || (head.method == Method::PUT && body.channels.is_none()) {
                let message = "`PUT` takes {\"channels\": […]}, and `POST` {\"add\": […], \
                    \"remove\": […]}; the path names the user";
                return Err(ApiError::new(ErrorCode::BadJson, message));
            }
            body.change(key)?
        }
    };
    let order = ChangeOrder { line: 0, user: user.name().to_owned(), change };
    let Made { changed, refused, announced } =
        control.kept_changes.make(shown.clone(), vec![order], When::Possible).await?;
    if let Some(RefusedChange { error, .. }) = refused.into_iter().next() {
        return Err(error.into());
    }
    announced.wait().await?;
    let KeptChanged { added, removed, channels } = changed.into_iter().next().unwrap_or_default();
    let channels = match key {
        None => channels,
        // As a list counts them.
        Some(_) => shown_page(control, key, &user, None, 0).count,
    };
    let body = json!({
        "user": user.name(), "channels": channels, "added": added, "removed": removed,
    });
    Ok(answer::json(StatusCode::OK, body.to_string().into_bytes()))
}

/// The change that a `DELETE` makes: it ends the channel of the query, or all.
fn delete(head: &Parts, key: Option<&ServerKey>) -> Result<KeptChange, ApiError> {
    let query = query::of(head, &["channel"])?;
    Ok(match query::find(query, "channel")? {
        None => KeptChange::Replace(Vec::new()),
        Some(channel) => {
            check_name(&channel, Kind::Channel.noun())?;
            check_covered(key, &channel)?;
            KeptChange::Update { add: Vec::new(), remove: vec![channel.into_owned()] }
        }
    })
}

fn check(control: &Control, head: &Parts) -> Result<Option<Arc<ServerKey>>, ApiError> {
    let (authentication, settings) = (&control.authentication, &control.settings);
    authentication.check_operator(settings, head, Operation::Subscriptions)
}

/// A page of the channels that a user follows.
async fn list(
    control: &Control,
    head: &Parts,
    key: Option<&ServerKey>,
    user: &ChannelName,
) -> Result<Answer, ApiError> {
    control.kept_changes.read_users(std::iter::once(user.name())).await?;
    let page = |after, limit| (shown_page(control, key, user, after, limit), false);
    answer_page(control, head, "user", user.name(), "channels", page)
}

/// A page of the channels that a user follows, without those that the key is not for.
fn shown_page(
    control: &Control,
    key: Option<&ServerKey>,
    user: &ChannelName,
    after: Option<u32>,
    limit: usize,
) -> KeptPage {
    let user = user.name();
    let is_shown = |name: &str| check_covered(key, name).is_ok();
    match key {
        None => control.kept.channels_page(user, after, limit),
        Some(_) => control.kept.shown_channels_page(user, after, limit, is_shown),
    }
}

/// `GET /channels/{channel}/followers`: a page of the users that follow a channel.
fn followers(control: &Control, head: &Parts, segment: &str) -> Result<Answer, ApiError> {
    let key = check(control, head)?;
    let key = key.as_deref();
    let channel = names::from_segment(Kind::Channel, segment)?;
    check_covered(key, channel.name())?;
    let page = |after, limit| {
        // In this order: one that is whole was whole before it was looked at.
        let is_partial = !control.kept.is_whole();
        (control.kept.followers_page(channel.name(), after, limit), is_partial)
    };
    answer_page(control, head, "channel", channel.name(), "followers", page)
}

/// The response with a page: the field `noun` has `name`, and `plural` the names of the page, which
/// may be partial.
fn answer_page(
    control: &Control,
    head: &Parts,
    noun: &str,
    name: &str,
    plural: &str,
    page: impl Fn(Option<u32>, usize) -> (KeptPage, bool),
) -> Result<Answer, ApiError> {
    control.kept_changes.check_known()?;
    let query = query::of(head, &["limit", "after"])?;
    let limit = limit(query)?;
    let after = query::find(query, "after")?;
    let after = after.map(|text| control.cursors.place(&text)).transpose()?;
    let after = after.map(|ListPlace(place)| u32::try_from(place).unwrap_or(u32::MAX));
    let (KeptPage { names, next, count }, is_partial) = page(after, limit);
    let names: Vec<Value> = names.into_iter().map(|name| String::from(name).into()).collect();
    let mut body = json!({ noun: name, plural: names, "count": count, "more": next.is_some() });
    if let Some(next) = next {
        body["after"] = control.cursors.text(ListPlace(next.into())).into();
    }
    if is_partial {
        body["partial"] = true.into();
    }
    large_answer::json(&control.read_answers, body.to_string())
}
