//! `throng reload`, `throng drain` and `throng upgrade`: ask a server that runs on this machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use throng_units::{Count, Invalid, Time};

use crate::control_socket::{ControlConnection, Request};
use crate::operator::DEADLINE_MAX;
use crate::settings::Sources;

const RELOAD_EXAMPLES: &str = "\
The server reads its settings and the files they name again, as on SIGHUP, from the sources it was
started with; the command prints which settings took effect and which need a restart. If this user
runs several servers, choose one with --listen, --config, --control or THRONG_URL. If the settings
are wrong, nothing changes and the exit code is 78. Run it as the server's user or root.

Examples:
  throng reload
  throng reload --config /etc/throng.toml
  throng reload --listen :9000";

const DRAIN_EXAMPLES: &str = "\
/health/ready fails at once. After drain-delay the server refuses new subscriptions and asks its
clients to leave, at a rate that the servers they move to can accept, each with its own time to
reconnect. Publishing and the remaining clients are served meanwhile. When all clients have left, or
at the deadline, the server stops as on SIGTERM. The command prints progress; if you interrupt it,
the drain continues. Until the server stops, --cancel makes it serve again. Finds the server as
`throng reload` does. Run it as the server's user or root.

Examples:
  throng drain --config /etc/throng.toml
  throng drain --return-rate 5000 --deadline 5m
  throng drain --cancel";

/// Arguments of `throng drain`.
#[derive(Debug, Args)]
#[command(after_help = DRAIN_EXAMPLES)]
pub(crate) struct DrainArguments {
    /// Clients to move per second [default: what a machine like this one accepts, 1000 per core,
    /// less with TLS]
    #[arg(long, value_name = "NUMBER", value_parser = return_rate)]
    return_rate: Option<Count>,

    /// Time after which the server stops even if clients remain, at most 24h; the rate rises if it
    /// is too low for this deadline
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = deadline)]
    deadline: Time,

    /// Cancel a drain: the server serves again
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

pub(crate) fn drain(arguments: DrainArguments) -> Result<ExitCode> {
    let request = if arguments.cancel {
        Request::CancelDrain
    } else {
        Request::Drain {
            return_rate: arguments.return_rate.map(|count| count.0 as u64),
            deadline_ms: u64::try_from(arguments.deadline.0.as_millis()).unwrap_or(u64::MAX),
        }
    };
    ControlConnection::open(arguments.sources)?.ask(&request)
}

/// Arguments of `throng reload`.
#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub(crate) struct ReloadArguments {
    /// File and flags with settings, which say which server it is.
    #[command(flatten)]
    sources: Sources,
}

const UPGRADE_EXAMPLES: &str = "\
Starts a new process from the server's binary, which you may have replaced, with the same arguments.
The new process takes over all connections, listeners and logs without clients noticing, and the old
one exits. If anything fails before that, the old process continues to serve. Finds the server as
`throng reload` does. Run it as the server's user or root.

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

pub(crate) fn upgrade(arguments: UpgradeArguments) -> Result<ExitCode> {
    ControlConnection::open(arguments.sources)?.ask(&Request::Upgrade)
}

pub(crate) fn reload(arguments: ReloadArguments) -> Result<ExitCode> {
    ControlConnection::open(arguments.sources)?.ask(&Request::Reload)
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
