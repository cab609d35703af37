//! The values of samples by column, for charts.

use serde_json::{Map, Number, Value};

use super::sample::Sample;
use crate::charts::ChartRow;

/// Takes a column's value from a sample.
type Column = fn(&Sample) -> Option<f64>;

/// The columns, in the order of `docs/reference/status.md`.
const COLUMNS: &[(&str, Column)] = &[
    ("time_ms", |sample| Some(sample.time_ms as f64)),
    ("connections", |sample| Some(sample.connections.total as f64)),
    ("websocket", |sample| Some(sample.connections.websocket as f64)),
    ("sse", |sample| Some(sample.connections.sse as f64)),
    ("stream", |sample| Some(sample.connections.stream as f64)),
    ("poll", |sample| Some(sample.connections.poll as f64)),
    ("control", |sample| Some(sample.connections.control as f64)),
    ("rest", |sample| Some((sample.connections.status + sample.connections.other) as f64)),
    ("accepted_per_s", |sample| Some(sample.accepted.per_s)),
    ("messages_in_per_s", |sample| Some(sample.messages_in.per_s)),
    ("deliveries_per_s", |sample| Some(sample.deliveries.per_s)),
    ("latency_p50_ms", |sample| sample.latency.second.p50_ms),
    ("latency_p99_ms", |sample| sample.latency.second.p99_ms),
    ("http_per_s", |sample| Some(sample.http.requests.per_s)),
    ("http_mean_ms", |sample| sample.http.second.mean_ms),
    ("http_p99_ms", |sample| sample.http.second.p99_ms),
    ("cpu_workers", |sample| sample.cpu.workers_sum()),
    ("cpu_busiest", |sample| sample.cpu.busiest()),
    ("cpu_control", |sample| sample.cpu.control),
    ("resident_bytes", |sample| sample.memory.resident_bytes.map(|bytes| bytes as f64)),
    ("tcp_buffer_bytes", |sample| sample.kernel.tcp_buffer_bytes.map(|bytes| bytes as f64)),
    ("refused_per_s", |sample| Some(sample.refused_per_s)),
    ("dropped_per_s", |sample| Some(sample.dropped_per_s)),
];

pub(super) fn names() -> [&'static str; COLUMNS.len()] {
    std::array::from_fn(|index| COLUMNS[index].0)
}

/// Takes the values of all columns from a sample, an eighth of its memory.
pub(super) fn row(sample: &Sample) -> ChartRow {
    COLUMNS.iter().map(|(_, column)| column(sample).unwrap_or(f64::NAN)).collect()
}

/// The rows as `{"time_ms":[…],…}`, oldest first.
pub(super) fn columns<'a>(rows: impl Iterator<Item = &'a ChartRow> + Clone) -> Value {
    let names = COLUMNS.iter().map(|(name, _)| (*name).to_owned());
    let columns = names.enumerate().map(|(index, name)| {
        let values = rows.clone().map(|row| number(row[index]));
        (name, Value::Array(values.collect()))
    });
    Value::Object(columns.collect::<Map<_, _>>())
}

/// Writes a whole number, which most are, without decimals.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_decimals_and_nan_is_null() {
        let json = [0.0, 1e12, 0.25, f64::NAN].map(|value| number(value).to_string());
        assert_eq!(json, ["0", "1000000000000", "0.25", "null"]);
    }
}
