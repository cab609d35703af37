//! Which of the servers that run on this machine a command is for.
//!
//! An address, a file or `THRONG_URL` set by the user is obeyed. Without any of them the only
//! server of the user is meant, and of several none: the command lists them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use throng_units::paint::sanitized;

use super::place;
use super::protocol::About;

/// Servers that an error lists.
const LISTED_MAX: usize = 10;

/// Known facts about the server that is meant.
#[derive(Debug, Default)]
pub(super) struct WantedServer {
    /// The address in flags, variables or the file.
    pub(super) listen: Option<SocketAddr>,
    /// True if only the file says so, which may have changed since the start of the server.
    pub(super) is_listen_of_file: bool,
    /// The address in `THRONG_URL`, if it has one.
    pub(super) url: Option<SocketAddr>,
    /// The file of settings that is read here.
    pub(super) file: Option<String>,
    /// True if the command line names that file.
    pub(super) is_file_named: bool,
}

#[derive(Debug)]
pub(super) struct RunningServer {
    pub(super) path: PathBuf,
    pub(super) about: About,
    /// True if it is in the network namespace of this process, as far as both know theirs. An
    /// address means another server in another one.
    pub(super) is_here: bool,
}

/// The server that is meant.
///
/// # Errors
///
/// The first line of an error: why there is none, or more than one.
pub(super) fn choose<'a>(
    wanted: &WantedServer,
    running: &'a [RunningServer],
) -> Result<&'a RunningServer, String> {
    let here = || running.iter().filter(|running| running.is_here);
    let has_read =
        |running: &&RunningServer| wanted.file.is_some() && running.about.settings == wanted.file;
    let is_by_file = wanted.listen.is_none() || wanted.is_listen_of_file;
    if is_by_file && let Some(found) = only(here().filter(has_read)) {
        return Ok(found);
    }
    if let Some(listen) = wanted.listen {
        return Err(format!("no server listens on {listen}"));
    }
    if wanted.is_file_named {
        let file = wanted.file.as_deref().unwrap_or_default();
        return Err(format!("no server has read {}", sanitized(file)));
    }
    if let Some(url) = wanted.url {
        let is_reached = |running: &&RunningServer| {
            running.about.listen.parse().is_ok_and(|listen| is_reached_at(listen, url))
        };
        return only(here().filter(is_reached))
            .ok_or_else(|| format!("no server listens on {url}, the address in THRONG_URL"));
    }
    match only(here()) {
        Some(found) => Ok(found),
        None if here().next().is_some() => Err("several servers run".to_owned()),
        None => Err("no server runs here".to_owned()),
    }
}

/// The only one of them.
fn only<'a>(mut servers: impl Iterator<Item = &'a RunningServer>) -> Option<&'a RunningServer> {
    let first = servers.next()?;
    servers.next().is_none().then_some(first)
}

/// True if a server that listens on `listen` is reached at `url`.
fn is_reached_at(listen: SocketAddr, url: SocketAddr) -> bool {
    let (ip, wanted) = (listen.ip().to_canonical(), url.ip().to_canonical());
    listen.port() == url.port() && (ip == wanted || ip.is_unspecified())
}

/// The address in the URL of a server; `None` if it has a name, or speaks TLS on another port than
/// the one that `listen` says.
pub(super) fn address_of_url(url: &str) -> Option<SocketAddr> {
    let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("ws://"));
    let authority = authority.unwrap_or(url).trim_end_matches('/');
    let numeric = match authority.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => authority.to_owned(),
    };
    numeric.parse().ok()
}

