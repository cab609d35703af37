//! `/metrics`: counters and levels in the Prometheus text format.

use std::fmt::Write as _;

use throng_core::{Counter, Parked};

use crate::answer::Code;
use crate::control::Control;

/// What all names begin with.
const PREFIX: &str = "throng_";

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
    page.gauge(
        "http_partial_body_bytes",
        "Bytes of request bodies that are still arriving or being worked on.",
        figures.body_bytes.get(),
    );
    page.gauge(
        "http_unread_answer_bytes",
        "Bytes of large answers that clients have not taken yet.",
        figures.answer_bytes.get(),
    );
    let help = "Requests and lines of batches that the control plane refused.";
    page.describe("http_refused_total", help, "counter");
    for code in Code::ALL.iter().copied() {
        let labels = format!("{{code=\"{}\"}}", code.name());
        page.sample("http_refused_total", &labels, figures.refused(code).get());
    }

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
