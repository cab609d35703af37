//! The server as a child process: this very program, on a free port of loopback, with settings of
//! its own.
//!
//! It is stopped on drop, so also on an error or a panic. Should this process be killed, the kernel
//! ends it: the word [`COMMAND`] asks for that. It is in a process group of its own, so
//! that a Ctrl-C is for this program, which then ends the benchmark and the server in order.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Instead of `serve`, on the command line: serves until the process that started it ends.
pub const COMMAND: &str = "serve-bound";

/// As it stands in lists of processes.
const NAME: &str = "throng";

/// The server must listen within this.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// After `SIGTERM` it has this long before it is killed: it closes millions of connections.
const STOP_DEADLINE: Duration = Duration::from_secs(120);

/// How often an ending process is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Room beyond the clients: publishers, plain requests, and connections being closed.
const CONNECTIONS_SLACK: usize = 512;

/// Of what the server says, the last lines are kept.
const LINES_MAX: usize = 3;

/// What the banner says before the address; its form is fixed.
const LISTENING: &str = "listening on http://";

/// A running server.
pub struct Server {
    child: Child,
    url: String,
    said: Arc<Mutex<VecDeque<String>>>,
}

impl Server {
    /// Starts it and waits until it listens. To be called on the main thread: the kernel takes the
    /// end of the thread for that of the parent.
    pub fn start(program: &Path, connections: usize, flags: &[String]) -> Result<Server, String> {
        let mut command = Command::new(program);
        command.arg0(NAME).arg(COMMAND).args(["--listen", "127.0.0.1:0"]);
        command.args(["--max-connections", &(connections + CONNECTIONS_SLACK).to_string()]);
        // Settings are those that are told, wherever this is run.
        command.args(["--config", "/dev/null", "--log", "warn"]);
        // By then the clients are gone, so that there is nobody to wait for.
        command.args(["--drain-window", "0", "--drain-timeout", "1s"]);
        command.args(flags);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("THRONG_") {
                command.env_remove(name);
            }
        }
        command.env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let mut child =
            command.spawn().map_err(|error| format!("the server cannot be started: {error}"))?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (told, tell) = channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || read_banner(stdout, &told));
        }
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            thread::spawn(move || keep_last(stderr, &said));
        }
        let mut server = Server { child, url: String::new(), said };
        server.await_listening(&tell)?;
        Ok(server)
    }

    /// Where it is, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, in words, if it has.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{}{}", in_words(status), self.last_words()))
    }

    fn await_listening(&mut self, tell: &Receiver<String>) -> Result<(), String> {
        match tell.recv_timeout(START_DEADLINE) {
            Ok(address) => {
                self.url = format!("http://{address}");
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the server did not listen within {START_DEADLINE:?}"))
            }
            // Its output has ended, and so has it, or does now.
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                let how = status.map_or_else(|error| error.to_string(), in_words);
                Err(format!("the server did not start: it {how}{}", self.last_words()))
            }
        }
    }

    fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        if said.is_empty() { String::new() } else { format!("; it said: {}", said.join(" / ")) }
    }

    fn stop(&mut self) -> std::io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        // Not waited for yet, so that the number cannot mean another process.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop().is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Tells the address, and reads on: a pipe that nobody reads would stop the server.
fn read_banner(stdout: ChildStdout, told: &Sender<String>) {
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let address = lines.by_ref().find_map(|line| {
        let (_, address) = line.split_once(LISTENING)?;
        Some(address.trim().to_owned())
    });
    if let Some(address) = address {
        let _ = told.send(address);
    }
    lines.for_each(drop);
}

fn keep_last(stderr: ChildStderr, said: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == LINES_MAX {
            said.pop_front();
        }
        said.push_back(line.trim().to_owned());
    }
}

fn in_words(status: ExitStatus) -> String {
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
    fn a_program_that_is_no_server_is_told_in_one_sentence() {
        let start = |program: &str| Server::start(Path::new(program), 1, &[]).err();
        let error = start("/bin/false").expect("no server");
        assert_eq!(error, "the server did not start: it ended with exit code 1");
        let error = start("/nowhere/at/all").expect("no server");
        assert!(error.starts_with("the server cannot be started: "), "{error}");
    }

    #[test]
    fn ends_have_words() {
        assert_eq!(in_words(ExitStatus::from_raw(9)), "was killed by signal 9");
        assert_eq!(in_words(ExitStatus::from_raw(256)), "ended with exit code 1");
    }
}
