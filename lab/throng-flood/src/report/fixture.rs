//! A report as a real run makes it, for tests: 100,000 clients come, are published to, lose their
//! connections all at once, and are back.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    AssertionResult, Cost, Distribution, Environment, MachineCost, PhaseReport, Report,
    RunDescription, Sample, TlsTotals, Totals, VERSION,
};
use crate::sums::Nanoseconds;

const CLIENTS: u64 = 100_000;
const CONNECTS_PER_S: u64 = 4_000;
const STORM_AT_S: u64 = 96;
const STORM_CONNECTS_PER_S: u64 = 11_000;
const SECONDS: u64 = 140;
const MIB: u64 = 1 << 20;

/// The report of a run in which a few things went wrong.
pub(super) fn sample() -> Report {
    of("throng, 100,000 WebSockets", 1.0, 7)
}

/// The same run on a server that takes so much longer, with noise of its own.
pub(super) fn of(name: &str, slowness: f64, seed: u64) -> Report {
    let mut noise = Noise(seed);
    let mut pooled = Nanoseconds::default();
    let series: Vec<Sample> =
        (1..=SECONDS).map(|at| second(at, slowness, &mut noise, &mut pooled)).collect();
    let total = totals(&series, &pooled, slowness, &mut noise);
    Report {
        version: VERSION,
        name: name.to_owned(),
        description: description(),
        started_unix_s: 1_763_763_420,
        seconds: SECONDS as f64,
        cut_short: None,
        plan: plan(name),
        environment: environment(),
        phases: phases(&series, &total),
        total,
        series,
        assertions: vec![
            AssertionResult { text: "lost == 0".to_owned(), found: Some(0.0), holds: true },
            AssertionResult {
                text: "p99 < 50ms".to_owned(),
                found: Some(212.0 * slowness),
                holds: false,
            },
        ],
        warnings: vec![
            "The generator was the bottleneck: its busiest thread used 97 % of a core in 6 of 140 \
             seconds, so latencies are partly its own."
                .to_owned(),
        ],
        agents: Vec::new(),
    }
}

fn description() -> RunDescription {
    RunDescription {
        target: "ws://127.0.0.1:8080/ws?channel=news".to_owned(),
        transport: "websocket".to_owned(),
        profile: "throng".to_owned(),
        clients: CLIENTS,
        command: "throng flood http://127.0.0.1:8080 --clients 100k --storm 60s".to_owned(),
        plan: "name = \"throng, 100,000 WebSockets\"\n\n[target]\nprofile = \"custom\"\n"
            .to_owned(),
    }
}

fn second(at: u64, slowness: f64, noise: &mut Noise, pooled: &mut Nanoseconds) -> Sample {
    let active = active(at);
    let subscribed = active.saturating_sub(if at == STORM_AT_S { 0 } else { active_before(at) });
    let is_publishing = (30..=90).contains(&at) || at > 110;
    let received = if is_publishing { active } else { 0 };
    let mut delivery = Nanoseconds::default();
    // A sample of them is enough for a picture.
    for _ in 0..received / 500 {
        let hiccup = if noise.even() < 0.002 { 8.0 } else { 1.0 };
        let ms = (30.0 * slowness) * noise.log_normal(0.55) * hiccup;
        // A value above the highest that can be kept does not occur.
        let _ = delivery.record_n((ms * 1e6) as u64, 500);
    }
    let _ = pooled.add(&*delivery);
    let load = if received > 0 { 0.55 } else { 0.02 } + subscribed as f64 / 20_000.0;
    Sample {
        at_s: at as f64,
        connecting: if at < 25 || (STORM_AT_S..108).contains(&at) { 200 + at % 37 } else { 0 },
        active,
        closed: at / 20,
        subscribed,
        failures: u64::from(at.is_multiple_of(20)) + if at == STORM_AT_S + 1 { 412 } else { 0 },
        published: u64::from(is_publishing),
        received,
        received_bytes: received * 132,
        heartbeats: active / 25,
        delivery: Distribution::summary_of(&delivery),
        behind: Distribution::summary_of(&delivery),
        server_pss_bytes: Some(14 * MIB + (active as f64 * 95.0 * slowness) as u64),
        server_cores: Some((load * slowness * (0.95 + 0.1 * noise.even()) * 100.0).round() / 100.0),
        generator_pss_bytes: Some(9 * MIB + active * 61),
        generator_cores: (load * (0.75 + 0.1 * noise.even()) * 100.0).round() / 100.0,
        machine_cores: Some((load * 1.9 * slowness * 100.0).round() / 100.0),
        slab_bytes: Some(180 * MIB + active * 8_900),
        socket_buffer_bytes: Some(if received > 0 { 30 * MIB + at % 7 * MIB } else { MIB }),
    }
}

