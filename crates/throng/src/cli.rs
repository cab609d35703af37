//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use serde_json::{Number, Value};
use throng_core::StartAt;
use throng_units::paint::sanitized;
use throng_units::{Count, Invalid, Time};
use throng_wire::labels;

use crate::client::{Client, ClientCredential, ServerUrl, TrustArguments};
use crate::settings::Sources;

const EXAMPLES: &str = "\
Try it, in three terminals:
  throng serve
  throng tail news
  throng publish news 'hello, everyone'

Or with any HTTP client:
  curl -N http://127.0.0.1:8080/channels/news
  curl -d hello http://127.0.0.1:8080/channels/news";

const SERVE_SHORT: &str = "\
Each setting is also a variable (--listen: THRONG_LISTEN) and a key of the file (listen).

Examples:
  throng serve
  throng serve --dev
  throng serve --listen :9000 --history-messages 1000

`throng serve --help` shows all settings.";

const SERVE_EXAMPLES: &str = "\
Each setting is a flag, a variable (--head-timeout: THRONG_HEAD_TIMEOUT) and a key of the file
(head-timeout; --history-bytes: `bytes` in the table [history]). Flags override variables, and
variables override the file.

How to write values:
  number   1000000, 1_000_000, 1M
  size     65536 (bytes), 64k, 64KB, 64KiB; k is always 1024
  time     25 (seconds), 25s, 500ms, 1.5h
  address  127.0.0.1:8080, [::1]:8080; :8080 is reachable from this machine only

Examples:
  throng serve
  throng serve --dev
  throng serve --listen :9000 --history-messages 1000
  throng serve --max-connections 1M
  throng serve --config /etc/throng.toml --log warn";

const PUBLISH_EXAMPLES: &str = "\
If the server requires a credential, set THRONG_TOKEN to a token or THRONG_KEY to a server key.

Examples:
  throng publish news 'hello, everyone'
  throng publish news --json '{\"temperature\":21.5}'
  throng publish --user ann 'just for you'
  throng publish alarms --receipt 5s 'leave the building'
  date | throng publish clock
  throng publish pictures --content-type image/png < picture.png
  journalctl -f | throng publish log --lines";

const CREATE_EXAMPLES: &str = "\
Prints the creation as JSON. Repeated with the same properties, it changes nothing and publishes
nothing. If the server requires a credential, set THRONG_TOKEN to a token with the right `create`,
or THRONG_KEY to a server key with that scope.

Examples:
  throng create orders:7 --content-type application/json --ttl 24h
  throng create orders:7 --json '{\"state\":\"packed\"}'
  throng create match:3 --ttl 3h 'kick-off'";

const TAIL_EXAMPLES: &str = "\
On a terminal, prints each message with its time in UTC; into a pipe, one JSON object per line.
Reconnects and resumes if the connection is lost. If the server requires a credential, set
THRONG_TOKEN to a token or THRONG_KEY to a server key.

Examples:
  throng tail news
  throng tail news sport --history 10
  throng tail --user ann
  throng tail news --count 1 | jq .data
  throng tail news --since k3v9x2-17
  throng tail prices --state";

const LIST_EXAMPLES: &str = "\
On a terminal, prints a table; into a pipe, one JSON object per line. A server with keys requires a
server key with the scope `listing` in THRONG_KEY. If the server has --admin-listen, give that
address as --url.

Examples:
  throng channels
  throng channels 'rooms/*'
  throng users | jq -r 'select(.subscribers > 0) .user'";

const CONNECTIONS_EXAMPLES: &str = "\
On a terminal, prints a table; into a pipe, one JSON object per line. A server with keys requires a
server key with the scope `administration` in THRONG_KEY. If the server has --admin-listen, give
that address as --url.

Examples:
  throng connections --sort behind
  throng connections --limit 10 | jq -r .connection";

