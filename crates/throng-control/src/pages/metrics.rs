//! `/metrics`: counters, gauges and histograms in the Prometheus text format.

use std::fmt::Write as _;

use throng_access::limit::{Quantity, Subject};
use throng_core::{EngineMetrics, MemoryPressure, Snapshot};
use throng_wire::ErrorCode;

use crate::canary_report::CanaryReport;
use crate::carried::CarriedCounts;
use crate::control::Control;
use crate::edge::{AdmissionMetrics, EdgeCounter, EdgeMetrics};
use crate::metrics::{HttpCounter, OtherMetric, OtherValue};

const PREFIX: &str = "throng_";

/// Upper bounds of the buckets of a histogram, in microseconds, and as the label in seconds.
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

pub(crate) fn text(control: &Control) -> String {
    let mut page = MetricsPage { text: String::with_capacity(8 << 10), carried: &control.carried };
    let edge = control.edge.metrics();
    connections(&mut page, control, &edge);
    edge_counters(&mut page, &edge.counters);
    http(&mut page, control);
    limits(&mut page, control);
    page.histogram(
        "publish_to_last_write_seconds",
        "Time from accepting a message to writing it to the last subscriber.",
        &edge.latency,
    );
    if !control.settings.canary_interval.is_zero() {
        canary(&mut page, &control.canary);
    }
    engine(&mut page, control);
    for metric in control.other_metrics.iter().flat_map(|source| source.metrics()) {
        page.other(metric);
    }
    admission(&mut page, &edge.admission);
    memory(&mut page, &control.pressure);
    health(&mut page, control);
    page.gauge("uptime_seconds", "Time since the start.", control.started.elapsed().as_secs());
    page.text
}

/// The name of a sample with its labels, as the page has it.
pub(crate) fn name(name: &str, labels: &str) -> String {
    format!("{PREFIX}{name}{labels}")
}

/// How new connections wait, and which moments clients are told.
fn admission(page: &mut MetricsPage<'_>, admission: &AdmissionMetrics) {
    let AdmissionMetrics { queue_wait_ms, ahead_ms, rate, .. } = *admission;
    let help = "How long the first connection in the longest queue of new ones has waited.";
    page.gauge_of_ms("admission_queue_wait_seconds", help, queue_wait_ms);
    let help = "Time until the last retry time given to a client.";
    page.gauge_of_ms("admission_ahead_seconds", help, ahead_ms);
    let help = "Retry times given per second.";
    page.gauge("admission_rate", help, rate);
}

/// Work refused for want of memory.
fn memory(page: &mut MetricsPage<'_>, pressure: &MemoryPressure) {
    let help = "Memory that the server has, by its setting, its control group or the machine.";
    page.gauge("memory_limit_bytes", help, pressure.limit_bytes());
    let help = "Memory that counts against this limit.";
    page.gauge("memory_used_bytes", help, pressure.used_bytes());
    let help = "Step of giving up memory: 0 nothing, 1 old messages, 2 history and \
                batches, 3 new subscriptions, 4 connections that do not read.";
    page.gauge("memory_step", help, pressure.step() as u64);
    page.describe("memory_steps_total", "How often each of these steps was begun.", "counter");
    for (step, count) in pressure.begun() {
        page.sample("memory_steps_total", &format!("{{step=\"{step}\"}}"), count);
    }
    page.describe("memory_refused_total", "Requests refused for lack of memory.", "counter");
    for (what, count) in pressure.refused() {
        page.sample("memory_refused_total", &format!("{{what=\"{what}\"}}"), count);
    }
}

fn health(page: &mut MetricsPage<'_>, control: &Control) {
    let ailments = control.ailments();
    let is_ready = control.is_ready() && !ailments.iter().any(|ailment| ailment.is_at_start);
    let is_degraded = is_ready && !ailments.is_empty();
    page.gauge("draining", "1 while the server is shutting down.", control.is_leaving().into());
    page.gauge("ready", "1 while clients may be sent to the server.", is_ready.into());
    let help = "1 while the server is ready, but something does not work as it should.";
    page.gauge("degraded", help, is_degraded.into());
}

