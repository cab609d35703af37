//! `throng subscriptions import`: sends a file of changes to a running server, in parts.
//!
//! A part that the server has no room or time for is sent again: a change that is made twice is
//! the same change.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal as _, Write as _};
use std::path::Path;
use std::thread;
use std::time::Duration;
use throng_access::server_key::Scope;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::json;
use throng_units::format::{count, counted};
use throng_units::paint::sanitized;
use ureq::Body;
use ureq::http::header::RETRY_AFTER;
use ureq::http::{Response, StatusCode};

use super::parts::{ImportPart, ImportParts};
use super::progress::ImportProgress;
use crate::cli::ImportArguments;
use crate::client::{Client, RESPONSE_TIMEOUT};
use crate::terminal;

/// How many wrong lines are named; the others are counted.
const NAMED_MAX: u64 = 100;

/// How often a part is sent before the import ends: some minutes.
const TRIES: u32 = 20;

/// The longest pause before a part is sent again, whatever the server asks for.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Time for the server to answer a part: changes of many users who are connected take a while.
const PART_TIMEOUT: Duration = RESPONSE_TIMEOUT.saturating_mul(10);

/// A part of more bytes is sent once the server has said that it takes it: after a refusal it
/// closes the connection, and what is still being sent to it may cost the answer.
const ASKED_BYTES: usize = 2 << 20;

/// The size of the buffer for the file.
const READ_BYTES: usize = 1 << 20;

/// The file to import.
struct Input {
    file: Box<dyn io::Read>,
    size: Option<u64>,
    /// True if it can be opened and read a second time.
    is_repeatable: bool,
}

fn open(path: &Path) -> Result<Input> {
    if path.as_os_str() == "-" {
        let file = Box::new(io::stdin().lock());
        return Ok(Input { file, size: None, is_repeatable: false });
    }
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let metadata = file.metadata().with_context(|| format!("cannot open {name}"))?;
    if metadata.is_dir() {
        bail!("{name} is a directory");
    }
    let size = metadata.is_file().then_some(metadata.len());
    Ok(Input { file: Box::new(file), size, is_repeatable: size.is_some() })
}

pub(super) fn import(arguments: &ImportArguments) -> Result<()> {
    let client = arguments.server.client(None)?;
    let mut input = open(&arguments.file)?;
    if arguments.atomic && !input.is_repeatable {
        bail!("--atomic reads the file twice, which a pipe does not allow; name a file");
    }
    if arguments.atomic || arguments.check {
        let found = Pass::new(&client, true, input.size).run(input)?;
        found.fail_if_wrong("nothing was changed")?;
        if arguments.check {
            return Ok(print_checked(&found)?);
        }
        input = open(&arguments.file)?;
    }
    let found = Pass::new(&client, false, input.size).run(input)?;
    terminal::ignore_closed_pipe(print_imported(&found))?;
    let others = if found.applied > 0 { "all others are applied" } else { "nothing was changed" };
    found.fail_if_wrong(others)
}

/// The server's answer about a part.
#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    lines: u64,
    #[serde(default)]
    added: u64,
    #[serde(default)]
    removed: u64,
    errors: Vec<WrongLine>,
}

#[derive(Debug, Deserialize)]
struct WrongLine {
    /// Counted from 1 in the part.
    line: u64,
    message: String,
}

/// The findings of a pass so far.
#[derive(Debug, Default)]
struct Found {
    /// Lines of the file, empty ones included.
    read: u64,
    /// Lines that were applied.
    applied: u64,
    added: u64,
    removed: u64,
    /// Lines that are wrong.
    wrong: u64,
}

impl Found {
    /// An error if any line is wrong; `otherwise` says what became of the others.
    fn fail_if_wrong(&self, otherwise: &str) -> Result<()> {
        if self.wrong == 0 {
            return Ok(());
        }
        let verb = if self.wrong == 1 { "is" } else { "are" };
        bail!("{} {verb} wrong; {otherwise}", counted(self.wrong, "line", "lines"));
    }
}

struct Pass<'a> {
    client: &'a Client,
    is_check: bool,
    found: Found,
    progress: ImportProgress,
}

