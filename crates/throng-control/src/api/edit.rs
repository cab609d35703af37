//! `PUT` of a message: erases it and publishes another one in its place.
//!
//! The new message, which names the one that it replaces, is in the log before the other is gone.
//! So workers drop that one's body as soon as they get the new one, as by a notice of erasure.

use http::StatusCode;
use http::request::Parts;
use hyper::body::Incoming;
use throng_access::{Action, Client};
use throng_core::{
    Attributes, Body, ChangeError, ChannelName, Condition, Erase, KeyCondition, Kind, LogChange,
    MessageId, Publication, Replacement,
};
use throng_wire::labels::StateKey;
use throng_wire::percent::decode_segment;
use throng_wire::{ErrorResponse, v1};

use super::channel_request::ChannelRequest;
use super::erase::{ErasedLog, error_of, gone};
use super::permit::Permit;
use super::publish::Options;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::body::BodyKind;
use crate::http::query;
use crate::metrics::HttpCounter;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    (kind, segment, id): (Kind, &str, &str),
) -> Result<Answer, ApiError> {
    let mut request = ChannelRequest::begin(control, head, client, (kind, segment))?;
    request.permit.ask_before_content(&request.channel).await?;
    let editor = Editor::of(&mut request.permit, &request.channel).await?;
    query::of(head, &[])?;
    let id: MessageId = decode_segment(id).unwrap_or_default().parse()?;
    let mut options = Options::of(&head.headers, "", None)?;
    ErasedLog { control, channel: &request.channel }.check_kept()?;
    let bytes = request.read_body(head, body, BodyKind::Message).await?;
    let ChannelRequest { permit, channel, .. } = &mut request;
    let channel = &*channel;
    let log = ErasedLog { control, channel };
    let (body, content_type) = Body::parse(&bytes, options.content_type)?;
    let content = Replacement { body, content_type };
    let content = permit.ask_about(channel, content, &options.labels).await?;
    drop(bytes);
    let replaced = log.find(id).await?;
    editor.check(replaced.facts().from)?;
    permit.recheck(Action::Publish(channel))?;
    let key = replaced.key().map(Box::<str>::from);
    options.labels.key = key.clone().map(|name| StateKey { name, is_removed: false });
    permit.ask_about_key(channel, &options.labels).await?;
    let attributes = permit.attributes(channel, &options.labels);
    let publication = Publication {
        content_type: content.content_type,
        excluded: options.excluded,
        attributes: Some(Attributes::replacing(attributes, id.offset)),
        expires_in_ms: options.expires_in_ms,
        holder: permit.holder_of(&options.labels),
        ..Publication::new(channel.clone(), content.body)
    };
    log.check_erasable().await?;
    // An old value does not come back.
    let key = key.map(|key| KeyCondition { key, newest: Some(id) });
    let condition = Condition { key, ..Condition::default() };
    let change = LogChange { condition, ..LogChange::append(channel.clone(), vec![publication]) };
    let made = log.change(change).await;
    if made.is_ok() {
        control.metrics.count(HttpCounter::Published);
    }
    // Another edit that has come first may not have got as far as this.
    if matches!(made, Ok(_) | Err(ChangeError::Conflict(_))) {
        log.erase(Erase::Message(id)).await?;
    }
    let new = made.map_err(|error| match error {
        ChangeError::Conflict(_) => gone(),
        error => error_of(error),
    })?;
    log.wait_for_workers().await;
    let mut body = Vec::with_capacity(96);
    v1::replaced_body(&mut body, &id.to_string(), &new.to_string());
    Ok(answer::json(StatusCode::OK, body))
}

/// The client that replaces a message.
enum Editor {
    /// It may replace any.
    Any,
    /// It may replace its own ones, and for others gets this error.
    Author(String, ErrorResponse),
}

impl Editor {
    /// Fails if the client may replace no message.
    async fn of(permit: &mut Permit<'_>, channel: &ChannelName) -> Result<Editor, ErrorResponse> {
        let Err(denial) = permit.ask(Action::Edit(channel)).await else { return Ok(Editor::Any) };
        match permit.author(channel) {
            Some(author) => Ok(Editor::Author(author.to_owned(), denial)),
            None => Err(denial),
        }
    }

    /// Fails if the client may not replace a message that shows this sender.
    fn check(self, from: Option<&str>) -> Result<(), ErrorResponse> {
        match self {
            Editor::Author(author, denial) if from != Some(&author) => Err(denial),
            Editor::Any | Editor::Author(..) => Ok(()),
        }
    }
}