fn connections(page: &mut MetricsPage<'_>, control: &Control, edge: &EdgeMetrics) {
    let in_control = control.metrics.connections();
    let on_workers: u64 = edge.connections.iter().sum();
    page.gauge("connections", "Open connections of both planes.", on_workers + in_control);
    let help = "Connections that the server accepts.";
    page.gauge("connections_max", help, control.settings.max_connections as u64);
    page.gauge("http_connections", "Open connections of the control plane.", in_control);
    page.describe("worker_connections", "Open connections of each worker.", "gauge");
    for (index, connections) in edge.connections.iter().enumerate() {
        page.sample("worker_connections", &format!("{{worker=\"{index}\"}}"), *connections);
    }
    let help = "Connections that are subscribed now, by transport.";
    page.describe("subscribed_connections", help, "gauge");
    for (transport, count) in edge.subscribed.by_transport() {
        let labels = format!("{{transport=\"{transport}\"}}");
        page.sample("subscribed_connections", &labels, count);
    }
    let help = "Connections whose clients do not take all that is sent: they wait for their \
                sockets, or for acknowledgements.";
    page.gauge("connections_behind", help, edge.behind);
    let kept = control.kept.counts();
    let help = "Subscriptions that the server keeps: pairs of a user and a channel.";
    page.gauge("kept_subscriptions", help, kept.subscriptions as u64);
    page.gauge("kept_users", "Users that follow channels this way.", kept.users as u64);
    page.gauge("kept_channels", "Channels that users follow this way.", kept.channels as u64);
    let help = "TLS handshakes that the workers have begun and not ended.";
    page.gauge("tls_handshakes_under_way", help, edge.handshakes);
}

fn edge_counters(page: &mut MetricsPage<'_>, counters: &[EdgeCounter]) {
    let mut described = "";
    for counter in counters {
        if counter.metric != described {
            page.describe(counter.metric, counter.help, "counter");
            described = counter.metric;
        }
        let labels = match counter.label {
            Some((name, value)) => format!("{{{name}=\"{value}\"}}"),
            None => String::new(),
        };
        page.sample(counter.metric, &labels, counter.count);
    }
}

fn http(page: &mut MetricsPage<'_>, control: &Control) {
    for counter in HttpCounter::ALL.iter().copied() {
        page.counter(counter.name(), counter.help(), control.metrics.get(counter));
    }
    page.gauge(
        "http_buffered_request_bytes",
        "Request bodies that are still arriving or being published.",
        control.bodies.buffered_bytes(),
    );
    page.gauge(
        "http_buffered_response_bytes",
        "Large responses that clients have not read yet.",
        control.read_answers.bytes() + control.publish_answers.bytes(),
    );
    let help = "Requests, and lines of batches, that the control plane refused, by error code.";
    page.describe("http_refused_total", help, "counter");
    for code in ErrorCode::ALL.iter().copied() {
        let labels = format!("{{code=\"{}\"}}", code.name());
        page.sample("http_refused_total", &labels, control.refusals.count(code));
    }
    receipts(page, control);
    let help = "Pages of history that were remembered from an earlier request.";
    page.counter("http_pages_remembered_total", help, control.newest_pages.found());
    let help = "Bytes of pages of history that are remembered.";
    page.gauge("http_pages_bytes", help, control.newest_pages.bytes() as u64);
    credentials(page, control);
    let help = "Time from the head of a request to the control plane to its complete response.";
    page.describe("http_request_duration_seconds", help, "histogram");
    for (route, durations) in control.metrics.durations_by_route() {
        let labels = format!("route=\"{route}\"");
        page.buckets("http_request_duration_seconds", &labels, &durations);
    }
}

fn receipts(page: &mut MetricsPage<'_>, control: &Control) {
    let help = "Receipts of messages that publishers have waited for, by outcome.";
    page.describe("http_receipts_total", help, "counter");
    for (outcome, count) in control.metrics.receipts() {
        page.sample("http_receipts_total", &format!("{{outcome=\"{outcome}\"}}"), count);
    }
    let help = "Receipts that publishers wait for.";
    page.gauge("http_receipts_under_way", help, control.receipts.under_way() as u64);
    let help = "Receipts refused because too many were under way, in all or of one publisher.";
    page.counter("http_receipts_refused_total", help, control.receipts.refused());
}

