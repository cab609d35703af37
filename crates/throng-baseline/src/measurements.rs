//! Every figure that is reported: its name, its unit and what is asked of it.
//!
//! The measurements fill a [`Ledger`](crate::ledger::Ledger) by key; [`report`](crate::report)
//! turns it into rows in this order.

use serde::Serialize;

/// What a figure must reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Told for information.
    None,
    /// Throng's own value must not exceed this.
    AtMost(f64),
    /// Throng's value over the raw loop's must be at least this.
    RatioAtLeast(f64),
    /// Throng's value over the raw loop's must not exceed this.
    RatioAtMost(f64),
}

/// One line of the report.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its key in the ledger and in the JSON report.
    pub key: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// Digits after the point.
    pub decimals: usize,
    /// What is asked of it.
    pub goal: Goal,
}

const fn figure(
    key: &'static str,
    label: &'static str,
    unit: &'static str,
    decimals: usize,
    goal: Goal,
) -> Figure {
    Figure { key, label, unit, decimals, goal }
}

/// The budget of a parked connection in user space, everything counted.
const PARKED_BYTES: Goal = Goal::AtMost(128.0);

/// Several messages at once go out in fewer, larger writes than the raw loop's one each.
const BURST: Goal = Goal::RatioAtLeast(3.0);

/// The kernel's own work leaves room for this much of Throng's.
const FANOUT_RATE: Goal = Goal::RatioAtLeast(0.9);
/// Likewise in processor time.
const FANOUT_CPU: Goal = Goal::RatioAtMost(1.15);

/// The raw loop does no HTTP.
const CONNECT: Goal = Goal::RatioAtLeast(0.7);

/// A plain request in the middle of a fan-out to all, in milliseconds.
const HEALTH: Goal = Goal::AtMost(20.0);

/// Of one core.
const IDLE: Goal = Goal::AtMost(2.0);

/// All figures, in the order of the report.
pub const FIGURES: &[Figure] = &[
    figure("memory_websocket", "memory, parked WebSocket", "B/conn", 0, PARKED_BYTES),
    figure("memory_sse", "memory, parked event stream", "B/conn", 0, PARKED_BYTES),
    figure("memory_users", "memory, parked WebSocket, own user each", "B/conn", 0, Goal::None),
    figure("memory_broadcast", "memory, growth by a broadcast", "B/conn", 0, Goal::None),
    figure("slab", "kernel slab, both ends", "B/pair", 0, Goal::None),
    figure("fanout_64_rate", "fan-out 64 B", "deliveries/s", 0, FANOUT_RATE),
    figure("fanout_64_cpu", "fan-out 64 B, server CPU", "us/delivery", 2, FANOUT_CPU),
    figure("fanout_64_client_cpu", "fan-out 64 B, client CPU", "us/delivery", 2, Goal::None),
    figure("fanout_64_machine_cpu", "fan-out 64 B, machine CPU", "us/delivery", 2, Goal::None),
    figure("fanout_64_p50", "fan-out 64 B, p50", "ms", 1, Goal::None),
    figure("fanout_64_p99", "fan-out 64 B, p99", "ms", 1, Goal::None),
    figure("fanout_64_last", "fan-out 64 B, last", "ms", 1, Goal::None),
    figure("fanout_1024_rate", "fan-out 1 KiB", "deliveries/s", 0, Goal::None),
    figure("fanout_1024_cpu", "fan-out 1 KiB, server CPU", "us/delivery", 2, Goal::None),
    figure("fanout_1024_client_cpu", "fan-out 1 KiB, client CPU", "us/delivery", 2, Goal::None),
    figure("fanout_1024_machine_cpu", "fan-out 1 KiB, machine CPU", "us/delivery", 2, Goal::None),
    figure("fanout_1024_p50", "fan-out 1 KiB, p50", "ms", 1, Goal::None),
    figure("fanout_1024_p99", "fan-out 1 KiB, p99", "ms", 1, Goal::None),
    figure("fanout_1024_last", "fan-out 1 KiB, last", "ms", 1, Goal::None),
    figure("burst_batch_rate", "burst of 10, one batch", "deliveries/s", 0, BURST),
    figure("burst_pipelined_rate", "burst of 10, pipelined POSTs", "deliveries/s", 0, BURST),
    figure("connect_rate", "connect until subscribed", "connections/s", 0, CONNECT),
    figure("health_new_p50", "GET /health in fan-outs, new conn., p50", "ms", 2, HEALTH),
    figure("health_new_p99", "GET /health in fan-outs, new conn., p99", "ms", 2, Goal::None),
    figure("health_kept_p50", "GET /health in fan-outs, kept alive, p50", "ms", 2, HEALTH),
    figure("health_kept_p99", "GET /health in fan-outs, kept alive, p99", "ms", 2, Goal::None),
    figure("idle_cpu", "idle with heartbeats, server CPU", "% of a core", 2, IDLE),
    figure("publish_rate", "POST, a channel each", "publishes/s", 0, Goal::None),
    figure("publish_cpu", "POST, a channel each, server CPU", "us/publish", 1, Goal::None),
];

#[cfg(test)]
mod tests {
    use super::FIGURES;
    use std::collections::HashSet;

    #[test]
    fn keys_are_unique() {
        let keys: HashSet<_> = FIGURES.iter().map(|figure| figure.key).collect();
        assert_eq!(keys.len(), FIGURES.len());
    }
}
