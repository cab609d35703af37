//! The flags, and what `--help` says of them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::assertions::Assertion;
use crate::plan::Network;
use crate::plan::addresses::Addresses;
use crate::plan::draft::ServerProcess;
use crate::plan::words::{By, Followed, Header, IsWebSocket, PingPair, PortRange, Share, To, When};
use crate::profile::Profile;
use throng_units::{Count, Invalid, Ports, Rate, Size, Time};

const EXAMPLES: &str = "\
Examples:
  1000 WebSocket clients, a message a second to all of them, for 10 seconds:
    throng flood http://127.0.0.1:8080

  In steps, held for 30 seconds each, 10 messages a second, results for later:
    throng flood http://127.0.0.1:8080 --steps 1000,5000,10000 --hold 30s --publish 10 \\
      --server-pid auto --json run.json --html run.html

  Server-sent events of Nchan; exit code 1 unless all messages come in time:
    throng flood http://127.0.0.1:8081 --profile nchan --transport sse \\
      --assert 'lost == 0' --assert 'p99 < 50ms'

  A WebSocket server that sends what one client says to all of them:
    throng flood ws://127.0.0.1:3000 --profile websocket --clients 5000

  All clients lose their connection; how long until they are back?
    throng flood http://127.0.0.1:8080 --clients 20000 --storm 60s \\
      --assert 'storm.recovered < 30s'

  What would happen, and whether this machine allows it:
    throng flood http://127.0.0.1:8080 --clients 1M --dry-run

  From three machines, each of which runs `throng flood agent --nats nats://meeting:4222`:
    throng flood http://10.0.0.1:8080 --clients 300k --agents 3 --nats nats://meeting:4222

  A plan in a file, and two results side by side:
    throng flood --plan evening.toml --json evening.json
    throng flood compare before.json after.json --html compared.html

In URLs, headers, hello messages and bodies {i} is the client's number, {i%N} that modulo N,
{stream} its stream, {run} the run; {payload} is what is published; {NAME} a column of --data.";

/// Load a push server with clients, publish, and measure what arrives
#[derive(Debug, Clone, Args)]
#[command(
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "throng flood <URL> [OPTIONS]\n       \
        throng flood --plan <FILE> [OPTIONS]\n       \
        throng flood compare <FILE>... [--html <FILE>]\n       \
        throng flood agent --nats <URL> [OPTIONS]"
)]
pub struct Arguments {
    /// Another thing to do than to run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to run.
    #[command(flatten)]
    pub run: Run,
}

/// Another thing to do than to run.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Put the results of two or more runs side by side
    Compare(Compare),
    /// Run part of the clients on this machine, for a coordinator (throng flood --agents N)
    Agent(Agent),
}

/// Where an agent waits for its coordinator.
#[derive(Debug, Clone, Args)]
pub struct Agent {
    /// The NATS server through which agents and coordinator communicate
    #[arg(long, value_name = "URL")]
    pub nats: String,
    /// Serve only coordinators of this group
    #[arg(long, value_name = "NAME", default_value = "flood")]
    pub group: String,
    /// Names the agent in reports; the machine's name and the process unless given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Local addresses to connect from, rather than those of the plan
    #[arg(long, value_name = "ADDRESSES")]
    pub source: Vec<Addresses>,
    /// End with the first run instead of waiting for the next
    #[arg(long)]
    pub once: bool,
}

/// Which results to compare.
#[derive(Debug, Clone, Args)]
pub struct Compare {
    /// Results that --json has written, or `label=FILE,FILE…` for several runs of the same; the
    /// first is what the others are compared with
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    pub files: Vec<String>,
    /// Write a page with charts besides
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What to run.
#[derive(Debug, Clone, Default, Args)]
pub struct Run {
    /// The server, or the URL of a subscription: http://… or ws://…
    #[arg(value_name = "URL", required_unless_present_any = ["plan", "urls"])]
    pub url: Option<String>,

