//! `POST` and `PUT` of `/channels/{channel}` and `/users/{user}`: publishes one message, and waits
//! for its receipt if the publisher prefers one.

use std::convert::Infallible;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use throng_access::{Action, Client};
use throng_core::{
    AskerId, Body, ChannelName, Channels, Condition, ConnectionName, IdempotencyKey, KeyCondition,
    Kind, Later, LogChange, Outcome, Publication, PublishError, Published, Replacement,
    VolatilePublication, WantedTags, clock,
};
use throng_wire::labels::{self, LabelError, StateKey};
use throng_wire::v1::{self, CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX, KEY_BYTES_MAX};
use throng_wire::{ErrorCode, ErrorResponse, Labels, check_target_name};

use super::count::{CountedNodes, Elsewhere};
use super::limit::Limited;
use super::parameters::WORKERS_TIMEOUT;
use super::permit::Permit;
use super::receipt::{self, OpenReceipt};
use crate::control::Control;
use crate::drain::PublicationGuard;
use crate::http::answer::{
    self, Answer, ApiError, IDEMPOTENCY_KEY, THRONG_EVENT, THRONG_EXCLUDE, THRONG_EXPIRES_IN,
    THRONG_STATE_KEY, THRONG_TAGS,
};
use crate::http::{body, names, query};
use crate::late_answer::{PendingAnswer, ask_holding, within};
use crate::metrics::HttpCounter;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    kind: Kind,
    segment: &str,
) -> Result<Answer, ApiError> {
    let channel = names::from_segment(kind, segment)?;
    publish_to(control, head, client, body, (channel, None), &["count", "volatile"]).await
}

/// Publishes the body to a channel: as the value of a key, or as its tombstone in place of a body,
/// if the path names one. The query may have these parameters.
pub(super) async fn publish_to(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    (channel, key): (ChannelName, Option<StateKey>),
    parameters: &[&str],
) -> Result<Answer, ApiError> {
    // Until it is dropped, the drain of the workers does not begin.
    let in_progress = control.drain.begin_publication()?;
    let publisher = Limited::of(control, head, client)?;
    publisher.begin(head, 1).map_err(ApiError::limited)?;
    check_target_name(channel.name(), channel.kind().noun())?;
    let mut permit = Permit::of(control, head, client)?;
    permit.ask_before_content(&channel).await?;
    let query = query::of(head, parameters)?;
    let options = Options::of(&head.headers, query, key)?;
    permit.ask_about_key(&channel, &options.labels).await?;
    let counted = CountedNodes::of(query)?;
    let content = if options.labels.key.as_ref().is_some_and(|key| key.is_removed) {
        // There is nothing to say of a key that is gone.
        Replacement { body: Body::Json("null".into()), content_type: None }
    } else {
        let kind = body::BodyKind::Message;
        let is_counted = publisher.charge_body(head, kind)?;
        let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
        if bytes.was_awaited() {
            permit.recheck(Action::Publish(&channel))?;
        }
        if !is_counted {
            publisher.count(0, bytes.len()).map_err(ApiError::limited)?;
        }
        let (body, content_type) = Body::parse(&bytes, options.content_type)?;
        // The bytes count against a quota, and the wait for a receipt may be long.
        Replacement { body, content_type }
    };
    let content = permit.ask_about(&channel, content, &options.labels).await?;
    let Replacement { body, content_type } = content;
    let Options { idempotency_key, excluded, expires_in_ms, is_volatile, labels, .. } = options;
    let attributes = permit.attributes(&channel, &labels);
    if is_volatile {
        let elsewhere = Elsewhere::ask(control, counted, &channel);
        let volatile = VolatilePublication { channel, body, content_type, excluded, attributes };
        let own = publish_volatile(control, &permit, volatile).await?;
        let mut body = Vec::with_capacity(48);
        v1::published_body(&mut body, None, elsewhere.and(own).await, false);
        return Ok(answer::json(StatusCode::OK, body));
    }
    let elsewhere = Elsewhere::ask(control, counted, &channel);
    let publication = Publication {
        content_type,
        idempotency_key: idempotency_key.map(|key| IdempotencyKey::new(permit.publisher(), key)),
        excluded,
        attributes,
        expires_in_ms,
        holder: permit.holder_of(&labels),
        ..Publication::new(channel, body)
    };
    if let Some(condition) = options.condition {
        return answer_conditional(control, publication, condition, in_progress).await;
    }
    answer_kept(control, &permit, &head.headers, (publication, elsewhere), in_progress).await
}