fn active(at: u64) -> u64 {
    match at {
        0..=25 => at * CONNECTS_PER_S,
        STORM_AT_S.. => ((at - STORM_AT_S) * STORM_CONNECTS_PER_S).min(CLIENTS),
        _ => CLIENTS,
    }
    .min(CLIENTS)
}

fn active_before(at: u64) -> u64 {
    active(at.saturating_sub(1))
}

fn totals(series: &[Sample], pooled: &Nanoseconds, slowness: f64, noise: &mut Noise) -> Totals {
    let received = series.iter().map(|sample| sample.received).sum();
    let published: u64 = series.iter().map(|sample| sample.published).sum();
    let mut spread = |ms: f64, count: u64, width: f64| {
        let mut histogram = Nanoseconds::default();
        for _ in 0..count {
            histogram.record((ms * slowness * noise.log_normal(width) * 1e6) as u64);
        }
        Distribution::of(&histogram)
    };
    Totals {
        active: CLIENTS,
        attempts: 2 * CLIENTS + 419,
        subscribed: 2 * CLIENTS,
        failures: BTreeMap::from([
            ("connection refused".to_owned(), 412),
            ("closed by the server with code 1013".to_owned(), 6),
            ("handshake answered with status 503".to_owned(), 1),
        ]),
        published,
        publish_failures: BTreeMap::from([("status 503".to_owned(), 2)]),
        publish_rate_intended: Some(1.0),
        publish_rate: Some(0.989),
        publish_lateness: spread(0.06, published, 0.4),
        publish_answer: spread(41.0, published, 0.3),
        expected: received,
        received,
        received_bytes: 132 * received,
        delivery_rate: Some(100_000.0),
        heartbeats: series.iter().map(|sample| sample.heartbeats).sum(),
        connected_s: Some(26.0),
        connect: spread(9.0, 4_000, 0.6),
        connect_rate: Some(5_970.0),
        delivery: Distribution::of(pooled),
        reader_p50: spread(30.0, 50, 0.1),
        reader_p99: spread(110.0, 50, 0.15),
        reader_max: spread(260.0, 50, 0.35),
        behind: spread(20.0, 50, 0.1),
        first: spread(0.9, published, 0.3),
        median: spread(30.0, published, 0.1),
        p99: spread(110.0, published, 0.15),
        p999: spread(180.0, published, 0.25),
        last: spread(260.0, published, 0.35),
        server: Some(Cost {
            cpu_s: 71.4 * slowness,
            cpu_us_per_delivery: Some(7.71 * slowness),
            pss_bytes: Some(14 * MIB + (CLIENTS as f64 * 95.0 * slowness) as u64),
            bytes_per_client: Some(95.0 * slowness),
        }),
        generator: Cost {
            cpu_s: 55.2,
            cpu_us_per_delivery: Some(5.96),
            pss_bytes: Some(9 * MIB + CLIENTS * 61),
            bytes_per_client: Some(61.0),
        },
        machine: Some(MachineCost {
            cpu_s: 140.2 * slowness,
            cpu_us_per_delivery: Some(15.1 * slowness),
            busy_s: 140.2 * slowness + 3.1,
            others_s: 3.1,
            unseen_s: 0.0,
            others: vec!["postgres".to_owned(), "cron".to_owned()],
        }),
        kernel_bytes: Some(8_900 * CLIENTS as i64),
        tls: Some(tls(spread(6.0, 4_000, 0.5))),
        ..Totals::default()
    }
}

