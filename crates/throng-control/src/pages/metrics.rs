//! `/metrics`: counters and levels in the Prometheus text format.

use std::fmt::Write as _;

use throng_core::{Counter, Parked, Snapshot};

use crate::control::Control;
use throng_wire::ErrorCode;

/// What all names begin with.
const PREFIX: &str = "throng_";

/// Upper bounds of the buckets of a histogram, in microseconds, as they are written in seconds.
const BUCKETS: [(u64, &str); 16] = [
    (100, "0.0001"),
    (250, "0.00025"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1.0"),
    (2_500_000, "2.5"),
    (5_000_000, "5.0"),
    (10_000_000, "10.0"),
];

/// The whole page.
pub(crate) fn text(control: &Control) -> String {
    let mut page = Page(String::with_capacity(8 << 10));
    let workers = control.edge.workers();
    let figures = &control.figures;

    let in_control = figures.connections.get();
    let parked: u64 = workers.iter().map(|worker| worker.connections).sum();
    page.gauge("connections", "Open connections of both planes.", parked + in_control);
    page.gauge("control_connections", "Open connections of the control plane.", in_control);
    page.describe("worker_connections", "Open connections of each worker.", "gauge");
    for (nth, worker) in workers.iter().enumerate() {
        page.sample("worker_connections", &format!("{{worker=\"{nth}\"}}"), worker.connections);
    }

    page.describe("parked_connections", "Connections parked now, by transport.", "gauge");
    for parked in Parked::ALL {
        let labels = format!("{{transport=\"{}\"}}", parked.name());
        let count = workers.iter().map(|worker| worker.counters.parked(parked)).sum();
        page.sample("parked_connections", &labels, count);
    }

    let mut described = "";
    for counter in Counter::ALL.iter().copied() {
        let (name, labels) = split(counter.name());
        if name != described {
            page.describe(name, counter.help(), "counter");
            described = name;
        }
        page.sample(name, labels, workers.iter().map(|worker| worker.counters.get(counter)).sum());
    }

    page.counter("http_requests_total", "Requests to the control plane.", figures.requests.get());
    page.counter(
        "http_messages_published_total",
        "Messages accepted over HTTP.",
        figures.published.get(),
    );
    page.counter(
        "http_handed_back_total",
        "Connections that went back to a worker to subscribe.",
        figures.handed_back.get(),
    );
    page.counter(
        "http_closed_for_room_total",
        "Silent connections that were closed to make room for others.",
        figures.closed_for_room.get(),
    );
    page.gauge(
        "http_partial_body_bytes",
        "Bytes of request bodies that are still arriving or being worked on.",
        figures.message_bodies.bytes() + figures.batch_bodies.bytes(),
    );
    page.gauge(
        "http_unread_answer_bytes",
        "Bytes of large answers that clients have not taken yet.",
        figures.pages.bytes() + figures.receipts.bytes(),
    );
    page.counter(
        "http_cut_total",
        "Connections cut off in the middle of a large answer, as others needed its room.",
        figures.cut.get(),
    );
    let help = "Requests and lines of batches that the control plane refused.";
    page.describe("http_refused_total", help, "counter");
    for code in ErrorCode::ALL.iter().copied() {
        let labels = format!("{{code=\"{}\"}}", code.name());
        page.sample("http_refused_total", &labels, figures.refused(code).get());
    }

    page.histogram(
        "http_response_seconds",
        "From the head of a request to the control plane to its whole answer.",
        &Snapshot::of([&figures.responses].into_iter()),
    );
    page.histogram(
        "publish_to_last_write_seconds",
        "From accepting a message to its last write to a subscriber.",
        &Snapshot::of(workers.iter().map(|worker| &worker.counters.latency)),
    );

    engine(&mut page, control);
    page.gauge("draining", "Whether the server is shutting down.", control.is_draining().into());
    page.gauge("uptime_seconds", "Seconds since the start.", control.started.elapsed().as_secs());
    page.0
}

fn engine(page: &mut Page, control: &Control) {
    let figures = control.engine.figures();
    page.gauge("log_channels", "Channels and users known.", figures.channels);
    page.gauge("log_messages", "Messages kept.", figures.messages);
    page.gauge("log_bytes", "Bytes of messages kept.", figures.bytes);
    page.counter("log_published_total", "Messages accepted, however sent.", figures.published);
    page.counter("log_busy_total", "Messages refused because delivery was behind.", figures.busy);
    page.counter("log_duplicates_total", "Repeated idempotency keys.", figures.duplicates);
    page.counter(
        "log_evicted_total",
        "Messages dropped before their time for want of memory.",
        figures.evicted,
    );
}

/// Name and labels of a counter's full name.
fn split(full: &str) -> (&str, &str) {
    full.split_at(full.find('{').unwrap_or(full.len()))
}

struct Page(String);

impl Page {
    // Writing to memory does not fail, hence the ignored results below.

    fn describe(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.0, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(self.0, "# TYPE {PREFIX}{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: u64) {
        let _ = writeln!(self.0, "{PREFIX}{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.describe(name, help, "gauge");
        self.sample(name, "", value);
    }

    /// All of it is taken from one snapshot, so that the buckets add up.
    fn histogram(&mut self, name: &str, help: &str, times: &Snapshot) {
        self.describe(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound_us, bound) in BUCKETS {
            let label = format!("{{le=\"{bound}\"}}");
            self.sample(&bucket, &label, times.count_within(bound_us));
        }
        self.sample(&bucket, "{le=\"+Inf\"}", times.count());
        let seconds = times.sum_us() as f64 / 1e6;
        let _ = writeln!(self.0, "{PREFIX}{name}_sum {seconds}");
        self.sample(&format!("{name}_count"), "", times.count());
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.describe(name, help, "counter");
        self.sample(name, "", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_split_off() {
        assert_eq!(split("a_total{b=\"c\"}"), ("a_total", "{b=\"c\"}"));
        assert_eq!(split("a_total"), ("a_total", ""));
    }

    #[test]
    fn counters_of_one_name_stand_together() {
        let mut seen = Vec::new();
        for counter in Counter::ALL {
            let (name, _) = split(counter.name());
            if seen.last() != Some(&name) {
                assert!(!seen.contains(&name), "{name} would be described twice");
                seen.push(name);
            }
        }
    }
}
