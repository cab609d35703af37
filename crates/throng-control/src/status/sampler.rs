//! The loop that samples the server once a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use throng_core::{Body, ChannelName, EngineMetrics, MemoryPressure, Publication, Snapshot, clock};
use tokio::time::MissedTickBehavior;

use super::history::StatusHistory;
use super::host::{HostReader, HostReading};
use super::minute::Minute;
use super::sample::{
    Canary, ConnectionsSample, Cpu, DataSample, Distribution, EventRate, Http, Kernel,
    MemorySample, Reasons, Sample, rounded,
};
use super::totals::Totals;
use crate::certificates::TlsStatus;
use crate::cluster::ClusterStatus;
use crate::control::Control;
use crate::edge::EdgeMetrics;

const INTERVAL: Duration = Duration::from_secs(1);

/// Below this number of connections, memory divided by connections would describe the process and
/// not its connections.
const CONNECTIONS_MIN: u64 = 1000;

/// Makes samples, and keeps what the next one needs of the previous ones.
pub(crate) struct Sampler {
    control: Arc<Control>,
    /// Where samples are kept for pages that are opened later.
    history: Arc<StatusHistory>,
    host: HostReader,
    started_ms: u64,
    private_at_start_bytes: Option<u64>,
    /// The counters of the previous sample.
    last: Totals,
    latency: Minute,
    request_durations: Minute,
    commits: Minute,
}

impl Sampler {
    /// Makes the first sample, whose rates are all zero. The second sample's rates count
    /// everything since the server's start: the workers start before the sampler. What processes
    /// before this one have counted is left out.
    pub(crate) fn new(control: Arc<Control>, history: Arc<StatusHistory>) -> Sampler {
        let mut host = HostReader::default();
        let reading = host.read();
        let edge = control.edge.metrics();
        let mut sampler = Sampler {
            host,
            history,
            started_ms: clock::now_ms(),
            private_at_start_bytes: reading.private_bytes,
            commits: Minute::default(),
            last: Totals::read(&control, &edge, &reading),
            latency: Minute::since(edge.latency),
            request_durations: Minute::since(request_durations(&control)),
            control,
        };
        let sample = sampler.sample(reading);
        sampler.history.add(sample);
        if !sampler.control.carried.has_any() {
            sampler.last = sampler.last.at_start();
            (sampler.latency, sampler.request_durations) = Default::default();
        }
        sampler
    }

    /// Samples once a second, for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let mut host = std::mem::take(&mut self.host);
            let reading = tokio::task::spawn_blocking(move || (host.read(), host)).await;
            // An error means that the runtime is shutting down.
            let Ok((reading, host)) = reading else { return };
            self.host = host;
            let sample = self.sample(reading);
            self.publish(&sample);
            self.history.add(sample);
        }
    }

    /// Sends the sample to the viewers. They miss it if a worker's queue is full; the next one
    /// follows in a second.
    fn publish(&self, sample: &Sample) {
        let publication = Publication::new(ChannelName::status(), Body::Json(sample.json().into()));
        // While the server is held, viewers miss it, too.
        let Some(_acting) = self.control.hold.act() else { return };
        let _ = self.control.engine.publish_internal(clock::now_ms(), publication);
    }

    fn sample(&mut self, reading: HostReading) -> Sample {
        let control = Arc::clone(&self.control);
        let edge = control.edge.metrics();
        let now = Totals::read(&control, &edge, &reading);
        let last = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let seconds = (now.at - last.at).as_secs_f64().max(1e-3);
        let per_s = |now: u64, last: u64| rounded(now.saturating_sub(last) as f64 / seconds, 1);
        let rate =
            |of: fn(&Totals) -> u64| EventRate { total: of(now), per_s: per_s(of(now), of(&last)) };
        let connections = connections(&control, &edge);
        let sum = |reasons: &Reasons| reasons.values().sum();
        Sample {
            time_ms: clock::now_ms(),
            version: env!("CARGO_PKG_VERSION"),
            started_ms: self.started_ms,
            draining: control.is_leaving(),
            departure: control.health.departure(),
            upgrade: control.health.upgrade(),
            channels: now.engine.channels,
            accepted: rate(|totals| totals.accepted),
            admission: edge.admission,
            messages_in: rate(|totals| totals.engine.published),
            deliveries: rate(|totals| totals.deliveries),
            sent_bytes: rate(|totals| totals.sent_bytes),
            latency: self.latency.add(edge.latency),
            http: Http {
                requests: rate(|totals| totals.requests),
                durations: self.request_durations.add(request_durations(&control)),
            },
            canary: canary(&control),
            cpu: cpu(now, &last, edge.connections.len(), seconds),
            memory: memory(
                &reading,
                self.private_at_start_bytes,
                &now.engine,
                connections.total,
                &control.pressure,
            ),
            kernel: Kernel {
                tcp_sockets: reading.tcp_sockets,
                tcp_buffer_bytes: reading.tcp_buffer_bytes,
                socket_slab_bytes: reading.socket_slab_bytes,
            },
            tls: tls(&control),
            data: now.data.as_ref().map(|data| DataSample {
                disk_bytes: data.disk_bytes,
                limit_bytes: data.limit_bytes,
                refuses: data.refuses,
                messages: rate(|totals| totals.data.as_ref().map_or(0, |data| data.messages)),
                message_bytes: rate(|totals| {
                    totals.data.as_ref().map_or(0, |data| data.message_bytes)
                }),
                commits: self.commits.add(data.commits.clone()),
            }),
            cluster: cluster(&control),
            refused_per_s: per_s(sum(&now.refused), sum(&last.refused)),
            refused: now.refused.clone(),
            dropped_per_s: per_s(sum(&now.dropped), sum(&last.dropped)),
            dropped: now.dropped.clone(),
            closed: now.closed.clone(),
            connections,
        }
    }
}

