//! Ready profiles: how one subscribes and publishes at the servers that people use.
//!
//! A profile turns the little that is asked for (a URL, perhaps a transport and the name of a
//! channel) into a [`Target`]. Whatever it says can be overruled afterwards by flags or by the
//! plan's file.
//!
//! The profiles of Centrifugo, Mercure and Pusher follow the documented protocols.

mod centrifugo;
mod custom;
mod mercure;
mod nchan;
mod pusher;
mod throng;
mod websocket;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::plan::{PublishBy, PublishTarget, Streams, Subscribed, Target, Transport};
use crate::template::{Place, Table, Template, TemplateError, Values};
use throng_units::Invalid;

/// A channel of the run's own for each stream, so that two runs do not hear each other.
pub const CHANNEL: &str = "flood-{run}-{stream}";

/// A connect and its handshake may take so long, unless said otherwise.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Which server is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Throng, on any of its transports.
    Throng,
    /// Nchan's locations, on any of its transports.
    Nchan,
    /// Centrifugo's JSON protocol over WebSocket.
    Centrifugo,
    /// Centrifugo's one-way SSE.
    CentrifugoSse,
    /// A Mercure hub of version 1.
    Mercure,
    /// A Mercure hub before version 1.
    Mercure0,
    /// The Pusher protocol, version 7: Soketi, Reverb, Sockudo and others.
    Pusher,
    /// A plain WebSocket server that sends one client's message to all.
    WebSocket,
    /// Whatever the flags or the file say, and nothing else.
    Custom,
}

/// What a profile is made for.
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    /// The server, or the whole URL of a subscription.
    pub url: &'a str,
    /// The columns that templates may name.
    pub table: Option<&'a Arc<Table>>,
    /// How messages are to come; the profile's usual way unless given.
    pub transport: Option<Transport>,
    /// The channel's name; [`CHANNEL`] unless given.
    pub channel: Option<&'a str>,
    /// What is followed.
    pub streams: Streams,
}

/// Why there is no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The URL's template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Not a URL that can be loaded.
    #[error("{0}")]
    Url(String),
    /// The server has no such transport.
    #[error("{profile} has no transport {transport}; it has {known}")]
    Transport {
        /// The profile's name.
        profile: &'static str,
        /// What was asked for.
        transport: &'static str,
        /// What there is.
        known: String,
    },
    /// A channel's name that cannot stand where it must.
    #[error("{0}")]
    Channel(String),
}

/// All profiles, their names, and what they are.
pub const PROFILES: [(&str, Profile, &str); 9] = [
    ("throng", Profile::Throng, "Throng; any transport"),
    ("nchan", Profile::Nchan, "Nchan, at /sub/CHANNEL and /pub/CHANNEL; any transport"),
    ("centrifugo", Profile::Centrifugo, "Centrifugo, JSON over WebSocket; publish by HTTP API"),
    ("centrifugo-sse", Profile::CentrifugoSse, "Centrifugo, one-way SSE; publish by HTTP API"),
    ("mercure", Profile::Mercure, "a Mercure hub of version 1, SSE; publish by form POST"),
    ("mercure-0", Profile::Mercure0, "the same before version 1, which asked for topics"),
    ("pusher", Profile::Pusher, "Pusher protocol 7: Soketi, Reverb, Sockudo"),
    ("websocket", Profile::WebSocket, "a server that sends one client's message to all"),
    ("custom", Profile::Custom, "what the flags say and nothing else; needs --transport"),
];

impl Profile {
    /// As it is written.
    pub fn name(self) -> &'static str {
        PROFILES.iter().find(|(_, profile, _)| *profile == self).map_or("", |(name, ..)| name)
    }

    /// The target for what was asked for.
    pub fn target(self, choice: &Choice<'_>) -> Result<Target, ProfileError> {
        match self {
            Profile::Throng => throng::target(choice),
            Profile::Nchan => nchan::target(choice),
            Profile::Centrifugo => centrifugo::websocket(choice),
            Profile::CentrifugoSse => centrifugo::sse(choice),
            Profile::Mercure => mercure::target(choice, self, "match"),
            Profile::Mercure0 => mercure::target(choice, self, "topic"),
            Profile::Pusher => pusher::target(choice),
            Profile::WebSocket => websocket::target(choice),
            Profile::Custom => custom::target(choice),
        }
    }

    /// What must be given before anything can be published, if something must.
    pub fn publish_needs(self) -> Option<&'static str> {
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

impl FromStr for Profile {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Profile, Invalid> {
        let names = PROFILES.iter().map(|(name, ..)| *name);
        let found = PROFILES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(text));
        found.map(|(_, profile, _)| *profile).ok_or_else(|| {
            let hint = match throng_units::suggest::nearest(text, names.clone()) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("known are {}", names.collect::<Vec<_>>().join(", ")),
            };
            Invalid(format!("there is no profile {text:?}; {hint}"))
        })
    }
}

/// All transports and their names.
pub const TRANSPORTS: [(&str, Transport); 4] = [
    ("websocket", Transport::WebSocket),
    ("sse", Transport::Sse),
    ("stream", Transport::Stream),
    ("long-poll", Transport::LongPoll),
];

