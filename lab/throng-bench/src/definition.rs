//! The definition of a benchmark: its story, its measurements with the published values, its size.

use std::time::Duration;

use throng_flood::plan::Network;
use throng_report::Unit;
use throng_report::compare::Better;
use throng_units::format::count;

/// The definition of a benchmark: constant data.
pub(crate) struct Definition {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// Title for people.
    pub(crate) title: &'static str,
    /// What the original did, and why it is remembered: two or three sentences.
    pub(crate) story: &'static str,
    /// Author and title of the original.
    pub(crate) source: &'static str,
    /// Year of the original.
    pub(crate) year: u16,
    /// Hardware of the original.
    pub(crate) hardware: &'static str,
    /// How this rerun works.
    pub(crate) setup: &'static str,
    /// How this rerun differs from the original, one sentence each.
    pub(crate) differences: &'static [&'static str],
    /// The measurements with their published values.
    pub(crate) measurements: &'static [Measurement],
    /// Size, and what the machine must provide.
    pub(crate) scope: Scope,
}

/// Size of a benchmark, and what it needs from the machine. [`Scope::of`] is the plain case: no
/// hold time, sockets, messages to single clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// Default size: the original's where that is feasible.
    pub(crate) size: Size,
    /// Whether `--time` applies.
    pub(crate) has_time: bool,
    /// Whether it runs only if named, because of its size.
    pub(crate) is_big: bool,
    /// Whether messages go to all clients at once and fill socket buffers.
    pub(crate) broadcasts: bool,
    /// Network of the clients.
    pub(crate) network: Network,
    /// How many times all clients connect, each time to a new server.
    pub(crate) rounds: u32,
    /// Whether it starts nats-servers.
    pub(crate) needs_nats: bool,
}

/// Size of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Peak number of clients.
    pub(crate) connections: usize,
    /// How long the clients are held, if `--time` applies.
    pub(crate) time: Duration,
}

/// A measurement, and its published value if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measurement {
    /// Key in JSON.
    pub(crate) key: &'static str,
    /// Name for people.
    pub(crate) name: &'static str,
    /// Unit of the value.
    pub(crate) unit: Unit,
    /// The better direction.
    pub(crate) better: Better,
    /// Whether the value is per connection, and so comparable between sizes.
    pub(crate) is_per_connection: bool,
    /// The published value.
    pub(crate) published: Option<Published>,
}

/// A published value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// The value in the measurement's unit.
    pub(crate) value: f64,
    /// Number of connections of the original.
    pub(crate) connections: usize,
    /// What exactly the original measured.
    pub(crate) what: &'static str,
}

impl Measurement {
    /// A measurement whose smaller values are better.
    pub(crate) const fn less(key: &'static str, name: &'static str, unit: Unit) -> Measurement {
        Measurement::new(key, name, unit, Better::Less)
    }

    /// A measurement whose larger values are better.
    pub(crate) const fn more(key: &'static str, name: &'static str, unit: Unit) -> Measurement {
        Measurement::new(key, name, unit, Better::More)
    }

    /// A measurement of the load: neither direction is better.
    pub(crate) const fn of(key: &'static str, name: &'static str, unit: Unit) -> Measurement {
        Measurement::new(key, name, unit, Better::Neither)
    }

    const fn new(key: &'static str, name: &'static str, unit: Unit, better: Better) -> Measurement {
        Measurement { key, name, unit, better, is_per_connection: false, published: None }
    }

    /// The same, per connection.
    pub(crate) const fn per_connection(self) -> Measurement {
        Measurement { is_per_connection: true, ..self }
    }

    /// The same with a published value; `what` says exactly what was measured.
    pub(crate) const fn published(
        self,
        value: f64,
        connections: usize,
        what: &'static str,
    ) -> Measurement {
        Measurement { published: Some(Published { value, connections, what }), ..self }
    }
}

/// Measurements of several benchmarks.
impl Measurement {
    /// Memory of the server.
    pub(crate) const MEMORY: Measurement =
        Measurement::less("memory", "memory per connection, in the server", Unit::Bytes)
            .per_connection();

    /// Memory of the kernel.
    pub(crate) const KERNEL: Measurement =
        Measurement::less("kernel", "memory per connection, in the kernel, both ends", Unit::Bytes)
            .per_connection();

