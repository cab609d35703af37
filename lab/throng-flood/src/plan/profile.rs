//! Profiles: the options for known servers.
//!
//! From a URL, and perhaps a transport and the name of a channel, a profile makes the options that
//! say how to subscribe and publish. The options of flags and files come before them.
//!
//! The profiles of Centrifugo, Mercure and Pusher follow the documented protocols.

use std::sync::Arc;

use throng_units::no_scheme;

use super::model::PlanError;
use super::options::{Options, PublishOptions, TargetOptions};
use super::values::{
    Header, Ping, Profile, PublishTransport, Streams, Subscribed, Transport, with_scheme,
};
use crate::protocol::url::default_port;
use crate::template::{ColumnTable, Placeholder, Template, TemplateValues};

/// The default channel of each stream. It is new in every run, so that two runs do not mix.
const CHANNEL: &str = "flood-{run}-{stream}";

/// The longest wait of a poll at Throng; shorter than the server's idle timeout.
const POLL_TIME: &str = "wait=60";

/// In responses to commands, and to API calls despite their status 200, instead of a result.
const CENTRIFUGO_ERROR: &str = r#""error":"#;

/// The pings of the Pusher protocol: servers differ in how they write "no data".
const PUSHER_PINGS: [&str; 4] = [
    r#"{"event":"pusher:ping","data":{}}"#,
    r#"{"event":"pusher:ping"}"#,
    r#"{"event":"pusher:ping","data":"{}"}"#,
    r#"{"event":"pusher:ping","data":""}"#,
];

impl Profile {
    /// The options for the server at the URL that is given. `columns` are those of the clients'
    /// file.
    pub(super) fn options(
        self,
        given: &TargetOptions,
        columns: Option<&Arc<ColumnTable>>,
    ) -> Result<Options, PlanError> {
        let server = Server::new(self, given, columns)?;
        match self {
            Profile::Throng => server.throng(),
            Profile::Nchan => server.nchan(),
            Profile::Centrifugo => server.centrifugo(),
            Profile::CentrifugoSse => server.centrifugo_sse(),
            Profile::Mercure => server.mercure("match"),
            Profile::Mercure0 => server.mercure("topic"),
            Profile::Pusher => server.pusher(),
            Profile::WebSocket => server.websocket(),
            Profile::Custom => server.custom(),
        }
    }

    /// The server's transports, the default first.
    fn transports(self) -> &'static [Transport] {
        match self {
            Profile::Throng | Profile::Nchan | Profile::Custom => {
                &[Transport::WebSocket, Transport::Sse, Transport::Stream, Transport::LongPoll]
            }
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

/// The server that the options name.
struct Server<'a> {
    given: &'a TargetOptions,
    url: String,
    transport: Transport,
    channel: &'a str,
    /// The URL as a template, to see which placeholders it has.
    template: Template,
    scheme: String,
    authority: String,
    /// From the first slash or question mark on; empty if the URL names only the server.
    path: String,
}

impl<'a> Server<'a> {
    fn new(
        profile: Profile,
        given: &'a TargetOptions,
        columns: Option<&Arc<ColumnTable>>,
    ) -> Result<Server<'a>, PlanError> {
        let url = with_scheme(given.url.as_deref().unwrap_or_default());
        let template = Template::with_table(&url, columns).map_err(wrong_url)?;
        // A URL from a table is taken apart as the first client's.
        let first = template.rendered(&TemplateValues::default());
        let (scheme, authority, path) = parts(if url.starts_with('{') { &first } else { &url })?;
        let known = profile.transports();
        let transport = match given.transport {
            Some(transport) if known.contains(&transport) => transport,
            Some(transport) => {
                let known = known.iter().map(|each| each.name()).collect::<Vec<_>>().join(", ");
                let message = format!("{profile} has no transport {transport}; it has {known}");
                return Err(PlanError::new("target.transport", message));
            }
            None if profile == Profile::Custom && !is_websocket(&scheme) => {
                return Err(wrong_url(format!(
                    "{url:?} does not tell the transport: say how messages come: websocket, sse, \
                     stream or long-poll (--transport)"
                )));
            }
            None => known[0],
        };
        let channel = given.channel.as_deref().unwrap_or(CHANNEL);
        Ok(Server { given, url, transport, channel, template, scheme, authority, path })
    }

