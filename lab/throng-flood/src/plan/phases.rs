//! Phases: those that a file lists, and those that flags ask for.

use throng_settings::{Reader, Section};
use throng_units::{Count, Rate, Size, Time};
use toml::de::DeTable;

use super::model::Target;
use super::option_value::{Value, quoted};
use super::options::LoadOptions;
use super::phase::{Phase, Publishing};
use super::values::{Pattern, Share, Streams, hint};

/// The keys of all kinds of phases.
pub(super) const KEYS: &[&str] =
    &["do", "to", "rate", "in-flight", "time", "timeout", "share", "publish"];

/// The kinds of phases, each with the keys that it must have and those that it may have.
const KINDS: &[Kind] = &[
    ("ramp", &["to"], &["rate", "in-flight"]),
    ("hold", &["time"], &["publish"]),
    ("churn", &["time", "rate"], &["publish"]),
    ("storm", &["timeout"], &["publish"]),
    ("slow", &["share", "time"], &["publish"]),
];

type Kind = (&'static str, &'static [&'static str], &'static [&'static str]);

const PUBLISHING_KEYS: &[&str] = &["rate", "count", "size", "to"];

/// Reads the phases of a file; `None` if it lists none.
pub(super) fn read(plan: &Section<'_, '_>, key: &str, streams: Streams) -> Option<Vec<Phase>> {
    let read = |(position, table)| read_phase(plan.reader(), position, table, streams);
    Some(plan.tables(key)?.into_iter().filter_map(read).collect())
}

fn read_phase(
    reader: &Reader,
    position: usize,
    table: &DeTable<'_>,
    streams: Streams,
) -> Option<Phase> {
    let (kind, required, optional) = read_kind(reader, position, table)?;
    let section = reader.section(table, &[&["do"], required, optional].concat());
    for key in required.iter().filter(|key| !section.has(key)) {
        reader.error(position, format!("{kind}: {key} is missing"));
    }
    let publish = read_publishing(&section, streams);
    let clients = |key| section.read::<Count>(key).map(|count| count.0);
    let time = |key| section.read::<Time>(key).map(|time| time.0);
    let rate = || section.read::<Rate>("rate").map(|rate| rate.0);
    Some(match kind {
        "ramp" => {
            let in_flight = clients("in-flight");
            let in_flight = in_flight.unwrap_or_else(|| LoadOptions::default().in_flight().0);
            Phase::Ramp { to: clients("to")?, rate: rate(), in_flight }
        }
        "hold" => Phase::Hold { time: time("time")?, publish },
        "churn" => Phase::Churn { time: time("time")?, rate: rate()?, publish },
        "storm" => Phase::Storm { timeout: time("timeout")?, publish },
        _ => {
            let share = section.read::<Share>("share")?.0;
            Phase::Slow { share, time: time("time")?, publish }
        }
    })
}

fn read_kind(reader: &Reader, position: usize, table: &DeTable<'_>) -> Option<Kind> {
    let names = || KINDS.iter().map(|(name, ..)| *name);
    let Some(written) = table.get("do") else {
        let known = names().collect::<Vec<_>>().join(", ");
        reader.error(position, format!("a phase says what to do: do = one of {known}"));
        return None;
    };
    let name = written.get_ref().as_str().unwrap_or_default();
    let found = KINDS.iter().find(|(known, ..)| *known == name);
    if found.is_none() {
        let hint = hint(name, names());
        reader.error(written.span().start, format!("do: there is no phase {name:?}; {hint}"));
    }
    found.copied()
}

fn read_publishing(phase: &Section<'_, '_>, streams: Streams) -> Option<Publishing> {
    let section = phase.table("publish", PUBLISHING_KEYS)?;
    let rate = section.read::<Rate>("rate");
    if rate.is_none() {
        let message = "says how many messages a second, like publish = { rate = 10 }";
        phase.error_at("publish", message);
    }
    Some(Publishing {
        rate: rate?.0,
        count: section.read::<Count>("count").map(|count| count.0 as u64),
        size: section.read::<Size>("size").unwrap_or_else(|| LoadOptions::default().size()).0,
        to: section.read("to").unwrap_or_else(|| Pattern::default_for(streams)),
    })
}

impl LoadOptions {
    /// The phases: each step is ramped to and held, and a storm may follow.
    pub(super) fn phases(&self, target: &Target) -> Vec<Phase> {
        let default_rate = if target.publish.is_some() { 1.0 } else { 0.0 };
        let rate = self.publish.map_or(default_rate, |rate| rate.0);
        let publish = (rate > 0.0).then(|| Publishing {
            rate,
            count: self.count.map(|count| count.0 as u64),
            size: self.size().0,
            to: self.to.unwrap_or_else(|| Pattern::default_for(target.streams)),
        });
        let (time, in_flight) = (self.hold().0, self.in_flight().0);
        let mut phases = Vec::new();
        for Count(to) in self.steps.clone().unwrap_or_else(|| vec![self.clients()]) {
            phases.push(Phase::Ramp { to, rate: self.rate.map(|rate| rate.0), in_flight });
            let publish = publish.clone();
            let held = match (self.slow, self.churn) {
                _ if time.is_zero() => continue,
                (Some(Share(share)), _) => Phase::Slow { share, time, publish },
                (None, Some(Rate(rate))) => Phase::Churn { time, rate, publish },
                (None, None) => Phase::Hold { time, publish },
            };
            phases.push(held);
        }
        if let Some(Time(timeout)) = self.storm {
            phases.push(Phase::Storm { timeout, publish });
        }
        phases
    }
}

/// The phase as a table of a file.
pub(super) fn write(phase: &Phase, text: &mut String) {
    let (kind, mut values) = match phase {
        Phase::Ramp { to, rate, in_flight } => {
            let mut values = vec![("to", Count(*to).toml())];
            values.extend(rate.map(|rate| ("rate", Rate(rate).toml())));
            values.push(("in-flight", Count(*in_flight).toml()));
            ("ramp", values)
        }
        Phase::Hold { time, .. } => ("hold", vec![("time", Time(*time).toml())]),
        Phase::Churn { time, rate, .. } => {
            ("churn", vec![("time", Time(*time).toml()), ("rate", Rate(*rate).toml())])
        }
        Phase::Storm { timeout, .. } => ("storm", vec![("timeout", Time(*timeout).toml())]),
        Phase::Slow { share, time, .. } => {
            ("slow", vec![("share", Share(*share).toml()), ("time", Time(*time).toml())])
        }
    };
    values.extend(phase.publishing().map(|publishing| ("publish", inline(publishing))));
    text.push_str(&format!("\n[[phases]]\ndo = {}\n", quoted(kind)));
    for (key, value) in values {
        text.push_str(&format!("{key} = {value}\n"));
    }
}

fn inline(publishing: &Publishing) -> String {
    let (rate, size) = (Rate(publishing.rate).toml(), quoted(&Size(publishing.size).to_string()));
    let count = publishing.count.map_or(String::new(), |count| format!(", count = {count}"));
    format!("{{ rate = {rate}, size = {size}, to = {}{count} }}", publishing.to.toml())
}
