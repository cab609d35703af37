//! A plan from a TOML file.
//!
//! Every mistake is told with its line and column, all of them at once, and with what would be
//! right. A key that nobody knows is a mistake: what is misspelt would otherwise silently not
//! happen.

mod phases;
mod reader;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use throng_units::toml_error;
use toml::de::DeTable;

use super::Ping;
use super::addresses::Addresses;
use super::draft::{Draft, DraftPublish, Objection, Phases};
use super::words::{By, Followed, IsWebSocket, PortRange, When};
use crate::template::{Table, TableError};
use throng_units::{Count, Ports, Time};

use reader::{Places, Reader, Section};

const PLAN: &[&str] = &[
    "name",
    "deadline",
    "network",
    "threads",
    "keep",
    "seed",
    "server-pid",
    "assertions",
    "target",
    "publish",
    "sources",
    "phases",
];
const TARGET: &[&str] = &[
    "url",
    "urls",
    "data",
    "profile",
    "transport",
    "channel",
    "ports",
    "headers",
    "subprotocol",
    "hello",
    "subscribed",
    "refused",
    "pings",
    "handshake-timeout",
    "streams",
];
const PUBLISH: &[&str] =
    &["by", "method", "url", "headers", "body", "refused", "connections", "pipeline"];
const SOURCES: &[&str] = &["addresses", "ports"];
const PINGS: &[&str] = &["ask", "answer"];

/// All tables, for a key that stands in the wrong one.
const KNOWN: &[(&str, &[&str])] = &[
    ("", PLAN),
    ("[target]", TARGET),
    ("[publish]", PUBLISH),
    ("[sources]", SOURCES),
    ("[[phases]]", phases::ALL),
];

/// A file that has been read: where its keys stand.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    text: String,
    places: Places,
}

/// A file that is no plan: a line for each mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError(pub Vec<String>);

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for FileError {}

/// What a file says; and where, for whatever else is found wrong with it.
pub fn load(path: &Path) -> Result<(Draft, File), FileError> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        FileError(vec![match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no file {name}"),
            std::io::ErrorKind::InvalidData => format!("{name} is not UTF-8 text"),
            _ => format!("cannot read {name}: {error}"),
        }])
    })?;
    parse(path, text)
}

/// [`load`], of a text; files that it names are looked for beside `path`.
pub fn parse(path: &Path, text: String) -> Result<(Draft, File), FileError> {
    let file = File { path: path.to_owned(), text, places: Places::new() };
    let refuse = |problems: &[(usize, String)]| {
        FileError(problems.iter().map(|(place, message)| file.at(*place, message)).collect())
    };
    let table = DeTable::parse(&file.text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        refuse(&[toml_error::explain(&file.text, place, error.message())])
    })?;
    let reader = Reader::new(KNOWN);
    let draft = read(&reader, table.get_ref(), path.parent().unwrap_or(Path::new("")));
    let places = reader.end().map_err(|problems| refuse(&problems))?;
    drop(table);
    Ok((draft, File { places, ..file }))
}

impl File {
    /// An objection with its line and column, or those of the nearest thing around it.
    pub fn describe(&self, objection: &Objection) -> String {
        let mut key = objection.key.as_str();
        loop {
            if let Some(&place) = self.places.get(key) {
                let name = objection.key.rsplit('.').find(|part| part.parse::<usize>().is_err());
                let message = format!("{}: {}", name.unwrap_or_default(), objection.message);
                return self.at(place, &message);
            }
            match key.rsplit_once('.') {
                Some((around, _)) => key = around,
                None => return format!("{}: {}", self.path.display(), objection.message),
            }
        }
    }

    fn at(&self, place: usize, message: &str) -> String {
        let before = &self.text[..self.text.floor_char_boundary(place)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&letter| letter != '\n').count() + 1;
        format!("{}, line {line}, column {column}: {message}", self.path.display())
    }
}