    fn http(&self, path: &str) -> String {
        let scheme = if default_port(&self.scheme) == Some(443) { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.authority)
    }

    /// Whether the URL differs between clients of the same stream.
    fn is_personal(&self) -> bool {
        self.template.has(Placeholder::Client)
    }

    /// Nothing but the connection. Its URL is the given one if that has a path, else the server's
    /// with `path`.
    fn connect(&self, path: &str) -> Options {
        let url = match self.path.as_str() {
            "" => format!("{}://{}{path}", self.scheme, self.authority),
            _ => self.url.clone(),
        };
        let target = TargetOptions {
            url: Some(url),
            transport: Some(self.transport),
            subscribed: Some(Subscribed::Handshake),
            ..TargetOptions::default()
        };
        Options { target, ..Options::default() }
    }

    /// All channels of a client, with `separator` between them. For a client of one stream that is
    /// its channel.
    fn channels(&self, separator: &str) -> String {
        if !self.has_friends() {
            return self.channel.to_owned();
        }
        let (before, after) = self.channel.split_once("{stream}").unwrap_or((self.channel, ""));
        format!("{before}{{streams:{after}{separator}{before}}}{after}")
    }

    fn has_friends(&self) -> bool {
        matches!(self.given.streams, Some(Streams::Friends { .. }))
    }

