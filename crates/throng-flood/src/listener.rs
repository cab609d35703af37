//! Which processes of this machine listen on a port: for `--server-pid auto`.

use throng_host::proc;

/// A service manager that holds the sockets of the services it starts; it is not the server.
const HOLDER: (u32, &str) = (1, "systemd");

/// Why no process was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenerError {
    /// The server runs elsewhere, or not at all.
    #[error("nobody listens on port {0} of this machine; give the server's process id")]
    Nobody(u16),
    /// Another user's process.
    #[error(
        "the process that listens on port {0} belongs to somebody else; give its id, or run as its \
         user"
    )]
    Hidden(u16),
}

/// The processes that listen on `port`, ascending: a parent and its workers that share the socket,
/// or processes that have one each (`SO_REUSEPORT`).
pub fn listeners(port: u16) -> Result<Vec<u32>, ListenerError> {
    let mut found = proc::listeners(port);
    if found.len() > 1 {
        found.retain(|&pid| pid != HOLDER.0 || proc::name(pid).as_deref() != Some(HOLDER.1));
    }
    match found.is_empty() {
        false => Ok(found),
        true if proc::is_listened_on(port) => Err(ListenerError::Hidden(port)),
        true => Err(ListenerError::Nobody(port)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn finds_this_process() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(listeners(port), Ok(vec![std::process::id()]));
        drop(socket);
        assert_eq!(listeners(port), Err(ListenerError::Nobody(port)));
    }
}
