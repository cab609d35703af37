//! `throng publish`: one message, or one for each line of standard input.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use throng_units::Time;
use throng_units::format::count;
use throng_units::paint::{Ink, Paint, sanitized};
use throng_wire::interchange;
use throng_wire::labels;
use ureq::http::{HeaderValue, StatusCode};

use crate::cli::{self, PublishArguments};
use crate::client::{Client, RESPONSE_TIMEOUT, escaped};
use crate::terminal;

/// A batch with this many bytes is sent. The server's default limit is 8 MiB.
const BATCH_BYTES: usize = 1 << 20;

/// A batch with this many lines is sent, so that results appear regularly.
const BATCH_LINES: usize = 1000;

/// Size of the buffer for standard input.
const READ_BYTES: usize = 64 << 10;

/// A larger message is sent only once the server is willing to read it: otherwise it would close
/// the connection meanwhile, and its reason would be lost.
const LARGE_BYTES: usize = 16 << 10;

/// A channel or user to publish to.
enum Target {
    Channel(String),
    User(String),
}

impl Target {
    fn check(&self) -> Result<(), clap::Error> {
        match self {
            Target::Channel(name) => cli::refuse_pattern(name, false),
            Target::User(name) => cli::refuse_pattern(name, true),
        }
    }

    fn path(&self) -> String {
        match self {
            Target::Channel(name) => format!("/channels/{}", escaped(name)),
            Target::User(name) => format!("/users/{}", escaped(name)),
        }
    }
}

pub(crate) fn publish(arguments: PublishArguments) -> Result<()> {
    let client = arguments.server.client(None)?;
    let content_type =
        if arguments.json { Some("application/json".to_owned()) } else { arguments.content_type };
    let (target, message) = match (arguments.user, arguments.channel, arguments.message) {
        (None, Some(channel), message) => (Target::Channel(channel), message),
        // With --user the first positional argument is the message.
        (Some(user), message, None) => (Target::User(user), message),
        (Some(_), Some(_), Some(_)) => {
            return Err(cli::conflict("give either a channel or --user, not both").into());
        }
        (_, None, _) => return Err(cli::conflict("give a channel or --user").into()),
    };
    target.check()?;
    let message = message.filter(|message| message != "-");
    if arguments.lines {
        if message.is_some() {
            bail!("--lines reads standard input; remove the message");
        }
        let PublishArguments { json: is_json, volatile, event, tags, .. } = arguments;
        let tags = Tags(tags);
        tags.json()?;
        let batches = Batches { client, target, content_type, is_json, volatile, event, tags };
        return batches.publish_lines(io::stdin().lock());
    }
    let is_read = message.is_none();
    let body = match message {
        Some(text) => text.into_bytes(),
        None => read_body(content_type.as_deref())?,
    };
    if body.is_empty() && is_read && !arguments.allow_empty {
        bail!(
            "nothing was published, because standard input is empty; to publish an empty message, \
             add --allow-empty"
        );
    }
    let query = if arguments.volatile { "?volatile=true" } else { "" };
    let mut request = client.post(&(target.path() + query));
    request = request.header("Content-Type", content_type.as_deref().unwrap_or(TEXT));
    let PublishArguments { key, state_key, event, tags, .. } = arguments;
    for (name, value) in option_headers([key, event, state_key], tags)? {
        request = request.header(name, value);
    }
    if let Some(Time(wait)) = arguments.receipt {
        let preference = format!("receipt, wait={}", wait.as_secs_f64());
        request = request.header("Prefer", preference);
        // The response comes only when the receipt is there.
        request = request.config().timeout_recv_response(Some(RESPONSE_TIMEOUT + wait)).build();
    }
    if body.len() > LARGE_BYTES {
        request = request.header("Expect", "100-continue");
    }
    let mut response = request.send(&body[..]).map_err(|error| client.unreachable(&error))?;
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let size = count(body.len() as u64);
        bail!(
            "the message is too large, with {size} bytes: {}; the setting max-message-bytes of the \
             server says how many it takes",
            client.rejection(&mut response)
        );
    }
    if !response.status().is_success() {
        bail!(client.rejection(&mut response));
    }
    let text = response.body_mut().read_to_string().context("the response is incomplete")?;
    if arguments.receipt.is_some() && !response.headers().contains_key("Preference-Applied") {
        terminal::print_note(WITHOUT_RECEIPT);
    }
    Ok(terminal::ignore_closed_pipe(print_result(&text))?)
}

/// The headers with the idempotency key, the event, the key of the state and the tags of a message,
/// in UTF-8.
fn option_headers(
    [key, event, state_key]: [Option<String>; 3],
    tags: Vec<(String, Value)>,
) -> Result<Vec<(&'static str, HeaderValue)>> {
    let all = [
        ("Idempotency-Key", "--key", key),
        ("Throng-Event", "--event", event),
        ("Throng-Tags", "--tag", Tags(tags).json()?),
        ("Throng-State-Key", "--state-key", state_key),
    ];
    let given = all.into_iter().filter_map(|(name, flag, text)| Some((name, flag, text?)));
    let header = |(name, flag, text): (_, _, String)| {
        let value = HeaderValue::from_bytes(text.as_bytes());
        Ok((name, value.with_context(|| format!("{flag} has a control character"))?))
    };
    given.map(header).collect()
}

