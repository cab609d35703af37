//! `throng data export`: messages, subscriptions and read markers as lines of JSON.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use throng_access::kept;
use throng_core::clock;
use throng_core::records::Table;
use throng_data::logs::names_of_marker;

use super::store::StoppedStore;
use crate::terminal::ignore_closed_pipe;

/// Size of the file's buffer: fewer, larger writes.
const BUFFER_BYTES: usize = 1 << 20;

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    /// Where it goes takes no more.
    #[error("{0}")]
    Out(#[from] io::Error),
    #[error("the data directory cannot be read: {0}")]
    Store(#[from] throng_data::storage::StorageError),
    /// An entry that this build does not write.
    #[error("a {0} cannot be read; `throng data check` says which")]
    Entry(&'static str),
}

/// Writes everything to a file, or to standard output.
pub(super) fn export(store: &StoppedStore, file: Option<&Path>) -> Result<()> {
    let Some(path) = file else {
        let out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
        return match write(store, out) {
            Err(ExportError::Out(error)) => Ok(ignore_closed_pipe(Err(error))?),
            other => Ok(other.map(drop)?),
        };
    };
    let shown = path.display();
    // As the directory: for nobody else to read.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = made.with_context(|| format!("cannot make the file {shown}"))?;
    let out = BufWriter::with_capacity(BUFFER_BYTES, file);
    let failed = || format!("the export to {shown} is not whole");
    let out = write(store, out).with_context(failed)?;
    out.get_ref().sync_all().with_context(failed)
}

fn write<W: Write>(
    store: &StoppedStore,
    mut out: BufWriter<W>,
) -> Result<BufWriter<W>, ExportError> {
    messages(store, &mut out)?;
    records(store, Table::Subscriptions, &mut out, |key, _| {
        let (user, channel) = kept::parse_stored(key)?;
        Some(json!({ "type": "subscription", "user": user, "channel": channel }))
    })?;
    records(store, Table::ReadMarkers, &mut out, |key, value| {
        let (user, id) = (std::str::from_utf8(key).ok()?, std::str::from_utf8(value).ok()?);
        Some(json!({ "type": "read_marker", "user": user, "read": id }))
    })?;
    records(store, Table::ChannelMarkers, &mut out, |key, value| {
        let (user, channel) = names_of_marker(key)?;
        let id = std::str::from_utf8(value).ok()?;
        Some(json!({ "type": "read_marker", "user": user, "channel": channel, "read": id }))
    })?;
    out.flush()?;
    Ok(out)
}

/// Messages as subscribers get them; those that have expired are left out.
fn messages(store: &StoppedStore, out: &mut impl Write) -> Result<(), ExportError> {
    let (mut line, mut failure, now_ms) = (Vec::new(), None, clock::now_ms());
    store.logs.visit_all(&mut |content| {
        if content.is_expired(now_ms) {
            return ControlFlow::Continue(());
        }
        line.clear();
        content.write_envelope(&mut line);
        line.push(b'\n');
        go_on(out.write_all(&line), &mut failure)
    })?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// A table of other state, by lines that `line` makes.
fn records(
    store: &StoppedStore,
    table: Table,
    out: &mut impl Write,
    line: impl Fn(&[u8], &[u8]) -> Option<serde_json::Value>,
) -> Result<(), ExportError> {
    let (mut failure, mut is_broken) = (None, false);
    store.logs.visit_records(table, &[], &mut |key, value| match line(key, value) {
        Some(line) => go_on(writeln!(out, "{line}"), &mut failure),
        None => {
            is_broken = true;
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    if is_broken { Err(ExportError::Entry(table.noun())) } else { Ok(()) }
}

/// Ends the reading at the first write that fails.
fn go_on(written: io::Result<()>, failure: &mut Option<io::Error>) -> ControlFlow<()> {
    match written {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            *failure = Some(error);
            ControlFlow::Break(())
        }
    }
}
