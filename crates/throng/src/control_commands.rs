//! `throng reload`, `throng drain` and `throng upgrade`: ask a server that runs on this machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use throng_units::{Count, Invalid, Time};

use crate::control_socket::{Connection, Request};
use crate::operator::DEADLINE_MAX;
use crate::settings::Sources;

/// The end of the help.
const RELOAD_EXAMPLES: &str = "\
Makes the server read its settings and the files that they name again, as SIGHUP does, and prints
what was replaced and what waits for a restart. Finds the only server of this user; of several, say
which one: by --listen, --config, --control or THRONG_URL. It reads what it was started with. Exits
with 78 if the settings are wrong: then nothing changes. Needs the user of the server, or root.

Examples:
  throng reload
  throng reload --config /etc/throng.toml
  throng reload --listen :9000";

const DRAIN_EXAMPLES: &str = "\
The server is not ready any more (/health/ready), and after drain-delay it refuses new subscriptions
and asks its clients to leave: as many a second as the servers that they go to can accept, each with
a moment of its own to come back. Publishing and the other clients go on. When all have left, or at
the deadline, it ends as after SIGTERM. Prints how far it has come; the drain goes on if the command
is interrupted. Until the server ends, --cancel makes it serve again. The server is found as by
`throng reload`. Needs the user of the server, or root.

Examples:
  throng drain --config /etc/throng.toml
  throng drain --return-rate 5000 --deadline 5m
  throng drain --cancel";

/// Arguments of `throng drain`.
#[derive(Debug, Args)]
#[command(after_help = DRAIN_EXAMPLES)]
pub(crate) struct DrainArguments {
    /// Clients asked to leave per second, and so how many come back per second [default: what
    /// machines like this one accept, 1000 for each core, or less with TLS]
    #[arg(long, value_name = "NUMBER", value_parser = return_rate)]
    return_rate: Option<Count>,

    /// Time after which the server ends with the clients that are left, at most 24h; they are asked
    /// faster if they would take longer
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = deadline)]
    deadline: Time,

    /// Take a drain back: the server serves again
    #[arg(long, conflicts_with_all = ["return_rate", "deadline"])]
    cancel: bool,

    /// File and flags with settings, which say which server it is.
    #[command(flatten)]
    sources: Sources,
}

fn return_rate(text: &str) -> Result<Count, Invalid> {
    let rate = text.parse::<Count>().ok().filter(|rate| rate.0 > 0);
    rate.ok_or_else(|| Invalid::new(text, "a whole number of at least 1, like 500 or 5k"))
}

fn deadline(text: &str) -> Result<Time, Invalid> {
    let deadline = text.parse::<Time>().ok().filter(|deadline| deadline.0 <= DEADLINE_MAX);
    deadline.ok_or_else(|| Invalid::new(text, "a time of at most 24h, like 30s or 10m"))
}

/// Runs `throng drain`.
pub(crate) fn drain(arguments: DrainArguments) -> Result<ExitCode> {
    let request = if arguments.cancel {
        Request::CancelDrain
    } else {
        Request::Drain {
            return_rate: arguments.return_rate.map(|count| count.0 as u64),
            deadline_ms: u64::try_from(arguments.deadline.0.as_millis()).unwrap_or(u64::MAX),
        }
    };
    Connection::open(arguments.sources)?.ask(&request)
}

/// Arguments of `throng reload`.
#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub(crate) struct ReloadArguments {
    /// File and flags with settings, which say which server it is.
    #[command(flatten)]
    sources: Sources,
}

/// The end of the help.
const UPGRADE_EXAMPLES: &str = "\
Starts a new process from the file that the server was started from, which may have been replaced,
with the same arguments. It takes over all connections, listeners and logs, and no client notices;
then the old process ends. If anything goes wrong before that, the old one goes on. The server is
found as by `throng reload`. Needs the user of the server, or root.

Examples:
  throng upgrade
  throng upgrade --config /etc/throng.toml";

/// Arguments of `throng upgrade`.
#[derive(Debug, Args)]
#[command(after_help = UPGRADE_EXAMPLES)]
pub(crate) struct UpgradeArguments {
    /// File and flags with settings, which say which server it is.
    #[command(flatten)]
    sources: Sources,
}

/// Runs `throng upgrade`.
pub(crate) fn upgrade(arguments: UpgradeArguments) -> Result<ExitCode> {
    Connection::open(arguments.sources)?.ask(&Request::Upgrade)
}

/// Runs `throng reload`.
pub(crate) fn reload(arguments: ReloadArguments) -> Result<ExitCode> {
    Connection::open(arguments.sources)?.ask(&Request::Reload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_the_server_would_shorten_is_refused() {
        assert_eq!(deadline("24h").map(|time| time.0).ok(), Some(DEADLINE_MAX));
        assert!(deadline("25h").unwrap_err().to_string().contains("at most 24h"));
        assert!(deadline("soon").is_err());
    }
}
