//! `PUT /channels/{channel}/creation` creates a channel, with properties that stay, and with its
//! first messages in the same step; `GET` shows the properties.
//!
//! It can be repeated: the same properties are no error, others are. Messages are published by the
//! request that creates the channel, and by no other. A channel whose time is over is erased: see
//! [`crate::mortal`].

use std::num::NonZeroU64;

use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use throng_access::{Action, Client};
use throng_core::{
    ChangeError, ChannelName, Creation, Kind, LogChange, MessageId, Publication, PublishError,
    RoomHolder, clock,
};
use throng_wire::v1::{CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX};
use throng_wire::{ErrorCode, ErrorResponse, check_target_name, interchange};

use super::batch::atomic;
use super::batch::items::{self, Form};
use super::channel_request::ChannelRequest;
use super::erase::{ATTEMPTS_MAX, ErasedLog, busy, error_of};
use super::limit::Limited;
use super::permit::Permit;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::body::BodyKind;
use crate::http::{names, query};
use crate::metrics::HttpCounter;

/// The body of a request: the properties of the channel, and its first messages.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Properties<'b> {
    content_type: Option<String>,
    /// In seconds.
    ttl: Option<u64>,
    /// In milliseconds since 1970.
    expires_at: Option<u64>,
    #[serde(borrow)]
    messages: Option<&'b RawValue>,
}

impl<'b> Properties<'b> {
    fn parse(bytes: &'b [u8]) -> Result<Properties<'b>, ErrorResponse> {
        let first = bytes.trim_ascii_start().first();
        let Some(first) = first else { return Ok(Properties::default()) };
        let refused = |why: String| {
            let message = format!(
                "this is not an object with `content_type`, `ttl`, `expires_at`, `messages`: {why}"
            );
            ErrorResponse::new(ErrorCode::BadJson, message)
        };
        // Of a list, the parser would take the elements for the fields, in their order.
        if *first != b'{' {
            return Err(refused("it does not begin with `{`".into()));
        }
        serde_json::from_slice(bytes).map_err(|error| refused(interchange::misfit(&error)))
    }

    /// The texts of the messages.
    fn messages(&self) -> Result<Vec<&'b [u8]>, ApiError> {
        let Some(messages) = self.messages else { return Ok(Vec::new()) };
        match items::divide(messages.get().as_bytes())? {
            (Form::Array, messages) => Ok(messages),
            (Form::Lines, _) => {
                let message = "`messages` must be an array of objects, as those of a batch are, \
                               without a channel";
                Err(ApiError::new(ErrorCode::BadJson, message))
            }
        }
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
    let mut request = ChannelRequest::begin(control, head, client, (Kind::Channel, segment))?;
    request.permit.ask(Action::Create(&request.channel)).await?;
    request.check_log(head, "be created")?;
    let bytes = request.read_body(head, body, BodyKind::Batch).await?;
    let properties = Properties::parse(&bytes)?;
    let lines = properties.messages()?;
    let wanted = properties.creation()?;
    let ChannelRequest { publisher, permit, channel, .. } = &mut request;
    let client = (&*publisher, &mut *permit);
    let messages = atomic::messages(control, client, lines, Some(channel)).await?;
    permit.recheck(Action::Create(channel))?;
    let log = ErasedLog { control, channel };
    let (creation, ids) = create(&log, wanted, (messages, permit.holder())).await?;
    let status = if ids.is_some() { StatusCode::CREATED } else { StatusCode::OK };
    let mut shown = shown(channel, &creation);
    if let Some(ids) = ids.filter(|ids| !ids.is_empty()) {
        ids.iter().for_each(|_| control.metrics.count(HttpCounter::Published));
        shown["ids"] = ids.iter().map(MessageId::to_string).collect();
    }
    Ok(answer::json(status, shown.to_string().into_bytes()))
}

/// Creates a channel with its first messages, unless it is created. Returns its creation, and the
/// ids of the messages if it is new.
async fn create(
    log: &ErasedLog<'_>,
    wanted: Creation,
    (messages, holder): (Vec<Publication>, RoomHolder),
) -> Result<(Creation, Option<Vec<MessageId>>), ErrorResponse> {
    for _ in 0..ATTEMPTS_MAX {
        let before = log.state().await?;
        let known = before.creation();
        if known.as_ref().is_some_and(|known| known.is_over) {
            return Err(being_erased());
        }
        if before.is_ended() {
            return Err(PublishError::Ended.into());
        }
        if let Some(known) = known {
            return match known.difference(&wanted) {
                None => Ok((known, None)),
                Some(property) => Err(differs(&known, property)),
            };
        }
        let creation = wanted.clone().having_seen(before.head.offset, wanted.created_ms);
        let change = LogChange::create(log.channel.clone(), &creation, &before);
        let change = LogChange { messages: messages.clone(), holder, ..change };
        match log.make(change).await {
            Ok(changed) => return Ok((creation, Some(changed.ids))),
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
        Some(creation) => {
            let shown = shown(&channel, &creation).to_string().into_bytes();
            Ok(answer::json(StatusCode::OK, shown))
        }
        None => {
            let message = "nobody has created the channel";
            Err(ApiError::new(ErrorCode::NotCreated, message))
        }
    }
}

/// The refusal of what would be erased with a channel whose time is over.
pub(super) fn being_erased() -> ErrorResponse {
    let message = "the time of the channel is over, and it is being erased; try again later";
    ErrorResponse::new(ErrorCode::Busy, message)
}

fn shown(channel: &ChannelName, creation: &Creation) -> Value {
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
    shown
}