fn credentials(page: &mut MetricsPage<'_>, control: &Control) {
    let help = "Tokens and server keys that either plane refused, by reason.";
    page.describe("http_credentials_refused_total", help, "counter");
    for (reason, count) in control.authentication.refused().by_reason() {
        let labels = format!("{{reason=\"{reason}\"}}");
        page.sample("http_credentials_refused_total", &labels, count);
    }
    let cache = control.authentication.cache_counts();
    page.counter("token_cache_hits_total", "Tokens that were verified before.", cache.hits);
    page.counter("token_cache_misses_total", "Tokens that had to be verified.", cache.misses);
    page.counter(
        "token_cache_evictions_total",
        "Verified tokens that gave way to newer ones.",
        cache.evictions,
    );
    page.gauge("token_cache_entries", "Verified tokens that are remembered.", cache.entries as u64);
    let (verified, refused) = control.authentication.slow_counts();
    let help = "Tokens that workers had verified elsewhere, because their signatures take long.";
    page.counter("slow_tokens_verified_total", help, verified);
    let help = "Tokens with such signatures refused because too many waited.";
    page.counter("slow_tokens_refused_total", help, refused);
    page.gauge("revocations", "Revocations in force.", control.revoker.count() as u64);
    let help = "Time by which a revocation extends beyond its moment: an issuer's clock is ahead.";
    page.gauge("revocations_extended_seconds", help, control.revoker.ahead_s());
}

fn limits(page: &mut MetricsPage<'_>, control: &Control) {
    let limiter = &control.clients.limiter;
    let help = "Connections, requests and messages refused for a limit, by client and limit.";
    page.describe("limits_refused_total", help, "counter");
    for subject in Subject::ALL {
        for quantity in Quantity::of(subject) {
            let labels = format!("{{per=\"{}\",limit=\"{}\"}}", subject.name(), quantity.name());
            page.sample("limits_refused_total", &labels, limiter.refused(subject, quantity));
        }
    }
    if !limiter.is_shared() {
        return;
    }
    let help = "Of these, refusals because of what clients use on other nodes.";
    page.describe("limits_refused_elsewhere_total", help, "counter");
    for subject in Subject::ALL {
        for quantity in Quantity::of(subject) {
            let labels = format!("{{per=\"{}\",limit=\"{}\"}}", subject.name(), quantity.name());
            let refused = limiter.refused_elsewhere(subject, quantity);
            page.sample("limits_refused_elsewhere_total", &labels, refused);
        }
    }
    let help = "Other nodes whose clients count in the limits of this one.";
    page.gauge("limits_other_nodes", help, limiter.heard_nodes() as u64);
}

fn canary(page: &mut MetricsPage<'_>, report: &CanaryReport) {
    let labels = |name| format!("transport=\"{name}\"");
    let help = "Time from publishing a message of the canary to receiving it, by transport.";
    page.describe("canary_duration_seconds", help, "histogram");
    for (name, transport) in report.transports() {
        page.buckets("canary_duration_seconds", &labels(name), &transport.durations());
    }
    let help = "Messages of the canary that did not arrive, by transport.";
    page.describe("canary_failures_total", help, "counter");
    for (name, transport) in report.transports() {
        page.sample(
            "canary_failures_total",
            &format!("{{{}}}", labels(name)),
            transport.failures(),
        );
    }
    let help = "When a message of the canary arrived last, by transport; 0 before the first.";
    page.describe("canary_last_arrival_timestamp_seconds", help, "gauge");
    for (name, transport) in report.transports() {
        let seconds = transport.arrived_ms().unwrap_or(0) / 1000;
        let labels = format!("{{{}}}", labels(name));
        page.sample("canary_last_arrival_timestamp_seconds", &labels, seconds);
    }
}