    /// What is loaded.
    #[command(flatten)]
    pub target: Target,
    /// How much.
    #[command(flatten)]
    pub load: Load,
    /// How to publish.
    #[command(flatten)]
    pub publish: Publish,
    /// Clients on several machines.
    #[command(flatten)]
    pub agents: Agents,
    /// What comes out.
    #[command(flatten)]
    pub results: Results,
}

/// Clients on several machines.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Several machines")]
pub struct Agents {
    /// Leave the clients to this many agents (throng flood agent); this process publishes and
    /// measures the server
    #[arg(long, value_name = "N", requires = "nats", conflicts_with_all = ["urls", "data"])]
    pub agents: Option<Count>,
    /// The NATS server through which they communicate
    #[arg(long, value_name = "URL", requires = "agents")]
    pub nats: Option<String>,
    /// Agents of this group; flood unless given
    #[arg(long, value_name = "NAME", requires = "agents")]
    pub group: Option<String>,
    /// How long to wait for agents; 60s unless given
    #[arg(long, value_name = "TIME", requires = "agents")]
    pub agents_wait: Option<Time>,
}

/// What is loaded.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Target")]
pub struct Target {
    /// Read the plan from this TOML file; flags overrule what it says
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Which server it is: throng (unless given), nchan, centrifugo, centrifugo-sse, mercure,
    /// mercure-0, pusher, websocket or custom
    #[arg(long, value_name = "NAME")]
    pub profile: Option<Profile>,
    /// Transport: websocket, sse, stream or long-poll
    #[arg(long, value_name = "NAME")]
    pub transport: Option<By>,
    /// The channel's name; flood-{run}-{stream} unless given
    #[arg(long, value_name = "NAME")]
    pub channel: Option<String>,
    /// What clients follow: one (all the same), N (client i the stream i % N), own (each its own),
    /// or friends:EDGES (a graph in which few have many followers)
    #[arg(long, value_name = "STREAMS")]
    pub streams: Option<Followed>,
    /// Ports of the same host; clients are spread over them
    #[arg(long, value_name = "PORTS")]
    pub ports: Option<Ports>,
    /// URLs, one a line: client i takes line i
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub urls: Option<PathBuf>,
    /// CSV whose first line names the columns: client i takes line i
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A request header, `Name: value`; may be repeated
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<Header>,
    /// WebSocket sub-protocol
    #[arg(long, value_name = "NAME")]
    pub subprotocol: Option<String>,
    /// A message to send after connecting (WebSocket); may be repeated
    #[arg(long, value_name = "TEXT")]
    pub hello: Vec<String>,
    /// A client counts as subscribed with the first message that contains this; or `handshake`
    #[arg(long, value_name = "TEXT")]
    pub subscribed: Option<When>,
    /// A message that contains this refuses the client; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub refused: Vec<String>,
    /// What a message is answered with that is exactly ASK (WebSocket); may be repeated
    #[arg(long, value_name = "ASK=ANSWER")]
    pub ping: Vec<PingPair>,
    /// Time limit of a connect and its handshake; 30s unless given
    #[arg(long, value_name = "TIME")]
    pub handshake_timeout: Option<Time>,
    /// Local addresses to connect from: a list, a network (127.0.1.0/24), an interface (eth0)
    #[arg(long, value_name = "ADDRESSES")]
    pub source: Vec<Addresses>,
    /// Local ports to connect from
    #[arg(long, value_name = "FROM-TO")]
    pub source_ports: Option<PortRange>,
    /// The server's processes on this machine, whose memory and CPU time are measured with those
    /// of their children; auto for all that listen on the port
    #[arg(long, value_name = "PID,PID…")]
    pub server_pid: Option<ServerProcess>,
}

/// How much.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Load")]
pub struct Load {
    /// Clients; 1000 unless given
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "plan")]
    pub clients: Option<Count>,
    /// Clients in steps, up or down; each is held
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["plan", "clients"])]
    pub steps: Vec<Count>,
    /// Connects a second; as fast as it goes unless given
    #[arg(long, value_name = "RATE", value_parser = some_rate, conflicts_with = "plan")]
    pub rate: Option<Rate>,
    /// Connects under way at once, at most; 256 unless given
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    pub in_flight: Option<Count>,
    /// How long to hold the clients; 10s unless given
    #[arg(long, value_name = "TIME", conflicts_with = "plan")]
    pub hold: Option<Time>,
    /// Clients a second that leave, and as many that come, while they are held
    #[arg(long, value_name = "RATE", value_parser = some_rate, conflicts_with = "plan")]
    pub churn: Option<Rate>,
    /// Share of the clients that stop reading while they are held, like 10%
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["plan", "churn"])]
    pub slow: Option<Share>,
    /// At the end all lose their connection at once; all must be back after this time
    #[arg(long, value_name = "TIME", conflicts_with = "plan")]
    pub storm: Option<Time>,
    /// Reconnect clients that fail or that the server closes, after a second
    #[arg(long)]
    pub keep: bool,
    /// Seed of the graph of --streams friends and of the choices of --to random
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<Count>,
    /// What carries the clients' connections: sockets (unless given), or tunnel, which holds twice
    /// as many on one machine with the server: TCP of our own over a network device, so that the
    /// kernel has the server's half only; needs root or CAP_NET_ADMIN
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<Network>,
    /// Client threads; as many as cores and descriptors ask for unless given
    #[arg(long, value_name = "N")]
    pub threads: Option<Count>,
    /// The run ends after this, whatever happens
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Time>,
}

