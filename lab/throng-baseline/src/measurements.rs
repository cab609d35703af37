//! All measurements in the order of the report: names, units and goals.

use serde::Serialize;

/// The value that a measurement must reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// Reported without a goal.
    None,
    /// Throng's value must not exceed this.
    AtMost(f64),
    /// Throng's value over the raw loop's must be at least this.
    RatioAtLeast(f64),
    /// Throng's value over the raw loop's must not exceed this.
    RatioAtMost(f64),
}

/// A measurement, which is one row of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement {
    /// Its key in [`Results`](crate::results::Results) and in the JSON report.
    pub(crate) key: &'static str,
    /// Its name in the table.
    pub(crate) label: &'static str,
    /// The unit of its values.
    pub(crate) unit: &'static str,
    /// Decimals of its values in the table.
    pub(crate) decimals: usize,
    /// The value that it must reach.
    pub(crate) goal: Goal,
}

const fn measurement(
    key: &'static str,
    label: &'static str,
    unit: &'static str,
    decimals: usize,
    goal: Goal,
) -> Measurement {
    Measurement { key, label, unit, decimals, goal }
}

/// The maximum for a parked connection in user space, with everything that it needs.
const PARKED_BYTES: Goal = Goal::AtMost(128.0);

/// Throng writes several messages at once, where the raw loop makes one call for each.
const BURST: Goal = Goal::RatioAtLeast(3.0);

/// Most of a delivery is work of the kernel, so that Throng may add this much.
const FANOUT_RATE: Goal = Goal::RatioAtLeast(0.9);
/// The same goal in processor time.
const FANOUT_CPU: Goal = Goal::RatioAtMost(1.15);

/// Lower, because the raw loop parses no request.
const CONNECT: Goal = Goal::RatioAtLeast(0.7);

/// For a request during fan-outs to all subscribers, in milliseconds.
const HEALTH: Goal = Goal::AtMost(20.0);

/// In percent of one core.
const IDLE: Goal = Goal::AtMost(2.0);

/// All measurements, in the order of the report.
pub(crate) const MEASUREMENTS: &[Measurement] = &[
    measurement("memory_websocket", "memory, parked WebSocket", "B/conn", 0, PARKED_BYTES),
    measurement("memory_sse", "memory, parked event stream", "B/conn", 0, PARKED_BYTES),
    measurement("memory_users", "memory, parked WebSocket, own user each", "B/conn", 0, Goal::None),
    measurement("memory_broadcast", "memory, growth by a broadcast", "B/conn", 0, Goal::None),
    measurement("slab", "kernel slab, both ends", "B/pair", 0, Goal::None),
    measurement("fanout_64_rate", "fan-out 64 B", "deliveries/s", 0, FANOUT_RATE),
    measurement("fanout_64_cpu", "fan-out 64 B, server CPU", "us/delivery", 2, FANOUT_CPU),
    measurement("fanout_64_client_cpu", "fan-out 64 B, client CPU", "us/delivery", 2, Goal::None),
    measurement("fanout_64_machine_cpu", "fan-out 64 B, machine CPU", "us/delivery", 2, Goal::None),
    measurement("fanout_64_p50", "fan-out 64 B, p50", "ms", 1, Goal::None),
    measurement("fanout_64_p99", "fan-out 64 B, p99", "ms", 1, Goal::None),
    measurement("fanout_64_last", "fan-out 64 B, last", "ms", 1, Goal::None),
    measurement("fanout_1024_rate", "fan-out 1 KiB", "deliveries/s", 0, Goal::None),
    measurement("fanout_1024_cpu", "fan-out 1 KiB, server CPU", "us/delivery", 2, Goal::None),
    measurement(
        "fanout_1024_client_cpu",
        "fan-out 1 KiB, client CPU",
        "us/delivery",
        2,
        Goal::None,
    ),
    measurement(
        "fanout_1024_machine_cpu",
        "fan-out 1 KiB, machine CPU",
        "us/delivery",
        2,
        Goal::None,
    ),
    measurement("fanout_1024_p50", "fan-out 1 KiB, p50", "ms", 1, Goal::None),
    measurement("fanout_1024_p99", "fan-out 1 KiB, p99", "ms", 1, Goal::None),
    measurement("fanout_1024_last", "fan-out 1 KiB, last", "ms", 1, Goal::None),
    measurement("burst_batch_rate", "burst of 10, one batch", "deliveries/s", 0, BURST),
    measurement("burst_pipelined_rate", "burst of 10, pipelined POSTs", "deliveries/s", 0, BURST),
    measurement("connect_rate", "connect until subscribed", "connections/s", 0, CONNECT),
    measurement("health_new_p50", "GET /health in fan-outs, new conn., p50", "ms", 2, HEALTH),
    measurement("health_new_p99", "GET /health in fan-outs, new conn., p99", "ms", 2, Goal::None),
    measurement("health_kept_p50", "GET /health in fan-outs, kept alive, p50", "ms", 2, HEALTH),
    measurement("health_kept_p99", "GET /health in fan-outs, kept alive, p99", "ms", 2, Goal::None),
    measurement("idle_cpu", "idle with heartbeats, server CPU", "% of a core", 2, IDLE),
    measurement("publish_rate", "POST, a channel each", "publishes/s", 0, Goal::None),
    measurement("publish_cpu", "POST, a channel each, server CPU", "us/publish", 1, Goal::None),
];

#[cfg(test)]
mod tests {
    use super::MEASUREMENTS;
    use std::collections::HashSet;

    #[test]
    fn keys_are_unique() {
        let keys: HashSet<_> = MEASUREMENTS.iter().map(|measurement| measurement.key).collect();
        assert_eq!(keys.len(), MEASUREMENTS.len());
    }
}
