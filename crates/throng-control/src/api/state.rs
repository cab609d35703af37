//! `/channels/{channel}/state`: the newest messages of a channel's keys, a page or one, and their
//! change. A message that sets a key is published like any other.

use std::convert::Infallible;

use http::header::{ETAG, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use throng_access::{Action, Client};
use throng_core::{ChannelName, KeyPage, KeyQuery, Kind, Later, RefusedForMemory, clock};
use throng_wire::labels::{StateKey, check_state_key};
use throng_wire::percent::decode_segment;
use throng_wire::{ErrorCode, ErrorResponse, v1};

use super::erase::error_of;
use super::limit::Limited;
use super::log::{self, FETCH_TIMEOUT};
use super::parameters::{limit, set_id};
use super::permit::Permit;
use super::publish;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{large_answer, names, query};
use crate::late_answer::within;

/// The maximum size of the envelopes of a page; the rest is on the next page.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Approximate size of a response without its envelopes.
const FRAME_BYTES: usize = 768;

/// Answers with a page, or with the message of one key, which the path or the query names; or sets
/// or removes that key.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    (kind, segment, key): (Kind, &str, Option<&str>),
) -> Result<Answer, ApiError> {
    let channel = names::from_segment(kind, segment)?;
    let is_removed = head.method == Method::DELETE;
    let is_write = is_removed || head.method == Method::PUT;
    let parameters: &[_] = match (is_write, key) {
        (true, None) => &["count", "key"],
        (true, Some(_)) => &["count"],
        (false, None) => &["key", "prefix", "after", "limit"],
        (false, Some(_)) => &[],
    };
    let query = query::of(head, parameters)?;
    let key = match key {
        Some(segment) => Some(decode_segment(segment).ok_or_else(not_utf8)?.into_owned()),
        None => query::find(query, "key")?.map(String::from),
    };
    if key.is_some() && !is_write {
        // What is about a page is not about one key.
        query::of(head, &["key"])?;
    }
    let key = key.map(|key| check_state_key(&key).map(|()| key)).transpose();
    let key = key.map_err(|error| ApiError::parameter(format!("the key {error}")))?;
    if is_write {
        let Some(key) = key else {
            return Err(ApiError::parameter("`key` is missing: the key to set or to remove"));
        };
        let key = StateKey { name: key.into(), is_removed };
        let place = (channel, Some(key));
        return publish::publish_to(control, head, client, body, place, parameters).await;
    }
    let asked = match &key {
        Some(key) => KeyQuery::one(key),
        None => page_query(query)?,
    };
    let limited = Limited::of(control, head, client)?;
    let page = read(control, head, client, &limited, (&channel, asked)).await?;
    match key {
        Some(key) => answer_one(&limited, &page, &key),
        None => answer_page(control, &limited, &channel, page),
    }
}

fn not_utf8() -> ApiError {
    ApiError::parameter("the key is not percent-encoded UTF-8")
}

fn page_query(query: &str) -> Result<KeyQuery, ApiError> {
    let find = |name| query::find(query, name).map(|text| text.map(Box::<str>::from));
    let (prefix, after) = (find("prefix")?.unwrap_or_default(), find("after")?);
    Ok(KeyQuery { prefix, after, limit: limit(query)?, is_of_one: false })
}

/// Reads a page for a client that may read the history.
async fn read(
    control: &Control,
    head: &Parts,
    client: &Client,
    limited: &Limited<'_>,
    (channel, asked): (&ChannelName, KeyQuery),
) -> Result<KeyPage, ApiError> {
    control.check_memory(RefusedForMemory::History)?;
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::ReadHistory(channel)).await?;
    limited.begin_reading().map_err(ApiError::limited)?;
    log::check_exists(&control.engine, channel).await?;
    let ask = |later: Later<'_, _>| {
        Ok::<_, Infallible>(control.engine.keys(clock::now_ms(), channel, asked, later))
    };
    let Ok(page) = within(FETCH_TIMEOUT, ask).await;
    let page = page.ok_or_else(ErrorResponse::unanswered)?.map_err(error_of)?;
    // It may have taken seconds to fetch them.
    permit.recheck(Action::ReadHistory(channel))?;
    Ok(page)
}

/// The envelope of one key's message.
fn answer_one(limited: &Limited<'_>, page: &KeyPage, key: &str) -> Result<Answer, ApiError> {
    let Some(message) = page.one(key) else {
        return Err(ApiError::new(ErrorCode::NotFound, "the channel has no such key"));
    };
    let mut body = Vec::with_capacity(message.weight_bytes());
    message.write_envelope(&mut body);
    limited.charge_read(body.len());
    let mut answer = answer::json(StatusCode::OK, body);
    set_id(&mut answer, message.id);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", message.id)) {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}

fn answer_page(
    control: &Control,
    limited: &Limited<'_>,
    channel: &ChannelName,
    page: KeyPage,
) -> Result<Answer, ApiError> {
    let KeyPage { head, messages, mut next } = page;
    let (mut envelopes, mut bytes) = (Vec::with_capacity(messages.len()), FRAME_BYTES);
    for message in &messages {
        if bytes > PAGE_BYTES_MAX {
            // The last one that is shown.
            next = messages[envelopes.len() - 1].key().map(Box::from);
            break;
        }
        let mut envelope = Vec::new();
        message.write_envelope(&mut envelope);
        bytes += envelope.len() + 1;
        envelopes.push(envelope);
    }
    let mut body = Vec::with_capacity(bytes);
    let writers = envelopes.iter().map(|it| move |out: &mut Vec<u8>| out.extend_from_slice(it));
    let (target, id) = (names::target(channel), head.to_string());
    v1::state_body(&mut body, &target, (&id, next.as_deref()), writers);
    limited.charge_read(body.len());
    let mut answer = large_answer::json(&control.read_answers, body)?;
    set_id(&mut answer, head);
    Ok(answer)
}