/// All clients connect twice, and resume the second time.
fn tls(handshake: Option<Distribution>) -> TlsTotals {
    let suites = BTreeMap::from([("TLS 1.3, AES-128-GCM".to_owned(), 2 * CLIENTS)]);
    TlsTotals { handshakes: 2 * CLIENTS, resumed: CLIENTS, suites, handshake }
}

fn phases(series: &[Sample], total: &Totals) -> Vec<PhaseReport> {
    let phase = |name: &str, from: u64, to: u64| {
        let seconds = &series[from as usize..to as usize];
        let received = seconds.iter().map(|sample| sample.received).sum();
        let failures = seconds.iter().map(|sample| sample.failures).sum::<u64>();
        let mut reasons = BTreeMap::new();
        if failures > 0 {
            reasons.insert("connection refused".to_owned(), failures);
        }
        PhaseReport {
            name: name.to_owned(),
            from_s: from as f64,
            to_s: to as f64,
            totals: Totals {
                active: series[to as usize - 1].active,
                subscribed: seconds.iter().map(|sample| sample.subscribed).sum(),
                failures: reasons,
                published: seconds.iter().map(|sample| sample.published).sum(),
                expected: received,
                received,
                delivery: if received > 0 { total.delivery.clone() } else { None },
                ..Totals::default()
            },
            recovered_s: None,
        }
    };
    let mut storm = phase("storm", STORM_AT_S - 1, 110);
    storm.recovered_s = Some(9.4);
    storm.totals.told = 31_000;
    vec![
        phase("ramp to 100000", 0, 25),
        phase("hold 70s", 25, STORM_AT_S - 1),
        storm,
        phase("hold 30s", 110, SECONDS),
    ]
}

fn environment() -> Environment {
    let settings = [
        ("fs.file-max", "9223372036854775807"),
        ("net.core.somaxconn", "4096"),
        ("net.ipv4.ip_local_port_range", "32768 60999"),
        ("net.ipv4.tcp_mem", "288804 385075 577608"),
        ("net.ipv4.tcp_rmem", "4096 131072 33554432"),
    ];
    Environment {
        kernel: "6.18.44".to_owned(),
        cores: 2,
        processor: "Example 9 at 3.1 GHz".to_owned(),
        memory_bytes: 24 << 30,
        descriptors_max: 20_000,
        sysctl: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        throng: "0.1.0".to_owned(),
        is_loopback: true,
        network: "sockets".to_owned(),
    }
}

fn plan(name: &str) -> serde_json::Value {
    json!({
        "name": name,
        "target": { "transport": "web-socket", "url": "ws://127.0.0.1:8080/ws?channel=news" },
        "phases": [
            { "ramp": { "to": CLIENTS, "rate": CONNECTS_PER_S as f64 } },
            { "hold": { "time": "70s", "publish": { "rate": 1.0, "size": 128 } } },
            { "storm": { "timeout": "60s" } },
            { "hold": { "time": "30s", "publish": { "rate": 1.0, "size": 128 } } },
        ],
        "assertions": ["lost == 0", "p99 < 50ms"],
    })
}

/// Random enough for a picture, and the same each time.
struct Noise(u64);

impl Noise {
    /// Evenly from 0 to 1 (splitmix64).
    fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Around 1, with a tail towards larger values.
    fn log_normal(&mut self, width: f64) -> f64 {
        let sum: f64 = (0..12).map(|_| self.even()).sum();
        (width * (sum - 6.0)).exp()
    }
}
