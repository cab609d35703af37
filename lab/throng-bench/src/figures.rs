//! The figures of a benchmark's runs, by name; and the table of measures.
//!
//! | name | figures |
//! |---|---|
//! | `RUN.PHASE.MEASURE` | one for each run of this name and each of its phases of this name |
//! | `RUN.total.MEASURE` | the whole load of each run |
//! | `RUN.samples.FIELD` | one for each second of each run |
//! | `RUN.FIGURE` | what a program, plain requests or the file itself gave |
//! | `clients`, `time`, `cores` | the size of the execution, and the machine |
//! | `kib`, `mib`, `gib` | numbers |
//!
//! `all` stands for every run in its order. Without a run, every run is meant, too. A measure is a
//! row of [`Catalogue`] or a path in the report's JSON.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;
use throng_flood::report::{Report, Totals};

use crate::expression::{self, Figure};
use crate::file::{Measure, Size, figure_name, is_unit};

/// The table of measures.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Catalogue(BTreeMap<String, Row>);

/// A row of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Row {
    name: String,
    unit: String,
    better: Option<String>,
    #[serde(default)]
    per_connection: bool,
    /// Expression over the JSON of a phase.
    read: String,
}

/// The figures of one run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFigures {
    pub(crate) name: String,
    pub(crate) clients: usize,
    /// Name and JSON of each phase, then `total`.
    phases: Vec<(String, Value)>,
    samples: Vec<Value>,
    /// Figures of programs, of plain requests, and of the file itself.
    given: BTreeMap<String, Vec<Figure>>,
}

/// The figures of all runs.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) size: Size,
    pub(crate) cores: f64,
    pub(crate) runs: Vec<RunFigures>,
}

impl Catalogue {
    pub(crate) fn embedded() -> &'static Catalogue {
        static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
        CATALOGUE.get_or_init(|| {
            let read = toml::from_str(include_str!("../measures.toml"));
            // A test reads it.
            read.unwrap_or_else(|error| unreachable!("measures.toml: {error}"))
        })
    }

    /// True if a name is a row or a path of totals.
    pub(crate) fn knows(&self, measure: &str) -> bool {
        static TOTALS: OnceLock<Value> = OnceLock::new();
        let totals = TOTALS.get_or_init(|| json(&Totals::default(), 0.0, None));
        let first = measure.split('.').next().unwrap_or_default();
        self.0.contains_key(measure) || totals.get(first).is_some()
    }

    /// Fills in what a measure leaves to its row.
    pub(crate) fn complete(&self, measure: &mut Measure) -> Result<(), String> {
        let words =
            measure.value.split(|next: char| !next.is_alphanumeric() && !"._".contains(next));
        let end =
            words.filter_map(|word| Some(word.rsplit_once('.')?.1)).next().unwrap_or_default();
        let filled = |text: &mut String, default: &str| {
            if text.is_empty() {
                default.clone_into(text);
            }
        };
        filled(&mut measure.key, end);
        if let Some(row) = self.0.get(end) {
            // A ratio has another unit, and a better direction of its own.
            if measure.unit.is_empty() {
                measure.better = measure.better.take().or_else(|| row.better.clone());
                measure.per_connection |= row.per_connection;
            }
            filled(&mut measure.name, &row.name);
            filled(&mut measure.unit, &row.unit);
        }
        let is_direction =
            measure.better.as_deref().is_none_or(|better| ["less", "more"].contains(&better));
        if measure.name.is_empty() || !is_unit(&measure.unit) || !is_direction {
            let value = &measure.value;
            return Err(format!(
                "{value:?} needs a name, a unit, and perhaps better = \"less\" or \"more\""
            ));
        }
        Ok(())
    }

    /// A measure of a phase.
    fn read(&self, measure: &str, phase: &Value, cores: f64) -> Option<f64> {
        let path = |name: &str| phase.pointer(&format!("/{}", name.replace('.', "/")));
        let Some(row) = self.0.get(measure) else { return path(measure)?.as_f64() };
        let names = |name: &str| {
            let value =
                if name == "cores" { Some(cores) } else { path(name).and_then(Value::as_f64) };
            Some(vec![Figure::of(value, 0)])
        };
        expression::figure(&row.read, &names).ok()?.value
    }
}

