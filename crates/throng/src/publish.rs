//! `throng publish`: one message, or one for each line of standard input.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use throng_units::format::count;
use throng_units::paint::{Ink, Paint};

use crate::cli::{self, PublishArguments};
use crate::client::{Client, escaped, refusal};
use crate::terminal;

/// A batch is sent when it has this many bytes; the server's limit is 8 MiB unless set.
const BATCH_BYTES: usize = 1 << 20;

/// Or this many lines, so that answers come now and then.
const BATCH_LINES: usize = 1000;

/// Standard input is read in pieces of this size.
const READ_BYTES: usize = 64 << 10;

/// Where to publish.
enum To {
    Channel(String),
    User(String),
}

impl To {
    fn path(&self) -> String {
        match self {
            To::Channel(name) => format!("/channels/{}", escaped(name)),
            To::User(name) => format!("/users/{}", escaped(name)),
        }
    }
}

/// Runs the command.
pub fn publish(arguments: PublishArguments) -> Result<()> {
    let client = Client::new(&arguments.server.url, None);
    let content_type = match arguments.json {
        true => Some("application/json".to_owned()),
        false => arguments.content_type,
    };
    let (to, message) = match (arguments.user, arguments.channel, arguments.message) {
        (None, Some(channel), message) => (To::Channel(channel), message),
        // With --user the first thing that follows is the message already.
        (Some(user), message, None) => (To::User(user), message),
        (Some(_), Some(_), Some(_)) => {
            return Err(cli::conflict("give either a channel or --user, not both").into());
        }
        (_, None, _) => return Err(cli::conflict("give a channel or --user").into()),
    };
    let message = message.filter(|message| message != "-");
    if arguments.lines {
        if message.is_some() {
            bail!("--lines reads standard input, so there can be no message beside it");
        }
        let batches = Batches { client, to, content_type, is_json: arguments.json };
        return batches.publish_lines(io::stdin().lock());
    }
    let is_read = message.is_none();
    let body = match message {
        Some(text) => text.into_bytes(),
        None => read_body(content_type.as_deref())?,
    };
    if body.is_empty() && is_read && !arguments.allow_empty {
        bail!(
            "standard input is empty: nothing was published; to publish an empty message, add \
             --allow-empty"
        );
    }
    let mut request = client.agent.post(client.at(&to.path()));
    request = request.header("Content-Type", content_type.as_deref().unwrap_or(TEXT));
    if let Some(key) = &arguments.key {
        request = request.header("Idempotency-Key", key);
    }
    let mut response = request.send(&body[..]).map_err(|error| client.unreachable(&error))?;
    if !response.status().is_success() {
        bail!(refusal(&mut response));
    }
    let text = response.body_mut().read_to_string().context("the answer broke off")?;
    Ok(terminal::ignore_closed_pipe(print_answer(&text))?)
}

/// What a message is unless said.
const TEXT: &str = "text/plain; charset=utf-8";

