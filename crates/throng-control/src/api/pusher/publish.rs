//! `POST /apps/{id}/events` and `/apps/{id}/batch_events`.
//!
//! Everything is checked before the first message is published. If a journal then fails, the
//! messages published so far stay, and the answer is an error. The same request again, with the
//! same `Idempotency-Key`, publishes the rest.

use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use throng_access::Client;
use throng_core::{
    AskerId, Body, ChannelName, IdempotencyKey, Publication, RefusedForMemory, Replacement,
};
use throng_pusher::Channel;
use throng_pusher::channel::is_client_event;
use throng_pusher::trigger::{Trigger, TriggerError};
use throng_wire::{ErrorResponse, Labels};

use super::read::attributes;
use super::signed::{Signed, malformed};
use crate::api::limit::Limited;
use crate::api::permit::Permit;
use crate::api::publish::{OUTCOME_TIMEOUT, idempotency_key, submit};
use crate::http::answer::ApiError;
use crate::http::body::BodyKind;

/// Publishes the event of a body, or those of a batch.
pub(super) async fn events(
    signed: &Signed<'_>,
    body: &mut Incoming,
    is_batch: bool,
) -> Result<Value, ApiError> {
    let Signed { control, head, .. } = *signed;
    // Until it is dropped, the drain of the workers does not begin.
    let _publication = control.drain.begin_publication()?;
    control.check_memory(RefusedForMemory::Batch)?;
    let client = Client::Key(signed.app.server_key().clone());
    let publisher = Limited::of(control, head, &client)?.of_app(&signed.app);
    publisher.begin(head, 0).map_err(ApiError::limited)?;
    let is_counted = publisher.charge_body(head, BodyKind::Batch)?;
    let bytes = signed.body(body, BodyKind::Batch).await?;
    let triggers = if is_batch {
        Trigger::read_batch(&bytes).map_err(malformed)?
    } else {
        vec![Trigger::read(&bytes).map_err(malformed)?]
    };
    let mut permit = Permit::of(control, head, &client)?;
    let key = idempotency_key(&head.headers)?;
    let mut publications = Vec::new();
    for (at, trigger) in triggers.iter().enumerate() {
        for channel in &trigger.channels {
            let key = key.map(|key| match at {
                0 => IdempotencyKey::new(permit.publisher(), key),
                _ => IdempotencyKey::new(permit.publisher(), &format!("{key}\n{at}")),
            });
            let publication = prepare(signed, &mut permit, trigger, channel).await?;
            publications.push(Publication { idempotency_key: key, ..publication });
        }
    }
    let count = u32::try_from(publications.len()).unwrap_or(u32::MAX);
    let more = if is_counted { 0 } else { bytes.len() };
    publisher.count(count, more).map_err(ApiError::limited)?;
    publish(signed, &permit, publications).await?;
    answer(signed, &triggers, is_batch).await
}

/// The message of an event for one of its channels.
async fn prepare(
    signed: &Signed<'_>,
    permit: &mut Permit<'_>,
    trigger: &Trigger,
    channel: &str,
) -> Result<Publication, ApiError> {
    let max_bytes = signed.control.settings.max_message_bytes;
    if trigger.data.len() > max_bytes {
        return Err(ErrorResponse::message_too_large(max_bytes).into());
    }
    let channel = named(signed, channel)?;
    permit.ask_before_content(&channel).await?;
    let labels = Labels { event: Some(trigger.event.clone()), ..Labels::default() };
    let content = Replacement { body: body_of(trigger), content_type: None };
    let content = permit.ask_about(&channel, content, &labels).await?;
    let attributes = permit.attributes(&channel, &labels);
    Ok(Publication {
        content_type: content.content_type,
        excluded: trigger.socket.map(|socket| signed.apps.connection(&signed.app, socket)),
        attributes,
        ..Publication::new(channel, content.body)
    })
}

fn named(signed: &Signed<'_>, channel: &str) -> Result<ChannelName, ApiError> {
    let channel = Channel::of(channel);
    signed.own(channel.ok_or_else(|| malformed(TriggerError::Channel))?)
}

/// The data of an event: JSON if it is that, with exactly these bytes. A client's own event would
/// be shown as JSON, not as a text.
fn body_of(trigger: &Trigger) -> Body {
    if is_client_event(&trigger.event) {
        return Body::Text(trigger.data.as_str().into());
    }
    match Body::parse(trigger.data.as_bytes(), Some("application/json")) {
        Ok((body, _)) => body,
        Err(_) => Body::Text(trigger.data.as_str().into()),
    }
}

/// Publishes messages in their order, and waits until all outcomes are known.
async fn publish(
    signed: &Signed<'_>,
    permit: &Permit<'_>,
    publications: Vec<Publication>,
) -> Result<(), ApiError> {
    let (asker, mut submitted) = (AskerId::next(), Vec::with_capacity(publications.len()));
    for publication in publications {
        submitted.push(submit(signed.control, permit, (publication, asker)).await);
    }
    let mut failed = None;
    for one in submitted {
        let outcome = match one {
            Ok(one) => one.outcome(signed.control, OUTCOME_TIMEOUT).await,
            Err(error) => Err(error),
        };
        failed = failed.or(outcome.err());
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// What the application wants to know of the channels: for an event by name, for a batch by event.
async fn answer(
    signed: &Signed<'_>,
    triggers: &[Trigger],
    is_batch: bool,
) -> Result<Value, ApiError> {
    if triggers.iter().all(|trigger| trigger.info.is_none()) {
        return Ok(Value::Object(Map::new()));
    }
    let (mut by_event, mut by_name) = (Vec::new(), Map::new());
    for trigger in triggers {
        for channel in &trigger.channels {
            let Some(channel) = Channel::of(channel) else { continue };
            let found = attributes(signed, channel, trigger.info).await?;
            by_name.insert(channel.name().to_owned(), found.clone().into());
            by_event.push(found);
        }
    }
    Ok(if is_batch { json!({ "batch": by_event }) } else { json!({ "channels": by_name }) })
}
