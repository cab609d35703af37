//! Assertions, checked at the end of a run: `lost == 0`, `p99 < 50ms`, `storm.recovered < 30s`.
//!
//! An assertion is a metric of the report, a comparison and a bound with the metric's unit. A
//! metric that could not be measured fails its assertion: a check that checks nothing must not
//! pass.

mod metrics;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::report::{AssertionResult, Report};
use throng_units::suggest::nearest;
use throng_units::{Count, Size, Time};

use metrics::MetricUnit;
pub(crate) use metrics::{Metric, Requirement};

/// A condition on a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Assertion {
    text: String,
    metric: Metric,
    comparison: Comparison,
    /// In the unit that was written …
    bound: f64,
    /// … and how much of the report's unit that is.
    factor: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// Those of two characters first, so that `<=` is not read as `<`.
const COMPARISONS: [(&str, Comparison); 8] = [
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("≤", Comparison::LessOrEqual),
    ("≥", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// An assertion that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssertionError {
    /// The text has no comparison.
    #[error(
        "{text:?} is not an assertion: a measurement, one of < <= > >= == !=, and a bound, like \
         \"lost == 0\" or \"p99 < 50ms\""
    )]
    Shape {
        /// The text as written.
        text: String,
    },
    /// No metric has this name.
    #[error("there is no measurement {name:?}; {hint}")]
    Metric {
        /// The name as written.
        name: String,
        /// The name that may be meant, or the known ones.
        hint: String,
    },
    /// The bound is not a number, or not in a unit of the metric.
    #[error("{bound:?} is not a bound for {metric}, which is {expected}")]
    Bound {
        /// The bound as written.
        bound: String,
        /// The metric's name.
        metric: String,
        /// The accepted form.
        expected: &'static str,
    },
}

impl Assertion {
    /// The outcome for a run.
    pub(crate) fn evaluate(&self, report: &Report) -> AssertionResult {
        let report = serde_json::to_value(report).unwrap_or_default();
        let found = self.metric.find(&report).filter(|found| found.is_finite());
        let found = found.map(|found| found / self.factor);
        let holds = found.is_some_and(|found| self.comparison.holds(found, self.bound));
        AssertionResult { text: self.text.clone(), found, holds }
    }

    /// The condition on the plan, without which the metric is not measured.
    pub(crate) fn requirement(&self) -> Option<Requirement> {
        self.metric.requirement()
    }
}

impl Comparison {
    fn holds(self, found: f64, bound: f64) -> bool {
        match self {
            Comparison::Less => found < bound,
            Comparison::LessOrEqual => found <= bound,
            Comparison::Greater => found > bound,
            Comparison::GreaterOrEqual => found >= bound,
            Comparison::Equal => found == bound,
            Comparison::NotEqual => found != bound,
        }
    }
}

impl FromStr for Assertion {
    type Err = AssertionError;

    fn from_str(text: &str) -> Result<Assertion, AssertionError> {
        let text = text.trim();
        let shape = || AssertionError::Shape { text: text.to_owned() };
        let place = text.find(['<', '>', '=', '!', '≤', '≥']).ok_or_else(shape)?;
        let (name, rest) = (text[..place].trim(), &text[place..]);
        let (comparison, bound) = COMPARISONS
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, rest.strip_prefix(sign)?.trim())))
            .ok_or_else(shape)?;
        if name.is_empty() || bound.is_empty() {
            return Err(shape());
        }
        let metric = Metric::named(name).ok_or_else(|| unknown(name))?;
        let (bound, factor) = metric.unit().read(bound).ok_or_else(|| AssertionError::Bound {
            bound: bound.to_owned(),
            metric: name.to_owned(),
            expected: metric.unit().expected(),
        })?;
        Ok(Assertion { text: text.to_owned(), metric, comparison, bound, factor })
    }
}

fn unknown(name: &str) -> AssertionError {
    let names = metrics::names();
    let hint = match nearest(name, names.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => {
            "known are lost, duplicated, reordered, failures, p50 to max, connect.p99, last.p99, \
                 connect_rate, server.bytes_per_client, storm.recovered and others: see the guide"
                .to_owned()
        }
    };
    AssertionError::Metric { name: name.to_owned(), hint }
}

impl MetricUnit {
    /// A bound in the unit that is written, and how much of the report's unit that is.
    fn read(self, text: &str) -> Option<(f64, f64)> {
        let of_time = |own_ns: f64| match Time::parts(text)? {
            (number, Some(unit_ns)) => Some((number, unit_ns / own_ns)),
            // Everywhere else a number alone counts seconds, but a bound of `p99 < 50` was meant to
            // be milliseconds; zero is zero.
            (number, None) => (number == 0.0).then_some((number, 1.0)),
        };
        match self {
            // Values are shown in full: `connect_rate >= 10k` found 12,345, not 12.3.
            MetricUnit::Plain => Count::parts(text).map(|(number, unit)| in_full(number, unit)),
            MetricUnit::Rate => Count::parts(text.strip_suffix("/s").unwrap_or(text))
                .map(|(number, unit)| in_full(number, unit)),
            MetricUnit::Bytes => {
                Size::parts(text).map(|(number, unit)| (number, unit.unwrap_or(1.0)))
            }
            MetricUnit::Milliseconds => of_time(1e6),
            MetricUnit::Microseconds => of_time(1e3),
            MetricUnit::Seconds => of_time(1e9),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            MetricUnit::Plain => "a number, like 0 or 10k",
            MetricUnit::Rate => "a number per second, like 1000 or 10k",
            MetricUnit::Bytes => "a number of bytes, like 128 or 64KiB",
            MetricUnit::Milliseconds | MetricUnit::Microseconds | MetricUnit::Seconds => {
                "a time, like 50ms, 100us or 1.5s"
            }
        }
    }
}

fn in_full(number: f64, unit: Option<f64>) -> (f64, f64) {
    (number * unit.unwrap_or(1.0), 1.0)
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Assertion {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