/// The canary's results by transport; `None` without a canary.
fn canary(control: &Control) -> Option<BTreeMap<&'static str, Canary>> {
    let found = control.canary.transports().map(|(name, report)| {
        let canary = Canary {
            failing: report.is_failing(),
            failures: report.failures(),
            arrived_ms: report.arrived_ms(),
            recent: Distribution::of_sorted(&report.recent_us()),
        };
        (name, canary)
    });
    (!control.settings.canary_interval.is_zero()).then(|| found.collect())
}

/// The certificates; `None` without TLS.
fn tls(control: &Control) -> Option<TlsStatus> {
    control.other_metrics.iter().find_map(|source| source.tls()).map(TlsStatus::shortened)
}

/// The nodes; `None` of a server that is alone.
fn cluster(control: &Control) -> Option<ClusterStatus> {
    control.other_metrics.iter().find_map(|source| source.cluster()).map(ClusterStatus::shortened)
}

fn request_durations(control: &Control) -> Snapshot {
    control.metrics.durations()
}

fn connections(control: &Control, edge: &EdgeMetrics) -> ConnectionsSample {
    let on_workers: u64 = edge.connections.iter().sum();
    let in_control = control.metrics.connections();
    let subscribed = edge.subscribed;
    let all_subscribed: u64 = subscribed.by_transport().iter().map(|(_, count)| count).sum();
    ConnectionsSample {
        total: on_workers + in_control,
        websocket: subscribed.websocket,
        sse: subscribed.sse,
        stream: subscribed.stream,
        poll: subscribed.poll,
        status: subscribed.status,
        control: in_control,
        // The two are read at different moments, so the difference may be negative.
        other: on_workers.saturating_sub(all_subscribed),
        behind: edge.behind,
        capacity: control.settings.max_connections as u64,
        workers: edge.connections.clone(),
    }
}

/// Processor time since the last sample. A thread that has started since then counts with all of
/// its time.
fn cpu(now: &Totals, last: &Totals, workers: usize, seconds: f64) -> Cpu {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if now.threads.is_empty() {
        return Cpu { cores, ..Cpu::default() };
    }
    let mut worker_ns = vec![0; workers];
    let mut control_ns = 0;
    for thread in now.threads.values() {
        let before_ns = last.threads.get(&thread.id).map_or(0, |thread| thread.cpu_ns);
        let worker = thread.worker.and_then(|index| worker_ns.get_mut(index));
        *worker.unwrap_or(&mut control_ns) += thread.cpu_ns.saturating_sub(before_ns);
    }
    let share = |ns: u64| rounded(ns as f64 / 1e9 / seconds, 3);
    let workers = worker_ns.into_iter().map(share).collect();
    Cpu { cores, workers, control: Some(share(control_ns)) }
}

fn memory(
    reading: &HostReading,
    private_at_start_bytes: Option<u64>,
    engine: &EngineMetrics,
    connections: u64,
    pressure: &MemoryPressure,
) -> MemorySample {
    let is_watched = pressure.limit_bytes() > 0;
    let per_connection = reading.private_bytes.zip(private_at_start_bytes).map(|(now, start)| {
        let not_for_connections = start.saturating_add(engine.bytes);
        now.saturating_sub(not_for_connections) as f64 / connections as f64
    });
    MemorySample {
        resident_bytes: reading.resident_bytes,
        private_bytes: reading.private_bytes,
        private_at_start_bytes,
        log_bytes: engine.bytes,
        state_keys: engine.state_keys,
        state_bytes: engine.state_bytes,
        members: engine.members,
        limit_bytes: is_watched.then(|| pressure.limit_bytes()),
        used_bytes: is_watched.then(|| pressure.used_bytes()),
        step: pressure.step().word(),
        per_connection_bytes: per_connection
            .filter(|_| connections >= CONNECTIONS_MIN)
            .map(|bytes| rounded(bytes, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_per_connection_needs_a_thousand_connections() {
        let reading = HostReading { private_bytes: Some(1_000_000), ..HostReading::default() };
        let engine = EngineMetrics { bytes: 100_000, ..EngineMetrics::default() };
        let of = |connections| {
            memory(&reading, Some(800_000), &engine, connections, &MemoryPressure::default())
        };
        assert_eq!(of(1000).per_connection_bytes, Some(100.0));
        assert_eq!(of(999).per_connection_bytes, None);
    }
}
