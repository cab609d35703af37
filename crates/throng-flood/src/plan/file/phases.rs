//! `[[phases]]`: what happens, one after the other.

use toml::de::DeTable;

use super::reader::{Reader, Section};
use crate::plan::draft::{IN_FLIGHT, SIZE, usual_pattern};
use crate::plan::words::{Share, To};
use crate::plan::{Phase, Publishing, Streams};
use throng_units::suggest::nearest;
use throng_units::{Count, Rate, Size, Time};

/// Every key of any phase.
pub(super) const ALL: &[&str] =
    &["do", "to", "rate", "in-flight", "time", "timeout", "share", "publish"];

/// The kinds, and the keys of each.
const KINDS: &[(&str, &[&str])] = &[
    ("ramp", &["do", "to", "rate", "in-flight"]),
    ("hold", &["do", "time", "publish"]),
    ("churn", &["do", "time", "rate", "publish"]),
    ("storm", &["do", "timeout", "publish"]),
    ("slow", &["do", "share", "time", "publish"]),
];

const PUBLISHING: &[&str] = &["rate", "count", "size", "to"];

pub(super) fn read(plan: &Section<'_, '_>, streams: Streams) -> Option<Vec<Phase>> {
    let tables = plan.tables("phases")?;
    let reader = plan.reader();
    let read = |(number, (place, table)): (usize, (usize, &DeTable<'_>))| {
        phase(reader, format!("phases.{number}"), place, table, streams)
    };
    Some(tables.into_iter().enumerate().filter_map(read).collect())
}

fn phase(
    reader: &Reader,
    path: String,
    place: usize,
    table: &DeTable<'_>,
    streams: Streams,
) -> Option<Phase> {
    let names = || KINDS.iter().map(|(name, _)| *name);
    let Some(written) = table.get("do") else {
        let known = names().collect::<Vec<_>>().join(", ");
        reader.complain(place, format!("a phase says what to do: do = one of {known}"));
        return None;
    };
    let name = written.get_ref().as_str().unwrap_or_default();
    let Some((kind, keys)) = KINDS.iter().find(|(known, _)| *known == name) else {
        let hint = match nearest(name, names()) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("known are {}", names().collect::<Vec<_>>().join(", ")),
        };
        let message = format!("do: there is no phase {:?}; {hint}", name);
        reader.complain(written.span().start, message);
        return None;
    };
    let section = reader.section(path, table, keys);
    let needed = |key: &str| {
        if table.get(key).is_none() {
            reader.complain(place, format!("{kind}: {key} is missing"));
        }
    };
    let time = |key: &str| section.read::<Time>(key).map(|time| time.0);
    let publish = publishing(&section, streams);
    Some(match *kind {
        "ramp" => {
            needed("to");
            Phase::Ramp {
                to: section.read::<Count>("to")?.0,
                rate: section.read::<Rate>("rate").map(|rate| rate.0),
                in_flight: section.read::<Count>("in-flight").map_or(IN_FLIGHT, |count| count.0),
            }
        }
        "hold" => {
            needed("time");
            Phase::Hold { time: time("time")?, publish }
        }
        "churn" => {
            needed("time");
            needed("rate");
            Phase::Churn { time: time("time")?, rate: section.read::<Rate>("rate")?.0, publish }
        }
        "storm" => {
            needed("timeout");
            Phase::Storm { timeout: time("timeout")?, publish }
        }
        _ => {
            needed("time");
            needed("share");
            let share = section.read::<Share>("share")?.0;
            Phase::Slow { share, time: time("time")?, publish }
        }
    })
}

fn publishing(phase: &Section<'_, '_>, streams: Streams) -> Option<Publishing> {
    let section = phase.table("publish", PUBLISHING)?;
    let rate = section.read::<Rate>("rate");
    if rate.is_none() {
        let message = "says how many messages a second, like publish = { rate = 10 }";
        phase.complain_at("publish", message);
    }
    Some(Publishing {
        rate: rate?.0,
        count: section.read::<Count>("count").map(|count| count.0 as u64),
        size: section.read::<Size>("size").map_or(SIZE, |size| size.0),
        to: section.read::<To>("to").map_or_else(|| usual_pattern(streams), |to| to.0),
    })
}