/// Tags of a message, in the order in which they are given.
struct Tags(Vec<(String, Value)>);

impl Tags {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tags as JSON, checked; `None` without any.
    fn json(&self) -> Result<Option<String>> {
        if self.is_empty() {
            return Ok(None);
        }
        let json = serde_json::to_string(self)?;
        labels::parse_tags(&json).map_err(|error| anyhow!("the list of all --tag {error}"))?;
        Ok(Some(json))
    }
}

impl Serialize for Tags {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Said of a response that ignores the preference.
const WITHOUT_RECEIPT: &str = "there is no receipt: the server already had a message with this \
                               key, or it gives no receipts";

/// The default media type.
const TEXT: &str = "text/plain; charset=utf-8";

/// Reads standard input to the end. Removes the line feed that commands write after text.
fn read_body(content_type: Option<&str>) -> Result<Vec<u8>> {
    if io::stdin().is_terminal() {
        terminal::print_note("type the message, then press Enter and Ctrl-D");
    }
    let mut body = Vec::new();
    io::stdin().lock().read_to_end(&mut body).context("cannot read standard input")?;
    let is_text = content_type.is_none_or(|t| t.starts_with("text/") || t.contains("json"));
    if is_text && body.last() == Some(&b'\n') {
        body.pop();
        if body.last() == Some(&b'\r') {
            body.pop();
        }
    }
    Ok(body)
}

/// The server's result for one message.
#[derive(Debug, Deserialize)]
struct PublishResult {
    id: Option<String>,
    #[serde(default)]
    subscribers: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(default)]
    volatile: bool,
    message: Option<String>,
    receipt: Option<Receipt>,
}

#[derive(Debug, Deserialize)]
struct Receipt {
    matched: u64,
    written: u64,
    behind: u64,
    dropped: u64,
    #[serde(default)]
    dropped_by: BTreeMap<String, u64>,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "written to {} of {}", count(self.written), count(self.matched))?;
        if self.behind > 0 {
            write!(f, ", {} behind", count(self.behind))?;
        }
        if self.dropped > 0 {
            let reasons = self.dropped_by.iter().filter(|(_, number)| **number > 0);
            let reasons = reasons.map(|(reason, number)| format!("{} {reason}", count(*number)));
            let reasons = sanitized(&reasons.collect::<Vec<_>>().join(", "));
            write!(f, ", {} dropped ({reasons})", count(self.dropped))?;
        }
        Ok(())
    }
}

/// Prints a short sentence on a terminal, otherwise the server's JSON.
fn print_result(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let text = text.trim_end();
    let result = serde_json::from_str::<PublishResult>(text).ok();
    match result.filter(|result| result.id.is_some() || result.volatile) {
        Some(result) if out.is_terminal() => {
            let line = describe(&result, Paint::on(&out));
            writeln!(out, "{line}")
        }
        _ => writeln!(out, "{text}"),
    }
}

fn describe(result: &PublishResult, paint: Paint) -> String {
    let id = paint.ink(Ink::GOOD, result.id.as_deref().unwrap_or("volatile"));
    let arrow = paint.ink(Ink::Dim, "→");
    if result.duplicate {
        return format!("{id} {arrow} already published with the same key");
    }
    if let Some(receipt) = &result.receipt {
        return format!("{id} {arrow} {receipt}");
    }
    let s = if result.subscribers == 1 { "" } else { "s" };
    format!("{id} {arrow} {} subscriber{s}", count(result.subscribers))
}

/// One message of a batch.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    data: Data<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    volatile: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Tags::is_empty")]
    tags: &'a Tags,
}

/// The data of a message in a request with several.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Data<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

impl<'a> Data<'a> {
    /// Fails for a text that should be JSON, and is not.
    pub(crate) fn of(text: &'a str, is_json: bool) -> Result<Data<'a>> {
        if !is_json {
            return Ok(Data::Text(text));
        }
        let fault = |error| anyhow!("it is not JSON: {}", interchange::fault(&error));
        serde_json::from_str(text).map(Data::Json).map_err(fault)
    }
}

struct Batches {
    client: Client,
    target: Target,
    content_type: Option<String>,
    is_json: bool,
    volatile: bool,
    event: Option<String>,
    tags: Tags,
}

impl Batches {
    /// Sends the lines that have arrived as one batch: slow lines one by one, fast lines together.
    fn publish_lines(&self, input: impl Read) -> Result<()> {
        let mut input = BufReader::with_capacity(READ_BYTES, input);
        let (mut line, mut number, mut rejected) = (Vec::new(), 0u64, 0u64);
        let (mut batch, mut numbers) = (Vec::new(), Vec::new());
        loop {
            line.clear();
            let read = input.read_until(b'\n', &mut line).context("cannot read standard input")?;
            number += 1;
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if !text.is_empty() {
                self.append(&mut batch, text).with_context(|| format!("line {number}"))?;
                numbers.push(number);
            }
            let is_full = batch.len() >= BATCH_BYTES || numbers.len() >= BATCH_LINES;
            let has_more = input.buffer().contains(&b'\n');
            if !numbers.is_empty() && (is_full || !has_more || read == 0) {
                rejected += self.send(&batch, &numbers)?;
                batch.clear();
                numbers.clear();
            }
            if read == 0 {
                break;
            }
        }
        match rejected {
            0 => Ok(()),
            1 => bail!("1 line was not published"),
            _ => bail!("{rejected} lines were not published"),
        }
    }

