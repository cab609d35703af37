//! Every option of a plan, defined once: its TOML key, flag, default and help.
//!
//! The flags and a file are each read into [`Options`], which holds only what that source says.
//! [`Options::over`] lays the flags over the file.

use std::iter::successors;

use throng_settings::Section;
use throng_units::{Count, Ports, Switch, Time};

use super::files::{CertificateFile, SecretFile, TokenTable, UrlTable, ValueTable};
use super::option_table::{Table, options};
use super::option_value::Value;
use super::phases::{LoadOptions, Phase};
use super::server_process::ServerProcess;
use super::sources::LocalAddresses;
use super::values::{
    Header, Network, Node, Ping, PortRange, Profile, PublishTransport, Streams, Subscribed,
    TokenPlace, Transport,
};
use crate::assertions::Assertion;

options! {
    /// All options of a plan, as far as one source says.
    Options, path ""
    in "Target" {
        "server-pid" server_pid: ServerProcess, "PID,PID…",
            "Server processes on this machine whose memory and CPU time are measured, with those \
             of their children; auto finds those that listen on the port";
    }
    in "Load" {
        "keep" keep: Switch, "BOOL"
            [num_args = 0..=1, require_equals = true, default_missing_value = "true",
             hide_possible_values = true],
            "Reconnect clients that fail or that the server closes, after a second";
        "seed" seed: Count = "1", "NUMBER",
            "Seed of the graph of --streams friends and of the choices of --to random";
        "network" network: Network = "sockets", "NETWORK",
            "How connections are carried: sockets, or tunnel, which is user-space TCP over a \
             network device; then the kernel has only the server's half, so one machine holds \
             twice as many connections; needs root or CAP_NET_ADMIN";
        "threads" threads: Count, "N",
            "Client threads; by default as many as cores and descriptors require";
        "deadline" deadline: Time, "TIME",
            "The run ends after this time in any case";
    }
    in "Results" {
        "assertions" assertions: Vec<Assertion>, "ASSERTION" as "assert",
            "A condition to check at the end, like 'lost == 0' or 'p99 < 50ms'; may be repeated";
        "name" name: String = "flood", "NAME",
            "Names the run in its results";
    }
    tables {
        "target" target: TargetOptions,
        "publish" publish: PublishOptions,
        "sources" sources: SourceOptions,
        "tokens" tokens: TokenOptions,
    }
    others {
        /// The phases that flags ask for.
        #[command(flatten)]
        load: LoadOptions,
        /// The phases of a file; they replace those of flags.
        #[arg(skip)]
        phases: Option<Vec<Phase>>,
    }
}

