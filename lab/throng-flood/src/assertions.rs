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
use throng_units::{Count, Invalid, Size, Time};

use metrics::MetricUnit;
pub(crate) use metrics::{Metric, Requirement};

/// A condition on a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Assertion {
    text: String,
    metric: &'static Metric,
    /// One of [`COMPARISONS`].
    sign: &'static str,
    /// In the unit that was written …
    bound: f64,
    /// … and how much of the report's unit that is.
    factor: f64,
}

type Comparison = fn(&f64, &f64) -> bool;

/// Those of two characters first, so that `<=` is not read as `<`.
const COMPARISONS: [(&str, Comparison); 8] = [
    ("<=", f64::le),
    (">=", f64::ge),
    ("==", f64::eq),
    ("!=", f64::ne),
    ("≤", f64::le),
    ("≥", f64::ge),
    ("<", f64::lt),
    (">", f64::gt),
];

const SHAPE: &str = "an assertion: a measurement, one of < <= > >= == !=, and a bound, like \
                     \"lost == 0\" or \"p99 < 50ms\"";

impl Assertion {
    /// The outcome for a run.
    pub(crate) fn evaluate(&self, report: &Report) -> AssertionResult {
        let report = serde_json::to_value(report).unwrap_or_default();
        let found = self.metric.find(&report).filter(|found| found.is_finite());
        let found = found.map(|found| found / self.factor);
        let holds = found.is_some_and(|found| {
            COMPARISONS.iter().any(|(sign, holds)| *sign == self.sign && holds(&found, &self.bound))
        });
        AssertionResult { text: self.text.clone(), found, holds }
    }

    /// The condition on the plan, without which the metric is not measured.
    pub(crate) fn requirement(&self) -> Option<Requirement> {
        self.metric.requirement
    }
}

impl FromStr for Assertion {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Assertion, Invalid> {
        let text = text.trim();
        let shape = || Invalid::new(text, SHAPE);
        let place = text.find(['<', '>', '=', '!', '≤', '≥']).ok_or_else(shape)?;
        let (name, rest) = (text[..place].trim(), &text[place..]);
        let (sign, bound) = COMPARISONS
            .iter()
            .find_map(|(sign, _)| Some((*sign, rest.strip_prefix(sign)?.trim())))
            .ok_or_else(shape)?;
        if name.is_empty() || bound.is_empty() {
            return Err(shape());
        }
        let metric = Metric::named(name).ok_or_else(|| unknown(name))?;
        let (bound, factor) = metric.unit.read(bound).ok_or_else(|| {
            let expected = metric.unit.expected();
            Invalid::new(bound, format!("a bound for {name}, which is {expected}"))
        })?;
        Ok(Assertion { text: text.to_owned(), metric, sign, bound, factor })
    }
}

fn unknown(name: &str) -> Invalid {
    let hint = match nearest(name, metrics::names()) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => {
            "known are lost, duplicated, reordered, failures, p50 to max, connect.p99, last.p99, \
                 connect_rate, server.bytes_per_client, storm.recovered and others: see the guide"
                .to_owned()
        }
    };
    Invalid(format!("there is no measurement {name:?}; {hint}"))
}

impl MetricUnit {
    /// A bound in the unit that is written, and how much of the report's unit that is.
    fn read(self, text: &str) -> Option<(f64, f64)> {
        let own_ns = match self {
            // Values are shown in full: `connect_rate >= 10k` found 12,345, not 12.3.
            MetricUnit::Plain | MetricUnit::Rate => {
                let plain = text.strip_suffix("/s").filter(|_| self == MetricUnit::Rate);
                let (number, unit) = Count::parts(plain.unwrap_or(text))?;
                return Some((number * unit.unwrap_or(1.0), 1.0));
            }
            MetricUnit::Bytes => {
                return Size::parts(text).map(|(number, unit)| (number, unit.unwrap_or(1.0)));
            }
            MetricUnit::Milliseconds => 1e6,
            MetricUnit::Microseconds => 1e3,
            MetricUnit::Seconds => 1e9,
        };
        match Time::parts(text)? {
            (number, Some(unit_ns)) => Some((number, unit_ns / own_ns)),
            // Everywhere else a number alone counts seconds, but a bound of `p99 < 50` was meant to
            // be milliseconds; zero is zero.
            (number, None) => (number == 0.0).then_some((number, 1.0)),
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
