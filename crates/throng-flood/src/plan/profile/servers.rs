//! The known servers, one function each.

use super::{ProfileError, ProfileInput, ServerAddress, post};
use crate::plan::model::{
    Ping, Profile, PublishBy, PublishTarget, Streams, Subscribed, Target, Transport,
};
use crate::template::{Placeholder, Template};

const ALL_TRANSPORTS: &[Transport] =
    &[Transport::WebSocket, Transport::Sse, Transport::Stream, Transport::LongPoll];

impl Profile {
    /// The target for what was asked for.
    pub(in crate::plan) fn target(self, input: &ProfileInput<'_>) -> Result<Target, ProfileError> {
        if self == Profile::Custom {
            return custom(input);
        }
        let transport = input.transport_among(self, self.transports())?;
        let address = input.address()?;
        match self {
            Profile::Throng => throng(input, transport, &address),
            Profile::Nchan => nchan(input, transport, &address),
            Profile::Centrifugo => centrifugo(input, transport, &address),
            Profile::CentrifugoSse => centrifugo_sse(input, transport, &address),
            Profile::Mercure => mercure(input, &address, "match"),
            Profile::Mercure0 => mercure(input, &address, "topic"),
            Profile::Pusher => pusher(input, transport, &address),
            Profile::WebSocket | Profile::Custom => websocket(input, transport, &address),
        }
    }

    /// The server's transports, the default first.
    fn transports(self) -> &'static [Transport] {
        match self {
            Profile::Throng | Profile::Nchan | Profile::Custom => ALL_TRANSPORTS,
            Profile::Centrifugo | Profile::Pusher | Profile::WebSocket => &[Transport::WebSocket],
            Profile::CentrifugoSse | Profile::Mercure | Profile::Mercure0 => &[Transport::Sse],
        }
    }

    /// The option that publishing requires, such as a key; `None` if it requires none.
    pub(crate) fn publish_needs(self) -> Option<&'static str> {
        match self {
            Profile::Throng | Profile::Nchan | Profile::WebSocket => None,
            Profile::Centrifugo | Profile::CentrifugoSse => {
                Some("the key of the HTTP API: --publish-header 'X-API-Key: KEY'")
            }
            Profile::Mercure | Profile::Mercure0 => {
                Some("a publisher's token: --publish-header 'Authorization: Bearer JWT'")
            }
            Profile::Pusher => Some(
                "--publish-url of an HTTP endpoint that publishes, or --publish-by websocket \
                 where the server allows client events",
            ),
            Profile::Custom => Some("--publish-url, or --publish-by websocket"),
        }
    }
}

/// Throng: `/channels/CHANNEL`, with all four transports at one URL.
fn throng(
    input: &ProfileInput<'_>,
    transport: Transport,
    address: &ServerAddress,
) -> Result<Target, ProfileError> {
    /// The longest wait of a poll; shorter than the server's idle timeout.
    const POLL_TIME: &str = "wait=60";
    input.refuse_channel(address)?;
    let path = match input.streams {
        Streams::Friends { .. } => format!("/subscribe?channel={}", input.channels("&channel=")),
        Streams::One | Streams::Spread(_) | Streams::Own => {
            format!("/channels/{}", input.channel())
        }
    };
    let mut target = input.connect(transport, address, &path)?;
    if transport == Transport::LongPoll {
        target.headers.push(("Prefer".to_owned(), Template::literal(POLL_TIME)));
    }
    let publish_path = match address.path.as_str() {
        "" => Some(format!("/channels/{}", input.channel())),
        // Messages are published to the URL of subscribers, without its query.
        path if path.starts_with("/channels/") || path.starts_with("/users/") => {
            (!is_personal(&target.url)).then(|| path.split('?').next().unwrap_or(path).to_owned())
        }
        _ => None,
    };
    if let Some(path) = publish_path {
        let url = input.template(&address.http(&path))?;
        target.publish = Some(post(url, &[], Template::parse("{payload}")?));
    }
    Ok(target)
}

