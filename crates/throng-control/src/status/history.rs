//! Many samples, by column: what charts are drawn from, an eighth of what the samples would take.

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

/// `{"time_ms":[…],…}`, oldest first.
pub(super) fn columns<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Value {
    let column = |&(name, of): &(&str, Column)| {
        let values = samples.clone().map(|sample| number(of(sample)));
        (name.to_owned(), Value::Array(values.collect()))
    };
    Value::Object(COLUMNS.iter().map(column).collect::<Map<_, _>>())
}

/// Whole numbers without decimals, which most are.
fn number(value: Option<f64>) -> Value {
    match value {
        Some(value) if value.fract() == 0.0 && value.abs() < 9e15 => Value::from(value as i64),
        Some(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
        None => Value::Null,
    }
}
