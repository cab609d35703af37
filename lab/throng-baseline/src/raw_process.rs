//! The process of the [raw loop](crate::raw_server), as its parent uses it.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::child::BoundChild;

/// The maximum time for an answer of the raw server.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// A running raw server.
pub(crate) struct RawProcess {
    commands: ChildStdin,
    lines: Receiver<String>,
    /// The port of each thread. Connection `i` goes to port `i % ports.len()`.
    pub(crate) ports: Vec<u16>,
    /// The port that answers `GET /health`.
    pub(crate) health_port: u16,
    /// CPU time of all rounds so far.
    pub(crate) cpu_ns: u64,
    /// How often a socket was full in all rounds so far.
    pub(crate) blocked: u64,
    // The last field, so that the pipes are closed before the process is stopped.
    child: BoundChild,
}

impl RawProcess {
    /// Starts it and waits until it listens.
    pub(crate) fn start(threads: usize, connections: usize) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find the file of this program")?;
        let mut child = BoundChild::start(&this, |command| {
            command.arg("raw-server");
            command.args(["--threads", &threads.to_string()]);
            command.args(["--connections", &connections.to_string()]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        })?;
        let streams = child.streams();
        let commands = streams.stdin.take().context("standard input is not piped")?;
        let output = streams.stdout.take().context("standard output is not piped")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let (ports, cpu_ns, blocked) = (Vec::new(), 0, 0);
        let mut raw = Self { commands, lines, ports, health_port: 0, cpu_ns, blocked, child };
        let mut numbers = raw.answer("listening")?.into_iter().map(u16::try_from);
        raw.health_port = numbers.next().context("no port for /health was named")??;
        raw.ports = numbers.collect::<Result<_, _>>()?;
        Ok(raw)
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has accepted all connections.
    pub(crate) fn await_accepted(&mut self) -> Result<()> {
        self.answer("accepted").map(drop)
    }

    /// Starts a round; [`finish_send`](Self::finish_send) must follow.
    pub(crate) fn start_send(&mut self, payload_bytes: usize) -> Result<()> {
        writeln!(self.commands, "send {payload_bytes}").context("the raw server is gone")
    }

    /// Waits until the round has been sent. Returns the time that it took.
    pub(crate) fn finish_send(&mut self) -> Result<Duration> {
        let [cpu_ns, elapsed_ns, blocked] = self.answer("sent")?[..] else {
            bail!("the raw server's answer has too few numbers");
        };
        self.cpu_ns += cpu_ns;
        self.blocked += blocked;
        Ok(Duration::from_nanos(elapsed_ns))
    }

    fn answer(&mut self, word: &str) -> Result<Vec<u64>> {
        let line = self
            .lines
            .recv_timeout(ANSWER_DEADLINE)
            .with_context(|| format!("the raw server did not say \"{word}\""))?;
        parse_answer(&line, word).with_context(|| format!("the raw server said {line:?}"))
    }
}

fn parse_answer(line: &str, word: &str) -> Option<Vec<u64>> {
    let mut words = line.split_whitespace();
    if words.next() != Some(word) {
        return None;
    }
    words.map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::parse_answer;

    #[test]
    fn answers_are_a_word_and_numbers() {
        assert_eq!(parse_answer("sent 12 3 0", "sent"), Some(vec![12, 3, 0]));
        assert_eq!(parse_answer("accepted", "accepted"), Some(vec![]));
        assert_eq!(parse_answer("sent 1", "accepted"), None);
        assert_eq!(parse_answer("sent x", "sent"), None);
    }
}