    /// Rate of connecting.
    pub(crate) const CONNECT_RATE: Measurement =
        Measurement::more("connect_rate", "connects per second", Unit::PerSecond);

    /// Deliveries found by the audit.
    pub(crate) const DELIVERED: Measurement =
        Measurement::of("delivered", "messages delivered", Unit::Count);

    /// Deliveries expected by the audit.
    pub(crate) const EXPECTED: Measurement =
        Measurement::of("expected", "messages expected", Unit::Count);

    /// The same with another name.
    pub(crate) const fn named(self, name: &'static str) -> Measurement {
        Measurement { name, ..self }
    }
}

impl Scope {
    /// A scope with a peak of `connections`.
    pub(crate) const fn of(connections: usize) -> Scope {
        Scope {
            size: Size { connections, time: Duration::ZERO },
            has_time: false,
            is_big: false,
            broadcasts: false,
            network: Network::Sockets,
            rounds: 1,
            needs_nats: false,
        }
    }

    /// Held for `seconds` unless `--time` says otherwise.
    pub(crate) const fn held_s(self, seconds: u64) -> Scope {
        let time = Duration::from_secs(seconds);
        Scope { size: Size { time, ..self.size }, has_time: true, ..self }
    }

    /// Runs only if named.
    pub(crate) const fn big(self) -> Scope {
        Scope { is_big: true, ..self }
    }

    /// Sends messages to all clients at once.
    pub(crate) const fn broadcasting(self) -> Scope {
        Scope { broadcasts: true, ..self }
    }

    /// Uses this network.
    pub(crate) const fn over(self, network: Network) -> Scope {
        Scope { network, ..self }
    }

    /// Connects all clients this many times, each time to a new server.
    pub(crate) const fn in_rounds(self, rounds: u32) -> Scope {
        Scope { rounds, ..self }
    }

    /// Needs the program of NATS, which it starts.
    pub(crate) const fn with_nats(self) -> Scope {
        Scope { needs_nats: true, ..self }
    }

    /// Ends of each connection in the kernel of this machine.
    pub(crate) const fn kernel_ends(&self) -> usize {
        match self.network {
            Network::Sockets => 2,
            Network::Tunnel => 1,
        }
    }
}

impl Definition {
    /// The default size with overrides from the command line.
    pub(crate) fn sized(&self, connections: Option<usize>, time: Option<Duration>) -> Size {
        Size {
            connections: connections.unwrap_or(self.scope.size.connections),
            time: time.unwrap_or(self.scope.size.time),
        }
    }

    /// The measurement with this key.
    #[cfg(test)]
    pub(crate) fn measurement(&self, key: &str) -> Option<&'static Measurement> {
        self.measurements.iter().find(|measurement| measurement.key == key)
    }

    /// Rough duration at a size, in seconds.
    pub(crate) fn seconds(&self, size: &Size) -> f64 {
        /// Rate of connecting and of closing.
        const CONNECTS_PER_S: f64 = 15_000.0;
        /// Starting, stopping, and waiting for outstanding messages.
        const OVERHEAD_S: f64 = 5.0;
        let time = if self.scope.has_time { size.time.as_secs_f64() } else { 20.0 };
        let round = OVERHEAD_S + 2.0 * size.connections as f64 / CONNECTS_PER_S;
        time + f64::from(self.scope.rounds) * round
    }
}

impl Size {
    /// Scales a step of the original: `part` of its `whole` clients.
    pub(crate) fn part(&self, part: usize, whole: usize) -> usize {
        let scaled = part as u128 * self.connections as u128 / whole.max(1) as u128;
        (scaled as usize).clamp(1, self.connections.max(1))
    }

    /// The size as text.
    pub(crate) fn text(&self) -> String {
        format!("{} connections", count(self.connections as u64))
    }
}

/// The kilobyte of `ps` and `/proc`.
pub(crate) const KIB: f64 = 1024.0;

/// The gigabyte of `top`.
pub(crate) const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_scale_with_the_size() {
        let size = |connections| Size { connections, time: Duration::ZERO };
        assert_eq!(size(10_000).part(100, 10_000), 100);
        assert_eq!(size(200).part(5_000, 10_000), 100);
        assert_eq!(size(200).part(100, 10_000), 2);
        assert_eq!(size(10).part(100, 10_000), 1);
        assert_eq!(size(20_000).part(10_000, 10_000), 20_000);
        assert_eq!(size(0).part(1, 10), 1);
    }
}
