//! Why the data plane cannot start.

use std::io;
use std::net::SocketAddr;

use crate::limits::WORKERS_MAX;

/// Why the data plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server cannot listen on an address.
    #[error("cannot listen on {address}: {}", reason(.error, .flag, .address.port()))]
    Listen {
        /// The setting that names the address.
        flag: &'static str,
        address: SocketAddr,
        /// The kernel's error. Part of the message, and therefore not its source as well.
        error: io::Error,
    },
    /// The descriptor limit is so low that the connections would take more than [`WORKERS_MAX`]
    /// workers.
    #[error(
        "{connections} connections would take {workers} workers of {per_worker} descriptors each, \
         and at most {WORKERS_MAX} can be; raise the descriptor limit (ulimit -n)"
    )]
    TooMany {
        /// Connections that the settings ask for.
        connections: usize,
        /// Workers that these connections would take.
        workers: usize,
        /// Connections that one worker holds.
        per_worker: usize,
    },
    /// The descriptor limit is too low for any connection.
    #[error(
        "the descriptor limit is {0}, which is too low for any connection; raise it (ulimit -n)"
    )]
    NoRoom(u64),
    /// The state of a running server cannot be taken over.
    #[error("cannot take over from the running server: {0}")]
    TakeOver(String),
    /// The kernel refused something else.
    #[error("cannot {what}: {error}")]
    System {
        /// The attempt, as the end of "cannot ...".
        what: &'static str,
        /// The kernel's error, which is part of the message as well.
        error: io::Error,
    },
}

fn reason(error: &io::Error, flag: &str, port: u16) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("the address is in use by another program; choose another port with --{flag}")
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        io::ErrorKind::PermissionDenied if port < first_unprivileged() => format!(
            "ports below {} need the capability CAP_NET_BIND_SERVICE, which this process lacks; \
             add AmbientCapabilities=CAP_NET_BIND_SERVICE to its systemd unit, or run \
             `setcap cap_net_bind_service=+ep {}`, or choose a higher port with --{flag}",
            first_unprivileged(),
            std::env::current_exe().unwrap_or_else(|_| "throng".into()).display(),
        ),
        _ => error.to_string(),
    }
}

/// The first port that every process may listen on (ip(7)).
fn first_unprivileged() -> u16 {
    let setting = throng_host::sysctl::number("net.ipv4.ip_unprivileged_port_start", 0);
    setting.and_then(|first| u16::try_from(first).ok()).unwrap_or(1024)
}

/// The error of a listener at the address that the setting `flag` names.
pub(super) fn cannot_listen(
    flag: &'static str,
    address: SocketAddr,
    error: io::Error,
) -> StartError {
    StartError::Listen { flag, address, error }
}

/// Wraps a kernel error; `what` ends the sentence "cannot ...".
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

/// Ends the process: the worker's connections would be open and never served.
pub(super) fn cannot_go_on(error: &dyn std::fmt::Display) -> ! {
    eprintln!("error: a worker cannot continue: {error}");
    std::process::abort();
}