const IMPORT_EXAMPLES: &str = "\
Each line of FILE is a JSON object. The first one below makes ann follow exactly these channels; the
second adds a channel for bob and removes another:
  {\"user\":\"ann\",\"channels\":[\"a\",\"b\"]}
  {\"user\":\"bob\",\"add\":[\"a\"],\"remove\":[\"c\"]}
Invalid lines are reported, and the others applied. An interrupted import can be run again: lines
that were applied before change nothing.

A server with keys requires a server key with the scope `subscriptions` in THRONG_KEY.

Examples:
  throng subscriptions import friends.ndjson
  throng subscriptions import --atomic friends.ndjson
  make-friends | throng subscriptions import -";

/// A push server: delivers messages over WebSocket, SSE, long polling or an HTTP stream
#[derive(Debug, Parser)]
#[command(name = "throng", version, long_version = crate::version::BUILD)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// The subcommand, with its own arguments.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands, in the order of `throng --help`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server
    #[command(after_help = SERVE_SHORT, after_long_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArguments>),
    /// Check the settings and print them, or show what a client may do
    Check(Box<crate::check::Arguments>),
    /// Make a running server read its settings again
    Reload(Box<crate::control_commands::ReloadArguments>),
    /// Move the clients of a running server elsewhere, then stop it
    Drain(Box<crate::control_commands::DrainArguments>),
    /// Replace a running server with a new process, without dropping a connection
    Upgrade(Box<crate::control_commands::UpgradeArguments>),
    /// Make a server key, with which your application publishes, follows or administers
    Key(crate::key::Arguments),
    /// Make, show or check a token, which says who a client is and what it may do
    Token(crate::token::Arguments),
    /// Publish a message, or each line of standard input
    #[command(after_help = PUBLISH_EXAMPLES, override_usage = "\
        throng publish [OPTIONS] <CHANNEL> [MESSAGE]\n       \
        throng publish [OPTIONS] --user <USER> [MESSAGE]")]
    Publish(PublishArguments),
    /// Create a channel, with its first messages if you give some
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArguments),
    /// Follow channels and print their messages
    #[command(after_help = TAIL_EXAMPLES, override_usage = "\
        throng tail [OPTIONS] <CHANNEL>...\n       \
        throng tail [OPTIONS] --user <USER> [CHANNEL]...")]
    Tail(TailArguments),
    /// List the channels that have messages or subscribers
    Channels(ListArguments),
    /// List the users with messages or connections
    Users(ListArguments),
    /// List the connections that are behind because their clients read too slowly
    Connections(ConnectionsArguments),
    /// Change the subscriptions that the server keeps for users
    Subscriptions(SubscriptionsArguments),
    /// Check, export, compact, back up or restore a data directory
    Data(crate::data_commands::Arguments),
    /// Check whether this machine can hold N connections, and what to change if not
    Doctor(crate::doctor::Arguments),
    /// Show the state of the nodes of a cluster, and report anything suspect
    Cluster(crate::cluster::Arguments),
    /// Check a server's health, for use as a container health check
    Health(crate::health::Arguments),
    /// Load-test a push server, this one or another
    #[command(disable_help_flag = true)]
    Flood(LaboratoryArguments),
    /// Rerun well-known push server benchmarks, and compare with the published results
    #[command(disable_help_flag = true)]
    Bench(LaboratoryArguments),
    /// Print shell completions
    Completions(crate::documents::CompletionsArguments),
    /// Print the man page, or write one for each command
    Man(crate::documents::ManArguments),
    /// Print the licences of everything in this program
    Licenses,
    /// Print version, build and machine, for bug reports
    Version,
}

/// An error for arguments that exclude each other, where clap cannot detect it.
pub(crate) fn conflict(message: &str) -> clap::Error {
    Arguments::command().error(ErrorKind::ArgumentConflict, message)
}

/// Refuses a name that is followed or published to and looks like a pattern. The server would, too.
pub(crate) fn refuse_pattern(name: &str, is_user: bool) -> Result<(), clap::Error> {
    if !name.contains('*') {
        return Ok(());
    }
    let (noun, list) = if is_user { ("user", "users") } else { ("channel", "channels") };
    let name = sanitized(name);
    let message = format!(
        "{name} is the name of no {noun}, and Throng has no patterns for followers and publishers: \
         name each {noun}; `throng {list} '{name}'` lists those that match"
    );
    Err(Arguments::command().error(ErrorKind::InvalidValue, message))
}

