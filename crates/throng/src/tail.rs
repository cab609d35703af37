//! `throng tail`: follows channels over SSE and prints their messages.
//!
//! # Invariants
//!
//! * The position is that of the last printed message. A lost connection resumes there, so that no
//!   message is printed twice, and a gap is always reported.
//! * Before the first connection every error ends the command, because the address is probably
//!   wrong. Later only an error response does; the command retries after all other errors, with
//!   growing pauses.

mod print;
mod sse;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher as _};
use std::io::{self, BufReader, IsTerminal};
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::event::{PollFd, PollFlags};
use serde::Deserialize;
use throng_units::format::counted;
use throng_units::paint::sanitized;
use ureq::Body;
use ureq::http::{Response, StatusCode};

use crate::cli::{self, TailArguments};
use crate::client::{Client, escaped};
use crate::terminal::print_note;
use print::Printer;
use sse::{SseEvent, SseEvents};

/// A connection without data for this long is treated as dead. If the server sends no heartbeats,
/// quiet channels cause needless reconnects, which cost one request each.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// Upper bound of the pause before the first retry. It doubles with each retry.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// Limit of that upper bound.
const PAUSE_MAX: Duration = Duration::from_secs(15);

pub(crate) fn tail(arguments: &TailArguments) -> Result<()> {
    for channel in &arguments.channels {
        cli::refuse_pattern(channel, false)?;
    }
    if let Some(user) = &arguments.user {
        cli::refuse_pattern(user, true)?;
    }
    let client = arguments.server.client(Some(SILENCE_MAX))?;
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
        states_left: 0,
        states: if arguments.state { followed_count } else { 0 },
        left: followed_count,
        ended: BTreeSet::new(),
        remaining: arguments.count.map(|count| count.0 as u64),
        printer: Printer::new(followed_count > 1),
        has_followed: false,
        printed_reasons: Vec::new(),
        retries: 0,
        retry_ms: None,
    };
    follower.run()
}

/// Ends the process when the reader of its output closes the pipe. Otherwise
/// `throng tail news | head -1` would run until the second message.
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

/// Path and query of the subscription. The channels are in the order of the ids in a position.
fn query(arguments: &TailArguments) -> String {
    let mut query = String::from("/subscribe?transport=sse&envelope=true");
    for channel in &arguments.channels {
        let _ = write!(query, "&channel={}", escaped(channel));
    }
    if let Some(user) = &arguments.user {
        let _ = write!(query, "&user={}", escaped(user));
    }
    if arguments.state {
        query.push_str("&state=true");
    }
    query
}

/// The followed channels as text, like `news, sport and user ann`. Escapes control characters.
fn followed(arguments: &TailArguments) -> String {
    let channels = arguments.channels.iter().map(|channel| sanitized(channel));
    let user = arguments.user.iter().map(|user| format!("user {}", sanitized(user)));
    let mut names: Vec<String> = channels.chain(user).collect();
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}

enum Ended {
    /// All requested messages have been printed, all channels have ended, or the reader of the
    /// output has gone.
    Done,
    /// The command reconnects. `None` if the user need not know the reason.
    Lost(Option<String>),
}

