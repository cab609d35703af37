//! Re-executes the command in a network namespace of its own, by unshare(1) and ip(8).
//!
//! The namespace gets a TCP hash table that is large enough for all connections; the machine's own
//! table was sized at boot. See `throng_host::preflight`.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use throng_host::sysctl;

/// The flag for it, which is removed from the re-executed command.
const FLAG: &str = "--namespace";

/// Hash buckets of namespaces created from now on.
const BUCKETS: &str = "net.ipv4.tcp_child_ehash_entries";

/// The kernel's maximum.
const BUCKETS_MAX: u64 = 1 << 24;

/// Brings the loopback device up, then becomes the command.
const SCRIPT: &str = "ip link set lo up && exec \"$0\" \"$@\"";

/// Replaces this process by the same command in a new namespace for `ends` ends of connections.
/// Returns only on failure, with the reason.
pub(crate) fn enter(ends: u64) -> String {
    let buckets = ends.min(BUCKETS_MAX).next_power_of_two();
    let before = sysctl::number(BUCKETS, 0).unwrap_or(0);
    if before < buckets {
        let lines = [buckets, before].map(|value| sysctl::command(BUCKETS, &value.to_string()));
        if let Err(error) = sysctl::set(BUCKETS, &buckets.to_string()) {
            return format!("{FLAG}: {} is not possible: {error}; it needs root", lines[0]);
        }
        eprintln!("done: {}; to undo: {}", lines[0], lines[1]);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return format!("{FLAG}: this program is not found: {error}"),
    };
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != FLAG);
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", SCRIPT]).arg(program).args(arguments);
    let error = command.exec();
    match error.kind() {
        ErrorKind::NotFound => format!("{FLAG} needs unshare, of util-linux"),
        _ => format!("{FLAG}: unshare cannot be started: {error}"),
    }
}
