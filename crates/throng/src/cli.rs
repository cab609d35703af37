//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use throng_units::{Count, Invalid};

use crate::client::ServerUrl;
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
(head-timeout; --history-bytes is `bytes` in the table [history]). Flags override variables, and
variables override the file. Numbers are written 1000000, 1_000_000 or 1M; sizes 65536, 64k, 64KB or
64KiB (all 1024); times 25, 25s, 500ms or 1.5h; addresses 127.0.0.1:8080, [::1]:8080, or :8080 for
this machine only.

Examples:
  throng serve
  throng serve --listen :9000 --history-messages 1000
  throng serve --max-connections 1M
  throng serve --config /etc/throng.toml --log warn";

const CHECK_EXAMPLES: &str = "\
Takes the same flags as `throng serve`, reads the same variables and files, and prints the outcome
as a file that `--config` takes. Exit code 78 if a setting is wrong.

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
On a terminal each message is printed with its time in UTC. Into a pipe go envelopes, one JSON
object per line. A lost connection is restored and goes on where it was.

Examples:
  throng tail news
  throng tail news sport --history 10
  throng tail --user ann
  throng tail news --count 1 | jq .data
  throng tail news --since k3v9x2-17";

/// A push server: messages to everyone in a channel, over WebSocket, SSE, long-poll or a stream.
#[derive(Debug, Parser)]
#[command(name = "throng", version, long_version = crate::version::BUILD)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
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
    /// Print the effective configuration, without starting anything
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Sources),
    /// Publish a message, or one for each line
    #[command(after_help = PUBLISH_EXAMPLES, override_usage = "\
        throng publish [OPTIONS] <CHANNEL> [MESSAGE]\n       \
        throng publish [OPTIONS] --user <USER> [MESSAGE]")]
    Publish(PublishArguments),
    /// Follow channels and print what is published there
    #[command(after_help = TAIL_EXAMPLES, override_usage = "\
        throng tail [OPTIONS] <CHANNEL>...\n       \
        throng tail [OPTIONS] --user <USER> [CHANNEL]...")]
    Tail(TailArguments),
    /// Check whether this machine can hold N connections, and what to change if not
    Doctor(crate::doctor::Arguments),
    /// Load a push server, this one or another, and measure what it delivers
    Flood(Box<throng_flood::cli::Arguments>),
    /// Rerun the field's classic benchmarks against this server, beside the published figures
    Bench(throng_benchmarks::cli::Arguments),
    /// Print the version, the build and the machine, for bug reports
    Version,
}

/// The command line as clap is to read it, and whether the server is to end with the process that
/// started it.
///
/// `throng bench` starts its servers by a word of its own. Clap does not know that word, so that it
/// is in no help text and no suggestion.
pub fn words(mut words: Vec<OsString>) -> (Vec<OsString>, bool) {
    let is_bound = words.get(1).is_some_and(|word| word == throng_benchmarks::server::COMMAND);
    if is_bound {
        words[1] = "serve".into();
    }
    (words, is_bound)
}

/// An error of the command line that only the command can see: arguments that exclude each other.
pub fn conflict(sentence: &str) -> clap::Error {
    Arguments::command().error(ErrorKind::ArgumentConflict, sentence)
}

/// Where settings come from, beside the variables.
#[derive(Debug, Args)]
pub struct Sources {
    /// Read settings from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The settings themselves.
    #[command(flatten)]
    pub options: Options,
}

/// Which server to talk to.
#[derive(Debug, Args)]
pub struct Server {
    /// The URL of the server, or its address
    #[arg(
        long,
        visible_alias = "server",
        value_name = "URL",
        env = "THRONG_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub url: ServerUrl,
}

/// What to publish, and where.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true))]
pub struct PublishArguments {
    /// The channel; left out with --user
    #[arg(value_name = "CHANNEL", group = "where")]
    pub channel: Option<String>,

    /// The message; without it, or with `-`, standard input is read
    #[arg(value_name = "MESSAGE", allow_hyphen_values = true)]
    pub message: Option<String>,

    /// Publish to this user instead of a channel
    #[arg(long, value_name = "USER", group = "where")]
    pub user: Option<String>,

    /// Publish an empty message when standard input is empty, instead of refusing
    #[arg(long, conflicts_with = "lines")]
    pub allow_empty: bool,

    /// Publish each non-empty line of standard input as a message, as it comes
    #[arg(long, conflicts_with = "key")]
    pub lines: bool,

    /// The message is JSON: short for --content-type application/json
    #[arg(long, conflicts_with = "content_type")]
    pub json: bool,

    /// The media type of the message, like image/png [default: text/plain; charset=utf-8]
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

    /// Start with the last N messages of each channel
    #[arg(long, value_name = "N", conflicts_with = "since")]
    pub history: Option<Count>,

    /// Start after the message with this id
    #[arg(long, value_name = "ID")]
    pub since: Option<String>,

    /// Exit after N messages
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub count: Option<Count>,

    /// Which server.
    #[command(flatten)]
    pub server: Server,
}

fn at_least_one(text: &str) -> Result<Count, Invalid> {
    let expected = "a whole number from 1 on, like 1 or 10k";
    let count = text.parse::<Count>().ok().filter(|count| count.0 > 0);
    count.ok_or_else(|| Invalid::new(text, expected))
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

    #[test]
    fn a_servers_own_word_is_in_no_suggestion() {
        for word in ["serve-bond", "serve-", "sreve", "versoin", "-bound", "serve-bound"] {
            let error = Arguments::try_parse_from(["throng", word]).unwrap_err().to_string();
            assert!(!error.replace(&format!("'{word}'"), "").contains("bound"), "{error}");
        }
        let (bound, is_bound) = words(vec!["throng".into(), "serve-bound".into(), "--x".into()]);
        assert!(is_bound && bound[1] == "serve" && bound[2] == "--x");
        assert!(!words(vec!["throng".into(), "serve".into()]).1);
    }
}