struct Follower {
    client: Client,
    query: String,
    /// The followed channels, for notes to the user.
    followed: String,
    /// Number of old messages to begin with. Unused once there is a position.
    history: Option<usize>,
    /// The id of the last printed message.
    position: Option<String>,
    /// The states with which a subscription begins that does not resume; 0 without `--state`.
    states: usize,
    /// Those that have not ended yet. Until then there is no position: the values of a state that
    /// is cut come again.
    states_left: usize,
    /// The followed channels that have not ended. An inbox does not end.
    left: usize,
    /// The channels that have: a connection tells it again.
    ended: BTreeSet<String>,
    /// Messages to print before the command ends; `None` for no limit.
    remaining: Option<u64>,
    printer: Printer,
    has_followed: bool,
    /// Reasons for retries that were printed since the last connection: each is printed once.
    printed_reasons: Vec<String>,
    /// Retries since the last event.
    retries: u32,
    /// Pause before the next retry, if the server named one.
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
            let pause = self.pause();
            if let Some(reason) = reason
                && !self.printed_reasons.contains(&reason)
            {
                print_note(&format!("{reason}; {}", next_try(pause)));
                self.printed_reasons.push(reason);
            }
            std::thread::sleep(pause);
        }
    }

    /// Returns a stream of events, or the reason why there is none for now.
    fn connect(&mut self) -> Result<std::result::Result<Response<Body>, String>> {
        let mut url = self.client.at(&self.query);
        if let (Some(history), None) = (self.history, &self.position) {
            let _ = write!(url, "&history={history}");
        }
        let mut request = self.client.get(url).header("Accept", "text/event-stream");
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
        if status == StatusCode::NO_CONTENT && header(&response, "Throng-Ended").is_some() {
            return Ok(Ok(response));
        }
        if status == StatusCode::OK {
            // A full server answers EventSource with a stream that only says when to retry.
            let is_rejected = header(&response, "Throng-Id").is_none()
                && header(&response, "Retry-After").is_some();
            return if is_rejected {
                self.rejected_for_now(response).map(Err)
            } else {
                Ok(Ok(response))
            };
        }
        let seconds = header(&response, "Retry-After").and_then(|text| text.parse::<u64>().ok());
        self.retry_ms = seconds.map(|seconds| seconds.saturating_mul(1000));
        let reason = self.client.rejection(&mut response);
        let is_temporary = status == StatusCode::SERVICE_UNAVAILABLE
            || status == StatusCode::TOO_MANY_REQUESTS
            || (self.has_followed && status.is_server_error());
        if is_temporary { Ok(Err(reason)) } else { Err(anyhow!(reason)) }
    }

    /// Reads a stream that is no subscription. Returns the reason in its comment, and notes the
    /// time to retry.
    fn rejected_for_now(&mut self, mut response: Response<Body>) -> Result<String> {
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let mut events = SseEvents::new(text.as_bytes());
        while let Ok(Some(_)) = events.next() {}
        self.retry_ms = events.retry_ms();
        // `: full: the message`
        let comment = text.lines().find_map(|line| line.strip_prefix(": "));
        let message =
            comment.map(|comment| comment.split_once(": ").map_or(comment, |(_, message)| message));
        let message = message.unwrap_or("it accepts no more subscribers for now");
        Ok(format!("the server refused: {}", message.escape_debug()))
    }

    /// Prints messages until the connection ends.
    fn follow(&mut self, response: Response<Body>) -> Result<Ended> {
        if !self.has_followed {
            print_note(&format!("connected to {}, following {}", self.client.url(), self.followed));
        }
        let recovered = header(&response, "Throng-Recovered");
        self.note_recovery(recovered.as_deref());
        if response.status() == StatusCode::NO_CONTENT {
            let verb = if self.left == 1 { "has" } else { "have" };
            print_note(&format!("{} {verb} ended", self.followed));
            return Ok(Ended::Done);
        }
        self.has_followed = true;
        self.printed_reasons.clear();
        self.states_left = match recovered.as_deref() {
            Some("true") => 0,
            // Of several channels nothing tells which of them has not recovered.
            Some(_) if self.states > 1 => 0,
            _ => self.states,
        };
        // Until the first message arrives, resume from the start of the subscription.
        let start = header(&response, "Throng-Id").or(self.position.take());
        self.position = start.clone().filter(|_| self.states_left == 0);
        let mut events = SseEvents::new(BufReader::new(response.into_body().into_reader()));
        loop {
            let event = events.next();
            (self.retries, self.retry_ms) = (0, events.retry_ms());
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
            if self.states_left == 0 {
                self.position = events.last_id().map(str::to_owned).or(start.clone());
            }
        }
    }

    /// Handles an event. Returns whether to continue.
    fn take(&mut self, event: &SseEvent) -> Result<bool> {
        match event.kind.as_str() {
            "" | "message" => {}
            "gap" => {
                let gap = serde_json::from_str::<Gap>(&event.data);
                print_note(
                    &gap.map_or("too slow: messages were skipped".into(), |gap| gap.to_string()),
                );
                return Ok(true);
            }
            "state" => {
                self.states_left = self.states_left.saturating_sub(1);
                return Ok(true);
            }
            "erased" => {
                if let Ok(erased) = serde_json::from_str::<Erased>(&event.data) {
                    print_note(&erased.to_string());
                }
                return Ok(true);
            }
            "unread" => {
                if let Ok(unread) = serde_json::from_str::<Unread>(&event.data) {
                    print_note(&unread.to_string());
                }
                return Ok(true);
            }
            "ended" => return Ok(self.take_end(&event.data)),
            // `resumed` repeats a header; others are from later versions.
            _ => return Ok(true),
        }
        match self.printer.print(&event.data) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            other => other?,
        }
        self.remaining = self.remaining.map(|remaining| remaining - 1);
        Ok(self.remaining != Some(0))
    }

    /// Prints that a channel has ended. Returns whether others have not.
    fn take_end(&mut self, data: &str) -> bool {
        if let Ok(EndOfChannel { channel }) = serde_json::from_str(data)
            && !self.ended.contains(&channel)
        {
            print_note(&format!("{} has ended", channel.escape_debug()));
            self.ended.insert(channel);
            self.left -= 1;
        }
        self.left > 0
    }

    /// Prints whether the connection is back, and whether messages are missing.
    fn note_recovery(&self, recovered: Option<&str>) {
        let has_reconnected = self.has_followed && !self.printed_reasons.is_empty();
        let is_incomplete = recovered == Some("false");
        let missing = "some messages are missing, because the server no longer has them";
        if is_incomplete && has_reconnected {
            print_note(&format!("reconnected; {missing}"));
        } else if is_incomplete {
            print_note(missing);
        } else if has_reconnected {
            print_note("reconnected; no message was missed");
        }
    }

    /// The pause before the next retry. A pause that the server named is used as it is, because the
    /// server spreads its clients. Any other is random, so that clients do not reconnect at once.
    fn pause(&mut self) -> Duration {
        self.retries += 1;
        if let Some(ms) = self.retry_ms.take() {
            return Duration::from_millis(ms).min(PAUSE_MAX * 4);
        }
        let max_pause = PAUSE_MIN.saturating_mul(1 << (self.retries - 1).min(16)).min(PAUSE_MAX);
        let random = RandomState::new().build_hasher().finish();
        max_pause.mul_f64(random as f64 / u64::MAX as f64)
    }
}

