//! The loop that samples, and what it must remember from one sample to the next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::{
    Body, ChannelName, Counter, EngineFigures, Parked, Publication, Snapshot, clock,
};
use tokio::time::MissedTickBehavior;

use super::machine::{Machine, Reading};
use super::sample::{
    Connections, Cpu, Http, Kernel, Memory, Rate, Reasons, Sample, Spans, Times, rounded,
};
use crate::control::Control;
use crate::edge::WorkerFigures;
use throng_wire::ErrorCode;

const INTERVAL: Duration = Duration::from_secs(1);

/// Samples that "the last minute" is.
const MINUTE_SAMPLES: usize = 60;

/// With fewer connections, memory divided by them says more about the process than about them.
const CONNECTIONS_MIN: u64 = 1000;

/// Makes samples.
pub(crate) struct Sampler {
    control: Arc<Control>,
    machine: Machine,
    started_ms: u64,
    private_at_start_bytes: Option<u64>,
    last: Counted,
    latency: Minute,
    responses: Minute,
}

impl Sampler {
    /// Makes the first sample, whose rates are all zero. What has been counted by then is in the
    /// rates of the second one: the workers run before the sampler does.
    pub(crate) fn new(control: Arc<Control>) -> Sampler {
        let mut machine = Machine::default();
        let reading = machine.read();
        let workers = control.edge.workers();
        let mut sampler = Sampler {
            machine,
            started_ms: clock::now_ms(),
            private_at_start_bytes: reading.private_bytes,
            last: Counted::read(&control, &workers, &reading),
            latency: Minute::new(latencies(&workers)),
            responses: Minute::new(Snapshot::of([&control.figures.responses].into_iter())),
            control,
        };
        let sample = sampler.sample(reading);
        sampler.control.status.add(sample);
        sampler.last = sampler.last.at_start();
        (sampler.latency, sampler.responses) = Default::default();
        sampler
    }

    /// Samples once a second, for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let mut machine = std::mem::take(&mut self.machine);
            let reading = tokio::task::spawn_blocking(move || (machine.read(), machine)).await;
            // The runtime ends, and with it everything that could be told.
            let Ok((reading, machine)) = reading else { return };
            self.machine = machine;
            let sample = self.sample(reading);
            self.publish(&sample);
            self.control.status.add(sample);
        }
    }

    /// Tells the viewers. When delivery is behind they miss one: there will be another.
    fn publish(&self, sample: &Sample) {
        let publication = Publication {
            channel: ChannelName::status(),
            body: Body::Json(sample.json().into()),
            content_type: None,
            idempotency_key: None,
            except: None,
        };
        let _ = self.control.engine.publish(self.control.now_ms(), publication);
    }

    fn sample(&mut self, reading: Reading) -> Sample {
        let control = Arc::clone(&self.control);
        let workers = control.edge.workers();
        let now = Counted::read(&control, &workers, &reading);
        let last = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let seconds = (now.at - last.at).as_secs_f64().max(1e-3);
        let per_s = |now: u64, last: u64| rounded(now.saturating_sub(last) as f64 / seconds, 1);
        let rate =
            |of: fn(&Counted) -> u64| Rate { total: of(now), per_s: per_s(of(now), of(&last)) };
        let connections = connections(&control, &workers);
        let sum = |reasons: &Reasons| reasons.values().sum();
        Sample {
            time_ms: control.now_ms(),
            version: env!("CARGO_PKG_VERSION"),
            started_ms: self.started_ms,
            draining: control.is_draining(),
            channels: now.engine.channels,
            accepted: rate(|it| it.accepted),
            messages_in: rate(|it| it.engine.published),
            deliveries: rate(|it| it.deliveries),
            sent_bytes: rate(|it| it.sent_bytes),
            latency: self.latency.turn(latencies(&workers)),
            http: Http {
                requests: rate(|it| it.requests),
                times: self.responses.turn(Snapshot::of([&control.figures.responses].into_iter())),
            },
            cpu: cpu(now, &last, workers.len(), seconds),
            memory: memory(&reading, self.private_at_start_bytes, &now.engine, connections.total),
            kernel: Kernel {
                tcp_sockets: reading.tcp_sockets,
                tcp_buffer_bytes: reading.tcp_buffer_bytes,
                socket_slab_bytes: reading.socket_slab_bytes,
            },
            refused_per_s: per_s(sum(&now.refused), sum(&last.refused)),
            refused: now.refused.clone(),
            dropped_per_s: per_s(sum(&now.dropped), sum(&last.dropped)),
            dropped: now.dropped.clone(),
            closed: now.closed.clone(),
            connections,
        }
    }
}