/// Nchan: nginx locations, by default `/sub/CHANNEL` for subscribers (`nchan_subscriber`) and
/// `/pub/CHANNEL` for publishers (`nchan_publisher`).
fn nchan(
    input: &ProfileInput<'_>,
    transport: Transport,
    address: &ServerAddress,
) -> Result<Target, ProfileError> {
    input.refuse_channel(address)?;
    let path = format!("/sub/{}", input.channels(","));
    let mut target = input.connect(transport, address, &path)?;
    if transport == Transport::Stream {
        // Without this header Nchan answers as to a long-poll.
        target.headers.push(("TE".to_owned(), Template::literal("chunked")));
    }
    let publish_path = match address.path.as_str() {
        "" => Some(format!("/pub/{}", input.channel())),
        path => path
            .strip_prefix("/sub/")
            .filter(|_| !is_personal(&target.url))
            .map(|channel| format!("/pub/{channel}")),
    };
    if let Some(path) = publish_path {
        let url = input.template(&address.http(&path))?;
        // Without a content type, messages are read as form fields.
        let headers = [("Content-Type", "text/plain")];
        // Nchan puts nothing between the messages of a stream, so each must end its own line.
        let body = if transport == Transport::Stream { "{payload}\n" } else { "{payload}" };
        target.publish = Some(post(url, &headers, Template::parse(body)?));
    }
    Ok(target)
}

/// In responses to commands, and to API calls despite their status 200, instead of a result.
const CENTRIFUGO_ERROR: &str = r#""error":"#;

