//! `HEAD` of the URLs that subscribe: where a subscription would start, without one.

use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use throng_core::{Action, ChannelName, Engine as _, HistoryQuery, Kind, MessageId, Position};

use crate::answer::{self, Answer, Code, Refused, THRONG_RECOVERED};
use crate::api::{permit, set_id};
use crate::control::Control;
use crate::names::{self, Resource};
use crate::query;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

pub(crate) fn answer(
    control: &Control,
    head: &Parts,
    resource: Resource<'_>,
) -> Result<Answer, Refused> {
    let query = head.uri.query().unwrap_or_default();
    let channels = channels(control, resource, query)?;
    for channel in &channels {
        permit(control, Action::Subscribe(channel))?;
    }
    let since = since(head, query)?;
    if since.as_ref().is_some_and(|since| since.0.len() != channels.len()) {
        let sentence = "the id is of another number of channels than the URL names";
        return Err(Refused::new(Code::BadId, sentence));
    }
    let now_ms = control.now_ms();
    let mut position = Vec::with_capacity(channels.len());
    let mut is_recovered = true;
    for (nth, channel) in channels.iter().enumerate() {
        let id: Option<MessageId> = since.as_ref().map(|since| since.0[nth]);
        let asked = id.map_or(HistoryQuery::Newest, HistoryQuery::After);
        let history = control.engine.history(now_ms, channel, asked, 0);
        is_recovered &= history.is_recovered.unwrap_or(true);
        position.push(history.head);
    }
    let mut answer = answer::empty(StatusCode::OK);
    set_id(&mut answer, Position(position));
    if since.is_some() {
        let value = HeaderValue::from_static(if is_recovered { "true" } else { "false" });
        answer.headers_mut().insert(THRONG_RECOVERED, value);
    }
    Ok(answer)
}

/// What the URL names, in its order, the user last.
fn channels(
    control: &Control,
    resource: Resource<'_>,
    query: &str,
) -> Result<Vec<ChannelName>, Refused> {
    let mut channels = Vec::new();
    let mut user = None;
    if let Resource::Log(kind, segment, _) = resource {
        channels.push(names::from_segment(kind, segment)?);
    }
    for pair in query::pairs(query) {
        let (name, value) = pair?;
        match &*name {
            "channel" if resource == Resource::Subscribe => {
                channels.push(names::checked(Kind::Channel, &value)?);
            }
            "user" if user.is_some() => {
                return Err(Refused::parameter("a subscription has at most one `user`"));
            }
            "user" => user = Some(names::checked(Kind::User, &value)?),
            _ => {}
        }
    }
    channels.extend(user);
    let max = control.settings.channels_max;
    if channels.is_empty() {
        return Err(Refused::parameter("name a `channel` or a `user`"));
    }
    if channels.len() > max {
        return Err(Refused::parameter(format!("a connection follows at most {max} channels")));
    }
    Ok(channels)
}

/// The id to go on from: the header wins.
fn since(head: &Parts, query: &str) -> Result<Option<Position>, Refused> {
    let bad = |error: throng_core::id::IdError| Refused::new(Code::BadId, error.to_string());
    if let Some(value) = head.headers.get(LAST_EVENT_ID) {
        return value.to_str().unwrap_or_default().parse().map(Some).map_err(bad);
    }
    query::find(query, "since")?.map(|text| text.parse().map_err(bad)).transpose()
}