/// What only grows, at one moment.
#[derive(Debug)]
struct Counted {
    at: Instant,
    accepted: u64,
    deliveries: u64,
    sent_bytes: u64,
    requests: u64,
    engine: EngineFigures,
    refused: Reasons,
    dropped: Reasons,
    closed: Reasons,
    /// By thread.
    cpu_ns: HashMap<u32, (Option<usize>, u64)>,
}

impl Counted {
    /// The counts that the server started with, which are none; time and processor time are these.
    fn at_start(&self) -> Counted {
        Counted {
            at: self.at,
            cpu_ns: self.cpu_ns.clone(),
            accepted: 0,
            deliveries: 0,
            sent_bytes: 0,
            requests: 0,
            engine: EngineFigures::default(),
            refused: Reasons::new(),
            dropped: Reasons::new(),
            closed: Reasons::new(),
        }
    }

    fn read(control: &Control, workers: &[WorkerFigures], reading: &Reading) -> Counted {
        let sum = |counter| workers.iter().map(|worker| worker.counters.get(counter)).sum::<u64>();
        let engine = control.engine.figures();
        let mut refused = by_label("refused_total", sum);
        for code in ErrorCode::ALL.iter().copied() {
            add(&mut refused, code.name(), control.figures.refused(code).get());
        }
        let mut dropped = Reasons::new();
        add(&mut dropped, "behind", sum(Counter::MissedMessages));
        add(&mut dropped, "unread", sum(Counter::DroppedForRoom));
        add(&mut dropped, "evicted", engine.evicted);
        Counted {
            at: Instant::now(),
            accepted: sum(Counter::Accepted),
            deliveries: sum(Counter::Deliveries),
            sent_bytes: sum(Counter::SentBytes),
            requests: control.figures.requests.get(),
            engine,
            refused,
            dropped,
            closed: by_label("closed_total", sum),
            cpu_ns: reading.threads.iter().map(|&(id, worker, ns)| (id, (worker, ns))).collect(),
        }
    }
}

/// The counters of this name, by the value of their only label.
fn by_label(name: &str, sum: impl Fn(Counter) -> u64) -> Reasons {
    let mut reasons = Reasons::new();
    for counter in Counter::ALL.iter().copied() {
        let label = counter.name().strip_prefix(name).and_then(|rest| rest.split('"').nth(1));
        if let Some(label) = label {
            add(&mut reasons, label, sum(counter));
        }
    }
    reasons
}

fn add(reasons: &mut Reasons, reason: &'static str, count: u64) {
    if count > 0 {
        *reasons.entry(reason).or_default() += count;
    }
}

fn latencies(workers: &[WorkerFigures]) -> Snapshot {
    Snapshot::of(workers.iter().map(|worker| &worker.counters.latency))
}

fn connections(control: &Control, workers: &[WorkerFigures]) -> Connections {
    let parked = |parked| workers.iter().map(|worker| worker.counters.parked(parked)).sum::<u64>();
    let on_workers: u64 = workers.iter().map(|worker| worker.connections).sum();
    let in_control = control.figures.connections.get();
    let all_parked: u64 = Parked::ALL.iter().copied().map(parked).sum();
    Connections {
        total: on_workers + in_control,
        websocket: parked(Parked::WebSocket),
        sse: parked(Parked::Sse),
        stream: parked(Parked::Stream),
        poll: parked(Parked::Poll),
        status: parked(Parked::Status),
        control: in_control,
        // Each figure is of a moment of its own.
        other: on_workers.saturating_sub(all_parked),
        room: control.settings.connections_max as u64,
        workers: workers.iter().map(|worker| worker.connections).collect(),
    }
}

