//! `throng channels` and `throng users`: the channels and users of a server, page by page.

use std::io::{self, IsTerminal as _, Write};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::value::RawValue;
use throng_access::server_key::Scope;
use throng_core::Kind;
use throng_units::format::count;
use throng_units::paint::{Ink, Paint, sanitized};

use crate::cli::ListArguments;
use crate::client::{Client, escaped};

/// Entries of a page: the most that the server gives.
const PAGE_MAX: usize = 1000;

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(alias = "channels", alias = "users")]
    entries: Vec<Box<RawValue>>,
    /// Where the next page begins; none after the last one.
    after: Option<String>,
    /// True if one of several nodes has not answered.
    #[serde(default)]
    partial: bool,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(alias = "channel", alias = "user")]
    name: String,
    subscribers: u64,
    messages: u64,
}

pub(crate) fn list(kind: Kind, arguments: &ListArguments) -> Result<()> {
    let client = arguments.server.client(None)?;
    let mut left = arguments.limit.map_or(usize::MAX, |limit| limit.0);
    let mut out = io::stdout().lock();
    let paint = out.is_terminal().then(|| Paint::on(&out));
    let (mut after, mut is_first, mut is_partial) = (None, true, false);
    while left > 0 {
        let page = page(&client, kind, arguments.pattern.as_deref(), after.as_deref(), left)?;
        // Above entries, not above an error.
        if let Some(paint) = paint.filter(|_| std::mem::take(&mut is_first)) {
            let title = format!("{:>11} {:>9}  {}", "subscribers", "messages", kind.noun());
            print(&mut out, &paint.ink(Ink::Dim, title).to_string())?;
        }
        for entry in page.entries.iter().take(left) {
            let is_open = match paint {
                None => print(&mut out, entry.get())?,
                Some(paint) => print(&mut out, &row(entry.get(), paint)?)?,
            };
            if !is_open {
                return Ok(());
            }
        }
        if page.partial && !std::mem::replace(&mut is_partial, true) {
            eprintln!("not all nodes have answered: entries may be missing");
        }
        left = left.saturating_sub(page.entries.len());
        let Some(next) = page.after else { break };
        after = Some(next);
    }
    Ok(())
}

/// Prints a line. Returns whether there is still a reader.
pub(crate) fn print(out: &mut impl Write, line: &str) -> io::Result<bool> {
    match writeln!(out, "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// Requests the page after `after`, of at most `limit` entries.
fn page(
    client: &Client,
    kind: Kind,
    pattern: Option<&str>,
    after: Option<&str>,
    limit: usize,
) -> Result<Page> {
    let mut path = format!("/{}s?limit={}", kind.noun(), limit.min(PAGE_MAX));
    for (name, value) in [("pattern", pattern), ("after", after)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", escaped(value));
        }
    }
    let request = client.get(client.at(&path));
    let mut response = request.call().map_err(|error| client.unreachable(&error))?;
    if !response.status().is_success() {
        bail!(client.rejection_without(&mut response, Scope::Listing));
    }
    let text = response.body_mut().read_to_string().context("the response is incomplete")?;
    serde_json::from_str(&text).context("this is not the answer of a Throng server")
}

/// An entry as a line of the table.
fn row(entry: &str, paint: Paint) -> Result<String> {
    let entry: Entry =
        serde_json::from_str(entry).context("this is not the answer of a Throng server")?;
    let (subscribers, messages) = (count(entry.subscribers), count(entry.messages));
    let name = paint.name(sanitized(&entry.name));
    Ok(format!("{subscribers:>11} {messages:>9}  {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_rows() {
        let of = |entry| row(entry, Paint::plain()).unwrap();
        let entry = r#"{"channel":"a\u001bb","subscribers":12345,"id":"k-1","messages":7}"#;
        assert_eq!(of(entry), "     12,345         7  a\\u{1b}b");
        let entry = r#"{"user":"ann","subscribers":0,"id":"k-1","messages":0}"#;
        assert_eq!(of(entry), "          0         0  ann");
    }
}