/// The transport with this name.
pub fn transport_named(text: &str) -> Result<Transport, Invalid> {
    let found = TRANSPORTS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let expected = "a transport: websocket, sse, stream or long-poll";
    found.map(|(_, transport)| *transport).ok_or_else(|| Invalid::new(text, expected))
}

/// A transport's name.
pub fn transport_name(transport: Transport) -> &'static str {
    TRANSPORTS.iter().find(|(_, known)| *known == transport).map_or("", |(name, _)| name)
}

/// A URL in its three parts; only the last may hold places to fill in, apart from a URL of a table.
struct Address<'a> {
    scheme: &'a str,
    authority: &'a str,
    /// From the first slash or question mark on; empty where only the server is named.
    path: &'a str,
}

impl<'a> Address<'a> {
    fn read(url: &'a str) -> Result<Address<'a>, ProfileError> {
        let example = "like http://127.0.0.1:8080";
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| ProfileError::Url(throng_units::no_scheme(url).0))?;
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "ws" => {}
            "https" | "wss" => {
                let what = "TLS is not spoken; load the server behind its TLS proxy";
                return Err(ProfileError::Url(format!("{url:?}: {what}")));
            }
            _ => {
                let what = format!("the scheme is http or ws, {example}");
                return Err(ProfileError::Url(format!("{url:?} cannot be loaded: {what}")));
            }
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.is_empty() || authority.starts_with(':') {
            return Err(ProfileError::Url(format!("{url:?} names no host, {example}")));
        }
        let path = if path == "/" { "" } else { path };
        Ok(Address { scheme, authority, path })
    }

    fn http(&self, path: &str) -> String {
        format!("http://{}{path}", self.authority)
    }
}

impl Choice<'_> {
    /// The server, of which the URL of a table's first line is an example.
    fn address<'b>(&self, room: &'b mut String) -> Result<Address<'b>, ProfileError> {
        let is_whole = self.url.starts_with('{');
        *room = match is_whole {
            true => self.template(self.url)?.rendered(&Values::default()),
            false => self.url.to_owned(),
        };
        Address::read(room)
    }

    fn template(&self, text: &str) -> Result<Template, ProfileError> {
        Ok(Template::with_table(text, self.table)?)
    }

    fn channel(&self) -> &str {
        self.channel.unwrap_or(CHANNEL)
    }

    /// The name as it stands in JSON between quotation marks.
    fn channel_in_json(&self) -> Result<&str, ProfileError> {
        let channel = self.channel();
        match channel.contains(['"', '\\']) || channel.contains(char::is_control) {
            true => Err(ProfileError::Channel(format!(
                "the channel {channel:?} would have to be escaped in JSON: use other characters"
            ))),
            false => Ok(channel),
        }
    }

    /// All channels of a client, with `separator` between them; the same as one channel where a
    /// client follows but one stream.
    fn channels(&self, separator: &str) -> String {
        match self.streams {
            Streams::Friends { .. } => {
                let channel = self.channel();
                let (before, after) = channel.split_once("{stream}").unwrap_or((channel, ""));
                format!("{before}{{streams:{after}{separator}{before}}}{after}")
            }
            Streams::One | Streams::Spread(_) | Streams::Own => self.channel().to_owned(),
        }
    }

    fn transport_among(
        &self,
        profile: Profile,
        known: &[Transport],
    ) -> Result<Transport, ProfileError> {
        match self.transport {
            None => Ok(known[0]),
            Some(transport) if known.contains(&transport) => Ok(transport),
            Some(transport) => Err(ProfileError::Transport {
                profile: profile.name(),
                transport: transport_name(transport),
                known: known
                    .iter()
                    .map(|&each| transport_name(each))
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// A target that says nothing but how to connect. The URL is the one that was given if it has a
    /// path, else the server's with `path`.
    fn connect(
        &self,
        transport: Transport,
        address: &Address<'_>,
        path: &str,
    ) -> Result<Target, ProfileError> {
        let url = match address.path.is_empty() {
            true => format!("{}://{}{path}", address.scheme, address.authority),
            false => self.url.to_owned(),
        };
        Ok(Target {
            transport,
            url: self.template(&url)?,
            ports: Vec::new(),
            headers: Vec::new(),
            subprotocol: None,
            hello: Vec::new(),
            subscribed: Subscribed::Handshake,
            refused: Vec::new(),
            pings: Vec::new(),
            handshake_timeout: HANDSHAKE_TIMEOUT,
            publish: None,
            streams: self.streams,
        })
    }

    /// The channel is in the path already, so that no other can be asked for.
    fn refuse_channel(&self, address: &Address<'_>) -> Result<(), ProfileError> {
        match self.channel {
            Some(channel) if !address.path.is_empty() => Err(ProfileError::Channel(format!(
                "the URL has a path, which names the channel; the channel {channel:?} is for a \
                 URL without one"
            ))),
            _ => Ok(()),
        }
    }
}

/// Publishing by `POST`, on one connection.
fn post(url: Template, headers: &[(&str, &str)], body: Template) -> PublishTarget {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Template::literal(value)))
        .collect();
    PublishTarget {
        by: PublishBy::Http { method: "POST".to_owned(), url, headers, body },
        connections: 1,
        pipeline: 1,
        refused: None,
    }
}

/// Whether other clients get other URLs for other reasons than their stream.
fn is_personal(url: &Template) -> bool {
    url.has(Place::Client)
}

#[cfg(test)]
mod tests;