fn read(reader: &Reader, table: &DeTable<'_>, directory: &Path) -> Draft {
    let plan = reader.section(String::new(), table, PLAN);
    let mut draft = Draft {
        name: plan.text("name"),
        deadline: plan.read::<Time>("deadline").map(|time| time.0),
        network: plan.read("network"),
        threads: plan.read::<Count>("threads").map(|count| count.0),
        keep: plan.is_on("keep"),
        seed: plan.read::<Count>("seed").map(|count| count.0 as u64),
        server: plan.read("server-pid"),
        assertions: plan.list("assertions").unwrap_or_default(),
        ..Draft::default()
    };
    if let Some(target) = plan.table("target", TARGET) {
        read_target(&target, directory, &mut draft);
    }
    if let Some(publish) = plan.table("publish", PUBLISH) {
        draft.publish = read_publish(&publish);
    }
    if let Some(sources) = plan.table("sources", SOURCES) {
        let lists = sources.list::<Addresses>("addresses").unwrap_or_default();
        draft.addresses = lists.into_iter().flat_map(|addresses| addresses.0).collect();
        draft.source_ports = sources.read::<PortRange>("ports").map(|range| range.0);
    }
    let streams = draft.streams.unwrap_or(super::Streams::One);
    if let Some(listed) = phases::read(&plan, streams) {
        draft.phases = Phases::Listed(listed);
    }
    draft
}

fn read_target(target: &Section<'_, '_>, directory: &Path, draft: &mut Draft) {
    draft.table = read_table(target, directory);
    draft.url = target.text("url");
    if draft.url.is_none() && target.text("urls").is_some() {
        draft.url = Some("{url}".to_owned());
    }
    draft.profile = target.read("profile");
    draft.transport = target.read::<By>("transport").map(|by| by.0);
    draft.channel = target.text("channel");
    let ports = target.list::<Ports>("ports").unwrap_or_default();
    draft.ports = ports.into_iter().flat_map(|ports| ports.0).collect();
    draft.headers = target.pairs("headers");
    draft.subprotocol = target.text("subprotocol");
    draft.hello = target.list::<String>("hello");
    draft.subscribed = target.read::<When>("subscribed").map(|when| when.0);
    draft.refused = target.list::<String>("refused");
    draft.pings = target.tables("pings").map(|tables| {
        let read = |(number, (place, table)): (usize, (usize, &DeTable<'_>))| {
            let path = format!("{}.{number}", target.path("pings"));
            let ping = target.reader().section(path, table, PINGS);
            match (ping.text("ask"), ping.text("answer")) {
                (Some(ask), Some(answer)) => Some(Ping { ask, answer }),
                _ => {
                    let message = "pings: each has an `ask` and an `answer`";
                    target.reader().complain(place, message);
                    None
                }
            }
        };
        tables.into_iter().enumerate().filter_map(read).collect()
    });
    draft.handshake_timeout = target.read::<Time>("handshake-timeout").map(|time| time.0);
    draft.streams = target.read::<Followed>("streams").map(|followed| followed.0);
}

/// The CSV file or the file of URLs.
fn read_table(target: &Section<'_, '_>, directory: &Path) -> Option<Arc<Table>> {
    let data = target.text("data");
    let urls = target.text("urls");
    if data.is_some() && urls.is_some() {
        target.complain_at(
            "urls",
            "there is a file of data already; give it a column of URLs instead",
        );
    }
    type Read = fn(&Path) -> Result<Table, TableError>;
    let (key, read): (_, Read) = match data.is_some() {
        true => ("data", Table::read_csv),
        false => ("urls", Table::read_urls),
    };
    let path = directory.join(data.or(urls)?);
    read(&path).map_err(|error| target.complain_at(key, error)).ok().map(Arc::new)
}

fn read_publish(publish: &Section<'_, '_>) -> DraftPublish {
    DraftPublish {
        by_websocket: publish.read::<IsWebSocket>("by").map(|by| by.0),
        method: publish.text("method"),
        url: publish.text("url"),
        headers: publish.pairs("headers"),
        body: publish.text("body"),
        refused: publish.text("refused"),
        connections: publish.read::<Count>("connections").map(|count| count.0),
        pipeline: publish.read::<Count>("pipeline").map(|count| count.0),
    }
}

#[cfg(test)]
mod tests;
