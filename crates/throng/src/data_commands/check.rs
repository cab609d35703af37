//! `throng data check`: whether everything can be read and fits together.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use throng_access::kept;
use throng_core::MessageId;
use throng_core::records::Table;
use throng_data::logs::names_of_marker;
use throng_units::format::{count, counted, seconds};

use super::store::StoppedStore;
use crate::terminal::{self, EXIT_RUNTIME};

/// Faults that are printed. A directory with more is lost, and a terminal with all of them is of no
/// use.
const PRINTED_MAX: u64 = 1_000;

/// The faults found, as they are printed.
#[derive(Default)]
struct Faults {
    count: u64,
    failure: Option<std::io::Error>,
}

impl Faults {
    fn add(&mut self, fault: &str) {
        self.count += 1;
        if self.count <= PRINTED_MAX && self.failure.is_none() {
            self.failure = terminal::print(&format!("{fault}\n")).err();
        }
    }
}

/// Prints what is wrong, and how much was looked at.
pub(super) fn check(store: &StoppedStore) -> Result<ExitCode> {
    let (begin, mut faults) = (Instant::now(), Faults::default());
    let checked = store.logs.check(&mut |fault| faults.add(fault));
    let subscriptions = records(store, Table::Subscriptions, &mut faults, |key, _| {
        kept::parse_stored(key).is_some()
    });
    let is_id = |value: &[u8]| {
        let id = std::str::from_utf8(value).ok().and_then(|id| id.parse::<MessageId>().ok());
        id.is_some()
    };
    let of_inboxes = records(store, Table::ReadMarkers, &mut faults, |key, value| {
        std::str::from_utf8(key).is_ok() && is_id(value)
    });
    let of_channels = records(store, Table::ChannelMarkers, &mut faults, |key, value| {
        names_of_marker(key).is_some() && is_id(value)
    });
    let keys =
        records(store, Table::MarkedChannels, &mut faults, |key, _| names_of_marker(key).is_some());
    if keys != of_channels {
        faults.add(&format!("of {of_channels} read markers in channels there are {keys} keys"));
    }
    let markers = of_inboxes + of_channels;
    records(store, Table::UserErasures, &mut faults, |key, value| {
        std::str::from_utf8(key).is_ok() && value.len() == size_of::<u64>()
    });
    let Faults { count: found, failure } = faults;
    failure.map_or(Ok(()), Err)?;
    if found > PRINTED_MAX {
        terminal::print(&format!("and {} more\n", count(found - PRINTED_MAX)))?;
    }
    let result = match found {
        0 => "nothing is wrong".to_owned(),
        1 => "1 thing is wrong".to_owned(),
        more => format!("{} things are wrong", count(more)),
    };
    terminal::print(&format!(
        "{} of {}, {}, {}, {}, in {}: {result}\n",
        counted(checked.messages, "message", "messages"),
        counted(checked.channels, "channel or user", "channels and users"),
        counted(subscriptions, "subscription", "subscriptions"),
        counted(markers, "read marker", "read markers"),
        counted(checked.keys, "idempotency key", "idempotency keys"),
        seconds(begin.elapsed().as_secs_f64()),
    ))?;
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_RUNTIME) })
}

/// Reads a table of other state. Returns how many entries it has.
fn records(
    store: &StoppedStore,
    table: Table,
    faults: &mut Faults,
    is_whole: impl Fn(&[u8], &[u8]) -> bool,
) -> u64 {
    let what = table.noun();
    let mut entries = 0;
    let read = store.logs.visit_records(table, &[], &mut |key, value| {
        entries += 1;
        if !is_whole(key, value) {
            let key = String::from_utf8_lossy(key);
            faults.add(&format!("a {what} cannot be read, with the key {key:?}"));
        }
        ControlFlow::Continue(())
    });
    if let Err(error) = read {
        faults.add(&format!("the {what}s cannot be read after {entries}: {error}"));
    }
    entries
}
