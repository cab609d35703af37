//! `throng tail`: follows channels over SSE and prints what is published there.
//!
//! # Invariants
//!
//! * The position is that of what was printed: a connection that breaks is resumed exactly there,
//!   so that nothing is printed twice or left out without a word.
//! * On the first try every problem ends the command, because it is most likely a wrong address.
//!   From then on only a refusal does; everything else is tried again, with growing pauses.

mod print;
mod sse;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher as _};
use std::io::{self, BufReader, IsTerminal};
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::event::{PollFd, PollFlags};
use serde::Deserialize;
use throng_units::paint::sanitized;
use ureq::Body;
use ureq::http::{Response, StatusCode};

use crate::cli::TailArguments;
use crate::client::{Client, escaped, refusal};
use crate::terminal::remark;
use print::Printer;
use sse::{Event, Events};

/// Longer silence than this is taken for a dead connection. Where the server sends no heartbeats
/// this comes about now and then without need; resuming costs one request.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// The first pause before another try is at most this long, and doubles each time …
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// … up to this.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Runs the command.
pub fn tail(arguments: &TailArguments) -> Result<()> {
    let client = Client::new(&arguments.server.url, Some(SILENCE_MAX));
    if !io::stdout().is_terminal() {
        std::thread::spawn(end_with_reader);
    }
    let followed_count = arguments.channels.len() + usize::from(arguments.user.is_some());
    let mut follower = Follower {
        client,
        query: query(arguments),
        followed: followed(arguments),
        history: arguments.history.map(|count| count.0),
        position: arguments.since.clone(),
        left: arguments.count.map(|count| count.0 as u64),
        printer: Printer::new(followed_count > 1),
        has_followed: false,
        is_lost: false,
        tries: 0,
        retry_ms: None,
    };
    follower.run()
}

