//! What the API answers, one module for each kind of request.

pub(crate) mod batch;
pub(crate) mod head;
pub(crate) mod history;
pub(crate) mod options;
pub(crate) mod presence;
pub(crate) mod publish;

use std::time::Duration;

use http::HeaderValue;
use http::request::Parts;
use throng_core::{Action, ChannelName, HistoryQuery, MessageId, Verdict};

use crate::control::Control;
use crate::http::answer::{Answer, Refused, THRONG_ID};
use crate::http::caller::Caller;
use crate::http::query;
use throng_wire::ErrorCode;

/// Workers that have not answered a question by then are too busy to.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Entries of a page that one request may ask for …
const LIMIT_MAX: usize = throng_wire::v1::LIMIT_MAX as usize;
/// … and gets unless it says.
const LIMIT: usize = 100;

/// Asks whether a client may do this.
fn permit(control: &Control, head: &Parts, action: Action<'_>) -> Result<(), Refused> {
    match control.access.may(Caller::of(head).listener, action) {
        Verdict::Yes => Ok(()),
        Verdict::No(sentence) => Err(Refused::new(ErrorCode::Forbidden, sentence)),
    }
}

/// The `limit` of a query.
fn limit(query: &str) -> Result<usize, Refused> {
    match query::find(query, "limit")? {
        None => Ok(LIMIT),
        Some(text) => match text.parse() {
            Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            _ => Err(Refused::parameter(format!("`limit` is a number from 1 to {LIMIT_MAX}"))),
        },
    }
}

/// A message id among the parameters of a query.
fn id(query: &str, name: &str) -> Result<Option<MessageId>, Refused> {
    Ok(query::find(query, name)?.map(|text| text.parse::<MessageId>()).transpose()?)
}

/// The newest message's id of a channel.
fn newest(control: &Control, channel: &ChannelName) -> MessageId {
    control.engine.history(control.now_ms(), channel, HistoryQuery::Newest, 0).head
}

/// Tells where a log ends.
fn set_id(answer: &mut Answer, id: impl std::fmt::Display) {
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        answer.headers_mut().insert(THRONG_ID, value);
    }
}
