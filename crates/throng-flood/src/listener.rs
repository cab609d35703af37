//! Which process of this machine listens on a port: for `--server-pid auto`.

use std::fs;
use std::path::Path;

/// A listening socket's state in `/proc/net/tcp`.
const LISTEN: &str = "0A";

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

/// The process that listens on `port`. Of several that share the socket, the one that was first:
/// the parent of workers.
pub fn listener(port: u16) -> Result<u32, ListenerError> {
    find(Path::new("/proc"), port)
}

fn find(proc: &Path, port: u16) -> Result<u32, ListenerError> {
    let read = |name: &str| fs::read_to_string(proc.join("net").join(name)).unwrap_or_default();
    let tables = [read("tcp"), read("tcp6")];
    let inodes: Vec<&str> = tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(|line| inode(line, port))
        .collect();
    if inodes.is_empty() {
        return Err(ListenerError::Nobody(port));
    }
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| holds(&proc.join(pid.to_string()), &links);
    pids.filter(holds).min().ok_or(ListenerError::Hidden(port))
}

/// Whether a process has one of the sockets open. Its threads are asked too: they may have
/// descriptor tables of their own.
fn holds(process: &Path, links: &[String]) -> bool {
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    tasks.into_iter().any(|task| {
        let descriptors = fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|descriptor| {
            let link = fs::read_link(descriptor.path());
            link.is_ok_and(|link| links.iter().any(|wanted| link.as_os_str() == wanted.as_str()))
        })
    })
}

/// The inode of the socket in a line of `/proc/net/tcp`, if it listens on `port`.
fn inode(line: &str, port: u16) -> Option<&str> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let found = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    (state == LISTEN && found == port).then(|| fields.nth(5)).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn finds_this_process() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(listener(port), Ok(std::process::id()));
        drop(socket);
        assert_eq!(listener(port), Err(ListenerError::Nobody(port)));
    }

    #[test]
    fn looks_into_the_tables_of_threads() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let inode = table.lines().find_map(|line| inode(line, port)).unwrap();
        let links = [format!("socket:[{inode}]")];
        assert!(holds(Path::new("/proc/self"), &links));
        assert!(!holds(Path::new("/proc/self"), &["socket:[0]".to_owned()]));
    }

    #[test]
    fn reads_only_listening_sockets() {
        let listening = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 \
                         00000000 0 0 4711 1 0000000000000000 100 0 0 10 0";
        assert_eq!(inode(listening, 8080), Some("4711"));
        assert_eq!(inode(listening, 8081), None);
        assert_eq!(inode(&listening.replace(" 0A ", " 01 "), 8080), None);
        assert_eq!(inode("  sl  local_address rem_address   st tx_queue", 8080), None);
    }
}
