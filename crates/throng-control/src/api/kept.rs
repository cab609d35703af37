//! Subscriptions that the server keeps: what users follow, on every connection.
//!
//! A change is answered once the user's connections follow it: from then on nothing that is
//! published to a channel which the user has ceased to follow is delivered.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use throng_access::{KeptChange, KeptChanged, KeptPage, ServerKey};
use throng_core::{ChannelName, KeptNotice, Kind, ListPlace, Notification, Ticket};
use throng_wire::{ErrorCode, ErrorResponse, check_name};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::parameters::{WORKERS_TIMEOUT, limit};
use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::names::{Part, Resource};
use crate::http::{body, large_answer, names, query};

/// Maximum number of lines of a request that changes many users.
const LINES_MAX: usize = 10_000;

/// Maximum number of channels that one change names: twice what a user may follow.
const MAX_NAMES: usize = 20_000;

/// Lines after which other requests get their turn.
const LINES_PER_TURN: usize = 64;

/// The body of a change.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    /// The user, in a line about several users.
    user: Option<String>,
    /// The user follows exactly these.
    channels: Option<Vec<String>>,
    /// The user follows these, too.
    add: Option<Vec<String>>,
    /// The user no longer follows these.
    remove: Option<Vec<String>>,
}

impl Body {
    fn parse(bytes: &[u8]) -> Result<Body, ErrorResponse> {
        serde_json::from_slice(bytes).map_err(|error| {
            let message = format!(
                "this is not an object with `channels`, or with `add` and `remove`, as lists of \
                names: {error}"
            );
            ErrorResponse::new(ErrorCode::BadJson, message)
        })
    }

    /// The change, if the key covers its channels.
    fn change(self, key: Option<&ServerKey>) -> Result<KeptChange, ErrorResponse> {
        let change = match (self.channels, self.add, self.remove) {
            (Some(channels), None, None) => KeptChange::Replace(channels),
            (None, add, remove) if add.is_some() || remove.is_some() => {
                let (add, remove) = (add.unwrap_or_default(), remove.unwrap_or_default());
                KeptChange::Update { add, remove }
            }
            _ => {
                let message = "give either `channels`, or `add` and `remove`";
                return Err(ErrorResponse::new(ErrorCode::BadJson, message));
            }
        };
        let (first, second): (&[String], &[String]) = match &change {
            KeptChange::Replace(channels) => (channels, &[]),
            KeptChange::Update { add, remove } => (add, remove),
        };
        if first.len() + second.len() > MAX_NAMES {
            let message = format!("a change names at most {MAX_NAMES} channels");
            return Err(ErrorResponse::new(ErrorCode::TooManyChannels, message));
        }
        for name in first.iter().chain(second) {
            check_name(name, Kind::Channel.noun())?;
            check_covered(key, name)?;
        }
        Ok(change)
    }
}

fn check_covered(key: Option<&ServerKey>, channel: &str) -> Result<(), ErrorResponse> {
    if key.is_none_or(|key| key.covers(&ChannelName::channel(channel))) {
        return Ok(());
    }
    let message = format!("this server key is not for the channel `{channel}`");
    Err(ErrorResponse::new(ErrorCode::Forbidden, message))
}

/// What is never sent.
#[derive(Debug)]
enum Never {}

/// A change that connections are being told of.
#[derive(Debug, Default)]
struct Announced(Vec<oneshot::Receiver<Never>>);

impl Announced {
    /// Waits until all connections have been told.
    async fn wait(self) -> Result<(), ApiError> {
        let all = async {
            for told in self.0 {
                // It never comes: its sender is dropped.
                let _ = told.await;
            }
        };
        timeout(WORKERS_TIMEOUT, all).await.map_err(|_| {
            let message = "the change is made, but the workers are too busy to tell all \
                connections of it yet; send it again to wait for them";
            ApiError::new(ErrorCode::Busy, message)
        })
    }
}

/// Makes a change, and tells the workers that have connections of the user.
fn make(
    control: &Control,
    user: &str,
    change: &KeptChange,
) -> Result<(KeptChanged, Announced), ErrorResponse> {
    let announce = |channels: Vec<ChannelName>| {
        let inbox = ChannelName::user(user);
        let channels: Arc<[ChannelName]> = channels.into();
        let mut announced = Announced::default();
        for (worker, local, channel) in control.engine.audience(&inbox).workers {
            let (sender, receiver) = oneshot::channel();
            // Dropped by the worker when it is done, which is an answer, too.
            let done = Ticket::new(move |_| drop(sender));
            let (inbox, names) = (inbox.clone(), Arc::clone(&channels));
            let notice = KeptNotice { inbox, local, channel, names, done };
            control.engine.post(worker, Notification::Kept(Box::new(notice)));
            announced.0.push(receiver);
        }
        announced
    };
    Ok(control.kept.change(user, change, announce)?)
}

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
        Resource::Log(_, user, Part::Subscriptions) => answer_user(control, head, body, user).await,
        Resource::Log(_, channel, _) => followers(control, head, channel),
        _ => import(control, head, body).await,
    }
}

