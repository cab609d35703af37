//! Many samples, by column: what charts are drawn from.

use serde_json::{Map, Number, Value};

use super::Sample;

/// What one column has of a sample.
type Column = fn(&Sample) -> Option<f64>;

/// The columns, by the names of the reference.
const COLUMNS: &[(&str, Column)] = &[
    ("time_ms", |it| Some(it.time_ms as f64)),
    ("connections", |it| Some(it.connections.total as f64)),
    ("websocket", |it| Some(it.connections.websocket as f64)),
    ("sse", |it| Some(it.connections.sse as f64)),
    ("stream", |it| Some(it.connections.stream as f64)),
    ("poll", |it| Some(it.connections.poll as f64)),
    ("control", |it| Some(it.connections.control as f64)),
    ("accepted_per_s", |it| Some(it.accepted.per_s)),
    ("messages_in_per_s", |it| Some(it.messages_in.per_s)),
    ("deliveries_per_s", |it| Some(it.deliveries.per_s)),
    ("latency_p50_ms", |it| it.latency.second.p50_ms),
    ("latency_p99_ms", |it| it.latency.second.p99_ms),
    ("http_per_s", |it| Some(it.http.requests.per_s)),
    ("http_mean_ms", |it| it.http.second.mean_ms),
    ("http_p99_ms", |it| it.http.second.p99_ms),
    ("cpu_workers", |it| it.cpu.workers_sum()),
    ("cpu_busiest", |it| it.cpu.busiest()),
    ("cpu_control", |it| it.cpu.control),
    ("resident_bytes", |it| it.memory.resident_bytes.map(|bytes| bytes as f64)),
    ("tcp_buffer_bytes", |it| it.kernel.tcp_buffer_bytes.map(|bytes| bytes as f64)),
    ("refused_per_s", |it| Some(it.refused_per_s)),
    ("dropped_per_s", |it| Some(it.dropped_per_s)),
];

/// What the columns have of one sample; NaN is nothing. An eighth of what the sample takes.
pub(super) type Row = [f64; COLUMNS.len()];

/// The sample's row.
pub(super) fn row(sample: &Sample) -> Row {
    std::array::from_fn(|nth| (COLUMNS[nth].1)(sample).unwrap_or(f64::NAN))
}

/// `{"time_ms":[…],…}`, oldest first.
pub(super) fn columns<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Value {
    let names = COLUMNS.iter().map(|(name, _)| (*name).to_owned());
    let columns = names.enumerate().map(|(nth, name)| {
        let values = rows.clone().map(|row| number(row[nth]));
        (name, Value::Array(values.collect()))
    });
    Value::Object(columns.collect::<Map<_, _>>())
}

/// Whole numbers without decimals, which most are.
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
    fn numbers_are_as_short_as_they_can_be() {
        let written = [0.0, 1e12, 0.25, f64::NAN].map(|value| number(value).to_string());
        assert_eq!(written, ["0", "1000000000000", "0.25", "null"]);
    }
}