/// Publishes a message with a key if that has the value that the publisher names.
async fn answer_conditional(
    control: &Control,
    publication: Publication,
    condition: KeyCondition,
    in_progress: PublicationGuard<'_>,
) -> Result<Answer, ApiError> {
    let channel = publication.channel.clone();
    let condition = Condition { key: Some(condition), ..Condition::default() };
    let change = LogChange { condition, ..LogChange::append(channel.clone(), vec![publication]) };
    let ask = |later: Later<'_, _>| {
        Ok::<_, Infallible>(control.engine.change(clock::now_ms(), change, later))
    };
    let Ok(outcome) = within(OUTCOME_TIMEOUT, ask).await;
    drop(in_progress);
    let changed = outcome.unwrap_or(Err(PublishError::Unknown.into()))?;
    control.metrics.count(HttpCounter::Published);
    let (mut body, subscribers) =
        (Vec::with_capacity(96), control.engine.audience(&channel).subscribers);
    let id = changed.ids.last().map(|id| id.to_string());
    v1::published_body(&mut body, id.as_deref(), subscribers.into(), false);
    Ok(answer::json(StatusCode::CREATED, body))
}

/// Publishes a message that the log may keep, and answers when that is done: with its receipt if
/// the publisher prefers one.
async fn answer_kept(
    control: &Control,
    permit: &Permit<'_>,
    headers: &HeaderMap,
    (publication, elsewhere): (Publication, Elsewhere),
    in_progress: PublicationGuard<'_>,
) -> Result<Answer, ApiError> {
    let preferred = receipt::preferred(headers);
    // Before the message is published: a refusal has to mean that it was not.
    let begin = |_| OpenReceipt::begin(control, permit.publisher(), &publication.channel);
    let open = preferred.map(begin).transpose()?;
    let receipt = open.as_ref().map(OpenReceipt::receipt);
    let published = publish(control, permit, Publication { receipt, ..publication }).await?;
    let mut body = Vec::with_capacity(96);
    if published.is_duplicate {
        write_published(&mut body, &published);
        return Ok(answer::json(StatusCode::OK, body));
    }
    let id = published.id.to_string();
    let (Some(max_wait), Some(open)) = (preferred, open) else {
        let subscribers = elsewhere.and(published.subscribers).await;
        v1::published_body(&mut body, Some(&id), subscribers, false);
        return Ok(answer::json(StatusCode::CREATED, body));
    };
    // The workers drain while it waits: only then it can become complete.
    drop(in_progress);
    let fields = open.finish(control, published.id, max_wait).await;
    let subscribers = elsewhere.and(published.subscribers).await;
    v1::receipt_body(&mut body, &id, subscribers, &fields);
    let mut answer = answer::json(StatusCode::CREATED, body);
    receipt::set_applied(&mut answer, max_wait);
    Ok(answer)
}

/// Options of a message, from headers and the query of its request.
pub(super) struct Options<'a> {
    pub(super) content_type: Option<&'a str>,
    idempotency_key: Option<&'a str>,
    pub(super) excluded: Option<ConnectionName>,
    pub(super) expires_in_ms: Option<u64>,
    is_volatile: bool,
    pub(super) labels: Labels,
    condition: Option<KeyCondition>,
}

