//! Connects to the server that a command is for, and asks it.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::net::sockopt::socket_peercred;
use throng_units::paint::sanitized;

use super::find::{self, RunningServer, WantedServer, address_of_url};
use super::place;
use super::protocol::{About, LINE_BYTES_MAX, Request, SocketAnswer, line};
use crate::settings::{self, ControlChoice, SettingsError, Sources};
use crate::terminal;

/// The time for a server to say which one it is. It does so at once.
const ABOUT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct ControlConnection {
    path: PathBuf,
    stream: UnixStream,
}

impl ControlConnection {
    /// Connects to the server that `sources` name, or else to the only one that runs. Only its
    /// address counts, so the settings may differ from its start.
    pub(crate) fn open(sources: Sources) -> Result<ControlConnection> {
        let Sources { config, options } = sources;
        if let Some(ControlChoice::Path(path)) = options.control() {
            return ControlConnection::to(path);
        }
        let place = settings::whereabouts(options, config.as_deref()).map_err(|error| {
            SettingsError(format!(
                "{error}\nThe server was not asked; --listen or --control says which one it is."
            ))
        })?;
        match place.control {
            Some(ControlChoice::Path(path)) => return ControlConnection::to(&path),
            Some(ControlChoice::None) => bail!(
                "the settings want no control socket (control = \"none\"), so the server cannot be \
                 asked; signals work"
            ),
            Some(ControlChoice::Auto) | None => {}
        }
        let wanted = WantedServer {
            listen: place.listen,
            is_listen_of_file: place.is_listen_of_file,
            url: std::env::var("THRONG_URL").ok().as_deref().and_then(address_of_url),
            file: settings::file_in_use(config.as_deref()),
            is_file_named: config.is_some(),
        };
        ControlConnection::search(&wanted)
    }

    /// Looks in all directories for the server. One that listens on the address is asked even if
    /// others stand still.
    fn search(wanted: &WantedServer) -> Result<ControlConnection> {
        let directories = place::directories();
        let mut silent = None;
        if let Some(listen) = wanted.listen {
            let name = place::name(listen);
            for path in directories.iter().map(|directory| directory.join(&name)) {
                let Ok(connection) = ControlConnection::to(&path) else { continue };
                match connection.about() {
                    Ok(about) if about.is_here() => return ControlConnection::to(&path),
                    Ok(_) => {}
                    Err(error) => silent = Some(error),
                }
            }
        }
        if let Some(error) = silent {
            return Err(error);
        }
        let paths = directories.iter().flat_map(|directory| place::sockets(directory));
        let running = paths.filter_map(|path| {
            let about = ControlConnection::to(&path).and_then(ControlConnection::about).ok()?;
            Some(RunningServer { is_here: about.is_here(), path, about })
        });
        let running: Vec<RunningServer> = running.collect();
        match find::choose(wanted, &running) {
            Ok(found) => ControlConnection::to(&found.path),
            Err(reason) => bail!("{}", find::error(&reason, &directories, &running)),
        }
    }

    fn to(path: &Path) -> Result<ControlConnection> {
        let shown = || sanitized(&path.display().to_string());
        let path = std::path::absolute(path)?;
        ensure!(path.exists(), "there is no control socket {}: does the server run?", shown());
        ensure!(place::is_trusted(&path), "{} is no socket in a directory of yours", shown());
        let stream = UnixStream::connect(&path).with_context(|| {
            format!("the server of {} cannot be reached: does it run?", shown())
        })?;
        let peer = socket_peercred(&stream)?.uid.as_raw();
        let own = place::user();
        ensure!(
            own == 0 || peer == own || peer == 0,
            "the program at {} is another user's ({peer})",
            shown()
        );
        Ok(ControlConnection { path, stream })
    }

    /// Which server it is. One that stands still must not hold up commands to others.
    fn about(self) -> Result<About> {
        self.stream.set_read_timeout(Some(ABOUT_TIMEOUT))?;
        match self.converse(&Request::About, |_| Ok(()))? {
            SocketAnswer::Server(about) => Ok(about),
            SocketAnswer::Failed { message, .. } => bail!("{}", sanitized(&message)),
            _ => bail!("the server does not identify itself"),
        }
    }

    /// Asks, prints what the server says, and returns the exit code.
    pub(crate) fn ask(self, request: &Request) -> Result<ExitCode> {
        self.ask_and(request, || Ok(()))
    }

    /// Asks and prints, and calls `check` before it prints that the server has done it: the command
    /// fails if that does.
    pub(crate) fn ask_and(
        self,
        request: &Request,
        check: impl FnOnce() -> Result<()>,
    ) -> Result<ExitCode> {
        let last = self.converse(request, |answer| match answer {
            SocketAnswer::Warning { message } => {
                terminal::print_note(&sanitized(message));
                Ok(())
            }
            SocketAnswer::Progress { message } => {
                Ok(terminal::print(&format!("{}\n", sanitized(message)))?)
            }
            _ => Ok(()),
        })?;
        match last {
            SocketAnswer::Done { message } => {
                check()?;
                terminal::print(&format!("{}\n", sanitized(&message)))?;
                Ok(ExitCode::SUCCESS)
            }
            SocketAnswer::Failed { message, code } => {
                terminal::print_error(&sanitized(&message));
                Ok(ExitCode::from(code.max(1)))
            }
            _ => bail!("the server answers something else"),
        }
    }

    /// Sends the request. Passes all answers but the last one to `hear`, and returns that.
    fn converse(
        mut self,
        request: &Request,
        mut hear: impl FnMut(&SocketAnswer) -> Result<()>,
    ) -> Result<SocketAnswer> {
        let path = sanitized(&self.path.display().to_string());
        let ended = format!("the server of {path} has ended the conversation");
        let silent = format!("the server of {path} does not answer: is it stalled?");
        // A server that refuses this user may have said so and closed before: what it said counts.
        let _ = self.stream.write_all(&line(request));
        let mut reader = BufReader::new(self.stream);
        loop {
            let mut text = String::new();
            let mut limited = reader.by_ref().take(LINE_BYTES_MAX as u64);
            limited.read_line(&mut text).map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => anyhow!("{silent}"),
                _ => anyhow::Error::new(error).context(ended.clone()),
            })?;
            ensure!(text.ends_with('\n'), "{ended}");
            match serde_json::from_str(&text).context("the server answers something else")? {
                answer @ (SocketAnswer::Progress { .. } | SocketAnswer::Warning { .. }) => {
                    hear(&answer)?
                }
                last => return Ok(last),
            }
        }
    }
}

impl About {
    /// True if it is in the network namespace of this process, as far as both know theirs.
    fn is_here(&self) -> bool {
        self.network.zip(place::network()).is_none_or(|(its, own)| its == own)
    }
}
