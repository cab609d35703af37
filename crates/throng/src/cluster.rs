//! `throng cluster`: how the nodes are that share a stream in NATS, and what is suspect.
//!
//! It asks through NATS, as nodes ask each other, and needs no node's address.
//!
//! | module | contents |
//! |---|---|
//! | `ask` | asks the nodes, and the servers about the stream |
//! | `found` | what was found, and what is suspect in it |
//! | `shown` | that as text |
//! | this file | the command |

mod ask;
mod found;
mod shown;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use throng_units::paint::Paint;

use crate::journals;
use crate::journals::nats::{self, NatsAccess, NatsFlags};
use crate::settings::{self, NatsServers};
use crate::terminal;

use ask::AskPlan;

const EXAMPLES: &str = "\
Asks all nodes over NATS. Reads the same variables and file as `throng serve`, and changes nothing.
Exits with 0 if nothing is suspect, otherwise with 1.

Examples:
  throng cluster --nats nats://10.0.0.1:4222
  throng cluster --config /etc/throng.toml
  throng cluster --json | jq -r '.suspect[]'";

/// Arguments of `throng cluster`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// NATS servers [default: the setting `nats`]
    #[arg(long, value_name = "SERVER,…")]
    nats: Option<NatsServers>,

    /// The settings of a node, and flags in their place.
    #[command(flatten)]
    flags: NatsFlags,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. The exit code is 0 if nothing is suspect, and 1 otherwise.
pub(crate) fn cluster(arguments: &Arguments) -> Result<ExitCode> {
    let settings = arguments.flags.settings(arguments.nats.as_ref(), |_| ())?;
    let access = NatsAccess::of(&settings);
    journals::check(&settings)?.iter().for_each(|warning| terminal::print_note(warning));
    let plan = AskPlan {
        servers: settings.nats.addresses(),
        login: access.login(),
        tls: access.tls(),
        stream: nats::stream(&settings, &settings::rules(&settings)),
        nonce: nats::nonce(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(ask::ask(&plan))?;
    terminal::print(&if arguments.json {
        serde_json::to_string_pretty(&found)? + "\n"
    } else {
        shown::shown(&found, Paint::on(&std::io::stdout()))
    })?;
    let is_well = found.suspect.is_empty();
    Ok(if is_well { ExitCode::SUCCESS } else { terminal::EXIT_RUNTIME.into() })
}
