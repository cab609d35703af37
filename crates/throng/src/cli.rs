//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::settings::Options;

/// What `throng` alone and `throng --help` end with.
const EXAMPLES: &str = "\
Try it, in three terminals:
  throng serve
  throng tail news
  throng publish news 'hello, everybody'

Any HTTP client will do as well:
  curl -N http://127.0.0.1:8080/channels/news
  curl -d hello http://127.0.0.1:8080/channels/news";

const SERVE_EXAMPLES: &str = "\
Every setting is also a variable (--head-timeout is THRONG_HEAD_TIMEOUT) and a key of the file
(head-timeout; --history-bytes is `bytes` in the table [history]). A flag wins over a variable, a
variable over the file.

Examples:
  throng serve
  throng serve --listen 127.0.0.1:9000 --history-messages 1000
  throng serve --max-connections 1000000
  throng serve --config /etc/throng.toml --log warn";

const CHECK_EXAMPLES: &str = "\
Prints what holds, as a file that can be used. Takes the same flags as `throng serve`, and looks
at the same variables and files.

Examples:
  throng check
  throng check --config /etc/throng.toml";

const PUBLISH_EXAMPLES: &str = "\
Examples:
  throng publish news 'hello, everybody'
  throng publish news --json '{\"temperature\":21.5}'
  throng publish --user ann 'just for you'
  date | throng publish clock
  throng publish pictures --content-type image/png < picture.png
  journalctl -f | throng publish log --lines";

const TAIL_EXAMPLES: &str = "\
On a terminal each message has its time, in UTC. Into a pipe go envelopes, one JSON object a line.
A connection that is lost comes back by itself and goes on where it was.

Examples:
  throng tail news
  throng tail news sport --history 10
  throng tail --user ann
  throng tail news --count 1 | jq .data
  throng tail news --since k3v9x2-17";

/// A push server: messages to everyone in a channel, over WebSocket, SSE, long-poll or a stream.
#[derive(Debug, Parser)]
#[command(name = "throng", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Sources),
    /// Check the settings and print what holds, without starting anything
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Sources),
    /// Publish a message, or one for each line
    #[command(after_help = PUBLISH_EXAMPLES, override_usage = "\
        throng publish [OPTIONS] <CHANNEL> [MESSAGE]\n       \
        throng publish [OPTIONS] --user <USER> [MESSAGE]")]
    Publish(PublishArguments),
    /// Follow channels and print what is published there
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(TailArguments),
    /// Say whether this machine can hold so many connections, and what has to change
    Doctor(crate::doctor::Arguments),
    /// Load a push server, this one or another, and measure what it delivers
    Flood(Box<throng_flood::cli::Arguments>),
    /// Rerun the field's classic experiments against this server, beside the published figures
    Bench(throng_experiments::cli::Arguments),
    /// Run the server until the process that started it ends: for `throng bench`
    #[command(name = throng_experiments::server::COMMAND, hide = true)]
    ServeBound(Sources),
}

/// Where settings come from, beside the variables.
#[derive(Debug, Args)]
pub struct Sources {
    /// Read settings from this file; unless given, from ./throng.toml if there is one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The settings themselves.
    #[command(flatten)]
    pub options: Options,
}

/// Which server to talk to.
#[derive(Debug, Args)]
pub struct Server {
    /// The server to talk to
    #[arg(
        long,
        visible_alias = "server",
        value_name = "URL",
        env = "THRONG_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub url: String,
}

/// What to publish, and where.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true))]
pub struct PublishArguments {
    /// The channel; left out with --user
    #[arg(value_name = "CHANNEL", group = "where")]
    pub channel: Option<String>,

    /// The message; read from standard input when left out or `-`
    #[arg(value_name = "MESSAGE", allow_hyphen_values = true)]
    pub message: Option<String>,

    /// Publish to this user instead of a channel
    #[arg(long, value_name = "USER", group = "where")]
    pub user: Option<String>,

    /// Read standard input and publish each line that is not empty as a message, as it comes
    #[arg(long, conflicts_with = "key")]
    pub lines: bool,

    /// The message is JSON: short for --content-type application/json
    #[arg(long, conflicts_with = "content_type")]
    pub json: bool,

    /// What the message is, for instance image/png; text unless given
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,

    /// Publish at most once: the same key within five minutes publishes nothing
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,

    /// Which server.
    #[command(flatten)]
    pub server: Server,
}

/// What to follow.
#[derive(Debug, Args)]
pub struct TailArguments {
    /// The channels to follow
    #[arg(value_name = "CHANNEL", required_unless_present = "user")]
    pub channels: Vec<String>,

    /// Follow the inbox of this user
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Begin with the last N messages of each channel
    #[arg(long, value_name = "N", conflicts_with = "since")]
    pub history: Option<usize>,

    /// Begin after the message with this id
    #[arg(long, value_name = "ID")]
    pub since: Option<String>,

    /// End after N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Which server.
    #[command(flatten)]
    pub server: Server,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn publishing_needs_somewhere_to_publish_to() {
        let read = |arguments: &[&str]| {
            Arguments::try_parse_from(["throng", "publish"].iter().chain(arguments)).is_ok()
        };
        assert!(read(&["news", "hello"]) && read(&["--user", "ann", "hello"]) && read(&["news"]));
        assert!(read(&["news", "-"]) && read(&["news", "-1.5"]));
        assert!(!read(&[]) && !read(&["a", "b", "c"]));
        assert!(!read(&["a", "--lines", "--key", "k"]));
    }
}