/// `GET`, `PUT`, `POST` and `DELETE` of `/users/{user}/subscriptions`.
async fn answer_user(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    segment: &str,
) -> Result<Answer, ApiError> {
    let key = check(control, head)?;
    let key = key.as_deref();
    let user = names::from_segment(Kind::User, segment)?;
    let change = match head.method {
        Method::GET | Method::HEAD => return list(control, head, key, &user),
        Method::DELETE => delete(head, key)?,
        _ => {
            query::check(head.uri.query().unwrap_or_default(), &[])?;
            let kind = body::Kind::Batch;
            let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
            let body = Body::parse(&bytes)?;
            if body.user.is_some() || (head.method == Method::PUT && body.channels.is_none()) {
                let message = "`PUT` takes {\"channels\": […]}, and `POST` {\"add\": […], \
                    \"remove\": […]}; the path names the user";
                return Err(ApiError::new(ErrorCode::BadJson, message));
            }
            body.change(key)?
        }
    };
    if let (Some(key), KeptChange::Replace(_)) = (key, &change) {
        check_all_covered(control, key, &user)?;
    }
    let (changed, announced) = make(control, user.name(), &change)?;
    announced.wait().await?;
    let KeptChanged { added, removed, channels } = changed;
    let body = json!({
        "user": user.name(), "channels": channels, "added": added, "removed": removed,
    });
    Ok(answer::json(StatusCode::OK, body.to_string().into_bytes()))
}

/// What a `DELETE` ends: the channels of the query, or all.
fn delete(head: &Parts, key: Option<&ServerKey>) -> Result<KeptChange, ApiError> {
    let query = head.uri.query().unwrap_or_default();
    query::check(query, &["channel"])?;
    Ok(match query::find(query, "channel")? {
        None => KeptChange::Replace(Vec::new()),
        Some(channel) => {
            check_name(&channel, Kind::Channel.noun())?;
            check_covered(key, &channel)?;
            KeptChange::Update { add: Vec::new(), remove: vec![channel.into_owned()] }
        }
    })
}

/// Fails unless the key is for all channels that the user follows: one for some of them must not
/// end the others.
fn check_all_covered(
    control: &Control,
    key: &ServerKey,
    user: &ChannelName,
) -> Result<(), ErrorResponse> {
    let page = control.kept.channels_page(user.name(), None, usize::MAX);
    page.names.iter().try_for_each(|name| check_covered(Some(key), name))
}

fn check(control: &Control, head: &Parts) -> Result<Option<Arc<ServerKey>>, ApiError> {
    let (authentication, settings) = (&control.authentication, &control.settings);
    authentication.check_operator(settings, head, Operation::Subscriptions)
}

/// A page of the channels that a user follows.
fn list(
    control: &Control,
    head: &Parts,
    key: Option<&ServerKey>,
    user: &ChannelName,
) -> Result<Answer, ApiError> {
    let page = |after, limit| control.kept.channels_page(user.name(), after, limit);
    let is_covered = |name: &str| check_covered(key, name).is_ok();
    answer_page(control, head, ("user", user.name()), ("channels", page), is_covered)
}

/// `GET /channels/{channel}/followers`: a page of the users that follow a channel.
fn followers(control: &Control, head: &Parts, segment: &str) -> Result<Answer, ApiError> {
    let key = check(control, head)?;
    let key = key.as_deref();
    let channel = names::from_segment(Kind::Channel, segment)?;
    check_covered(key, channel.name())?;
    let page = |after, limit| control.kept.followers_page(channel.name(), after, limit);
    answer_page(control, head, ("channel", channel.name()), ("followers", page), |_| true)
}

fn answer_page(
    control: &Control,
    head: &Parts,
    (noun, name): (&str, &str),
    (plural, page): (&str, impl Fn(Option<u32>, usize) -> KeptPage),
    is_shown: impl Fn(&str) -> bool,
) -> Result<Answer, ApiError> {
    let query = head.uri.query().unwrap_or_default();
    query::check(query, &["limit", "after"])?;
    let limit = limit(query)?;
    let after = query::find(query, "after")?;
    let after = after.map(|text| control.cursors.place(&text)).transpose()?;
    let after = after.map(|ListPlace(place)| u32::try_from(place).unwrap_or(u32::MAX));
    let KeptPage { names, next, count } = page(after, limit);
    let names: Vec<Value> = names
        .into_iter()
        .filter(|name| is_shown(name))
        .map(|name| String::from(name).into())
        .collect();
    let mut body = json!({ noun: name, plural: names, "count": count, "more": next.is_some() });
    if let Some(next) = next {
        body["after"] = control.cursors.text(ListPlace(next.into())).into();
    }
    let body = body.to_string().into_bytes();
    let reservation = large_answer::reserve(&control.read_answers, body.len())?;
    Ok(large_answer::answer(answer::JSON, body, reservation))
}