/// The error of a command that has not found its server: `reason`, and a short line for each server
/// that runs.
pub(super) fn error(reason: &str, directories: &[PathBuf], running: &[RunningServer]) -> String {
    let mut text = reason.to_owned();
    let closed = directories.iter().find(|directory| place::is_closed(directory));
    if running.is_empty() {
        text += "; there is no control socket in";
        for directory in directories {
            let _ = write!(text, "\n  {}", shown(directory));
        }
    } else {
        text += if reason.ends_with("run") { ":" } else { "; these run:" };
        for server in running.iter().take(LISTED_MAX) {
            let About { process, listen, .. } = &server.about;
            let _ = write!(text, "\n  {}  process {process}", sanitized(listen));
            if !server.is_here {
                let _ = write!(text, ", in another network namespace");
                let _ = write!(text, "\n    --control {}", shown(&server.path));
            }
        }
        if let Some(more) = running.len().checked_sub(LISTED_MAX).filter(|&more| more > 0) {
            let _ = write!(text, "\n  and {more} more");
        }
        text += "\n--listen ADDRESS or --control SOCKET says which one.";
    }
    if let Some(directory) = closed {
        let directory = shown(directory);
        let _ =
            write!(text, "\n{directory} is another user's:\nask as the server's user, or as root.");
    }
    text
}

fn shown(path: &Path) -> String {
    sanitized(&path.display().to_string()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(listen: &str, file: Option<&str>, is_here: bool) -> RunningServer {
        let about = About {
            process: 7,
            version: String::new(),
            listen: listen.into(),
            settings: file.map(str::to_owned),
            network: None,
        };
        RunningServer { path: format!("/run/throng/{listen}.sock").into(), about, is_here }
    }

    fn chosen<'a>(wanted: &WantedServer, running: &'a [RunningServer]) -> Result<&'a str, String> {
        choose(wanted, running).map(|found| found.about.listen.as_str())
    }

    #[test]
    fn the_only_server_is_found_without_settings() {
        let (own, foreign) = ("127.0.0.1:9000", "127.0.0.1:8080");
        let running = [server(own, None, true), server(foreign, None, false)];
        assert_eq!(chosen(&WantedServer::default(), &running), Ok(own));
        let implicit =
            WantedServer { file: Some("/srv/throng.toml".into()), ..WantedServer::default() };
        assert_eq!(chosen(&implicit, &running), Ok(own));
        assert_eq!(
            chosen(&WantedServer::default(), &running[1..]),
            Err("no server runs here".into())
        );
    }

    #[test]
    fn of_several_servers_none_is_guessed() {
        let running = [
            server("127.0.0.1:8080", None, true),
            server("0.0.0.0:9000", Some("/etc/throng.toml"), true),
        ];
        assert_eq!(chosen(&WantedServer::default(), &running), Err("several servers run".into()));
        let text = error("several servers run", &[], &running);
        assert_eq!(
            text,
            "several servers run:\n  127.0.0.1:8080  process 7\n  \
             0.0.0.0:9000  process 7\n--listen ADDRESS or --control SOCKET says which one."
        );
        let many: Vec<_> =
            (1..100).map(|port| server(&format!("[::1]:{port}"), None, false)).collect();
        let text = error("several servers run", &[], &many);
        assert!(text.contains("and 89 more") && text.lines().all(|line| line.len() < 60), "{text}");
    }

    #[test]
    fn what_the_user_has_set_is_obeyed() {
        let running = [server("0.0.0.0:9000", Some("/etc/throng.toml"), true)];
        let url = |url| WantedServer { url: address_of_url(url), ..WantedServer::default() };
        assert_eq!(chosen(&url("http://localhost:9000/"), &running), Ok("0.0.0.0:9000"));
        assert!(chosen(&url("http://127.0.0.1:8080"), &running).is_err());
        // A name may be any server, and https is another port.
        assert_eq!(chosen(&url("https://push.example.com"), &running), Ok("0.0.0.0:9000"));
        let listen = |is_listen_of_file| WantedServer {
            listen: "127.0.0.1:1".parse().ok(),
            is_listen_of_file,
            file: Some("/etc/throng.toml".into()),
            ..WantedServer::default()
        };
        let missing = Err("no server listens on 127.0.0.1:1".into());
        assert_eq!(chosen(&listen(false), &running), missing);
        // The file has changed since the start.
        assert_eq!(chosen(&listen(true), &running), Ok("0.0.0.0:9000"));
        let file = |name: &str| WantedServer {
            file: Some(name.into()),
            is_file_named: true,
            ..WantedServer::default()
        };
        assert_eq!(chosen(&file("/etc/throng.toml"), &running), Ok("0.0.0.0:9000"));
        assert!(chosen(&file("/etc/other.toml"), &running).is_err());
    }
}