/// When the next try is. A fraction of a second is not worth a number.
fn next_try(pause: Duration) -> String {
    match pause.as_secs_f64().ceil() {
        ..=1.0 => "trying again".into(),
        seconds => format!("trying again in {seconds} s"),
    }
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// True if the error is the timeout of [`SILENCE_MAX`].
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// The data of a gap event: the server skipped messages of a slow subscriber.
#[derive(Debug, Deserialize)]
struct Gap {
    channel: Option<String>,
    user: Option<String>,
    /// How many messages were skipped; `None` if the server cannot count them.
    missed: Option<u64>,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.channel.as_deref().or(self.user.as_deref()).unwrap_or("a channel");
        let messages = match self.missed {
            Some(missed) => counted(missed, "message", "messages"),
            None => "messages".to_owned(),
        };
        write!(f, "too slow: {messages} of {} skipped", name.escape_debug())
    }
}

/// The data of a notice that a user has read on.
#[derive(Debug, Deserialize)]
struct Unread {
    user: String,
    unread: u64,
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let messages = counted(self.unread, "unread message", "unread messages");
        write!(f, "{} has {messages}", self.user.escape_debug())
    }
}

/// The data of the notice that a channel has ended.
#[derive(Debug, Deserialize)]
struct EndOfChannel {
    channel: String,
}

