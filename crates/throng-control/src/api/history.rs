//! `GET /channels/{channel}/history`: a page of what the log keeps.

use http::StatusCode;
use http::request::Parts;
use throng_core::{Action, HistoryQuery, Kind};
use throng_wire::v1;

use crate::answer::{self, Answer, Refused};
use crate::api::{id, limit, permit, set_id};
use crate::control::Control;
use crate::names;

/// About what a message's envelope measures beside its body.
const ENVELOPE_BYTES: usize = 128;

pub(crate) fn answer(
    control: &Control,
    head: &Parts,
    kind: Kind,
    segment: &str,
) -> Result<Answer, Refused> {
    let channel = names::from_segment(kind, segment)?;
    permit(control, Action::ReadHistory(&channel))?;
    let query = head.uri.query().unwrap_or_default();
    let asked = match (id(query, "before")?, id(query, "after")?) {
        (None, None) => HistoryQuery::Newest,
        (Some(before), None) => HistoryQuery::Before(before),
        (None, Some(after)) => HistoryQuery::After(after),
        (Some(_), Some(_)) => {
            return Err(Refused::parameter("`before` and `after` exclude each other"));
        }
    };
    let history = control.engine.history(control.now_ms(), &channel, asked, limit(query)?);
    let bytes: usize =
        history.messages.iter().map(|it| it.body.bytes().len() + ENVELOPE_BYTES).sum();
    let mut body = Vec::with_capacity(bytes + ENVELOPE_BYTES);
    v1::history_body(
        &mut body,
        &names::target(&channel),
        &history.head.to_string(),
        history.messages.iter().map(|message| |out: &mut Vec<u8>| message.write_envelope(out)),
        history.has_more,
        history.is_recovered,
    );
    let mut answer = answer::json(StatusCode::OK, body);
    set_id(&mut answer, history.head);
    Ok(answer)
}