fn engine(page: &mut MetricsPage<'_>, control: &Control) {
    let engine = control.engine.metrics();
    page.gauge("log_channels", "Channels and users that have a log.", engine.channels);
    page.gauge("log_messages", "Messages that the logs keep.", engine.messages);
    page.gauge("log_bytes", "Size of the messages that the logs keep.", engine.bytes);
    let help = "Keys that have a value, of channels in memory and on disk.";
    page.gauge("state_keys", help, engine.state_keys);
    let help = "Size of the newest messages of these keys.";
    page.gauge("state_bytes", help, engine.state_bytes);
    let help = "Values and creations refused as the room of all states in memory was taken.";
    page.describe("states_refused_total", help, "counter");
    for (reason, count) in ["share", "room"].into_iter().zip(engine.states_refused) {
        page.sample("states_refused_total", &format!("{{reason=\"{reason}\"}}"), count);
    }
    page.counter(
        "log_messages_published_total",
        "Messages published over any transport.",
        engine.published,
    );
    let help = "Volatile messages published over any transport: they are in no log.";
    page.counter("volatile_messages_published_total", help, engine.volatile);
    page.counter(
        "log_publications_refused_total",
        "Messages refused because a worker's queue was full.",
        engine.busy,
    );
    page.counter(
        "log_duplicate_publications_total",
        "Messages not published because their idempotency key was repeated.",
        engine.duplicates,
    );
    page.gauge("idempotency_keys", "Idempotency keys that are remembered in memory.", engine.keys);
    page.counter(
        "idempotency_keys_displaced_total",
        "Idempotency keys forgotten early because their publisher had too many.",
        engine.keys_displaced,
    );
    page.counter(
        "log_messages_evicted_total",
        "Messages dropped early because all logs together reached their limit.",
        engine.evicted,
    );
    page.counter(
        "log_messages_expired_total",
        "Messages in logs that have expired, as their publishers wished.",
        engine.expired,
    );
    page.counter(
        "history_entries_visited_total",
        "Entries of logs in memory that pages of history have looked at.",
        engine.visited,
    );
    page.counter(
        "channel_ends_forgotten_total",
        "Ends of channels in memory that were forgotten: after their time, or for lack of room.",
        engine.ends_forgotten,
    );
    read_markers(page, engine);
    bookmarks(page, control);
    let watched = &control.engine.presence_cache().watched;
    page.gauge(
        "presence_channels",
        "Channels whose presence events somebody follows, or did within a minute.",
        watched.channels(),
    );
    page.counter("presence_events_total", "Presence events of all channels.", watched.events());
    members(page, control);
}

fn members(page: &mut MetricsPage<'_>, control: &Control) {
    let members = control.engine.member_metrics();
    page.gauge("members", "Members of all channels that have lists of them.", members.members);
    page.other(OtherMetric {
        name: "member_events_total",
        help: "Members that joined, changed what they show, or left.",
        value: OtherValue::CountersBy(
            "event",
            vec![("join", members.joined), ("update", members.updated), ("leave", members.left)],
        ),
    });
    page.counter(
        "members_refused_total",
        "Subscriptions refused because the list of the channel's members was full.",
        members.refused,
    );
    page.counter(
        "members_news_lost_total",
        "Times at which news of another node's members was lost, so that it was asked again.",
        members.news_lost,
    );
    page.counter(
        "app_channels_refused_total",
        "Subscriptions refused because their application has too many channels.",
        control.engine.memory().refused_channels(),
    );
    page.counter(
        "channels_uncounted_total",
        "Channels of other nodes' applications that were not counted because there were too many.",
        members.uncounted,
    );
}

fn bookmarks(page: &mut MetricsPage<'_>, control: &Control) {
    let bookmarks = control.engine.bookmark_metrics();
    page.gauge(
        "bookmarks",
        "Places in channels at which users go on whose connections have died.",
        bookmarks.bookmarks,
    );
    page.counter(
        "bookmarks_left_total",
        "Subscriptions that have left such a place.",
        bookmarks.left,
    );
    page.other(OtherMetric {
        name: "bookmarks_ended_total",
        help: "Such places that a subscription has taken, whose time was over, that were too many, \
               or that another node did not give in time.",
        value: OtherValue::CountersBy(
            "outcome",
            vec![
                ("taken", bookmarks.taken),
                ("expired", bookmarks.expired),
                ("dropped", bookmarks.dropped),
                ("unanswered", bookmarks.unanswered),
            ],
        ),
    });
}