impl<'a> Options<'a> {
    /// The options of a message, for which the path may name a key.
    pub(super) fn of(
        headers: &'a HeaderMap,
        query: &str,
        key: Option<StateKey>,
    ) -> Result<Options<'a>, ApiError> {
        let content_type = match only(headers, &CONTENT_TYPE)? {
            None => None,
            Some(value) => Some(check_content_type(value.to_str().unwrap_or("\0"))?),
        };
        let idempotency_key = idempotency_key(headers)?;
        let expires_in_ms = match only(headers, &THRONG_EXPIRES_IN)? {
            None => None,
            Some(value) => Some(parse_expiry(value.to_str().unwrap_or_default())?),
        };
        // A parameter, although headers say the rest: servers that know none refuse it, and do not
        // keep what was meant to be volatile.
        let is_volatile = query::flag(query, "volatile")?.unwrap_or(false);
        if is_volatile {
            let has_state_key = headers.contains_key(&THRONG_STATE_KEY);
            v1::check_volatile(idempotency_key.is_some(), expires_in_ms.is_some(), has_state_key)?;
            if receipt::preferred(headers).is_some() {
                let message = "a volatile message has no receipt: leave out `Prefer: receipt`";
                return Err(ApiError::new(ErrorCode::BadRequest, message));
            }
        }
        let mut labels = labels_of(headers)?;
        labels.key = match (key, labels.key) {
            (Some(key), Some(named)) if key.name != named.name => {
                let message = "the header `Throng-State-Key` names another key than the path: \
                               leave it out";
                return Err(ApiError::parameter(message));
            }
            (key, named) => key.or(named),
        };
        let condition = condition_of(headers, &labels)?;
        if condition.is_some()
            && (idempotency_key.is_some() || receipt::preferred(headers).is_some())
        {
            let message = "a message with `If-Match` or `If-None-Match` has neither an idempotency \
                           key nor a receipt: repeated, it changes nothing again";
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        Ok(Options {
            content_type,
            idempotency_key,
            excluded: excluded(headers)?,
            expires_in_ms,
            is_volatile,
            labels,
            condition,
        })
    }
}

/// The idempotency key of a request.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let key = only(headers, &IDEMPOTENCY_KEY)?;
    key.map(|value| check_key(value.to_str().unwrap_or_default())).transpose()
}

/// The value of a header in UTF-8, although most clients send nothing but ASCII.
fn utf8(value: &HeaderValue, error: LabelError) -> Result<&str, LabelError> {
    str::from_utf8(value.as_bytes()).map_err(|_| error)
}

/// The event and the tags of a message.
fn labels_of(headers: &HeaderMap) -> Result<Labels, ApiError> {
    // In UTF-8, although many clients send nothing but ASCII.
    let refused =
        |name: &str, error: LabelError| ApiError::parameter(format!("the header `{name}` {error}"));
    let event = match only(headers, &THRONG_EVENT)? {
        None => None,
        Some(value) => {
            let event = utf8(value, LabelError::EventForm);
            let event = event.and_then(|event| labels::check_event(event).map(|()| event.into()));
            Some(event.map_err(|error| refused("Throng-Event", error))?)
        }
    };
    let tags = match only(headers, &THRONG_TAGS)? {
        None => None,
        Some(value) => utf8(value, LabelError::TagsForm)
            .and_then(labels::parse_tags)
            .map_err(|error| refused("Throng-Tags", error))?,
    };
    let key = match only(headers, &THRONG_STATE_KEY)? {
        None => None,
        Some(value) => {
            let key = utf8(value, LabelError::KeyForm);
            let key = key.and_then(|key| labels::check_state_key(key).map(|()| key.into()));
            let name = key.map_err(|error| refused("Throng-State-Key", error))?;
            Some(StateKey { name, is_removed: false })
        }
    };
    Ok(Labels { event, tags, key })
}