/// What is wrong with one line.
#[derive(Debug)]
struct BadLine {
    /// Counted from 1, with empty lines.
    line: usize,
    error: ErrorResponse,
}

/// A line of a request that changes many users.
#[derive(Debug)]
struct Line {
    number: usize,
    user: String,
    change: KeptChange,
}

fn parse_line(
    bytes: &[u8],
    key: Option<&ServerKey>,
) -> Result<(String, KeptChange), ErrorResponse> {
    let mut body = Body::parse(bytes)?;
    let Some(user) = body.user.take() else {
        return Err(ErrorResponse::new(ErrorCode::BadJson, "the line has no `user`"));
    };
    check_name(&user, Kind::User.noun())?;
    Ok((user, body.change(key)?))
}

/// `POST /subscriptions`: changes of many users, one JSON object per line. With `atomic=true`,
/// nothing changes unless all lines are right; with `check=true`, nothing changes at all.
async fn import(control: &Control, head: &Parts, body: &mut Incoming) -> Result<Answer, ApiError> {
    let key = check(control, head)?;
    let key = key.as_deref();
    let query = head.uri.query().unwrap_or_default();
    query::check(query, &["atomic", "check"])?;
    let (is_atomic, is_check) = (flag(query, "atomic")?, flag(query, "check")?);
    let kind = body::Kind::Batch;
    let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
    let (lines, mut bad) = parse(&bytes, key)?;
    let mut totals = Totals::default();
    if is_check || (is_atomic && bad.is_empty()) {
        bad.extend(check_limits(control, &lines));
    }
    let is_refused = is_atomic && !bad.is_empty();
    let applies = !is_check && !is_refused;
    let mut announced = Announced::default();
    for (index, line) in lines.iter().enumerate().filter(|_| applies) {
        if index % LINES_PER_TURN == LINES_PER_TURN - 1 {
            tokio::task::yield_now().await;
        }
        if let (Some(key), KeptChange::Replace(_)) = (key, &line.change)
            && let Err(error) = check_all_covered(control, key, &ChannelName::user(&line.user))
        {
            bad.push(BadLine { line: line.number, error });
            continue;
        }
        match make(control, &line.user, &line.change) {
            Ok((changed, told)) => {
                totals.add(changed);
                announced.0.extend(told.0);
            }
            Err(error) => bad.push(BadLine { line: line.number, error }),
        }
    }
    announced.wait().await?;
    bad.sort_by_key(|bad| bad.line);
    answer_import(control, &totals, &bad)
}

/// What all lines together have changed.
#[derive(Debug, Default)]
struct Totals {
    lines: usize,
    added: usize,
    removed: usize,
}

impl Totals {
    fn add(&mut self, changed: KeptChanged) {
        self.lines += 1;
        self.added += changed.added;
        self.removed += changed.removed;
    }
}

fn answer_import(control: &Control, totals: &Totals, bad: &[BadLine]) -> Result<Answer, ApiError> {
    for BadLine { error, .. } in bad {
        control.refusals.record(error.code);
    }
    let errors: Vec<Value> = bad
        .iter()
        .map(|BadLine { line, error }| {
            json!({ "line": line, "error": error.code.name(), "message": error.message })
        })
        .collect();
    let Totals { lines, added, removed } = totals;
    let body = json!({ "lines": lines, "added": added, "removed": removed, "errors": errors });
    let body = body.to_string().into_bytes();
    let reservation = large_answer::reserve(&control.publish_answers, body.len())?;
    let content_type = HeaderValue::from_static("application/json");
    Ok(large_answer::answer(content_type, body, reservation))
}

fn flag(query: &str, name: &str) -> Result<bool, ApiError> {
    match query::find(query, name)?.as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiError::parameter(format!("`{name}` is true or false"))),
    }
}

fn parse(bytes: &[u8], key: Option<&ServerKey>) -> Result<(Vec<Line>, Vec<BadLine>), ApiError> {
    let (mut lines, mut bad) = (Vec::new(), Vec::new());
    for (index, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        if lines.len() + bad.len() == LINES_MAX {
            let message = format!("there are more than {LINES_MAX} lines; nothing was changed");
            return Err(ApiError::new(ErrorCode::TooLarge, message));
        }
        let number = index + 1;
        match parse_line(bytes, key) {
            Ok((user, change)) => lines.push(Line { number, user, change }),
            Err(error) => bad.push(BadLine { line: number, error }),
        }
    }
    Ok((lines, bad))
}

/// The lines that would exceed a limit as things are. Lines before them count as they add.
fn check_limits(control: &Control, lines: &[Line]) -> Vec<BadLine> {
    let mut extra = 0;
    let mut bad = Vec::new();
    for Line { number, user, change } in lines {
        match control.kept.check(user, change, extra) {
            Ok(added) => extra += added,
            Err(error) => bad.push(BadLine { line: *number, error: error.into() }),
        }
    }
    bad
}
