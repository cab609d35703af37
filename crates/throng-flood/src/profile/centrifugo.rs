//! Centrifugo: the JSON protocol over WebSocket, and one-way SSE.
//!
//! The server must let anonymous clients connect and subscribe (`client.insecure`, or
//! `allow_anonymous_connect_without_token` with `allow_subscribe_for_client`), or be given tokens
//! in the hello messages. It publishes by its HTTP API.

use super::{Choice, Profile, ProfileError, post};
use crate::plan::{Ping, PublishTarget, Subscribed, Target, Transport};
use crate::template::Template;

/// Answers to commands and to API calls have it instead of a result; the calls with status 200.
const ERROR: &str = r#""error":"#;

pub(super) fn websocket(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(Profile::Centrifugo, &[Transport::WebSocket])?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    let channel = choice.channel_in_json()?;
    let mut target = choice.connect(transport, &address, "/connection/websocket")?;
    let subscribe = format!(r#"{{"id":2,"subscribe":{{"channel":"{channel}"}}}}"#);
    // Commands of one frame are done in their order, so that nobody waits for the first answer.
    let hello = format!("{}\n{subscribe}", r#"{"id":1,"connect":{"name":"flood"}}"#);
    target.hello = vec![choice.template(&hello)?];
    target.subscribed = Subscribed::Message(r#""id":2,"subscribe""#.to_owned());
    target.refused = vec![ERROR.to_owned()];
    target.pings = vec![Ping { ask: "{}".to_owned(), answer: "{}".to_owned() }];
    target.publish = Some(publish(choice, &address.http("/api/publish"))?);
    Ok(target)
}

pub(super) fn sse(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(Profile::CentrifugoSse, &[Transport::Sse])?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    choice.channel_in_json()?;
    // `{"subs":{"CHANNEL":{}}}`, as a query takes it.
    let subs = choice.channels("%22%3A%7B%7D%2C%22");
    let connect = format!("cf_connect=%7B%22subs%22%3A%7B%22{subs}%22%3A%7B%7D%7D%7D");
    let path = format!("/connection/uni_sse?{connect}");
    let mut target = choice.connect(transport, &address, &path)?;
    // A connect without them is one of a client that may not subscribe, and is told nothing else.
    target.subscribed = Subscribed::Message(r#""subs":{"#.to_owned());
    target.refused = vec![r#""connect":"#.to_owned()];
    target.publish = Some(publish(choice, &address.http("/api/publish"))?);
    Ok(target)
}

fn publish(choice: &Choice<'_>, url: &str) -> Result<PublishTarget, ProfileError> {
    let channel = choice.channel_in_json()?;
    let body = format!(r#"{{"channel":"{channel}","data":{{"flood":"{{payload}}"}}}}"#);
    let headers = [("Content-Type", "application/json")];
    let usual = post(Template::literal(url), &headers, choice.template(&body)?);
    Ok(PublishTarget { refused: Some(ERROR.to_owned()), ..usual })
}