/// The condition of a publication with a key. With `If-Match`, the named message must be the
/// newest of the key; with `If-None-Match: *`, the key must have no value (RFC 9110 section 13.1).
fn condition_of(headers: &HeaderMap, labels: &Labels) -> Result<Option<KeyCondition>, ApiError> {
    let (is_match, is_none_match) = (only(headers, &IF_MATCH)?, only(headers, &IF_NONE_MATCH)?);
    let newest = match (is_match, is_none_match) {
        (None, None) => return Ok(None),
        (Some(id), None) => {
            let id = id.to_str().ok().map(|id| id.trim_matches('"'));
            let id = id.and_then(|id| id.parse().ok());
            Some(id.ok_or_else(|| {
                ApiError::parameter(
                    "the header `If-Match` must be the id of a message; no `*`, no list",
                )
            })?)
        }
        (None, Some(all)) if all == "*" => None,
        _ => {
            return Err(ApiError::parameter(
                "give either `If-Match` with the id of a message, or `If-None-Match: *`",
            ));
        }
    };
    let Some(StateKey { name, .. }) = &labels.key else {
        let message = "`If-Match` and `If-None-Match` are about the key of a state: name it in the \
                       path, or in the header `Throng-State-Key`";
        return Err(ApiError::new(ErrorCode::BadRequest, message));
    };
    Ok(Some(KeyCondition { key: name.clone(), newest }))
}

/// The value of a header that may be given once: of two, nobody knows which one counts.
pub(super) fn only<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        let message = format!("the header `{name}` is given twice");
        return Err(ApiError::new(ErrorCode::BadRequest, message));
    }
    Ok(value)
}

/// How long a publisher waits for the channel's journal. An answer takes a sync of a disk, or a
/// round trip to another machine.
pub(super) const OUTCOME_TIMEOUT: Duration = Duration::from_secs(5);

/// Publishes a message, counts it, and waits until its outcome is known.
async fn publish(
    control: &Control,
    permit: &Permit<'_>,
    publication: Publication,
) -> Result<Published, ErrorResponse> {
    let submitted = submit(control, permit, (publication, AskerId::next())).await?;
    submitted.outcome(control, OUTCOME_TIMEOUT).await
}

/// Publishes a volatile message, and counts it. Returns the number of its subscribers, without an
/// excluded connection of the client's own.
pub(super) async fn publish_volatile(
    control: &Control,
    permit: &Permit<'_>,
    volatile: VolatilePublication,
) -> Result<u64, ErrorResponse> {
    let excludes_subscriber =
        excludes_subscriber(control, permit, &volatile.channel, volatile.excluded).await?;
    let subscribers = control.engine.publish_volatile(clock::now_ms(), volatile)?;
    control.metrics.count(HttpCounter::Published);
    Ok(subscribers.saturating_sub(u64::from(excludes_subscriber)))
}

/// A message that the engine has.
pub(super) struct Submitted {
    outcome: PendingAnswer<Outcome>,
    excludes_subscriber: bool,
}

impl Submitted {
    pub(super) fn is_answered(&self) -> bool {
        self.outcome.is_answered()
    }

    /// Waits until the outcome is known, or for `max_wait`.
    pub(super) async fn wait(&mut self, max_wait: Duration) {
        self.outcome.wait(max_wait).await;
    }

    /// The outcome of the message, which is counted if it was published. The number of subscribers
    /// leaves out the excluded connection if it is the client's own: of another one, the number
    /// would tell whether it follows the channel.
    pub(super) async fn outcome(
        self,
        control: &Control,
        max_wait: Duration,
    ) -> Result<Published, ErrorResponse> {
        let outcome = self.outcome.within(max_wait).await;
        let mut published = outcome.unwrap_or(Err(PublishError::Unknown))?;
        let excluded = u64::from(self.excludes_subscriber);
        published.subscribers = published.subscribers.saturating_sub(excluded);
        if !published.is_duplicate {
            control.metrics.count(HttpCounter::Published);
        }
        Ok(published)
    }
}

