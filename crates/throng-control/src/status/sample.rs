//! One sample, as `/status.json` and `/status/stream` serialize it. `docs/reference/status.md`
//! documents each field.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use throng_core::Snapshot;

use crate::certificates::TlsStatus;
use crate::cluster::ClusterStatus;
use crate::edge::AdmissionMetrics;
use crate::health::{Departure, Upgrade};

/// Counts by reason. Reasons that have not occurred are left out.
pub(super) type Reasons = BTreeMap<&'static str, u64>;

/// The state of the server, and what happened since the previous sample.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(super) time_ms: u64,
    pub(super) version: &'static str,
    pub(super) started_ms: u64,
    pub(super) draining: bool,
    pub(super) departure: Option<Departure>,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) connections: ConnectionsSample,
    pub(super) channels: u64,
    pub(super) accepted: EventRate,
    pub(super) admission: AdmissionMetrics,
    pub(super) messages_in: EventRate,
    pub(super) deliveries: EventRate,
    pub(super) sent_bytes: EventRate,
    pub(super) latency: Durations,
    pub(super) http: Http,
    pub(super) canary: Option<BTreeMap<&'static str, Canary>>,
    pub(super) cpu: Cpu,
    pub(super) memory: MemorySample,
    pub(super) kernel: Kernel,
    pub(super) tls: Option<TlsStatus>,
    pub(super) data: Option<DataSample>,
    pub(super) cluster: Option<ClusterStatus>,
    pub(super) refused_per_s: f64,
    pub(super) refused: Reasons,
    pub(super) dropped_per_s: f64,
    pub(super) dropped: Reasons,
    pub(super) closed: Reasons,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ConnectionsSample {
    pub(super) total: u64,
    pub(super) websocket: u64,
    pub(super) sse: u64,
    pub(super) stream: u64,
    pub(super) poll: u64,
    pub(super) status: u64,
    pub(super) control: u64,
    pub(super) other: u64,
    pub(super) behind: u64,
    pub(super) capacity: u64,
    pub(super) workers: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct EventRate {
    pub(super) total: u64,
    /// Events a second since the previous sample.
    pub(super) per_s: f64,
}

/// The distribution of durations over the last second and the last minute.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Durations {
    pub(super) second: Distribution,
    pub(super) minute: Distribution,
}

/// The distribution of durations over one period. Without any there is no mean nor percentile.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Distribution {
    pub(super) count: u64,
    pub(super) mean_ms: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

/// The canary's results over one transport.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Canary {
    pub(super) failing: bool,
    pub(super) failures: u64,
    pub(super) arrived_ms: Option<u64>,
    #[serde(flatten)]
    pub(super) recent: Distribution,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Http {
    #[serde(flatten)]
    pub(super) requests: EventRate,
    #[serde(flatten)]
    pub(super) durations: Durations,
}

impl std::ops::Deref for Http {
    type Target = Durations;

    fn deref(&self) -> &Durations {
        &self.durations
    }
}

/// Processor time divided by elapsed time: 1 is one core.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Cpu {
    pub(super) cores: usize,
    pub(super) workers: Vec<f64>,
    pub(super) control: Option<f64>,
}

impl Cpu {
    pub(super) fn workers_sum(&self) -> Option<f64> {
        let share = self.workers.iter().copied().reduce(|sum, share| sum + share);
        share.map(|share| rounded(share, 3))
    }

    /// The load of the busiest worker.
    pub(super) fn busiest(&self) -> Option<f64> {
        self.workers.iter().copied().reduce(f64::max)
    }
}

/// Memory of this process, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct MemorySample {
    pub(super) resident_bytes: Option<u64>,
    pub(super) private_bytes: Option<u64>,
    pub(super) private_at_start_bytes: Option<u64>,
    pub(super) log_bytes: u64,
    pub(super) state_keys: u64,
    pub(super) state_bytes: u64,
    pub(super) members: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) step: &'static str,
    pub(super) per_connection_bytes: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct DataSample {
    pub(super) disk_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) refuses: Option<&'static str>,
    pub(super) messages: EventRate,
    pub(super) message_bytes: EventRate,
    pub(super) commits: Durations,
}

/// TCP in the kernel, for the whole machine.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Kernel {
    pub(super) tcp_sockets: Option<u64>,
    pub(super) tcp_buffer_bytes: Option<u64>,
    pub(super) socket_slab_bytes: Option<u64>,
}

impl Distribution {
    /// The distribution that a histogram holds.
    pub(super) fn of(snapshot: &Snapshot) -> Distribution {
        let ms = |us: f64| rounded(us / 1000.0, 3);
        let quantile = |share| snapshot.quantile_us(share).map(|us| ms(us as f64));
        Distribution {
            count: snapshot.count(),
            mean_ms: snapshot.mean_us().map(ms),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
        }
    }

    /// The distribution of these durations in microseconds, the shortest first.
    pub(super) fn of_sorted(sorted_us: &[u64]) -> Distribution {
        let ms = |us: f64| rounded(us / 1000.0, 3);
        let quantile = |share: f64| {
            let rank = (sorted_us.len() as f64 * share).ceil().max(1.0) as usize;
            sorted_us.get(rank - 1).map(|&us| ms(us as f64))
        };
        let mean_us = sorted_us.iter().sum::<u64>() as f64 / sorted_us.len() as f64;
        Distribution {
            count: sorted_us.len() as u64,
            mean_ms: (!sorted_us.is_empty()).then(|| ms(mean_us)),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
        }
    }
}

/// Rounds to a number of decimals.
pub(super) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

impl Sample {
    pub(super) fn json(&self) -> String {
        // Cannot fail: all keys are strings, and all numbers finite.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The sample as a line of JSON, with the field `history` if one is given.
pub(super) fn with_history(sample: &Sample, history: Option<Value>) -> Vec<u8> {
    let mut json = sample.json();
    if let Some(history) = history {
        json.pop();
        json += &format!(",\"history\":{history}}}");
    }
    json.push('\n');
    json.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_durations_are_durations() {
        let of = |us: &[u64]| {
            let found = Distribution::of_sorted(us);
            (found.count, found.mean_ms, found.p50_ms, found.p99_ms)
        };
        assert_eq!(of(&[]), (0, None, None, None));
        assert_eq!(of(&[1_000, 3_000]), (2, Some(2.0), Some(1.0), Some(3.0)));
        let hundred: Vec<_> = (1..=100).map(|ms| ms * 1_000).collect();
        assert_eq!(of(&hundred), (100, Some(50.5), Some(50.0), Some(99.0)));
    }
}