options! {
    /// The server, and how to speak to it.
    TargetOptions, path "target."
    in "Target" {
        "url" url: String, "URL"
            [long = None::<&str>, help_heading = None::<&str>,
             required_unless_present_any = ["plan", "target.urls"]],
            "The server, or the URL of a subscription: http://…, ws://…, https://… or wss://…";
        "profile" profile: Profile = "throng", "NAME",
            "Kind of server: throng, nchan, centrifugo, centrifugo-sse, mercure, mercure-0, \
             pusher, websocket or custom";
        "transport" transport: Transport, "NAME",
            "Transport: websocket, sse, stream or long-poll";
        "channel" channel: String, "NAME",
            "Name of the channel; flood-{run}-{stream} by default";
        "streams" streams: Streams = "one", "STREAMS",
            "What clients follow: one (all the same), N (client i follows stream i % N), own \
             (each its own), or friends:EDGES (a graph in which few have many followers)";
        "channels-per-client" channels_per_client: Count = "1", "N",
            "Channels that each client follows, over one connection; all clients the same. With \
             --streams, each follows a run of these";
        "ports" ports: Vec<Ports>, "PORTS",
            "Ports of the same host; clients are spread over them";
        "nodes" nodes: Vec<Node>, "HOST:PORT" as "node",
            "A further node of the same service; clients and publishers are spread over all; may \
             be repeated";
        "failover" failover: Vec<Node>, "HOST:PORT",
            "Server that clients come back to, with --keep, once theirs has closed or refused \
             them; may be repeated: they are spread over all";
        "urls" urls: UrlTable, "FILE" [conflicts_with = "target.data"],
            "File with one URL per line: client i takes line i";
        "data" data: ValueTable, "FILE",
            "CSV file whose first line names the columns: client i takes line i";
        "headers" headers: Vec<Header>, "HEADER" as "header",
            "A request header, `Name: value`; may be repeated";
        "subprotocol" subprotocol: String, "NAME",
            "WebSocket sub-protocol";
        "deflate" deflate: Switch = "false", "BOOL"
            [num_args = 0..=1, require_equals = true, default_missing_value = "true",
             hide_possible_values = true],
            "Offer permessage-deflate, and inflate what comes compressed (WebSocket)";
        "hello" hello: Vec<String>, "TEXT",
            "A message to send after connecting (WebSocket); may be repeated";
        "subscribed" subscribed: Subscribed, "TEXT",
            "A client counts as subscribed at the first message that contains this, or at the \
             `handshake`";
        "refused" refused: Vec<String>, "TEXT",
            "A message that contains this rejects the client; may be repeated";
        "pings" pings: Vec<Ping>, "ASK=ANSWER" as "ping",
            "Answer a message that is exactly ASK with ANSWER (WebSocket); may be repeated";
        "handshake-timeout" handshake_timeout: Time = "30s", "TIME",
            "Time limit for connect and handshake";
    }
    in "TLS" {
        "ca" authorities: CertificateFile, "FILE",
            "Certificates in PEM, one of which must have signed the server's; by default those \
             that this system trusts";
        "insecure" insecure: Switch, "BOOL"
            [num_args = 0..=1, require_equals = true, default_missing_value = "true",
             hide_possible_values = true],
            "Accept any certificate of the server";
        "sni" sni: String, "NAME",
            "Host name to ask for and to expect in the certificate, if it is not that of the URL";
        "tls-resume" resume: Switch, "BOOL"
            [num_args = 0..=1, require_equals = true, default_missing_value = "true",
             hide_possible_values = true],
            "Clients keep one session ticket each, some kilobytes, and resume with it when they \
             reconnect";
    }
    tables {}
    others {}
}

options! {
    /// How to publish.
    PublishOptions, path "publish."
    in "Publishing" {
        "url" url: String, "URL" as "publish-url",
            "Where to publish by HTTP; {stream} is the stream's number";
        "by" by: PublishTransport, "HOW" as "publish-by",
            "http, or websocket: a frame on a connection like a subscriber's";
        "method" method: String = "POST", "METHOD" as "publish-method",
            "POST or PUT";
        "headers" headers: Vec<Header>, "HEADER" as "publish-header",
            "A header of publish requests, `Name: value`; may be repeated";
        "body" body: String, "TEXT" as "publish-body",
            "Body of a publish request, or its frame; {payload} is the message";
        "token-file" token_file: SecretFile, "FILE" as "publish-token-file",
            "File with the server key or the token that publishers show; by default they show the \
             first client's token, if clients have tokens";
        "refused" refused: String, "TEXT" as "publish-refused",
            "A response whose body contains this rejects the message, whatever its status";
        "connections" connections: Count = "1", "N" as "publish-connections",
            "Publishing connections";
        "pipeline" pipeline: Count = "1", "N" as "publish-pipeline",
            "Requests in flight on each of them";
    }
    tables {}
    others {}
}

options! {
    /// Local addresses and ports of the clients.
    SourceOptions, path "sources."
    in "Target" {
        "addresses" addresses: Vec<LocalAddresses>, "ADDRESSES" as "source",
            "Local addresses to connect from: a list, a network (127.0.1.0/24) or an interface \
             (eth0)";
        "ports" ports: PortRange, "FROM-TO" as "source-ports",
            "Local ports to connect from";
    }
    tables {}
    others {}
}