/// The data of a notice that messages are erased.
#[derive(Debug, Deserialize)]
struct Erased {
    channel: Option<String>,
    user: Option<String>,
    erased: Option<String>,
    erased_up_to: Option<String>,
}

impl std::fmt::Display for Erased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.channel.as_deref().or(self.user.as_deref()).unwrap_or("a channel");
        let name = name.escape_debug();
        match (&self.erased, &self.erased_up_to) {
            (Some(id), _) => write!(f, "the message {} of {name} is erased", id.escape_debug()),
            (None, Some(id)) => {
                write!(f, "all messages of {name} up to {} are erased", id.escape_debug())
            }
            (None, None) => write!(f, "messages of {name} are erased"),
        }
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
    fn channels_keep_the_order_of_the_command_line() {
        let query = query(&arguments(&["--user", "ann", "b", "a/c"]));
        let expected = "/subscribe?transport=sse&envelope=true&channel=b&channel=a%2Fc&user=ann";
        assert_eq!(query, expected);
    }

    #[test]
    fn a_state_is_asked_for() {
        let query = query(&arguments(&["prices", "--state"]));
        assert_eq!(query, "/subscribe?transport=sse&envelope=true&channel=prices&state=true");
        let both = ["throng", "tail", "prices", "--state", "--history", "3"];
        assert!(Arguments::try_parse_from(both).is_err());
    }

    #[test]
    fn followed_channels_are_listed() {
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
    fn a_gap_is_reported_with_its_size_if_the_server_knows_it() {
        let note = |data| serde_json::from_str::<Gap>(data).unwrap().to_string();
        let counted = r#"{"channel":"news","missed":1,"id":"a-9"}"#;
        assert_eq!(note(counted), "too slow: 1 message of news skipped");
        let unknown = r#"{"user":"ann","id":"a-9"}"#;
        assert_eq!(note(unknown), "too slow: messages of ann skipped");
    }

    #[test]
    fn a_notice_of_unread_messages_counts_them() {
        for (unread, expected) in
            [(1, "ann has 1 unread message"), (3, "ann has 3 unread messages")]
        {
            let json =
                format!(r#"{{"type":"unread","user":"ann","read":"z-1","unread":{unread}}}"#);
            let notice: Unread = serde_json::from_str(&json).unwrap();
            assert_eq!(notice.to_string(), expected);
        }
    }

    #[test]
    fn a_notice_of_erasure_names_what_is_erased() {
        let note = |data| serde_json::from_str::<Erased>(data).unwrap().to_string();
        let one = r#"{"type":"erased","channel":"news","id":"a-9","time":1,"erased":"a-7"}"#;
        assert_eq!(note(one), "the message a-7 of news is erased");
        let all = r#"{"type":"erased","user":"ann","id":"a-9","time":1,"erased_up_to":"a-8"}"#;
        assert_eq!(note(all), "all messages of ann up to a-8 are erased");
    }

    #[test]
    fn pauses_grow_to_a_limit_unless_the_server_names_one() {
        let mut follower = Follower {
            client: Client::new(&":1".parse().unwrap(), &Default::default(), None, None).unwrap(),
            query: String::new(),
            followed: String::new(),
            history: None,
            position: None,
            states: 0,
            states_left: 0,
            left: 1,
            ended: BTreeSet::new(),
            remaining: None,
            printer: Printer::new(false),
            has_followed: true,
            printed_reasons: Vec::new(),
            retries: 0,
            retry_ms: Some(1234),
        };
        assert_eq!(follower.pause(), Duration::from_millis(1234));
        follower.retries = 0;
        assert!(follower.pause() <= PAUSE_MIN);
        assert!(follower.pause() <= PAUSE_MIN * 2);
        assert!((0..100).all(|_| follower.pause() <= PAUSE_MAX));
    }
}
