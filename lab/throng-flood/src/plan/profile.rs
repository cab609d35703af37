//! Profiles: the options for known servers, from the files in `profiles/`.
//!
//! From a URL, and perhaps a transport and the name of a channel, a profile makes the options that
//! say how to subscribe and publish. The options of flags and files come before them.
//!
//! A profile's file has options like a plan: for all transports, or in tables for one. Its table
//! `[profile]` has [`Rules`]. In their texts `<server>` is the server's URL without a path, and
//! `<channel>` the channel; `<channels:SEPARATOR>` are all channels of a client.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use throng_settings::Reader;
use throng_units::no_scheme;
use toml::de::DeTable;

use super::model::PlanError;
use super::option_table::Table;
use super::options::{Options, PublishOptions, TargetOptions};
use super::values::{Profile, Streams, Subscribed, Transport, with_scheme};
use crate::protocol::url::default_port;
use crate::template::{ColumnTable, Placeholder, Template, TemplateValues};

/// The default channel of each stream. It is new in every run, so that two runs do not mix.
const CHANNEL: &str = "flood-{run}-{stream}";

/// Where a profile's server subscribes and publishes, and which channels it can have.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Rules {
    /// The default first.
    transports: Vec<String>,
    /// The option that publishing requires, such as a key.
    needs: Option<String>,
    /// The path of a URL that names only the server.
    subscribe: String,
    /// The same for clients that follow several streams, unless `several-websocket` has a URL.
    friends: Option<String>,
    /// The query of a URL without one.
    query: Option<String>,
    /// The path that a URL must begin with, and the error otherwise.
    requires: String,
    requires_why: String,
    /// The path to publish at.
    publish: Option<String>,
    /// Beginnings of paths of subscribers, and of those to publish at in their place. If there
    /// are any, a URL with another path is not published to.
    published: std::collections::BTreeMap<String, String>,
    /// True if the query of a subscriber's URL is part of the one to publish at.
    keeps_query: bool,
    /// True if all clients of a stream publish at one URL, whatever theirs is.
    one_hub: bool,
    /// True if a URL with a path needs no channel.
    path_names_channel: bool,
    /// The error if there is a channel, `<given>`.
    no_channel: Option<String>,
    /// Characters that would have to be escaped in a channel, and the format that demands it.
    escaped: String,
    escaped_in: String,
}