fn read_markers(page: &mut MetricsPage<'_>, engine: EngineMetrics) {
    page.gauge("read_markers", "Read markers of users in channels in memory.", engine.read_markers);
    page.counter(
        "read_markers_refused_total",
        "Read markers in channels refused because there were too many.",
        engine.read_markers_refused,
    );
}

/// The text of the page so far, and what is added to its samples.
struct MetricsPage<'c> {
    text: String,
    carried: &'c CarriedCounts,
}

impl MetricsPage<'_> {
    // The ignored results below are `Ok`: writing to a string does not fail.

    fn describe(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(self.text, "# TYPE {PREFIX}{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: u64) {
        let sample = self::name(name, labels);
        let value = value + self.carried.of(&sample) as u64;
        let _ = writeln!(self.text, "{sample} {value}");
    }

    fn gauge_of_ms(&mut self, name: &str, help: &str, ms: u64) {
        self.describe(name, help, "gauge");
        let _ = writeln!(self.text, "{PREFIX}{name} {}", ms as f64 / 1e3);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.describe(name, help, "gauge");
        self.sample(name, "", value);
    }

    /// Adds a histogram from one snapshot, so that its buckets, sum and count are consistent.
    fn histogram(&mut self, name: &str, help: &str, times: &Snapshot) {
        self.describe(name, help, "histogram");
        self.buckets(name, "", times);
    }

    /// Adds the samples of a histogram with these labels, which are `name="value"` or nothing.
    fn buckets(&mut self, name: &str, labels: &str, times: &Snapshot) {
        let comma = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        for (bound_us, bound) in BUCKETS {
            let labels = format!("{{{labels}{comma}le=\"{bound}\"}}");
            self.sample(&bucket, &labels, times.count_within(bound_us));
        }
        self.sample(&bucket, &format!("{{{labels}{comma}le=\"+Inf\"}}"), times.count());
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let sum = self::name(&format!("{name}_sum"), &labels);
        let seconds = times.sum_us() as f64 / 1e6 + self.carried.of(&sum);
        let _ = writeln!(self.text, "{sum} {seconds}");
        self.sample(&format!("{name}_count"), &labels, times.count());
    }

    /// Adds the metric of a part that is neither of the planes.
    fn other(&mut self, metric: OtherMetric) {
        let OtherMetric { name, help, value } = metric;
        match value {
            OtherValue::Gauge(value) => self.gauge(name, help, value),
            OtherValue::GaugesBy(label, values) => {
                self.describe(name, help, "gauge");
                for (of, value) in values {
                    self.sample(name, &format!("{{{label}=\"{}\"}}", escaped(&of)), value);
                }
            }
            OtherValue::Counter(value) => self.counter(name, help, value),
            OtherValue::CountersBy(label, counts) => {
                self.describe(name, help, "counter");
                for (value, count) in counts {
                    self.sample(name, &format!("{{{label}=\"{value}\"}}"), count);
                }
            }
            OtherValue::Histogram(times) => self.histogram(name, help, &times),
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.describe(name, help, "counter");
        self.sample(name, "", value);
    }
}

/// A label's value: a backslash comes before these three characters, and before no other one.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_the_format_demands() {
        let names = ["caf\u{65}\u{301}", "a\"b\\c\nd", "tab\t"];
        let values = names.map(|name| (name.to_owned(), 1)).into();
        let value = OtherValue::GaugesBy("of", values);
        let carried = CarriedCounts::default();
        let mut page = MetricsPage { text: String::new(), carried: &carried };
        page.other(OtherMetric { name: "gauge", help: "Help.", value });
        let samples: Vec<_> = page.text.lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                "throng_gauge{of=\"cafe\u{301}\"} 1",
                r#"throng_gauge{of="a\"b\\c\nd"} 1"#,
                "throng_gauge{of=\"tab\t\"} 1",
            ]
        );
    }
}
