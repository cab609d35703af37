//! The server as a child process: `throng`, on a free port of loopback, with default settings.
//!
//! It is stopped on drop, and so also on errors and panics. If this process is killed, the kernel
//! kills the server too, which [`bound`] arranges, unless it has been upgraded. It has its own
//! process group, so that Ctrl-C reaches only this program, which then stops the benchmark and the
//! server in order.

pub(crate) mod upgrades;

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::bound;
use crate::directory::temporary;
use crate::raw_loop::{self, LISTENING, SENDERS};

use self::upgrades::{Serving, Upgrades, is_running};

/// Timeout until the server listens. It reads what it keeps first: up to 15 million subscriptions.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// Time from `SIGTERM` to `SIGKILL`: closing millions of connections takes long.
const STOP_DEADLINE: Duration = Duration::from_secs(120);

/// How often a stopping process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Capacity beyond the clients, for publishers, plain requests and closing connections.
const CONNECTIONS_RESERVE: usize = 512;

/// How many lines of standard error are kept.
const LINES_MAX: usize = 3;

/// An empty file of settings.
pub(crate) const NO_SETTINGS: &str = "/dev/null";

/// Text in the line after the address in the banner, if the server speaks TLS.
const TLS_LISTENING: &str = "TLS listener on https://";

/// A running server.
pub(crate) struct Server {
    child: Child,
    program: PathBuf,
    serving: Serving,
    urls: Urls,
    /// For files that it makes, such as a certificate.
    state: TempDir,
    output: Arc<Mutex<VecDeque<String>>>,
}

/// Base URLs, without a trailing slash.
#[derive(Debug, Default)]
struct Urls {
    plain: String,
    /// `None` without a TLS listener.
    tls: Option<String>,
    /// Host and port of each thread of the raw loop; empty for a server.
    senders: Vec<String>,
}