/// Arguments of a program of the laboratory, which reads them itself.
#[derive(Debug, Args)]
pub(crate) struct LaboratoryArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Arguments of `throng serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Create keys for this run only, and print a token and commands that use it
    #[arg(long)]
    pub(crate) dev: bool,

    /// Create a certificate for this machine, and serve https with it on 127.0.0.1:8443
    #[arg(long)]
    pub(crate) dev_tls: bool,

    /// File and flags with settings.
    #[command(flatten)]
    pub(crate) sources: Sources,
}

/// The flag that names the server, for client commands.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// URL or address of the server
    #[arg(
        long,
        visible_alias = "server",
        value_name = "URL",
        env = "THRONG_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub(crate) url: ServerUrl,

    /// Which server is trusted.
    #[command(flatten)]
    pub(crate) trust: TrustArguments,
}

impl Server {
    /// A client of the server, with the credential of the environment.
    pub(crate) fn client(&self, max_silence: Option<Duration>) -> anyhow::Result<Client> {
        Client::new(&self.url, &self.trust, max_silence, ClientCredential::from_environment()?)
    }
}

/// Arguments of `throng publish`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true))]
pub(crate) struct PublishArguments {
    /// The channel; omit it with --user
    #[arg(value_name = "CHANNEL", group = "where")]
    pub(crate) channel: Option<String>,

    /// The message; if omitted or `-`, read from standard input. Put `--` before one that begins
    /// with a hyphen
    #[arg(value_name = "MESSAGE", allow_negative_numbers = true)]
    pub(crate) message: Option<String>,

    /// Publish to a user instead of a channel
    #[arg(long, value_name = "USER", group = "where")]
    pub(crate) user: Option<String>,

    /// Accept an empty standard input, and publish an empty message
    #[arg(long, conflicts_with = "lines")]
    pub(crate) allow_empty: bool,

    /// Publish each non-empty line of standard input as a message, as it arrives
    #[arg(long, conflicts_with = "key")]
    pub(crate) lines: bool,

    /// The message is JSON; same as --content-type application/json
    #[arg(long, conflicts_with = "content_type")]
    pub(crate) json: bool,

    /// Media type of the message, like image/png [default: text/plain; charset=utf-8]
    #[arg(long, value_name = "TYPE")]
    pub(crate) content_type: Option<String>,

    /// Idempotency key: within five minutes, the same key publishes only once
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Name of the message's event, which clients' handlers may go by
    #[arg(long, value_name = "NAME", value_parser = event)]
    pub(crate) event: Option<String>,

    /// A tag of the message; a VALUE that is a number is sent as one. May be given several times
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub(crate) tags: Vec<(String, Value)>,

    /// The message is the value of this key of the channel's state, in place of its earlier one
    #[arg(long, value_name = "KEY", value_parser = state_key, conflicts_with = "lines")]
    pub(crate) state_key: Option<String>,

    /// Deliver only to subscribers that are connected and keep up; keep nothing
    #[arg(long, conflicts_with_all = ["key", "state_key", "receipt"])]
    pub(crate) volatile: bool,

    /// Wait until each subscriber's socket has taken the message, at most TIME (up to 60s), and
    /// print how many have not and why
    #[arg(long, value_name = "TIME", value_parser = receipt_wait, conflicts_with = "lines")]
    pub(crate) receipt: Option<Time>,

    /// The server to send requests to.
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Arguments of `throng create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The channel
    #[arg(value_name = "CHANNEL")]
    pub(crate) channel: String,

    /// Its first messages, which are published with the creation: all or none
    #[arg(value_name = "MESSAGE")]
    pub(crate) messages: Vec<String>,

    /// The messages are JSON, and so are all later ones; same as --content-type application/json
    #[arg(long, conflicts_with = "content_type")]
    pub(crate) json: bool,

    /// Media type of all messages of the channel [default: any]
    #[arg(long, value_name = "TYPE")]
    pub(crate) content_type: Option<String>,

    /// How long the channel stays after its creation and each message, from 1s
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Time>,

    /// The server to send requests to.
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Arguments of `throng tail`.
#[derive(Debug, Args)]
pub(crate) struct TailArguments {
    /// The channels to follow
    #[arg(value_name = "CHANNEL", required_unless_present = "user")]
    pub(crate) channels: Vec<String>,