/// How to publish.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Publishing")]
pub struct Publish {
    /// Messages a second while clients are held, each at its time whether or not the one before has
    /// arrived; 1 unless given, 0 for none
    #[arg(long, value_name = "RATE", conflicts_with = "plan")]
    pub publish: Option<Rate>,
    /// Bytes of each message; 128 unless given, 50 at least
    #[arg(long, value_name = "SIZE", conflicts_with = "plan")]
    pub size: Option<Size>,
    /// No more messages than this in each step
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    pub count: Option<Count>,
    /// To which streams: one, in-turn or random; in turn unless given
    #[arg(long, value_name = "WHICH", conflicts_with = "plan")]
    pub to: Option<To>,
    /// Where to publish by HTTP; {stream} is the stream's number
    #[arg(long, value_name = "URL")]
    pub publish_url: Option<String>,
    /// http, or websocket: a frame on a connection like a subscriber's
    #[arg(long, value_name = "HOW")]
    pub publish_by: Option<IsWebSocket>,
    /// POST or PUT; POST unless given
    #[arg(long, value_name = "METHOD")]
    pub publish_method: Option<String>,
    /// A header of publishes, `Name: value`; may be repeated
    #[arg(long, value_name = "HEADER")]
    pub publish_header: Vec<Header>,
    /// Body of a publish, or its frame; {payload} is the message
    #[arg(long, value_name = "TEXT")]
    pub publish_body: Option<String>,
    /// An answer whose body contains this is a refusal, whatever its status
    #[arg(long, value_name = "TEXT")]
    pub publish_refused: Option<String>,
    /// Publishing connections; 1 unless given
    #[arg(long, value_name = "N")]
    pub publish_connections: Option<Count>,
    /// Requests under way on each of them; 1 unless given
    #[arg(long, value_name = "N")]
    pub publish_pipeline: Option<Count>,
}

/// What comes out.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Results")]
pub struct Results {
    /// A condition to check at the end, like 'lost == 0' or 'p99 < 50ms'; may be repeated
    #[arg(long = "assert", value_name = "ASSERTION")]
    pub assertions: Vec<Assertion>,
    /// Names the run in its results
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Write everything as JSON; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write one line for each second; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the plan, and whether this machine allows it, without connecting
    #[arg(long)]
    pub dry_run: bool,
}

/// A rate at which something happens.
fn some_rate(text: &str) -> Result<Rate, Invalid> {
    text.parse().and_then(|rate: Rate| match rate.0 > 0.0 {
        true => Ok(rate),
        false => Err(Invalid(format!("{text:?} is no rate: it is more than 0"))),
    })
}