/// Ends the process when the reader of its output has gone: `throng tail news | head -1` would
/// otherwise stay until the second message.
fn end_with_reader() {
    let out = io::stdout();
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    loop {
        match rustix::event::poll(&mut watched, None) {
            Ok(_) => std::process::exit(0),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// What to follow, as the URL says it. The order matters: it is that of the ids in a position.
fn query(arguments: &TailArguments) -> String {
    let mut query = String::from("/subscribe?transport=sse&envelope=true");
    for channel in &arguments.channels {
        let _ = write!(query, "&channel={}", escaped(channel));
    }
    if let Some(user) = &arguments.user {
        let _ = write!(query, "&user={}", escaped(user));
    }
    query
}

/// `news, sport and user ann`, with what would garble a terminal escaped.
fn followed(arguments: &TailArguments) -> String {
    let channels = arguments.channels.iter().map(|channel| sanitized(channel));
    let user = arguments.user.iter().map(|user| format!("user {}", sanitized(user)));
    let mut names: Vec<String> = channels.chain(user).collect();
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// Why a connection is over.
enum Ended {
    /// Everything that was asked for has been printed, or its reader has gone.
    Done,
    /// It can be tried again; the reason, unless it is not worth a word.
    Lost(Option<String>),
}

struct Follower {
    client: Client,
    query: String,
    /// What is followed, in words.
    followed: String,
    /// Messages to begin with, until there is a position.
    history: Option<usize>,
    /// The id after which to go on.
    position: Option<String>,
    /// Messages still to print, if there is an end to it.
    left: Option<u64>,
    printer: Printer,
    /// Whether there was a connection before.
    has_followed: bool,
    /// Whether the user was told that there is none.
    is_lost: bool,
    /// Tries since the last connection.
    tries: u32,
    /// When the server wants to see us again.
    retry_ms: Option<u64>,
}

impl Follower {
    fn run(&mut self) -> Result<()> {
        loop {
            let reason = match self.connect()? {
                Ok(response) => match self.follow(response)? {
                    Ended::Done => return Ok(()),
                    Ended::Lost(reason) => reason,
                },
                Err(reason) => Some(reason),
            };
            if let Some(reason) = reason
                && !self.is_lost
            {
                remark(&format!("{reason}; trying again …"));
                self.is_lost = true;
            }
            std::thread::sleep(self.pause());
        }
    }

    /// A response that is a stream of events, or why there is none for now.
    fn connect(&mut self) -> Result<std::result::Result<Response<Body>, String>> {
        let mut url = self.client.at(&self.query);
        if let (Some(history), None) = (self.history, &self.position) {
            let _ = write!(url, "&history={history}");
        }
        let mut request = self.client.agent.get(url).header("Accept", "text/event-stream");
        if let Some(position) = &self.position {
            request = request.header("Last-Event-ID", position);
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(error) => {
                let error = self.client.unreachable(&error);
                return if self.has_followed { Ok(Err(error.to_string())) } else { Err(error) };
            }
        };
        let status = response.status();
        if status == StatusCode::OK {
            // A subscription has a start; a stream that only says when to come back has none.
            let is_refused = header(&response, "Throng-Id").is_none()
                && header(&response, "Retry-After").is_some();
            return if is_refused {
                self.refused_for_now(response).map(Err)
            } else {
                Ok(Ok(response))
            };
        }
        let seconds = header(&response, "Retry-After").and_then(|text| text.parse::<u64>().ok());
        self.retry_ms = seconds.map(|seconds| seconds.saturating_mul(1000));
        let reason = refusal(&mut response);
        let is_passing = status == StatusCode::SERVICE_UNAVAILABLE
            || status == StatusCode::TOO_MANY_REQUESTS
            || (self.has_followed && status.is_server_error());
        if is_passing { Ok(Err(reason)) } else { Err(anyhow!(reason)) }
    }

    /// Why a stream of events is no subscription, in the words of its comment. Takes note of when
    /// to come back.
    fn refused_for_now(&mut self, mut response: Response<Body>) -> Result<String> {
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let mut events = Events::new(text.as_bytes());
        while let Ok(Some(_)) = events.next() {}
        self.retry_ms = events.retry_ms();
        let comment = text.lines().find_map(|line| line.strip_prefix(": "));
        let reason = comment.unwrap_or("the server takes no more subscribers for now");
        Ok(reason.escape_debug().to_string())
    }

    /// Prints what comes until the connection ends.
    fn follow(&mut self, response: Response<Body>) -> Result<Ended> {
        if !self.has_followed {
            remark(&format!("connected to {}, following {}", self.client.url(), self.followed));
        }
        self.say_whether_whole(header(&response, "Throng-Recovered").as_deref());
        (self.has_followed, self.is_lost) = (true, false);
        // Before the first message the subscription's own start is where to go on.
        self.position = header(&response, "Throng-Id").or(self.position.take());
        let mut events = Events::new(BufReader::new(response.into_body().into_reader()));
        loop {
            let event = events.next();
            (self.tries, self.retry_ms) = (0, events.retry_ms());
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(Ended::Lost(Some("the server ended the connection".into()))),
                Err(error) if is_silence(&error) => return Ok(Ended::Lost(None)),
                Err(error) => {
                    return Ok(Ended::Lost(Some(format!("the connection was lost ({error})"))));
                }
            };
            if !self.take(&event)? {
                return Ok(Ended::Done);
            }
            if let Some(id) = events.last_id() {
                self.position = Some(id.to_owned());
            }
        }
    }

    /// Whether to go on after this event.
    fn take(&mut self, event: &Event) -> Result<bool> {
        match event.kind.as_str() {
            "" | "message" => {}
            "gap" => {
                if let Ok(gap) = serde_json::from_str::<Gap>(&event.data) {
                    remark(&gap.to_string());
                }
                return Ok(true);
            }
            // The header has said it already, or it is from a later version.
            _ => return Ok(true),
        }
        match self.printer.print(&event.data) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            other => other?,
        }
        self.left = self.left.map(|left| left - 1);
        Ok(self.left != Some(0))
    }

    /// Says that the connection is back, and whether something is missing.
    fn say_whether_whole(&self, recovered: Option<&str>) {
        match (recovered, self.is_lost) {
            (Some("false"), true) => {
                remark("the connection is back, but messages are missing that are no longer kept");
            }
            (Some("false"), false) => remark("messages are missing that are no longer kept"),
            (_, true) => remark("the connection is back, nothing was missed"),
            (_, false) => {}
        }
    }

    /// How long to wait before the next try. What the server said is exact, for it spreads its
    /// clients by itself; anything else is random, so that many clients do not come at once.
    fn pause(&mut self) -> Duration {
        self.tries += 1;
        if let Some(ms) = self.retry_ms.take() {
            return Duration::from_millis(ms).min(PAUSE_MAX * 4);
        }
        let most = PAUSE_MIN.saturating_mul(1 << (self.tries - 1).min(16)).min(PAUSE_MAX);
        let random = RandomState::new().build_hasher().finish();
        most.mul_f64(random as f64 / u64::MAX as f64)
    }
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// Whether the error is only that nothing has come for [`SILENCE_MAX`].
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// What the server tells a subscriber that has fallen too far behind.
#[derive(Debug, Deserialize)]
struct Gap {
    channel: Option<String>,
    user: Option<String>,
    missed: u64,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.channel.as_deref().or(self.user.as_deref()).unwrap_or("a channel");
        let s = if self.missed == 1 { "" } else { "s" };
        write!(f, "too slow: {} message{s} of {} skipped", self.missed, name.escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Arguments, Command};

    fn arguments(list: &[&str]) -> TailArguments {
        let arguments = Arguments::try_parse_from(["throng", "tail"].iter().chain(list)).unwrap();
        match arguments.command {
            Command::Tail(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_order_of_the_url_is_that_of_the_command_line() {
        let query = query(&arguments(&["--user", "ann", "b", "a/c"]));
        let expected = "/subscribe?transport=sse&envelope=true&channel=b&channel=a%2Fc&user=ann";
        assert_eq!(query, expected);
    }

    #[test]
    fn says_what_it_follows() {
        for (list, expected) in [
            (&["news"][..], "news"),
            (&["--user", "ann"], "user ann"),
            (&["news", "sport", "--user", "ann"], "news, sport and user ann"),
            (&["\u{1b}[0m"], "\\u{1b}[0m"),
        ] {
            assert_eq!(followed(&arguments(list)), expected);
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_the_server_may_say_otherwise() {
        let mut follower = Follower {
            client: Client::new(&":1".parse().unwrap(), None),
            query: String::new(),
            followed: String::new(),
            history: None,
            position: None,
            left: None,
            printer: Printer::new(false),
            has_followed: true,
            is_lost: false,
            tries: 0,
            retry_ms: Some(1234),
        };
        assert_eq!(follower.pause(), Duration::from_millis(1234));
        follower.tries = 0;
        assert!(follower.pause() <= PAUSE_MIN);
        assert!(follower.pause() <= PAUSE_MIN * 2);
        assert!((0..100).all(|_| follower.pause() <= PAUSE_MAX));
    }
}
