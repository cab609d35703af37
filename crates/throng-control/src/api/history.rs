//! `GET /channels/{channel}/history`: a page of what the log keeps.

use std::sync::Arc;

use http::request::Parts;
use throng_core::{Action, HistoryQuery, Kind, Message};
use throng_wire::v1;

use crate::api::{id, limit, permit, set_id};
use crate::control::Control;
use crate::http::answer::{self, Answer, Refused};
use crate::http::{names, query};

/// Envelopes of one page, in bytes; what does not fit is the next page's. The limit on messages is
/// not enough, and nor are the bytes that a log keeps: as JSON, a byte may be six.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// About what a message's envelope measures beside its body.
const ENVELOPE_BYTES: usize = 128;

/// What an answer holds beside envelopes, about.
const REST_BYTES: usize = 512;

pub(crate) fn answer(
    control: &Control,
    head: &Parts,
    kind: Kind,
    segment: &str,
) -> Result<Answer, Refused> {
    let channel = names::from_segment(kind, segment)?;
    permit(control, head, Action::ReadHistory(&channel))?;
    let query = head.uri.query().unwrap_or_default();
    query::check(query, &["limit", "before", "after"])?;
    let asked = match (id(query, "before")?, id(query, "after")?) {
        (None, None) => HistoryQuery::Newest,
        (Some(before), None) => HistoryQuery::Before(before),
        (None, Some(after)) => HistoryQuery::After(after),
        (Some(_), Some(_)) => {
            return Err(Refused::parameter("`before` and `after` exclude each other"));
        }
    };
    let history = control.engine.history(control.now_ms(), &channel, asked, limit(query)?);
    let envelopes = match asked {
        HistoryQuery::After(_) => encode(history.messages.iter()),
        HistoryQuery::Newest | HistoryQuery::Before(_) => {
            let mut envelopes = encode(history.messages.iter().rev());
            envelopes.reverse();
            envelopes
        }
    };
    let has_more = history.has_more || envelopes.len() < history.messages.len();
    let bytes = envelopes.iter().map(|envelope| envelope.len() + 1).sum::<usize>() + REST_BYTES;
    let room = answer::room(control, &control.figures.pages, bytes)?;
    let mut body = Vec::with_capacity(bytes);
    v1::history_body(
        &mut body,
        &names::target(&channel),
        &history.head.to_string(),
        envelopes.iter().map(|envelope| |out: &mut Vec<u8>| out.extend_from_slice(envelope)),
        has_more,
        history.is_recovered,
    );
    let mut answer = answer::large(answer::JSON, body, room);
    set_id(&mut answer, history.head);
    Ok(answer)
}

/// The envelopes of as many messages as fit into a page: one does always.
fn encode<'a>(messages: impl Iterator<Item = &'a Arc<Message>>) -> Vec<Vec<u8>> {
    let mut bytes = 0;
    let encoded = messages.map(|message| {
        let mut envelope = Vec::with_capacity(message.body.bytes().len() + ENVELOPE_BYTES);
        message.write_envelope(&mut envelope);
        envelope
    });
    let fits = |envelope: &Vec<u8>| {
        let is_first = bytes == 0;
        bytes += envelope.len();
        is_first || bytes <= PAGE_BYTES_MAX
    };
    encoded.take_while(fits).collect()
}