/// All of standard input. The line feed that commands put at the end of text is no part of it.
fn read_body(content_type: Option<&str>) -> Result<Vec<u8>> {
    if io::stdin().is_terminal() {
        terminal::remark("reading the message from the terminal; end it with Ctrl-D");
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

/// What the server answers to one message.
#[derive(Debug, Deserialize)]
struct Answer {
    id: Option<String>,
    #[serde(default)]
    subscribers: u64,
    #[serde(default)]
    duplicate: bool,
    message: Option<String>,
}

/// On a terminal a few words, otherwise the server's JSON.
fn print_answer(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let text = text.trim_end();
    let answer = serde_json::from_str::<Answer>(text).ok().filter(|answer| answer.id.is_some());
    match answer {
        Some(answer) if out.is_terminal() => {
            let sentence = sentence(&answer, Paint::on(&out));
            writeln!(out, "{sentence}")
        }
        _ => writeln!(out, "{text}"),
    }
}

fn sentence(answer: &Answer, paint: Paint) -> String {
    let id = paint.ink(Ink::GOOD, answer.id.as_deref().unwrap_or_default());
    let arrow = paint.ink(Ink::Dim, "→");
    if answer.duplicate {
        return format!("{id} {arrow} published before, under the same key");
    }
    let s = if answer.subscribers == 1 { "" } else { "s" };
    format!("{id} {arrow} {} subscriber{s}", count(answer.subscribers))
}

/// One line of a batch.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    data: Data<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

/// Publishes lines in batches.
struct Batches {
    client: Client,
    to: To,
    content_type: Option<String>,
    is_json: bool,
}

impl Batches {
    /// What has arrived goes out as one batch: at once when lines come slowly, many together when
    /// they come fast.
    fn publish_lines(&self, input: impl Read) -> Result<()> {
        let mut input = BufReader::with_capacity(READ_BYTES, input);
        let (mut line, mut number, mut refused) = (Vec::new(), 0u64, 0u64);
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
                refused += self.send(&batch, &numbers)?;
                batch.clear();
                numbers.clear();
            }
            if read == 0 {
                break;
            }
        }
        match refused {
            0 => Ok(()),
            1 => bail!("1 line was not published"),
            _ => bail!("{refused} lines were not published"),
        }
    }

    fn append(&self, batch: &mut Vec<u8>, line: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(line).map_err(|_| anyhow!("it is not UTF-8"))?;
        let data = match self.is_json {
            true => Data::Json(
                serde_json::from_str(text).map_err(|error| anyhow!("it is not JSON: {error}"))?,
            ),
            false => Data::Text(text),
        };
        let (channel, user) = match &self.to {
            To::Channel(name) => (Some(name.as_str()), None),
            To::User(name) => (None, Some(name.as_str())),
        };
        // A JSON value says by itself what it is, unless it is a string.
        let content_type = self.content_type.as_deref();
        serde_json::to_writer(&mut *batch, &Entry { channel, user, data, content_type })?;
        batch.push(b'\n');
        Ok(())
    }

    /// Returns how many lines were refused.
    fn send(&self, batch: &[u8], numbers: &[u64]) -> Result<u64> {
        let request = self.client.agent.post(self.client.at("/publish"));
        let request = request.header("Content-Type", "application/x-ndjson");
        let mut response = request.send(batch).map_err(|error| self.client.unreachable(&error))?;
        if !response.status().is_success() {
            bail!(refusal(&mut response));
        }
        let answers = response.body_mut().with_config().limit(u64::MAX).read_to_string();
        let answers = answers.context("the answer broke off")?;
        let mut refused = 0;
        for (number, text) in numbers.iter().zip(answers.lines()) {
            let answer = serde_json::from_str::<Answer>(text).ok();
            if let Some(message) = answer.and_then(|answer| answer.message) {
                refused += 1;
                terminal::complain(&format!("line {number}: {message}"));
            }
            match print_answer(text) {
                // Lines are published even if the reader of the answers has gone.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
                _ => {}
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(is_json: bool) -> Batches {
        let client = Client::new(&":1".parse().unwrap(), None);
        Batches { client, to: To::Channel("a\"b".into()), content_type: None, is_json }
    }

    #[test]
    fn lines_become_a_batch() {
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
    fn answers_for_people() {
        let say = |text| sentence(&serde_json::from_str(text).unwrap(), Paint::plain());
        assert_eq!(say(r#"{"id":"k3v9x2-17","subscribers":3}"#), "k3v9x2-17 → 3 subscribers");
        assert_eq!(say(r#"{"id":"k3v9x2-17","subscribers":1}"#), "k3v9x2-17 → 1 subscriber");
        let duplicate = say(r#"{"id":"a-1","subscribers":0,"duplicate":true}"#);
        assert_eq!(duplicate, "a-1 → published before, under the same key");
    }
}
