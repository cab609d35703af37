//! `throng connections`: the connections of a server that are behind, those that hold most first.

use std::io::{self, IsTerminal as _};
use throng_access::server_key::Scope;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::value::RawValue;
use throng_core::clock;
use throng_units::format::{bytes, count, seconds};
use throng_units::paint::{Ink, Paint, sanitized};

use crate::cli::{ConnectionOrder, ConnectionsArguments};
use crate::list::print;

/// The most connections that the server lists.
const LIMIT_MAX: usize = 1000;

#[derive(Debug, Deserialize)]
struct Found {
    connections: Vec<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    connection: String,
    transport: String,
    address: Option<String>,
    user: Option<String>,
    #[serde(default)]
    channels: Vec<String>,
    behind_since: u64,
    messages: u64,
    bytes: u64,
    kernel_bytes: u64,
}

pub(crate) fn connections(arguments: &ConnectionsArguments) -> Result<()> {
    let client = arguments.server.client(None)?;
    let ConnectionOrder::Behind = arguments.sort;
    let limit = arguments.limit.map_or(100, |limit| limit.0).min(LIMIT_MAX);
    let request = client.get(client.at(&format!("/connections?sort=behind&limit={limit}")));
    let mut response = request.call().map_err(|error| client.unreachable(&error))?;
    if !response.status().is_success() {
        bail!(client.rejection_without(&mut response, Scope::Administration));
    }
    let text = response.body_mut().read_to_string().context("the response is incomplete")?;
    let found: Found =
        serde_json::from_str(&text).context("this is not the answer of a Throng server")?;
    let mut out = io::stdout().lock();
    let paint = out.is_terminal().then(|| Paint::on(&out));
    if let Some(paint) = paint {
        print(&mut out, &paint.ink(Ink::Dim, TITLE).to_string())?;
    }
    for entry in &found.connections {
        let is_open = match paint {
            None => print(&mut out, entry.get())?,
            Some(paint) => print(&mut out, &row(entry.get(), paint, clock::machine_ms())?)?,
        };
        if !is_open {
            break;
        }
    }
    Ok(())
}

const TITLE: &str = "connection          behind  messages      waits  in kernel  transport  \
    address                 user, channels";

/// A connection as a line of the table.
fn row(entry: &str, paint: Paint, now_ms: u64) -> Result<String> {
    let entry: Entry =
        serde_json::from_str(entry).context("this is not the answer of a Throng server")?;
    let behind = seconds(now_ms.saturating_sub(entry.behind_since) as f64 / 1000.0);
    let (here, in_kernel) = (bytes(entry.bytes as f64), bytes(entry.kernel_bytes as f64));
    let address = entry.address.as_deref().unwrap_or("?");
    let user = entry.user.iter().map(String::as_str);
    let names: Vec<_> = user.chain(entry.channels.iter().map(String::as_str)).collect();
    Ok(format!(
        "{:<17} {behind:>8} {:>9} {here:>10} {in_kernel:>10}  {:<9}  {:<22}  {}",
        sanitized(&entry.connection),
        count(entry.messages),
        sanitized(&entry.transport),
        sanitized(address),
        paint.name(sanitized(&names.join(", "))),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_a_row_below_the_title() {
        let entry = r#"{"connection":"002d5e1b30000001","transport":"websocket","since":1,
            "address":"192.0.2.7:50412","user":"ann","channels":["news","a\u001bb"],
            "subscriptions":3,"behind_since":60000,"messages":1234,"bytes":2048,
            "kernel_bytes":1048576}"#;
        let row = row(entry, Paint::plain(), 61_500).unwrap();
        assert_eq!(
            row,
            "002d5e1b30000001    1.50 s     1,234   2.00 KiB   1.00 MiB  websocket  \
             192.0.2.7:50412         ann, news, a\\u{1b}b"
        );
        let column = |line: &str, text: &str| line.find(text).unwrap();
        assert_eq!(column(TITLE, "transport"), column(&row, "websocket"));
        assert_eq!(column(TITLE, "user"), column(&row, "ann"));
    }
}