impl<'a> Pass<'a> {
    fn new(client: &'a Client, is_check: bool, size: Option<u64>) -> Pass<'a> {
        let progress = ImportProgress::new(if is_check { "checked" } else { "applied" }, size);
        Pass { client, is_check, found: Found::default(), progress }
    }

    fn run(mut self, input: Input) -> Result<Found> {
        for part in ImportParts::new(BufReader::with_capacity(READ_BYTES, input.file)) {
            let part = part.context("cannot read the file")?;
            let (first, last) = (part.first, part.last());
            self.send(part).with_context(|| self.interrupted(first, last))?;
        }
        if self.found.wrong > NAMED_MAX {
            self.progress.clear();
            let more = count(self.found.wrong - NAMED_MAX);
            terminal::print_note(&format!("{more} more wrong lines are not shown"));
        }
        Ok(self.found)
    }

    fn interrupted(&self, first: u64, last: u64) -> String {
        let after = if self.is_check {
            "nothing was changed"
        } else {
            "earlier lines are applied; run the import again to continue"
        };
        format!("the import ended at lines {} to {} ({after})", count(first), count(last))
    }

    /// Sends a part, in halves if it is too large.
    fn send(&mut self, part: ImportPart) -> Result<()> {
        let mut response = self.response(&part)?;
        if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let (first, bytes) = (part.first, part.bytes.len());
            let Some(halves) = part.halves() else {
                let message = self.client.rejection(&mut response);
                self.wrong(first, &message);
                self.advance(1, bytes);
                return Ok(());
            };
            return halves.into_iter().try_for_each(|half| self.send(half));
        }
        if !response.status().is_success() {
            bail!(self.client.rejection_without(&mut response, Scope::Subscriptions));
        }
        let text = response.body_mut().with_config().limit(u64::MAX).read_to_string();
        let text = text.context("the response is incomplete")?;
        let answer: Answer =
            serde_json::from_str(&text).context("this is not the answer of a Throng server")?;
        for WrongLine { line, message } in &answer.errors {
            self.wrong(part.first + line.saturating_sub(1), message);
        }
        self.found.applied += answer.lines;
        self.found.added += answer.added;
        self.found.removed += answer.removed;
        self.advance(part.lines, part.bytes.len());
        Ok(())
    }

    fn advance(&mut self, lines: usize, bytes: usize) {
        self.found.read += lines as u64;
        self.progress.advance(lines, bytes);
    }

    /// The response to a part, after pauses as long as the server asks for them.
    fn response(&self, part: &ImportPart) -> Result<Response<Body>> {
        let path = if self.is_check { "/subscriptions?check=true" } else { "/subscriptions" };
        let mut tries = 1;
        loop {
            let mut request = self.client.post(path).header("Content-Type", "application/x-ndjson");
            if part.bytes.len() > ASKED_BYTES {
                request = request.header("Expect", "100-continue");
            }
            let request = request.config().timeout_recv_response(Some(PART_TIMEOUT)).build();
            let response =
                request.send(&part.bytes[..]).map_err(|error| self.client.unreachable(&error))?;
            let Some(pause) = pause(&response).filter(|_| tries < TRIES) else {
                return Ok(response);
            };
            thread::sleep(pause);
            tries += 1;
        }
    }

    /// Counts a wrong line, and names it.
    fn wrong(&mut self, line: u64, message: &str) {
        self.found.wrong += 1;
        if self.found.wrong <= NAMED_MAX {
            self.progress.clear();
            terminal::print_error(&format!("line {line}: {}", sanitized(message)));
        }
    }
}

/// How long to wait before the request is repeated, if the server is busy.
fn pause(response: &Response<Body>) -> Option<Duration> {
    let is_busy = matches!(
        response.status(),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
    );
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    is_busy.then_some(Duration::from_secs(seconds).min(PAUSE_MAX))
}

fn print_checked(found: &Found) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let result = if out.is_terminal() {
        writeln!(out, "{}: nothing is wrong", counted(found.read, "line", "lines"))
    } else {
        writeln!(out, "{}", json!({ "lines": found.read, "errors": 0 }))
    };
    terminal::ignore_closed_pipe(result)
}

/// Prints a short sentence on a terminal, otherwise JSON.
fn print_imported(found: &Found) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let Found { applied, added, removed, wrong, .. } = found;
    if out.is_terminal() {
        let lines = counted(*applied, "line", "lines");
        let (added, removed) = (count(*added), count(*removed));
        return writeln!(out, "{lines} applied: {added} subscriptions added, {removed} removed");
    }
    let result = json!({ "lines": applied, "added": added, "removed": removed, "errors": wrong });
    writeln!(out, "{result}")
}