/// What each thread had since the last sample. One that is new since then had all of it.
fn cpu(now: &Counted, last: &Counted, workers: usize, seconds: f64) -> Cpu {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if now.cpu_ns.is_empty() {
        return Cpu { cores, ..Cpu::default() };
    }
    let mut worker_ns = vec![0; workers];
    let mut control_ns = 0;
    for (id, &(worker, ns)) in &now.cpu_ns {
        let before = last.cpu_ns.get(id).map_or(0, |&(_, ns)| ns);
        let place = worker.and_then(|at| worker_ns.get_mut(at)).unwrap_or(&mut control_ns);
        *place += ns.saturating_sub(before);
    }
    let share = |ns: u64| rounded(ns as f64 / 1e9 / seconds, 3);
    let workers = worker_ns.into_iter().map(share).collect();
    Cpu { cores, workers, control: Some(share(control_ns)) }
}

fn memory(
    reading: &Reading,
    private_at_start_bytes: Option<u64>,
    engine: &EngineFigures,
    connections: u64,
) -> Memory {
    let grown = reading.private_bytes.zip(private_at_start_bytes).map(|(now, start)| {
        let apart = start.saturating_add(engine.bytes);
        now.saturating_sub(apart) as f64 / connections as f64
    });
    Memory {
        resident_bytes: reading.resident_bytes,
        private_bytes: reading.private_bytes,
        private_at_start_bytes,
        log_bytes: engine.bytes,
        per_connection_bytes: grown
            .filter(|_| connections >= CONNECTIONS_MIN)
            .map(|bytes| rounded(bytes, 1)),
    }
}

/// The times of the last minute, as a histogram that grows was seen.
#[derive(Debug)]
struct Minute(VecDeque<Snapshot>);

impl Default for Minute {
    /// The times of the last minute, beginning with the first time of all.
    fn default() -> Minute {
        Minute::new(Snapshot::default())
    }
}

impl Minute {
    fn new(now: Snapshot) -> Minute {
        Minute(VecDeque::from([now]))
    }

    /// A second later.
    fn turn(&mut self, now: Snapshot) -> Spans {
        let times = |then: Option<&Snapshot>| {
            then.map_or_else(Times::default, |then| Times::of(&now.since(then)))
        };
        let spans = Spans { second: times(self.0.back()), minute: times(self.0.front()) };
        if self.0.len() == MINUTE_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(now);
        spans
    }
}

#[cfg(test)]
mod tests {
    use throng_core::Histogram;

    use super::*;

    #[test]
    fn reasons_are_the_counters_labels() {
        let closed = by_label("closed_total", |counter| u64::from(counter != Counter::ClosedIdle));
        assert_eq!(closed.get("behind"), Some(&1));
        assert_eq!(closed.get("idle"), None, "what has not occurred is left out");
        assert_eq!(closed.len(), 8);
    }

    #[test]
    fn a_minute_forgets_what_is_older() {
        let histogram = Histogram::default();
        let now = || Snapshot::of([&histogram].into_iter());
        let mut minute = Minute::new(now());
        histogram.record(1000);
        let spans = minute.turn(now());
        assert_eq!((spans.second.count, spans.minute.count), (1, 1));
        assert_eq!(spans.second.mean_ms, Some(1.0));
        for _ in 1..MINUTE_SAMPLES {
            let spans = minute.turn(now());
            assert_eq!((spans.second.count, spans.minute.count), (0, 1));
        }
        let spans = minute.turn(now());
        assert_eq!((spans.second.count, spans.minute.count), (0, 0));
        assert_eq!(spans.minute.p50_ms, None);
    }

    #[test]
    fn memory_is_divided_among_many_only() {
        let reading = Reading { private_bytes: Some(1_000_000), ..Reading::default() };
        let engine = EngineFigures { bytes: 100_000, ..EngineFigures::default() };
        let of = |connections| memory(&reading, Some(800_000), &engine, connections);
        assert_eq!(of(1000).per_connection_bytes, Some(100.0));
        assert_eq!(of(999).per_connection_bytes, None);
    }
}
