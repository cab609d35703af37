//! `throng reload`: asks a server that runs on this machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::control_socket::{Connection, Request};
use crate::settings::Sources;

/// The end of the help.
const RELOAD_EXAMPLES: &str = "\
Makes the server read its settings and the files that they name again, as SIGHUP does, and prints
what was replaced and what waits for a restart. The server is found by the address in the settings,
so give the flags, variables or file of `throng serve`; it reads what it was started with. Exits
with 78 if the settings are wrong: then nothing changes. Needs the user of the server, or root.

Examples:
  throng reload
  throng reload --config /etc/throng.toml
  throng reload --listen :9000";

/// Arguments of `throng reload`.
#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub(crate) struct ReloadArguments {
    /// File and flags with settings, which say which server it is.
    #[command(flatten)]
    sources: Sources,
}

/// Runs `throng reload`.
pub(crate) fn reload(arguments: ReloadArguments) -> Result<ExitCode> {
    Connection::open(arguments.sources)?.ask(&Request::Reload)
}