impl RunFigures {
    pub(crate) fn new(name: &str, clients: usize) -> RunFigures {
        RunFigures { name: figure_name(name), clients, ..RunFigures::default() }
    }

    /// Adds the report of its load, whose phases have these names.
    pub(crate) fn add(&mut self, report: &Report, names: &[String]) {
        self.phases.extend(report.phases.iter().zip(names).map(|(phase, name)| {
            let seconds = phase.to_s - phase.from_s;
            (name.clone(), json(&phase.totals, seconds, phase.recovered_s))
        }));
        self.phases.push(("total".to_owned(), json(&report.total, report.seconds, None)));
        let sample = |sample| serde_json::to_value(sample).unwrap_or_default();
        self.samples.extend(report.series.iter().map(sample));
    }

    /// Adds a figure to the list of its name.
    pub(crate) fn give(&mut self, name: &str, figure: Figure) {
        self.given.entry(name.to_owned()).or_default().push(figure);
    }

    /// The figures of `PHASE.MEASURE`, `samples.FIELD` or `FIGURE`.
    fn get(&self, place: &str, cores: f64) -> Vec<Figure> {
        if let Some(given) = self.given.get(place) {
            return given.clone();
        }
        let (phase, measure) = place.split_once('.').unwrap_or((place, ""));
        let figure = |(name, totals): &(String, Value)| {
            let active = totals["active"].as_u64().unwrap_or_default() as usize;
            let clients = if name == "total" { self.clients } else { active };
            Figure::of(Catalogue::embedded().read(measure, totals, cores), clients)
        };
        let sample = |sample: &Value| Figure::of(sample[measure].as_f64(), self.clients);
        match phase {
            "samples" => self.samples.iter().map(sample).collect(),
            _ => self.phases.iter().filter(|(name, _)| name == phase).map(figure).collect(),
        }
    }
}

/// The JSON of a phase.
fn json(totals: &Totals, seconds: f64, recovered_s: Option<f64>) -> Value {
    let mut json = serde_json::to_value(totals).unwrap_or_default();
    json["seconds"] = seconds.into();
    json["recovered_s"] = recovered_s.into();
    json["failed"] = totals.failures.values().sum::<u64>().into();
    json
}

impl Figures {
    /// The figures of a name; a name that nothing has measured stands for none.
    pub(crate) fn lookup(&self, name: &str) -> Option<Vec<Figure>> {
        let constant_of = |value: f64| vec![Figure::of(Some(value), 0)];
        match name {
            "clients" => return Some(constant_of(self.size.connections as f64)),
            "time" => return Some(constant_of(self.size.time.as_secs_f64())),
            "cores" => return Some(constant_of(self.cores)),
            _ => {}
        }
        if let Some(found) = expression::constant(name) {
            return Some(found);
        }
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        let is_run = first == "all" || self.runs.iter().any(|run| run.name == first);
        let place = if is_run { rest } else { name };
        let is_meant = |run: &&RunFigures| !is_run || first == "all" || run.name == first;
        let runs = self.runs.iter().filter(is_meant);
        Some(runs.flat_map(|run| run.get(place, self.cores)).collect())
    }

    /// The value of an expression over everything measured.
    pub(crate) fn figure(&self, text: &str) -> Figure {
        let found = expression::figure(text, &|name| self.lookup(name));
        debug_assert!(found.is_ok(), "expressions are checked when a file is read: {found:?}");
        found.unwrap_or_default()
    }

    /// The list of an expression.
    pub(crate) fn list(&self, text: &str) -> Vec<Figure> {
        expression::list(text, &|name| self.lookup(name)).unwrap_or_default()
    }
}