impl Server {
    /// Starts the server with the settings of a file and of flags, and waits until it listens. Must
    /// be called on the main thread: the server is killed when the thread that started it ends.
    pub(crate) fn start(
        program: &Path,
        connections: usize,
        settings: &Path,
        flags: &[String],
    ) -> Result<Server, String> {
        let mut command = bound::command(program);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command.args(["--max-connections", &(connections + CONNECTIONS_RESERVE).to_string()]);
        // No configuration of this machine.
        command.arg("--config").arg(settings).args(["--log", "warn"]);
        // The clients are gone when the server is stopped.
        command.args(["--drain-window", "0", "--drain-timeout", "1s"]);
        // Clients wait for as long as a slow machine takes to serve them.
        command.args(["--admission-wait", "0"]);
        command.args(flags);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("THRONG_") {
                command.env_remove(name);
            }
        }
        let state = temporary()?;
        command.arg("--control").arg(control(state.path()));
        command.env("NO_COLOR", "1").env("XDG_STATE_HOME", state.path());
        Server::launch(command, program, state)
    }

    /// Starts the raw loop with so many threads, like [`start`](Self::start).
    pub(crate) fn start_raw(threads: usize) -> Result<Server, String> {
        let own = Path::new(bound::OWN_PROGRAM);
        let mut command = bound::command(own);
        command.args([raw_loop::COMMAND, &threads.to_string()]);
        Server::launch(command, own, temporary()?)
    }

    fn launch(mut command: Command, program: &Path, state: TempDir) -> Result<Server, String> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("the server cannot be started: {error}"))?;
        let output = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, receiver) = channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || read_banner(stdout, &sender));
        }
        if let Some(stderr) = child.stderr.take() {
            let output = Arc::clone(&output);
            thread::spawn(move || keep_last(stderr, &output));
        }
        let (urls, serving) = (Urls::default(), Serving::new(child.id()));
        let program = program.to_owned();
        let mut server = Server { child, program, serving, urls, state, output };
        server.await_listening(&receiver)?;
        Ok(server)
    }

    /// Base URL, without a trailing slash.
    pub(crate) fn url(&self) -> &str {
        &self.urls.plain
    }

    /// Base URL of its TLS listener, without a trailing slash; `None` if it has none.
    pub(crate) fn tls_url(&self) -> Option<&str> {
        self.urls.tls.as_deref()
    }

    /// Where subscribers connect if not to its URL: to each of these in turn.
    pub(crate) fn senders(&self) -> &[String] {
        &self.urls.senders
    }

    /// Id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.serving.process()
    }

    /// Upgrades of it, also while it is in use.
    pub(crate) fn upgrades(&self) -> Upgrades {
        let control = control(self.state.path()).into_os_string();
        let arguments = ["upgrade", "--config", NO_SETTINGS, "--control"].map(Into::into);
        Upgrades {
            program: self.program.clone(),
            arguments: arguments.into_iter().chain([control]).collect(),
            serving: self.serving.clone(),
        }
    }

    /// The command that drains it, and ends when it has ended.
    pub(crate) fn drain(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["drain", "--config", NO_SETTINGS, "--control"])
            .arg(control(self.state.path()));
        command
    }

    /// How the server exited, as text; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        if status.success() && self.serving.outlives(self.child.id()) {
            return None;
        }
        Some(format!("{}{}", exit_text(status), self.last_output()))
    }

    fn await_listening(&mut self, receiver: &Receiver<Urls>) -> Result<(), String> {
        match receiver.recv_timeout(START_DEADLINE) {
            Ok(urls) => {
                self.urls = urls;
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the server did not listen within {START_DEADLINE:?}"))
            }
            // Standard output was closed: the server has exited or is about to.
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                let how = status.map_or_else(|error| error.to_string(), exit_text);
                Err(format!("the server did not start: it {how}{}", self.last_output()))
            }
        }
    }

    fn last_output(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let output: Vec<&str> = output.iter().map(String::as_str).collect();
        if output.is_empty() {
            String::new()
        } else {
            format!("; its last output: {}", output.join(" / "))
        }
    }

    /// Kills the process, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        // An error means that it has ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the process, and its successor if it has been upgraded.
    fn stop(&mut self) {
        let has_ended = matches!(self.child.try_wait(), Ok(Some(_)));
        // A child that was waited for has lost its id, perhaps to another process.
        let child = (!has_ended).then(|| self.child.id());
        let successor = Some(self.serving.process()).filter(|&process| process != self.child.id());
        for process in child.into_iter().chain(successor) {
            stop(process);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The control socket of a server that keeps what it makes in this directory.
fn control(state: &Path) -> PathBuf {
    state.join("control")
}

/// Ends a process in order, or kills it at the deadline.
fn stop(process: u32) {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return };
    let deadline = Instant::now() + STOP_DEADLINE;
    // Errors mean that it has ended.
    let _ = kill_process(pid, Signal::TERM);
    while is_running(process) {
        if Instant::now() >= deadline {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sends the addresses, and keeps reading: a full pipe would block the server.
fn read_banner(stdout: ChildStdout, sender: &Sender<Urls>) {
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    if let Some(urls) = listening(&mut lines) {
        let _ = sender.send(urls);
    }
    lines.for_each(drop);
}

/// The URLs of a banner. It does not end with the line of the address.
fn listening(lines: &mut impl Iterator<Item = String>) -> Option<Urls> {
    let after = |line: &str, text| Some(line.split_once(text)?.1.trim().to_owned());
    let plain = lines.find_map(|line| after(&line, LISTENING))?;
    let next = lines.next().unwrap_or_default();
    let senders = after(&next, SENDERS).unwrap_or_default();
    Some(Urls {
        plain: format!("http://{plain}"),
        tls: after(&next, TLS_LISTENING).map(|address| format!("https://{address}")),
        senders: senders.split_whitespace().map(str::to_owned).collect(),
    })
}

fn keep_last(stderr: ChildStderr, output: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.len() == LINES_MAX {
            output.pop_front();
        }
        output.push_back(line.trim().to_owned());
    }
}

fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_server_is_an_error() {
        let start =
            |program: &str| Server::start(Path::new(program), 1, NO_SETTINGS.as_ref(), &[]).err();
        let error = start("/bin/false").expect("no server");
        assert_eq!(error, "the server did not start: it ended with exit code 1");
        let error = start("/nowhere/at/all").expect("no server");
        assert!(error.starts_with("the server cannot be started: "), "{error}");
    }

    #[test]
    fn addresses_are_those_of_the_banner() {
        let read = |banner: &str| {
            let urls = listening(&mut banner.lines().map(str::to_owned))?;
            Some((urls.plain, urls.tls))
        };
        let plain = "http://127.0.0.1:80".to_owned();
        let both =
            "throng 1\n  listening on http://127.0.0.1:80\n  TLS listener on https://[::1]:1\n";
        assert_eq!(read(both), Some((plain.clone(), Some("https://[::1]:1".to_owned()))));
        let one = "throng 1\n  listening on http://127.0.0.1:80\n\n  chat  http://x/chat\n";
        assert_eq!(read(one), Some((plain, None)));
        assert_eq!(read("no server"), None);
    }

    #[test]
    fn exits_have_a_text() {
        assert_eq!(exit_text(ExitStatus::from_raw(9)), "was killed by signal 9");
        assert_eq!(exit_text(ExitStatus::from_raw(256)), "ended with exit code 1");
    }
}