options! {
    /// The tokens that clients show. One of the first four options says where they come from.
    TokenOptions, path "tokens."
    in "Tokens" {
        "file" file: TokenTable, "FILE" as "tokens",
            "File with one token per line: client i shows line i";
        "template" template: String, "TEXT" as "token",
            "The token of a client, like '{jwt}' for a column of --data";
        "secret-file" secret_file: SecretFile, "FILE" as "token-secret-file",
            "Sign a token for each client: HS256, with the secret in this file";
        "key-file" key_file: SecretFile, "FILE" as "token-key-file",
            "Sign a token for each client: ES256, with the private key in this file (PKCS #8, PEM)";
        "key-id" key_id: String, "ID" as "token-key-id",
            "Key id (kid) of signed tokens";
        "user" user: String = "user-{i}", "NAME" as "token-user",
            "User (sub) of signed tokens";
        "claims" claims: String = "{\"throng\":{\"subscribe\":[\"*\"],\"publish\":[\"*\"]}}",
            "JSON" as "token-claims",
            "Further claims of signed tokens";
        "lifetime" lifetime: Time = "1h", "TIME" as "token-lifetime",
            "How long signed tokens are valid; after half of it clients that connect show new ones";
        "in" place: TokenPlace = "header", "WHERE" as "token-in",
            "Where tokens are shown: header, query (as a browser's EventSource must) or \
             subprotocol (as its WebSocket must)";
    }
    tables {}
    others {}
}

impl Options {
    /// These flags over the options of a file.
    pub(crate) fn over(self, file: Options) -> Options {
        let (flags, file) = (self.with_url_of_table(), file.with_url_of_table());
        let mut options = flags.clone().or(file.clone());
        options.phases = file.phases;
        // A table of the flags replaces either table of the file.
        if flags.target.urls.is_some() || flags.target.data.is_some() {
            (options.target.urls, options.target.data) = (flags.target.urls, flags.target.data);
        }
        options
    }

    /// A file of URLs stands for the URL.
    pub(super) fn with_url_of_table(mut self) -> Options {
        if self.target.url.is_none() && self.target.urls.is_some() {
            self.target.url = Some("{url}".to_owned());
        }
        self
    }

    /// The flag for an option, by its path of keys: `--publish-url` for `publish.url`.
    pub(crate) fn flag(key: &str) -> Option<String> {
        let command = <Options as clap::Args>::augment_args(clap::Command::new("options"));
        let argument = command.get_arguments().find(|argument| argument.get_id() == key)?;
        Some(match argument.get_long() {
            Some(long) => format!("--{long}"),
            None => argument.get_value_names()?.first()?.to_string(),
        })
    }

    /// True if the option with this path of keys, or one that it is a part of, is set.
    pub(crate) fn has_any(&self, key: &str) -> bool {
        around(key).any(|key| self.has(key))
    }
}

impl TargetOptions {
    /// The streams, of which each client may follow several.
    pub(super) fn followed(&self) -> Streams {
        match (self.streams(), self.channels_per_client()) {
            (Streams::One, Count(each @ 2..)) => {
                Streams::Spread(each.try_into().unwrap_or(u32::MAX))
            }
            (streams, _) => streams,
        }
    }
}

/// A path of keys, and those that it is a part of.
pub(crate) fn around(key: &str) -> impl Iterator<Item = &str> {
    successors(Some(key), |key| Some(key.rsplit_once('.')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_units::Size;

    #[test]
    fn every_default_parses() {
        let (target, publish) = (TargetOptions::default(), PublishOptions::default());
        let (options, load) = (Options::default(), LoadOptions::default());
        assert_eq!((options.name(), options.seed()), ("flood".to_owned(), Count(1)));
        assert_eq!((options.network(), target.streams()), (Network::Sockets, Streams::One));
        assert_eq!((target.profile(), publish.method()), (Profile::Throng, "POST".to_owned()));
        assert_eq!(target.handshake_timeout().to_string(), "30s");
        assert_eq!((publish.connections(), publish.pipeline()), (Count(1), Count(1)));
        assert_eq!((load.clients(), load.in_flight()), (Count(1000), Count(256)));
        assert_eq!((load.hold().to_string(), load.size()), ("10s".to_owned(), Size(128)));
    }

    #[test]
    fn options_know_their_flags() {
        assert_eq!(Options::flag("publish.url").as_deref(), Some("--publish-url"));
        assert_eq!(Options::flag("target.url").as_deref(), Some("URL"));
        assert_eq!(Options::flag("sources.addresses").as_deref(), Some("--source"));
        assert_eq!(Options::flag("target"), None);
    }
}
