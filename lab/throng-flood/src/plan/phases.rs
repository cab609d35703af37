//! The phases of a plan: those that a file lists, and those that flags ask for.

use std::time::Duration;

use serde::Serialize;
use throng_settings::{Reader, Section};
use throng_units::{Count, Invalid, Rate, Size, Time};
use toml::de::DeTable;

use super::option_table::{Table, options};
use super::option_value::{Value, quoted};
use super::values::{Pattern, Share, Streams, hint};

/// One part of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Phase {
    /// Brings the number of clients to `to`.
    Ramp {
        /// Clients at the end.
        to: usize,
        /// Connects (or closes) per second; `None` for no limit.
        rate: Option<f64>,
        /// Connects in progress at a time, at most.
        in_flight: usize,
    },
    /// Receives, and publishes if `publish` is set.
    Hold {
        /// The length of the phase.
        time: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// Clients come and go: each second `rate` are closed and as many opened.
    Churn {
        /// The length of the phase.
        time: Duration,
        /// Clients per second.
        rate: f64,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// All clients lose their connections at once and reconnect as fast as they can. Ends when all
    /// are back, or at `timeout`.
    Storm {
        /// Time limit for all to be back.
        timeout: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// Some of the clients read slowly for a while, or not at all.
    Slow {
        /// The share of the clients, from 0 to 1.
        share: f64,
        /// Bytes per second that each of them reads; 0 for none.
        speed: usize,
        /// The length of the phase.
        time: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
}

/// The messages of a phase: an open loop, each sent at its scheduled time whether or not the one
/// before has arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Publishing {
    /// Messages per second.
    pub rate: f64,
    /// Stops after this many.
    pub count: Option<u64>,
    /// Bytes of each payload, the mark included.
    pub size: usize,
    /// The streams that get them.
    pub to: Pattern,
}

impl Phase {
    /// The messages to publish in it, if there are any.
    pub(crate) fn publishing(&self) -> Option<&Publishing> {
        match self {
            Phase::Hold { publish, .. }
            | Phase::Churn { publish, .. }
            | Phase::Storm { publish, .. }
            | Phase::Slow { publish, .. } => publish.as_ref(),
            Phase::Ramp { .. } => None,
        }
    }

    /// Its length; 0 for a ramp, whose length depends on the server.
    pub(super) fn time(&self) -> Duration {
        match self {
            Phase::Hold { time, .. } | Phase::Churn { time, .. } | Phase::Slow { time, .. } => {
                *time
            }
            Phase::Storm { timeout, .. } => *timeout,
            Phase::Ramp { .. } => Duration::ZERO,
        }
    }
}

/// The keys of all kinds of phases.
pub(super) const KEYS: &[&str] =
    &["do", "to", "rate", "in-flight", "time", "timeout", "share", "speed", "publish"];

/// The kinds of phases, each with the keys that it must have and those that it may have.
const KINDS: &[Kind] = &[
    ("ramp", &["to"], &["rate", "in-flight"]),
    ("hold", &["time"], &["publish"]),
    ("churn", &["time", "rate"], &["publish"]),
    ("storm", &["timeout"], &["publish"]),
    ("slow", &["share", "time"], &["speed", "publish"]),
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
            let speed = section.read::<Size>("speed").map_or(0, |speed| speed.0);
            Phase::Slow { share, speed, time: time("time")?, publish }
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

options! {
    /// The phases that flags can ask for: steps of clients, each held, then perhaps a storm. A file
    /// lists its phases instead. An option has the key of what it sets in them.
    LoadOptions, path "phases."
    in "Load" {
        "to" clients: Count = "1000", "N" as "clients" [short = 'n', conflicts_with = "plan"],
            "Clients";
        "steps" steps: Vec<Count>, "N,N…"
            [value_delimiter = ',', conflicts_with_all = ["plan", "phases.to"]],
            "Clients in steps, up or down; each is held";
        "rate" rate: Rate, "RATE" [value_parser = positive_rate, conflicts_with = "plan"],
            "Connects per second; unlimited by default";
        "in-flight" in_flight: Count = "256", "N" [conflicts_with = "plan"],
            "Connects in progress at a time, at most";
        "time" hold: Time = "10s", "TIME" as "hold" [conflicts_with = "plan"],
            "How long to hold the clients";
        "churn" churn: Rate, "RATE" [value_parser = positive_rate, conflicts_with = "plan"],
            "Clients per second that leave, and as many that join, while the others are held";
        "share" slow: Share, "SHARE" as "slow" [conflicts_with_all = ["plan", "phases.churn"]],
            "Share of the clients that stop reading while they are held, like 10%";
        "speed" slow_speed: Size, "SIZE" as "slow-speed"
            [conflicts_with = "plan", requires = "phases.share"],
            "Bytes that each of these reads per second, like 125KB for 1 Mbit/s; none if not given";
        "timeout" storm: Time, "TIME" as "storm" [conflicts_with = "plan"],
            "At the end all lose their connections at once; all must be back within this time";
    }
    in "Publishing" {
        "publish" publish: Rate, "RATE" [conflicts_with = "plan"],
            "Messages per second while clients are held, each sent at its scheduled time whether \
             or not the one before has arrived; 1 by default, 0 for none";
        "publish.size" size: Size = "128", "SIZE" as "size" [conflicts_with = "plan"],
            "Bytes of each message, at least 50";
        "publish.count" count: Count, "N" as "count" [conflicts_with = "plan"],
            "Messages in each step, at most";
        "publish.to" to: Pattern, "WHICH" as "to" [conflicts_with = "plan"],
            "Streams that get messages: one, in-turn or random; in turn by default";
    }
    tables {}
    others {}
}

fn positive_rate(text: &str) -> Result<Rate, Invalid> {
    let is_zero = || Invalid::new(text, "a rate: it must be more than 0");
    text.parse().and_then(|rate: Rate| if rate.0 > 0.0 { Ok(rate) } else { Err(is_zero()) })
}

impl LoadOptions {
    /// The phases: each step is ramped to and held, and a storm may follow.
    pub(super) fn phases(&self, streams: Streams, can_publish: bool) -> Vec<Phase> {
        let default_rate = if can_publish { 1.0 } else { 0.0 };
        let rate = self.publish.map_or(default_rate, |rate| rate.0);
        let publish = (rate > 0.0).then(|| Publishing {
            rate,
            count: self.count.map(|count| count.0 as u64),
            size: self.size().0,
            to: self.to.unwrap_or_else(|| Pattern::default_for(streams)),
        });
        let (time, in_flight) = (self.hold().0, self.in_flight().0);
        let mut phases = Vec::new();
        for Count(to) in self.steps.clone().unwrap_or_else(|| vec![self.clients()]) {
            phases.push(Phase::Ramp { to, rate: self.rate.map(|rate| rate.0), in_flight });
            let publish = publish.clone();
            let held = match (self.slow, self.churn) {
                _ if time.is_zero() => continue,
                (Some(Share(share)), _) => {
                    let speed = self.slow_speed.map_or(0, |speed| speed.0);
                    Phase::Slow { share, speed, time, publish }
                }
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
    let time = |time: &Duration| ("time", Time(*time).toml());
    let (kind, mut values) = match phase {
        Phase::Ramp { to, rate, in_flight } => {
            let mut values = vec![("to", Count(*to).toml())];
            values.extend(rate.map(|rate| ("rate", Rate(rate).toml())));
            values.push(("in-flight", Count(*in_flight).toml()));
            ("ramp", values)
        }
        Phase::Hold { time: hold, .. } => ("hold", vec![time(hold)]),
        Phase::Churn { time: hold, rate, .. } => {
            ("churn", vec![time(hold), ("rate", Rate(*rate).toml())])
        }
        Phase::Storm { timeout, .. } => ("storm", vec![("timeout", Time(*timeout).toml())]),
        Phase::Slow { share, speed, time: hold, .. } => {
            let mut values = vec![("share", Share(*share).toml()), time(hold)];
            values.extend((*speed > 0).then(|| ("speed", quoted(&Size(*speed).to_string()))));
            ("slow", values)
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
