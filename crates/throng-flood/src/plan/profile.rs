//! Profiles: how to subscribe and publish at known servers.
//!
//! A profile turns a URL, and perhaps a transport and the name of a channel, into a
//! [`Target`](super::Target). Options override what it says.
//!
//! The profiles of Centrifugo, Mercure and Pusher follow the documented protocols.

mod servers;

use std::sync::Arc;
use std::time::Duration;

use throng_units::no_scheme;

use crate::plan::model::{
    Profile, PublishBy, PublishTarget, Streams, Subscribed, Target, Transport,
};
use crate::template::{ColumnTable, Template, TemplateError, TemplateValues};

/// The default channel of each stream. It is new in every run, so that two runs do not mix.
const CHANNEL: &str = "flood-{run}-{stream}";

/// What a profile makes a target from.
#[derive(Debug, Clone)]
pub(super) struct ProfileInput<'a> {
    /// The server, or the URL of a subscription.
    pub(super) url: &'a str,
    /// The columns that templates may use.
    pub(super) table: Option<&'a Arc<ColumnTable>>,
    /// `None` for the profile's default.
    pub(super) transport: Option<Transport>,
    /// `None` for `flood-{run}-{stream}`.
    pub(super) channel: Option<&'a str>,
    /// The streams that clients follow.
    pub(super) streams: Streams,
}

/// Why a profile cannot make a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProfileError {
    /// The URL, or another template, cannot be parsed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The URL cannot be used.
    #[error("{0}")]
    Url(String),
    /// The server has no such transport.
    #[error("{profile} has no transport {transport}; it has {known}")]
    Transport {
        /// The profile's name.
        profile: &'static str,
        /// The requested transport.
        transport: &'static str,
        /// The server's transports.
        known: String,
    },
    /// The name of the channel cannot be used.
    #[error("{0}")]
    Channel(String),
}

/// The parts of a URL. Only the path may contain places of a template.
struct ServerAddress {
    scheme: String,
    authority: String,
    /// From the first slash or question mark on; empty if the URL names only the server.
    path: String,
}

impl ServerAddress {
    fn parse(url: &str) -> Result<ServerAddress, ProfileError> {
        let example = "like http://127.0.0.1:8080";
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| ProfileError::Url(no_scheme(url).0))?;
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "ws" => {}
            "https" | "wss" => {
                let what = "TLS is not supported; load the server behind its TLS proxy";
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
        Ok(ServerAddress {
            scheme: scheme.to_owned(),
            authority: authority.to_owned(),
            path: path.to_owned(),
        })
    }

    fn http(&self, path: &str) -> String {
        format!("http://{}{path}", self.authority)
    }
}

impl ProfileInput<'_> {
    /// The address of the server. A URL from a table is rendered for the first client.
    fn address(&self) -> Result<ServerAddress, ProfileError> {
        if self.url.starts_with('{') {
            return ServerAddress::parse(
                &self.template(self.url)?.rendered(&TemplateValues::default()),
            );
        }
        ServerAddress::parse(self.url)
    }

    fn template(&self, text: &str) -> Result<Template, ProfileError> {
        Ok(Template::with_table(text, self.table)?)
    }

    fn channel(&self) -> &str {
        self.channel.unwrap_or(CHANNEL)
    }

    /// The channel, checked to need no escapes in JSON.
    fn channel_in_json(&self) -> Result<&str, ProfileError> {
        let channel = self.channel();
        if channel.contains(['"', '\\']) || channel.contains(char::is_control) {
            return Err(ProfileError::Channel(format!(
                "the channel {channel:?} would have to be escaped in JSON: use other characters"
            )));
        }
        Ok(channel)
    }

    /// All channels of a client, with `separator` between them. For a client of one stream that is
    /// its channel.
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
                transport: transport.name(),
                known: known.iter().map(|&each| each.name()).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// A target with nothing but the connection. Its URL is the given one if that has a path, else
    /// the server's with `path`.
    fn connect(
        &self,
        transport: Transport,
        address: &ServerAddress,
        path: &str,
    ) -> Result<Target, ProfileError> {
        let url = if address.path.is_empty() {
            format!("{}://{}{path}", address.scheme, address.authority)
        } else {
            self.url.to_owned()
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
            // Set from the options.
            handshake_timeout: Duration::ZERO,
            publish: None,
            streams: self.streams,
        })
    }

    /// Refuses a channel if the path of the URL names one already.
    fn refuse_channel(&self, address: &ServerAddress) -> Result<(), ProfileError> {
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

#[cfg(test)]
mod tests;