    /// Follow the messages to a user
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Begin with the last N messages of each channel
    #[arg(long, value_name = "N", conflicts_with = "since")]
    pub(crate) history: Option<Count>,

    /// Begin after the message with this id
    #[arg(long, value_name = "ID", value_parser = since)]
    pub(crate) since: Option<String>,

    /// Begin with the newest message of each key; a terminal shows keys and values
    #[arg(long, conflicts_with = "history")]
    pub(crate) state: bool,

    /// Exit after N messages
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) count: Option<Count>,

    /// The server to send requests to.
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Arguments of `throng channels` and `throng users`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArguments {
    /// List only names that match this pattern; `*` stands for any text
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,

    /// List at most N names
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<Count>,

    /// The server to send requests to.
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Arguments of `throng connections`.
#[derive(Debug, Args)]
#[command(after_help = CONNECTIONS_EXAMPLES)]
pub(crate) struct ConnectionsArguments {
    /// Sort order of the list
    #[arg(long, value_enum, default_value_t = ConnectionOrder::Behind)]
    pub(crate) sort: ConnectionOrder,

    /// List at most N connections, up to 1000
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<Count>,

    /// The server to send requests to.
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Arguments of `throng subscriptions`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SubscriptionsArguments {
    /// The subcommand, with its own arguments.
    #[command(subcommand)]
    pub(crate) command: SubscriptionsCommand,
}

/// The subcommands of `throng subscriptions`.
#[derive(Debug, Subcommand)]
pub(crate) enum SubscriptionsCommand {
    /// Apply a file of changes to the subscriptions of users
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArguments),
}

/// Arguments of `throng subscriptions import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// The file with the changes; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Check all lines first, and change nothing if any is invalid
    #[arg(long)]
    pub(crate) atomic: bool,

    /// Check all lines, and change nothing
    #[arg(long, conflicts_with = "atomic")]
    pub(crate) check: bool,

    /// The server to send requests to.
    #[command(flatten)]
    pub(crate) server: Server,
}

/// The order of a list of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConnectionOrder {
    /// Only connections that are behind, the largest backlog first.
    Behind,
}

fn event(name: &str) -> Result<String, String> {
    labels::check_event(name).map(|()| name.to_owned()).map_err(|error| format!("it {error}"))
}

fn state_key(key: &str) -> Result<String, String> {
    labels::check_state_key(key).map(|()| key.to_owned()).map_err(|error| format!("it {error}"))
}

/// The id of a message, one for each channel, or a position.
fn since(text: &str) -> Result<String, String> {
    let is_id = |id| StartAt::of_position(id).is_ok();
    if text.split(',').all(is_id) {
        return Ok(text.to_owned());
    }
    Err("this is not the id of a message, such as k3v9x2-17".to_owned())
}

fn at_least_one(text: &str) -> Result<Count, Invalid> {
    let expected = "a whole number of at least 1, like 1 or 10k";
    let count = text.parse::<Count>().ok().filter(|count| count.0 > 0);
    count.ok_or_else(|| Invalid::new(text, expected))
}

/// The longest wait for a receipt. The server shortens longer ones, and nobody would notice.
const RECEIPT_WAIT_MAX: Duration = Duration::from_secs(60);

fn receipt_wait(text: &str) -> Result<Time, Invalid> {
    let time = text.parse::<Time>().ok().filter(|time| time.0 <= RECEIPT_WAIT_MAX);
    time.ok_or_else(|| Invalid::new(text, "a time of at most 60s, like \"5s\" or \"500ms\""))
}

