//! `PUT /channels/{channel}/creation` creates a channel, with properties that stay; `GET` shows
//! them.
//!
//! It can be repeated: the same properties are no error, others are. A channel whose time is over
//! is erased: see [`crate::mortal`].

use std::num::NonZeroU64;

use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use throng_access::{Action, Client};
use throng_core::{ChangeError, ChannelName, Creation, Kind, LogChange, PublishError, clock};
use throng_wire::v1::{CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX};
use throng_wire::{ErrorCode, ErrorResponse, check_target_name};

use super::erase::{ATTEMPTS_MAX, ErasedLog, busy, error_of};
use super::limit::Limited;
use super::permit::Permit;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{body, names, query};

/// The body of a request: the properties of the channel.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Properties {
    content_type: Option<String>,
    /// In seconds.
    ttl: Option<u64>,
    /// In milliseconds since 1970.
    expires_at: Option<u64>,
}

impl Properties {
    fn parse(bytes: &[u8]) -> Result<Properties, ErrorResponse> {
        let first = bytes.trim_ascii_start().first();
        let Some(first) = first else { return Ok(Properties::default()) };
        let refused = |why: String| {
            let message =
                format!("this is not an object with `content_type`, `ttl`, `expires_at`: {why}");
            ErrorResponse::new(ErrorCode::BadJson, message)
        };
        // Of a list, the parser would take the elements for the fields, in their order.
        if *first != b'{' {
            return Err(refused("it does not begin with `{`".into()));
        }
        serde_json::from_slice(bytes).map_err(|error| refused(error.to_string()))
    }

    /// The creation with these properties, now.
    fn creation(self) -> Result<Creation, ErrorResponse> {
        let bad = |message: String| ErrorResponse::new(ErrorCode::BadParameter, message);
        let now_ms = clock::machine_ms();
        if self.content_type.as_deref().is_some_and(|it| !is_content_type(it)) {
            return Err(bad(format!(
                "`content_type` must be a media type, such as application/json, of at most \
                 {CONTENT_TYPE_BYTES_MAX} characters"
            )));
        }
        let ttl_s = 1..=u64::from(EXPIRES_IN_S_MAX);
        if self.ttl.is_some_and(|ttl| !ttl_s.contains(&ttl)) {
            let message = format!("`ttl` must be a number of seconds, 1 to {EXPIRES_IN_S_MAX}");
            return Err(bad(message));
        }
        let latest_ms = now_ms + u64::from(EXPIRES_IN_S_MAX) * 1_000;
        if self.expires_at.is_some_and(|at_ms| !(now_ms + 1..=latest_ms).contains(&at_ms)) {
            let message = "`expires_at` must be a time in milliseconds since 1970, from now on and \
                           within a year";
            return Err(bad(message.into()));
        }
        Ok(Creation {
            content_type: self.content_type.map(String::into_boxed_str),
            ttl_ms: self.ttl.and_then(|ttl| NonZeroU64::new(ttl * 1_000)),
            expires_ms: self.expires_at.and_then(NonZeroU64::new),
            ..Creation::at(now_ms)
        })
    }
}

/// True for a type and a subtype, perhaps with parameters.
fn is_content_type(text: &str) -> bool {
    let is_token = |part: &str| {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !part.is_empty() && part.bytes().all(is_of_token)
    };
    let essence = text.split(';').next().unwrap_or_default().trim();
    text.len() <= CONTENT_TYPE_BYTES_MAX
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && essence.split_once('/').is_some_and(|(kind, rest)| is_token(kind) && is_token(rest))
}