/// Hands a message to the engine without waiting for the outcome. Messages of one asker keep their
/// order.
pub(super) async fn submit(
    control: &Control,
    permit: &Permit<'_>,
    (publication, asker): (Publication, AskerId),
) -> Result<Submitted, ErrorResponse> {
    let (channel, excluded) = (&publication.channel, publication.excluded);
    let excludes_subscriber = excludes_subscriber(control, permit, channel, excluded).await?;
    let engine = &control.engine;
    let take = || control.shares.take(permit.publisher());
    let count = |_: &_| control.metrics.count(HttpCounter::OverShare);
    let place = engine.is_shared().then(take).transpose().inspect_err(count)?;
    let publish = |later: Later<'_, _>| Ok(engine.publish(clock::now_ms(), publication, later));
    let asked: Result<_, Infallible> = ask_holding(asker, place, publish);
    let Ok(outcome) = asked;
    Ok(Submitted { outcome, excludes_subscriber })
}

/// True if the excluded connection is one of the client's own, and follows the channel.
async fn excludes_subscriber(
    control: &Control,
    permit: &Permit<'_>,
    channel: &ChannelName,
    excluded: Option<ConnectionName>,
) -> Result<bool, ErrorResponse> {
    let (Some(connection), Some(own)) = (excluded, permit.own_connections()) else {
        return Ok(false);
    };
    let follows = follows(&control.engine, channel, connection, own).await;
    permit.recheck(Action::Publish(channel))?;
    Ok(follows)
}

/// True if a connection among `own` follows the channel; `false` also if its worker is too busy to
/// answer.
async fn follows(
    engine: &Channels,
    channel: &ChannelName,
    connection: ConnectionName,
    own: WantedTags,
) -> bool {
    let ask = |later: Later<'_, _>| Ok(engine.follows(channel, (connection, own), later));
    let answer: Result<_, Infallible> = within(WORKERS_TIMEOUT, ask).await;
    matches!(answer, Ok(Some(true)))
}

/// Subscribers get the content type in response headers, so it must not contain a line break.
fn check_content_type(text: &str) -> Result<&str, ApiError> {
    if text.len() <= CONTENT_TYPE_BYTES_MAX && text.bytes().all(is_printable) {
        return Ok(text);
    }
    Err(ApiError::parameter(format!(
        "a content type is at most {CONTENT_TYPE_BYTES_MAX} printable characters"
    )))
}

fn check_key(text: &str) -> Result<&str, ApiError> {
    if (1..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_printable) {
        return Ok(text);
    }
    Err(ApiError::parameter(format!(
        "an idempotency key is 1 to {KEY_BYTES_MAX} printable characters"
    )))
}

/// The connection that does not get a message.
pub(super) fn excluded(headers: &HeaderMap) -> Result<Option<ConnectionName>, ApiError> {
    let Some(value) = only(headers, &THRONG_EXCLUDE)? else { return Ok(None) };
    Ok(Some(parse_connection(value.to_str().unwrap_or_default())?))
}

pub(super) fn parse_connection(text: &str) -> Result<ConnectionName, ErrorResponse> {
    text.parse().map_err(|_| {
        let message = "the excluded connection is not the value of a `Throng-Connection`";
        ErrorResponse::new(ErrorCode::BadParameter, message)
    })
}

/// The milliseconds of a number of seconds.
fn parse_expiry(text: &str) -> Result<u64, ApiError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = is_number.then(|| text.parse().ok()).flatten();
    let seconds = seconds.filter(|seconds| (1..=EXPIRES_IN_S_MAX).contains(seconds));
    seconds.map(|seconds| u64::from(seconds) * 1000).ok_or_else(|| {
        ApiError::parameter(format!(
            "the header `Throng-Expires-In` must be a number of seconds, 1 to {EXPIRES_IN_S_MAX}"
        ))
    })
}

fn is_printable(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// Writes the result of a publish, `{"id":…,"subscribers":…}`.
fn write_published(out: &mut Vec<u8>, published: &Published) {
    let Published { id, subscribers, is_duplicate } = published;
    v1::published_body(out, Some(&id.to_string()), (*subscribers).into(), *is_duplicate);
}