    /// Refuses a channel if the path of the URL names one already.
    fn refuse_channel(&self) -> Result<(), PlanError> {
        match &self.given.channel {
            Some(channel) if !self.path.is_empty() => Err(wrong_channel(format!(
                "the URL has a path, which names the channel; the channel {channel:?} is for a \
                 URL without one"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a channel that needs escapes in JSON.
    fn refuse_escapes(&self) -> Result<(), PlanError> {
        let channel = self.channel;
        if channel.contains(['"', '\\']) || channel.contains(char::is_control) {
            return Err(wrong_channel(format!(
                "the channel {channel:?} would have to be escaped in JSON: use other characters"
            )));
        }
        Ok(())
    }

    /// Throng: `/channels/CHANNEL`, with all four transports at one URL.
    fn throng(&self) -> Result<Options, PlanError> {
        self.refuse_channel()?;
        let channel_path = format!("/channels/{}", self.channel);
        let friends_path = || format!("/subscribe?channel={}", self.channels("&channel="));
        let path = if self.has_friends() { friends_path() } else { channel_path.clone() };
        let mut options = self.connect(&path);
        if self.transport == Transport::LongPoll {
            options.target.headers = Some(vec![header("Prefer", POLL_TIME)]);
        }
        // Messages are published to the URL of subscribers, without its query.
        let is_published_to = |path: &str| {
            (path.starts_with("/channels/") || path.starts_with("/users/")) && !self.is_personal()
        };
        let path = match self.path.as_str() {
            "" => Some(channel_path.as_str()),
            path => path.split('?').next().filter(|path| is_published_to(path)),
        };
        options.publish = path.map(|path| post(self.http(path), "{payload}")).unwrap_or_default();
        Ok(options)
    }

    /// Nchan: nginx locations, by default `/sub/CHANNEL` for subscribers (`nchan_subscriber`) and
    /// `/pub/CHANNEL` for publishers (`nchan_publisher`).
    fn nchan(&self) -> Result<Options, PlanError> {
        self.refuse_channel()?;
        let mut options = self.connect(&format!("/sub/{}", self.channels(",")));
        let is_stream = self.transport == Transport::Stream;
        if is_stream {
            // Without this header Nchan answers as to a long-poll.
            options.target.headers = Some(vec![header("TE", "chunked")]);
        }
        let channel = match self.path.as_str() {
            "" => Some(self.channel),
            path => path.strip_prefix("/sub/").filter(|_| !self.is_personal()),
        };
        // Nchan puts nothing between the messages of a stream, so each must end its own line.
        let body = if is_stream { "{payload}\n" } else { "{payload}" };
        // Without a content type, messages are read as form fields.
        let publish =
            |channel| post(self.http(&format!("/pub/{channel}")), body).with_type("text/plain");
        options.publish = channel.map(publish).unwrap_or_default();
        Ok(options)
    }

    /// Centrifugo's JSON protocol over WebSocket.
    ///
    /// The server must let anonymous clients connect and subscribe (`client.insecure`, or
    /// `allow_anonymous_connect_without_token` with `allow_subscribe_for_client`), or hello
    /// messages must carry tokens.
    fn centrifugo(&self) -> Result<Options, PlanError> {
        self.refuse_escapes()?;
        let mut options = self.connect("/connection/websocket");
        // The server executes the commands of one frame in order, so the second need not wait.
        options.target.hello = Some(vec![format!(
            r#"{{"id":1,"connect":{{"name":"flood"}}}}{}{{"id":2,"subscribe":{{"channel":"{}"}}}}"#,
            '\n', self.channel
        )]);
        options.target.subscribed = Some(message(r#""id":2,"subscribe""#));
        options.target.refused = Some(vec![CENTRIFUGO_ERROR.to_owned()]);
        options.target.pings = Some(vec![ping("{}", "{}")]);
        options.publish = self.centrifugo_publish();
        Ok(options)
    }

    /// Centrifugo's one-way SSE.
    fn centrifugo_sse(&self) -> Result<Options, PlanError> {
        self.refuse_escapes()?;
        // `{"subs":{"CHANNEL":{}}}`, percent-encoded.
        let subs = self.channels("%22%3A%7B%7D%2C%22");
        let connect = format!("cf_connect=%7B%22subs%22%3A%7B%22{subs}%22%3A%7B%7D%7D%7D");
        let mut options = self.connect(&format!("/connection/uni_sse?{connect}"));
        // A client that may not subscribe gets a connect message without "subs", and no error.
        options.target.subscribed = Some(message(r#""subs":{"#));
        options.target.refused = Some(vec![r#""connect":"#.to_owned()]);
        options.publish = self.centrifugo_publish();
        Ok(options)
    }

    fn centrifugo_publish(&self) -> PublishOptions {
        let body = format!(r#"{{"channel":"{}","data":{{"flood":"{{payload}}"}}}}"#, self.channel);
        PublishOptions {
            refused: Some(CENTRIFUGO_ERROR.to_owned()),
            ..post(self.http("/api/publish"), &body).with_type("application/json")
        }
    }

    /// A Mercure hub: SSE at `/.well-known/mercure?match=TOPIC`, publishing by a form.
    ///
    /// The hub must let anonymous clients subscribe, or get a subscriber's token in a header.
    /// Publishing always takes a publisher's token. Hubs before version 1 ask for `topic=`, and
    /// each version refuses the other's key.
    fn mercure(&self, key: &str) -> Result<Options, PlanError> {
        const PATH: &str = "/.well-known/mercure";
        let channel = self.channel;
        if channel.contains(['&', '=', '+', '%', '#', ' ']) {
            return Err(wrong_channel(format!(
                "the topic {channel:?} would have to be escaped in a form: use other characters"
            )));
        }
        let hub = self.path.split('?').next().filter(|path| !path.is_empty()).unwrap_or(PATH);
        let topics = format!("{key}={}", self.channels(&format!("&{key}=")));
        let mut options = self.connect(&format!("{PATH}?{topics}"));
        if !self.path.is_empty() && !self.path.contains('?') {
            options.target.url = Some(format!("{}?{topics}", self.url));
        }
        options.publish = post(self.http(hub), &format!("topic={channel}&data={{payload}}"))
            .with_type("application/x-www-form-urlencoded");
        Ok(options)
    }

    /// The Pusher protocol, version 7: `/app/KEY`, one JSON event per frame.
    ///
    /// Public channels need no signature. Requests to the HTTP API are signed over their body,
    /// which no template can do: publishing needs an endpoint of the application, or client events.
    fn pusher(&self) -> Result<Options, PlanError> {
        self.refuse_escapes()?;
        let channel = self.channel;
        if !self.path.starts_with("/app/") {
            return Err(wrong_url(format!(
                "{:?} does not name the application: its key stands in the URL, like \
                 {}://{}/app/KEY",
                self.url, self.scheme, self.authority
            )));
        }
        let mut options = self.connect("");
        if !self.path.contains('?') {
            let query = "protocol=7&client=flood&version=1.0&flash=false";
            options.target.url = Some(format!("{}?{query}", self.url));
        }
        let subscribe =
            format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"{channel}"}}}}"#);
        options.target.hello = Some(vec![subscribe]);
        options.target.subscribed = Some(message("pusher_internal:subscription_succeeded"));
        // Errors of a connection, and of a subscription.
        let errors = ["pusher:error", "pusher:subscription_error"];
        options.target.refused = Some(errors.map(str::to_owned).to_vec());
        let answer = r#"{"event":"pusher:pong","data":{}}"#;
        options.target.pings = Some(PUSHER_PINGS.map(|ask| ping(ask, answer)).to_vec());
        options.publish = frame(&format!(
            r#"{{"event":"client-flood","channel":"{channel}","data":{{"m":"{{payload}}"}}}}"#
        ));
        Ok(options)
    }

    /// A plain WebSocket server that sends what one client says to all of them, like the examples
    /// of `ws`, Bun, uWebSockets and most frameworks. The publisher is one more client.
    fn websocket(&self) -> Result<Options, PlanError> {
        if let Some(channel) = &self.given.channel {
            return Err(wrong_channel(format!(
                "a plain WebSocket server has no channels, so there is no channel {channel:?}; if \
                 it takes one from the URL, write the URL"
            )));
        }
        Ok(Options { publish: frame("{payload}"), ..self.connect("/") })
    }

    /// Any server: the URL as given, and what the options say.
    fn custom(&self) -> Result<Options, PlanError> {
        match &self.given.channel {
            Some(channel) => Err(wrong_channel(format!(
                "the profile custom does not know where the channel {channel:?} belongs: write it \
                 into the URL or the hello message"
            ))),
            None => Ok(self.connect("/")),
        }
    }
}

fn is_websocket(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("ws") || scheme.eq_ignore_ascii_case("wss")
}

/// Scheme, authority and path of a URL. Only the path may contain placeholders.
fn parts(url: &str) -> Result<(String, String, String), PlanError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong_url(no_scheme(url)))?;
    if default_port(scheme).is_none() {
        let what = "the scheme is http, ws, https or wss, like http://127.0.0.1:8080";
        return Err(wrong_url(format!("{url:?} cannot be loaded: {what}")));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.is_empty() || authority.starts_with(':') {
        return Err(wrong_url(format!("{url:?} names no host, like http://127.0.0.1:8080")));
    }
    let path = if path == "/" { "" } else { path };
    Ok((scheme.to_owned(), authority.to_owned(), path.to_owned()))
}

fn wrong_url(message: impl ToString) -> PlanError {
    PlanError::new("target.url", message)
}

fn wrong_channel(message: String) -> PlanError {
    PlanError::new("target.channel", message)
}

fn header(name: &str, value: &str) -> Header {
    Header(name.to_owned(), value.to_owned())
}

fn message(part: &str) -> Subscribed {
    Subscribed::Message(part.to_owned())
}

fn ping(ask: &str, answer: &str) -> Ping {
    Ping { ask: ask.to_owned(), answer: answer.to_owned() }
}

/// Publishing by requests to `url`.
fn post(url: String, body: &str) -> PublishOptions {
    let (by, body) = (Some(PublishTransport::Http), Some(body.to_owned()));
    PublishOptions { by, url: Some(url), body, ..PublishOptions::default() }
}

/// Publishing by frames.
fn frame(body: &str) -> PublishOptions {
    let (by, body) = (Some(PublishTransport::WebSocket), Some(body.to_owned()));
    PublishOptions { by, body, ..PublishOptions::default() }
}

impl PublishOptions {
    fn with_type(self, content_type: &str) -> PublishOptions {
        PublishOptions { headers: Some(vec![header("Content-Type", content_type)]), ..self }
    }
}

#[cfg(test)]
mod tests;