    fn append(&self, batch: &mut Vec<u8>, line: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(line).map_err(|_| anyhow!("it is not UTF-8"))?;
        let data = Data::of(text, self.is_json)?;
        let (channel, user) = match &self.target {
            Target::Channel(name) => (Some(name.as_str()), None),
            Target::User(name) => (None, Some(name.as_str())),
        };
        // Without a type, the server treats a JSON string as text and any other value as JSON.
        let content_type = self.content_type.as_deref();
        let volatile = self.volatile;
        let (event, tags) = (self.event.as_deref(), &self.tags);
        let entry = Entry { channel, user, data, content_type, volatile, event, tags };
        serde_json::to_writer(&mut *batch, &entry)?;
        batch.push(b'\n');
        Ok(())
    }

    /// Sends a batch and prints the results. Returns the number of rejected lines.
    fn send(&self, batch: &[u8], numbers: &[u64]) -> Result<u64> {
        let request = self.client.post("/publish");
        let request = request.header("Content-Type", "application/x-ndjson");
        let mut response = request.send(batch).map_err(|error| self.client.unreachable(&error))?;
        if !response.status().is_success() {
            bail!(self.client.rejection(&mut response));
        }
        let results = response.body_mut().with_config().limit(u64::MAX).read_to_string();
        let results = results.context("the response is incomplete")?;
        let mut rejected = 0;
        for (number, text) in numbers.iter().zip(results.lines()) {
            let result = serde_json::from_str::<PublishResult>(text).ok();
            if let Some(message) = result.and_then(|result| result.message) {
                rejected += 1;
                terminal::print_error(&format!("line {number}: {message}"));
            }
            match print_result(text) {
                // Go on publishing when the reader of the results has gone.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
                _ => {}
            }
        }
        Ok(rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(is_json: bool) -> Batches {
        let client = Client::new(&":1".parse().unwrap(), &Default::default(), None, None).unwrap();
        let target = Target::Channel("a\"b".into());
        let (content_type, event, tags) = (None, None, Tags(Vec::new()));
        Batches { client, target, content_type, is_json, volatile: false, event, tags }
    }

    #[test]
    fn lines_become_entries_of_a_batch() {
        let mut batch = Vec::new();
        batches(false).append(&mut batch, b"say \"hi\"").unwrap();
        batches(true).append(&mut batch, b"{\"n\": 1.0}").unwrap();
        assert_eq!(
            String::from_utf8(batch).unwrap(),
            "{\"channel\":\"a\\\"b\",\"data\":\"say \\\"hi\\\"\"}\n\
             {\"channel\":\"a\\\"b\",\"data\":{\"n\": 1.0}}\n"
        );
        assert!(batches(true).append(&mut Vec::new(), b"{").is_err());
        assert!(batches(false).append(&mut Vec::new(), b"\xff").is_err());
    }

    #[test]
    fn all_lines_have_the_event_and_the_tags() {
        let tags =
            ["symbol=ACME", "n=-2.5e3", "zip=01234", "of=a=b"].map(|text| cli::tag(text).unwrap());
        let (event, tags) = (Some("price".into()), Tags(tags.into()));
        let mut batch = Vec::new();
        Batches { event, tags, ..batches(false) }.append(&mut batch, b"hi").unwrap();
        let entry = String::from_utf8(batch).unwrap();
        let tags = r#""tags":{"symbol":"ACME","n":-2500.0,"zip":"01234","of":"a=b"}"#;
        assert!(entry.contains(r#""event":"price""#) && entry.contains(tags), "{entry}");
        assert!(cli::tag("symbol").is_err());
    }

    #[test]
    fn results_are_described_in_words() {
        let say = |text| describe(&serde_json::from_str(text).unwrap(), Paint::plain());
        assert_eq!(say(r#"{"id":"k3v9x2-17","subscribers":3}"#), "k3v9x2-17 → 3 subscribers");
        assert_eq!(say(r#"{"id":"k3v9x2-17","subscribers":1}"#), "k3v9x2-17 → 1 subscriber");
        let receipt = say(concat!(
            r#"{"id":"k3v9x2-17","subscribers":4,"receipt":{"outcome":"timeout","matched":4,"#,
            r#""written":1,"behind":1,"unknown":0,"dropped":2,"#,
            r#""dropped_by":{"closed":2,"lagging":0}}}"#
        ));
        assert_eq!(receipt, "k3v9x2-17 → written to 1 of 4, 1 behind, 2 dropped (2 closed)");
        let duplicate = say(r#"{"id":"a-1","subscribers":0,"duplicate":true}"#);
        assert_eq!(duplicate, "a-1 → already published with the same key");
    }
}
