//! The Pusher protocol, version 7: `/app/KEY`, a JSON event a frame.
//!
//! Public channels need no signature. Requests to the HTTP API must be signed over their body,
//! which no template can do: publishing goes through an endpoint of the application, or by a client
//! event where the server allows that.

use super::{Address, Choice, Profile, ProfileError};
use crate::plan::{Ping, PublishBy, PublishTarget, Subscribed, Target, Transport};

const QUERY: &str = "protocol=7&client=flood&version=1.0&flash=false";

/// Of a connection, and of a subscription.
const REFUSALS: [&str; 2] = ["pusher:error", "pusher:subscription_error"];

/// Servers differ in what they write for "no data".
const PINGS: [&str; 4] = [
    r#"{"event":"pusher:ping","data":{}}"#,
    r#"{"event":"pusher:ping"}"#,
    r#"{"event":"pusher:ping","data":"{}"}"#,
    r#"{"event":"pusher:ping","data":""}"#,
];

pub(super) fn target(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(Profile::Pusher, &[Transport::WebSocket])?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    let channel = choice.channel_in_json()?;
    if !address.path.starts_with("/app/") {
        return Err(ProfileError::Url(format!(
            "{:?} does not name the application: its key stands in the URL, like {}://{}/app/KEY",
            choice.url, address.scheme, address.authority
        )));
    }
    let mut target = choice.connect(transport, &address, "")?;
    target.url = choice.template(&with_query(&address, choice.url))?;
    let subscribe = format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"{channel}"}}}}"#);
    target.hello = vec![choice.template(&subscribe)?];
    target.subscribed = Subscribed::Message("pusher_internal:subscription_succeeded".to_owned());
    target.refused = REFUSALS.map(str::to_owned).to_vec();
    let answer = r#"{"event":"pusher:pong","data":{}}"#;
    let ping = |ask: &str| Ping { ask: ask.to_owned(), answer: answer.to_owned() };
    target.pings = PINGS.into_iter().map(ping).collect();
    let event =
        format!(r#"{{"event":"client-flood","channel":"{channel}","data":{{"m":"{{payload}}"}}}}"#);
    target.publish = Some(PublishTarget {
        by: PublishBy::WebSocket { frame: choice.template(&event)? },
        connections: 1,
        pipeline: 1,
        refused: None,
    });
    Ok(target)
}

fn with_query(address: &Address<'_>, url: &str) -> String {
    match address.path.contains('?') {
        true => url.to_owned(),
        false => format!("{url}?{QUERY}"),
    }
}