/// Reads `KEY=VALUE`. A value that is written as a number of JSON is one.
pub(crate) fn tag(text: &str) -> Result<(String, Value), Invalid> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| Invalid::new(text, "KEY=VALUE, like symbol=ACME"))?;
    let number = serde_json::from_str::<Number>(value).ok();
    Ok((name.to_owned(), number.map_or_else(|| value.into(), Value::Number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_definition() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn publish_requires_a_channel_or_a_user() {
        let read = |arguments: &[&str]| {
            Arguments::try_parse_from(["throng", "publish"].iter().chain(arguments)).is_ok()
        };
        assert!(read(&["news", "hello"]) && read(&["--user", "ann", "hello"]) && read(&["news"]));
        assert!(read(&["news", "-"]) && read(&["news", "-1.5"]));
        assert!(!read(&[]) && !read(&["a", "b", "c"]));
        assert!(!read(&["a", "--lines", "--key", "k"]));
    }

    fn refused(arguments: &[&str]) -> String {
        let error = Arguments::try_parse_from(["throng"].iter().chain(arguments));
        error.expect_err("it is refused").to_string()
    }

    /// The ways to all commands that have no commands below them.
    fn leaves(command: &clap::Command, way: &[String], found: &mut Vec<(Vec<String>, usize)>) {
        if !command.has_subcommands() {
            found.push((way.to_vec(), command.get_positionals().count()));
        }
        for below in command.get_subcommands() {
            let way: Vec<_> = way.iter().cloned().chain([below.get_name().to_owned()]).collect();
            leaves(below, &way, found);
        }
    }

    #[test]
    fn a_flag_that_there_is_not_is_refused_everywhere() {
        let mut all = Vec::new();
        leaves(&Arguments::command(), &[], &mut all);
        // They read their arguments themselves.
        all.retain(|(way, _)| !["flood", "bench"].contains(&&*way[0]));
        assert!(all.len() > 20, "{all:?}");
        for (way, positionals) in all {
            let way: Vec<_> = way.iter().map(|word| &**word).collect();
            let value = if way == ["completions"] { "bash" } else { "1" };
            for given in 0..=positionals.min(1) {
                let values = [value].repeat(given);
                let arguments = [&way[..], &values, &["--no-such-flag"]].concat();
                let text = refused(&arguments);
                assert!(text.contains("unexpected argument '--no-such-flag'"), "{way:?}: {text}");
            }
        }
    }

    #[test]
    fn a_text_that_begins_with_a_hyphen_is_published_behind_two() {
        let read = |arguments: &[&str]| {
            let words = ["throng", "publish", "news"].iter().chain(arguments);
            match Arguments::try_parse_from(words).expect("it is right").command {
                Command::Publish(arguments) => (arguments.message, arguments.volatile),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(read(&["--volatile"]), (None, true));
        assert_eq!(read(&["--", "--volatile"]), (Some("--volatile".into()), false));
        assert_eq!(read(&["-5"]), (Some("-5".into()), false));
        let text = refused(&["publish", "news", "--volatil"]);
        assert!(text.contains("similar argument exists: '--volatile'"), "{text}");
        let text = refused(&["publish", "news", "- milk"]);
        assert!(text.contains("as a value, use '-- -"), "{text}");
    }

    #[test]
    fn a_value_that_the_server_would_refuse_is_refused_by_its_flag() {
        for (arguments, flag, reason) in [
            (&["publish", "a", "--state-key", ""][..], "--state-key", "1 to 255 bytes"),
            (&["publish", "a", "--event", "ended"], "--event", "reserved"),
            (&["publish", "a", "--event", "a\nb"], "--event", "control characters"),
            (&["tail", "a", "--since", "foo"], "--since", "not the id of a message"),
            (&["tail", "a", "b", "--since", "k3-1,"], "--since", "not the id of a message"),
        ] {
            let text = refused(arguments);
            assert!(text.contains(flag) && text.contains(reason), "{arguments:?}: {text}");
        }
        for since in ["k3v9x2-17", "k3v9x2-17,k3v9x2-4", "~k3v9x2-1042"] {
            assert!(Arguments::try_parse_from(["throng", "tail", "a", "--since", since]).is_ok());
        }
    }
}