impl Profile {
    fn text(self) -> &'static str {
        match self {
            Profile::Throng => include_str!("profiles/throng.toml"),
            Profile::Nchan => include_str!("profiles/nchan.toml"),
            Profile::Centrifugo => include_str!("profiles/centrifugo.toml"),
            Profile::CentrifugoSse => include_str!("profiles/centrifugo-sse.toml"),
            Profile::Mercure => include_str!("profiles/mercure.toml"),
            Profile::Mercure0 => include_str!("profiles/mercure-0.toml"),
            Profile::Pusher => include_str!("profiles/pusher.toml"),
            Profile::WebSocket => include_str!("profiles/websocket.toml"),
            Profile::Custom => include_str!("profiles/custom.toml"),
        }
    }

    /// The rules, and the options, with those of this table before the others. Tests read every
    /// file.
    fn read(self, table: &str) -> (Rules, Options) {
        #[derive(Deserialize)]
        struct File {
            profile: Rules,
        }
        let document = DeTable::parse(self.text()).expect("the file of a profile is TOML");
        let File { profile } = toml::from_str(self.text()).expect("a profile has rules");
        let reader = Reader::new(Vec::new(), Path::new(""));
        let tables = &["profile", "stream", "long-poll", "several-websocket"];
        let section = reader.section(document.get_ref(), &[Options::KEYS, tables].concat());
        let first = section.table(table, Options::KEYS);
        let options = first.map(|table| Options::read(&table)).unwrap_or_default();
        let options = options.or(Options::read(&section));
        debug_assert_eq!(reader.errors(), []);
        (profile, options)
    }

    /// The option that publishing requires, such as a key; `None` if it requires none.
    pub(crate) fn publish_needs(self) -> Option<String> {
        self.read("").0.needs
    }

    /// The options for the server at the URL that is given. `columns` are those of the clients'
    /// file.
    pub(super) fn options(
        self,
        given: &TargetOptions,
        columns: Option<&Arc<ColumnTable>>,
    ) -> Result<Options, PlanError> {
        let (rules, _) = self.read("");
        let server = Server::new(self, &rules, given, columns)?;
        server.check_channel(&rules)?;
        let transport = server.transport.name();
        let several = format!("several-{transport}");
        let (_, mut options) = self.read(if server.has_channels() { &several } else { transport });
        let own = options.target.url.take();
        options.target.url = Some(server.subscribed_url(&rules, own)?);
        options.target.transport = Some(server.transport);
        options.target.subscribed.get_or_insert(Subscribed::Handshake);
        let publish = &mut options.publish;
        for text in options.target.hello.iter_mut().flatten().chain(&mut publish.body) {
            *text = server.filled(text);
        }
        if let Some(path) = &rules.publish {
            match server.published_path(&rules, path) {
                Some(path) => publish.url = Some(server.http(&path)),
                None => *publish = PublishOptions::default(),
            }
        }
        Ok(options)
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
        rules: &Rules,
        given: &'a TargetOptions,
        columns: Option<&Arc<ColumnTable>>,
    ) -> Result<Server<'a>, PlanError> {
        let url = with_scheme(given.url.as_deref().unwrap_or_default());
        let template = Template::with_table(&url, columns).map_err(wrong_url)?;
        // A URL from a table is taken apart as the first client's.
        let first = template.rendered(&TemplateValues::default());
        let (scheme, authority, path) = parts(if url.starts_with('{') { &first } else { &url })?;
        let known: Vec<Transport> =
            rules.transports.iter().filter_map(|name| name.parse().ok()).collect();
        let transport = match given.transport {
            Some(transport) if known.contains(&transport) => transport,
            Some(transport) => {
                let known = rules.transports.join(", ");
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

    /// True if clients follow several channels, but not those of friends.
    fn has_channels(&self) -> bool {
        self.given.channels_per_client().0 > 1
    }

    fn has_several(&self) -> bool {
        self.has_channels() || matches!(self.given.streams, Some(Streams::Friends { .. }))
    }

    /// A text of the profile. `<channels:SEPARATOR>` is the channel for clients of one stream.
    fn filled(&self, text: &str) -> String {
        let server = format!("{}://{}", self.scheme, self.authority);
        let text = text.replace("<server>", &server).replace("<channel>", self.channel);
        let channels = text.split_once("<channels:").and_then(|(before, rest)| {
            let (separator, after) = rest.split_once('>')?;
            Some(format!("{before}{}{after}", self.channels(separator)))
        });
        channels.unwrap_or(text)
    }

    fn channels(&self, separator: &str) -> String {
        if !self.has_several() {
            return self.channel.to_owned();
        }
        let (before, after) = self.channel.split_once("{stream}").unwrap_or((self.channel, ""));
        format!("{before}{{streams:{after}{separator}{before}}}{after}")
    }

    fn check_channel(&self, rules: &Rules) -> Result<(), PlanError> {
        let channel = self.channel;
        let is_escaped = |letter: char| rules.escaped.contains(letter) || letter.is_control();
        let message = match (&rules.no_channel, &self.given.channel) {
            (Some(refusal), Some(given)) => refusal.replace("<given>", &format!("{given:?}")),
            (_, Some(given)) if rules.path_names_channel && !self.path.is_empty() => format!(
                "the URL has a path, which names the channel; the channel {given:?} is for a URL \
                 without one"
            ),
            _ if !rules.escaped.is_empty() && channel.contains(is_escaped) => format!(
                "the channel {channel:?} would have to be escaped in {}: use other characters",
                rules.escaped_in
            ),
            _ => return Ok(()),
        };
        Err(PlanError::new("target.channel", message))
    }

    /// The given URL if it has a path, else `own`, or that of the rules.
    fn subscribed_url(&self, rules: &Rules, own: Option<String>) -> Result<String, PlanError> {
        if !self.path.starts_with(&rules.requires) {
            return Err(wrong_url(format!("{:?} {}", self.url, self.filled(&rules.requires_why))));
        }
        let several = rules.friends.as_ref().filter(|_| self.has_several());
        let usual = || format!("<server>{}", several.unwrap_or(&rules.subscribe));
        let own = own.unwrap_or_else(usual);
        let url = if self.path.is_empty() { self.filled(&own) } else { self.url.clone() };
        Ok(match &rules.query {
            Some(query) if !url.contains('?') => format!("{url}?{}", self.filled(query)),
            _ => url,
        })
    }

    /// The path to publish at; `None` if the subscriber's URL does not tell.
    fn published_path(&self, rules: &Rules, default: &str) -> Option<String> {
        let (path, _) = self.path.split_once('?').unwrap_or((&self.path, ""));
        if path.is_empty() || rules.published.is_empty() {
            return Some(self.filled(default));
        }
        // A URL that differs between clients of a stream is for subscribers only.
        if !rules.one_hub && self.template.has(Placeholder::Client) {
            return None;
        }
        let path = if rules.keeps_query { &self.path } else { path };
        rules.published.iter().find_map(|(from, to)| {
            let rest = path.strip_prefix(from.as_str())?;
            Some(format!("{to}{rest}"))
        })
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

#[cfg(test)]
mod tests;