/// Creates a channel.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    segment: &str,
) -> Result<Answer, ApiError> {
    debug_assert_eq!(head.method, Method::PUT);
    // Until it is dropped, the drain of the workers does not begin.
    let _in_progress = control.drain.begin_publication()?;
    let creator = Limited::of(control, head, client)?;
    creator.begin(head, 1).map_err(ApiError::limited)?;
    let channel = names::from_segment(Kind::Channel, segment)?;
    check_target_name(channel.name(), Kind::Channel.noun())?;
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::Create(&channel)).await?;
    query::of(head, &[])?;
    if control.engine.rule(&channel).retention.is_none() {
        let message =
            "the channel keeps no messages, so it cannot be created: see `messages` of its rule";
        return Err(ApiError::new(ErrorCode::BadRequest, message));
    }
    let kind = body::BodyKind::Message;
    let is_counted = creator.charge_body(head, kind)?;
    let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
    if !is_counted {
        creator.count(0, bytes.len()).map_err(ApiError::limited)?;
    }
    let wanted = Properties::parse(&bytes)?.creation()?;
    permit.recheck(Action::Create(&channel))?;
    let (creation, is_new) = create(&ErasedLog { control, channel: &channel }, wanted).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer::json(status, shown(&channel, &creation)))
}

/// Creates a channel, unless it is created. Returns its creation, and whether it is new.
async fn create(log: &ErasedLog<'_>, wanted: Creation) -> Result<(Creation, bool), ErrorResponse> {
    for _ in 0..ATTEMPTS_MAX {
        let before = log.state().await?;
        let known = before.creation();
        if known.as_ref().is_some_and(|known| known.is_over) {
            let message =
                "the time of the channel is over, and it is being erased; try again later";
            return Err(ErrorResponse::new(ErrorCode::Busy, message));
        }
        if before.is_ended() {
            return Err(PublishError::Ended.into());
        }
        if let Some(known) = known {
            return match known.difference(&wanted) {
                None => Ok((known, false)),
                Some(property) => Err(differs(&known, property)),
            };
        }
        let creation = wanted.clone().having_seen(before.head.offset, wanted.created_ms);
        let change = LogChange::create(log.channel.clone(), &creation, &before);
        match log.make(change).await {
            Ok(_) => return Ok((creation, true)),
            Err(ChangeError::Conflict(_)) => {}
            Err(error) => return Err(error_of(error)),
        }
    }
    Err(busy())
}

/// The error of a creation with another property than the channel has.
fn differs(known: &Creation, property: &'static str) -> ErrorResponse {
    let message = match property_of(known, property) {
        None => format!("the channel was created without `{property}`"),
        Some(value) => format!("the channel was created with another `{property}`: {value}"),
    };
    ErrorResponse::new(ErrorCode::AlreadyCreated, message)
}

fn property_of(creation: &Creation, property: &str) -> Option<String> {
    match property {
        "content_type" => creation.content_type.as_deref().map(String::from),
        "ttl" => creation.ttl_ms.map(|ttl_ms| (ttl_ms.get() / 1_000).to_string()),
        _ => creation.expires_ms.map(|at_ms| at_ms.to_string()),
    }
}

/// Shows the creation of a channel to those who may read its history.
pub(crate) async fn show(
    control: &Control,
    head: &Parts,
    client: &Client,
    segment: &str,
) -> Result<Answer, ApiError> {
    let channel = names::from_segment(Kind::Channel, segment)?;
    check_target_name(channel.name(), Kind::Channel.noun())?;
    Permit::of(control, head, client)?.ask(Action::ReadHistory(&channel)).await?;
    query::of(head, &[])?;
    Limited::of(control, head, client)?.begin_reading().map_err(ApiError::limited)?;
    let state = ErasedLog { control, channel: &channel }.state().await?;
    match state.creation().filter(|creation| !creation.is_over) {
        Some(creation) => Ok(answer::json(StatusCode::OK, shown(&channel, &creation))),
        None => {
            let message = "nobody has created the channel";
            Err(ApiError::new(ErrorCode::NotCreated, message))
        }
    }
}

fn shown(channel: &ChannelName, creation: &Creation) -> Vec<u8> {
    let mut shown = json!({ "channel": channel.name(), "created": creation.created_ms });
    if let Some(content_type) = &creation.content_type {
        shown["content_type"] = json!(content_type);
    }
    if let Some(ttl_ms) = creation.ttl_ms {
        shown["ttl"] = json!(ttl_ms.get() / 1_000);
    }
    if let Some(expires_ms) = creation.expires_ms {
        shown["expires_at"] = json!(expires_ms);
    }
    shown.to_string().into_bytes()
}
