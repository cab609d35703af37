//! The processes of the server: `--server-pid`.

use std::fmt;
use std::str::FromStr;

use throng_host::proc;
use throng_units::Invalid;

use super::values::joined;

/// The server's processes: `auto`, or ids with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProcess {
    /// All processes that listen on the target's port.
    Auto,
    /// The processes with these ids.
    Ids(Vec<u32>),
}

impl FromStr for ServerProcess {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<ServerProcess, Invalid> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(ServerProcess::Auto);
        }
        let read = |pid: &str| pid.trim().parse().ok().filter(|&pid| pid > 0);
        let pids: Option<Vec<u32>> = text.split(',').map(read).collect();
        pids.map(ServerProcess::Ids)
            .ok_or_else(|| Invalid::new(text, "a process id, several like 123,456, or \"auto\""))
    }
}

impl fmt::Display for ServerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerProcess::Auto => f.write_str("auto"),
            ServerProcess::Ids(pids) => f.write_str(&joined(pids)),
        }
    }
}

/// A service manager that holds the sockets of the services it starts; it is not the server.
const HOLDER: (u32, &str) = (1, "systemd");

/// The processes that listen on `port`, ascending: a parent and its workers that share the socket,
/// or processes that have one each (`SO_REUSEPORT`).
pub(crate) fn listeners(port: u16) -> Result<Vec<u32>, Invalid> {
    let mut found = proc::listeners(port);
    if found.len() > 1 {
        found.retain(|&pid| pid != HOLDER.0 || proc::name(pid).as_deref() != Some(HOLDER.1));
    }
    if !found.is_empty() {
        Ok(found)
    } else if proc::is_listened_on(port) {
        Err(Invalid(format!(
            "the process that listens on port {port} belongs to another user; give its id, or run \
             as that user"
        )))
    } else {
        let message = "of this machine; give the server's process id";
        Err(Invalid(format!("no process listens on port {port} {message}")))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::publish::tests::refusing_port;

    #[test]
    fn finds_this_process() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        // A child of another test has it, too, until it executes its program.
        assert!(listeners(port).unwrap().contains(&std::process::id()));
        // It stays bound, so no other process can take the port and listen.
        let (_bound, port) = refusing_port();
        assert!(listeners(port).unwrap_err().0.starts_with("no process listens on port"));
    }

    #[test]
    fn process_ids_are_read() {
        assert_eq!("Auto".parse(), Ok(ServerProcess::Auto));
        assert_eq!("7".parse(), Ok(ServerProcess::Ids(vec![7])));
        assert_eq!("7, 12".parse(), Ok(ServerProcess::Ids(vec![7, 12])));
        for text in ["0", "7,", "7,x", ""] {
            assert!(text.parse::<ServerProcess>().is_err(), "{text}");
        }
    }
}