/// Centrifugo's JSON protocol over WebSocket.
///
/// The server must let anonymous clients connect and subscribe (`client.insecure`, or
/// `allow_anonymous_connect_without_token` with `allow_subscribe_for_client`), or hello messages
/// must carry tokens.
fn centrifugo(
    input: &ProfileInput<'_>,
    transport: Transport,
    address: &ServerAddress,
) -> Result<Target, ProfileError> {
    let channel = input.channel_in_json()?;
    let mut target = input.connect(transport, address, "/connection/websocket")?;
    let subscribe = format!(r#"{{"id":2,"subscribe":{{"channel":"{channel}"}}}}"#);
    // The server executes the commands of one frame in order, so the second need not wait.
    let hello = format!("{}\n{subscribe}", r#"{"id":1,"connect":{"name":"flood"}}"#);
    target.hello = vec![input.template(&hello)?];
    target.subscribed = Subscribed::Message(r#""id":2,"subscribe""#.to_owned());
    target.refused = vec![CENTRIFUGO_ERROR.to_owned()];
    target.pings = vec![Ping { ask: "{}".to_owned(), answer: "{}".to_owned() }];
    target.publish = Some(centrifugo_publish(input, address)?);
    Ok(target)
}

/// Centrifugo's one-way SSE.
fn centrifugo_sse(
    input: &ProfileInput<'_>,
    transport: Transport,
    address: &ServerAddress,
) -> Result<Target, ProfileError> {
    input.channel_in_json()?;
    // `{"subs":{"CHANNEL":{}}}`, percent-encoded.
    let subs = input.channels("%22%3A%7B%7D%2C%22");
    let connect = format!("cf_connect=%7B%22subs%22%3A%7B%22{subs}%22%3A%7B%7D%7D%7D");
    let path = format!("/connection/uni_sse?{connect}");
    let mut target = input.connect(transport, address, &path)?;
    // A client that may not subscribe gets a connect message without "subs", and no error.
    target.subscribed = Subscribed::Message(r#""subs":{"#.to_owned());
    target.refused = vec![r#""connect":"#.to_owned()];
    target.publish = Some(centrifugo_publish(input, address)?);
    Ok(target)
}

fn centrifugo_publish(
    input: &ProfileInput<'_>,
    address: &ServerAddress,
) -> Result<PublishTarget, ProfileError> {
    let channel = input.channel_in_json()?;
    let body = format!(r#"{{"channel":"{channel}","data":{{"flood":"{{payload}}"}}}}"#);
    let headers = [("Content-Type", "application/json")];
    let url = Template::literal(&address.http("/api/publish"));
    let publish = post(url, &headers, input.template(&body)?);
    Ok(PublishTarget { refused: Some(CENTRIFUGO_ERROR.to_owned()), ..publish })
}

/// A Mercure hub: SSE at `/.well-known/mercure?match=TOPIC`, publishing by a form.
///
/// The hub must let anonymous clients subscribe, or get a subscriber's token in a header.
/// Publishing always takes a publisher's token. Hubs before version 1 ask for `topic=`, and each
/// version refuses the other's key.
fn mercure(
    input: &ProfileInput<'_>,
    address: &ServerAddress,
    key: &str,
) -> Result<Target, ProfileError> {
    const PATH: &str = "/.well-known/mercure";
    let channel = input.channel();
    if channel.contains(['&', '=', '+', '%', '#', ' ']) {
        return Err(ProfileError::Channel(format!(
            "the topic {channel:?} would have to be escaped in a form: use other characters"
        )));
    }
    let hub = address.path.split('?').next().filter(|path| !path.is_empty()).unwrap_or(PATH);
    let topics = format!("{key}={}", input.channels(&format!("&{key}=")));
    let path = format!("{PATH}?{topics}");
    let mut target = input.connect(Transport::Sse, address, &path)?;
    if !address.path.is_empty() && !address.path.contains('?') {
        target.url = input.template(&format!("{}?{topics}", input.url))?;
    }
    let body = input.template(&format!("topic={channel}&data={{payload}}"))?;
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    target.publish = Some(post(input.template(&address.http(hub))?, &headers, body));
    Ok(target)
}

/// The Pusher protocol, version 7: `/app/KEY`, one JSON event per frame.
///
/// Public channels need no signature. Requests to the HTTP API are signed over their body, which no
/// template can do: publishing needs an endpoint of the application, or client events.
fn pusher(
    input: &ProfileInput<'_>,
    transport: Transport,
    address: &ServerAddress,
) -> Result<Target, ProfileError> {
    const QUERY: &str = "protocol=7&client=flood&version=1.0&flash=false";
    /// Errors of a connection, and of a subscription.
    const ERRORS: [&str; 2] = ["pusher:error", "pusher:subscription_error"];
    /// Servers differ in how they write "no data".
    const PINGS: [&str; 4] = [
        r#"{"event":"pusher:ping","data":{}}"#,
        r#"{"event":"pusher:ping"}"#,
        r#"{"event":"pusher:ping","data":"{}"}"#,
        r#"{"event":"pusher:ping","data":""}"#,
    ];
    let channel = input.channel_in_json()?;
    if !address.path.starts_with("/app/") {
        return Err(ProfileError::Url(format!(
            "{:?} does not name the application: its key stands in the URL, like {}://{}/app/KEY",
            input.url, address.scheme, address.authority
        )));
    }
    let mut target = input.connect(transport, address, "")?;
    if !address.path.contains('?') {
        target.url = input.template(&format!("{}?{QUERY}", input.url))?;
    }
    let subscribe = format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"{channel}"}}}}"#);
    target.hello = vec![input.template(&subscribe)?];
    target.subscribed = Subscribed::Message("pusher_internal:subscription_succeeded".to_owned());
    target.refused = ERRORS.map(str::to_owned).to_vec();
    let answer = r#"{"event":"pusher:pong","data":{}}"#;
    let ping = |ask: &str| Ping { ask: ask.to_owned(), answer: answer.to_owned() };
    target.pings = PINGS.into_iter().map(ping).collect();
    let event =
        format!(r#"{{"event":"client-flood","channel":"{channel}","data":{{"m":"{{payload}}"}}}}"#);
    target.publish = Some(frame(input.template(&event)?));
    Ok(target)
}

/// A plain WebSocket server that sends what one client says to all of them, like the examples of
/// `ws`, Bun, uWebSockets and most frameworks. The publisher is one more client.
fn websocket(
    input: &ProfileInput<'_>,
    transport: Transport,
    address: &ServerAddress,
) -> Result<Target, ProfileError> {
    if let Some(channel) = input.channel {
        return Err(ProfileError::Channel(format!(
            "a plain WebSocket server has no channels, so there is no channel {channel:?}; if it \
             takes one from the URL, write the URL"
        )));
    }
    let mut target = input.connect(transport, address, "/")?;
    target.publish = Some(frame(Template::parse("{payload}")?));
    Ok(target)
}

/// Any server: the URL as given, and what the options say.
fn custom(input: &ProfileInput<'_>) -> Result<Target, ProfileError> {
    let address = input.address()?;
    let is_websocket = address.scheme.eq_ignore_ascii_case("ws");
    let transport = match input.transport {
        Some(transport) => transport,
        None if is_websocket => Transport::WebSocket,
        None => {
            let hint = "say how messages come: websocket, sse, stream or long-poll (--transport)";
            return Err(ProfileError::Url(format!(
                "{:?} does not tell the transport: {hint}",
                input.url
            )));
        }
    };
    if let Some(channel) = input.channel {
        return Err(ProfileError::Channel(format!(
            "the profile custom does not know where the channel {channel:?} belongs: write it into \
             the URL or the hello message"
        )));
    }
    input.connect(transport, &address, "/")
}

/// Publishing by frames, on one connection.
fn frame(frame: Template) -> PublishTarget {
    PublishTarget { by: PublishBy::WebSocket { frame }, connections: 1, pipeline: 1, refused: None }
}

/// Whether the URL differs between clients of the same stream.
fn is_personal(url: &Template) -> bool {
    url.has(Placeholder::Client)
}
