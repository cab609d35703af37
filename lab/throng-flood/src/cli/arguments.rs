//! The command line of `throng flood`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use throng_units::{Count, Time};

use crate::agents::bounds::AllowedTarget;
use crate::plan::{LocalAddresses, Node, Options};

const EXAMPLES: &str = include_str!("examples.txt");

/// Load a push server with clients, publish, and measure what arrives
#[derive(Debug, Clone, Args)]
#[command(
    after_help = EXAMPLES.trim_end(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "throng flood <URL> [OPTIONS]\n       \
        throng flood --plan <FILE> [OPTIONS]\n       \
        throng flood compare <FILE>... [--html <FILE>]\n       \
        throng flood agent [OPTIONS]"
)]
pub struct Arguments {
    /// A command other than a run.
    #[command(subcommand)]
    pub(super) command: Option<FloodCommand>,
    /// The options of a run.
    #[command(flatten)]
    pub(super) run: RunArguments,
}

/// A command other than a run.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum FloodCommand {
    /// Put the results of two or more runs side by side
    Compare(CompareArguments),
    /// Run part of the clients on this machine, for a coordinator (throng flood --agents)
    Agent(AgentArguments),
}

/// Options of `throng flood agent`.
#[derive(Debug, Clone, Args)]
pub(super) struct AgentArguments {
    /// Where to wait for coordinators; other addresses than loopback need a secret
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub(super) listen: SocketAddr,
    #[command(flatten)]
    pub(super) secret: SecretArguments,
    /// Names the agent in reports; by default the host name and process id
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Local addresses to connect from, instead of those of the plan
    #[arg(long, value_name = "ADDRESSES")]
    pub(super) source: Vec<LocalAddresses>,
    /// Refuse runs with more clients on this agent
    #[arg(long, value_name = "N")]
    pub(super) max_clients: Option<Count>,
    /// Load only these hosts; by default, loopback and private addresses
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub(super) allow_target: Vec<AllowedTarget>,
    /// End with the first run instead of waiting for the next
    #[arg(long)]
    pub(super) once: bool,
}

/// Where the secret of agents and coordinators is.
#[derive(Debug, Clone, Args)]
pub(super) struct SecretArguments {
    /// File with the secret that agents and coordinator share, at least 16 bytes; by default the
    /// variable THRONG_FLOOD_SECRET
    #[arg(long, value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
}

/// Options of `throng flood compare`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompareArguments {
    /// Results written by --json, or `label=FILE,FILE…` for several runs of the same; the others
    /// are compared with the first
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    pub(super) files: Vec<String>,
    /// Also write a page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Options of a run.
#[derive(Debug, Clone, Args)]
pub(super) struct RunArguments {
    /// Read the plan from this TOML file; other flags override it
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub(super) plan: Option<PathBuf>,
    /// The options that a plan file may have, too.
    #[command(flatten)]
    pub(super) options: Options,
    /// The options of a coordinator.
    #[command(flatten)]
    pub(super) agents: CoordinatorArguments,
    /// Where results are written.
    #[command(flatten)]
    pub(super) results: ResultArguments,
}

/// The options of a coordinator, whose clients are on several machines.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several machines")]
pub(super) struct CoordinatorArguments {
    /// Leave the clients to the agents at these addresses (throng flood agent); this process
    /// publishes and measures the server
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["target.urls", "target.data"])]
    pub(super) agents: Vec<Node>,
    /// How long to wait for agents
    #[arg(long, value_name = "TIME", requires = "agents", default_value = "60s")]
    pub(super) agents_wait: Time,
    #[command(flatten)]
    pub(super) secret: SecretArguments,
}

/// Where the results of a run are written.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Results")]
pub(super) struct ResultArguments {
    /// Write everything as JSON; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write one line per second; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Print the plan, and whether this machine allows it, without connecting
    #[arg(long)]
    pub(super) dry_run: bool,
}
