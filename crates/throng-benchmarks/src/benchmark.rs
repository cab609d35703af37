//! What a benchmark is: its story, what was published of it, its size, and how it is run.

use std::time::Duration;

use throng_flood::plan::Network;
use throng_report::Unit;
use throng_report::compare::Better;
use throng_units::format::count;

use crate::stage::{Cut, Stage};

/// A benchmark.
pub struct Benchmark {
    /// As it is called on the command line.
    pub name: &'static str,
    /// As people call it.
    pub title: &'static str,
    /// What was done and why it is remembered, in two sentences.
    pub story: &'static str,
    /// Who published it, and where.
    pub source: &'static str,
    /// When.
    pub year: u16,
    /// What it ran on.
    pub hardware: &'static str,
    /// How it is done here.
    pub setup: &'static str,
    /// Where that differs from the original.
    pub differences: &'static [&'static str],
    /// What is measured, with what was published of it.
    pub figures: &'static [Figure],
    /// How much it takes.
    pub scope: Scope,
    /// Runs it.
    pub run: fn(&mut Stage<'_>) -> Result<(), Cut>,
}

/// How much a benchmark takes: a few connections, quietly, over sockets, unless more is said.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// Its size unless said otherwise: that of the original where this is bearable.
    pub size: Size,
    /// Whether `--time` means anything to it.
    pub has_time: bool,
    /// So large that it is only run when it is named.
    pub is_big: bool,
    /// Whether messages go to all clients at once, which wait in buffers until they are read.
    pub broadcasts: bool,
    /// What carries the clients' connections.
    pub network: Network,
}

/// How much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The most clients that there are at once.
    pub connections: usize,
    /// How long it is held, where that can be chosen.
    pub time: Duration,
}

/// Something that is measured.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Names it in JSON.
    pub key: &'static str,
    /// Names it for people.
    pub name: &'static str,
    /// What the value is.
    pub unit: Unit,
    /// Which values are better.
    pub better: Better,
    /// Whether it is of a single connection, and can be compared with one of another size.
    pub is_each: bool,
    /// What was published, if anything was.
    pub published: Option<Published>,
}

/// A published value.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// In the figure's unit.
    pub value: f64,
    /// With so many connections.
    pub connections: usize,
    /// What exactly was measured.
    pub what: &'static str,
}

impl Figure {
    /// One that is better the smaller it is.
    pub const fn less(key: &'static str, name: &'static str, unit: Unit) -> Figure {
        Figure { key, name, unit, better: Better::Less, is_each: false, published: None }
    }

    /// One that is better the larger it is.
    pub const fn more(key: &'static str, name: &'static str, unit: Unit) -> Figure {
        Figure { key, name, unit, better: Better::More, is_each: false, published: None }
    }

    /// One that says how much there was.
    pub const fn of(key: &'static str, name: &'static str, unit: Unit) -> Figure {
        Figure { key, name, unit, better: Better::Neither, is_each: false, published: None }
    }

    /// Of a single connection.
    pub const fn each(self) -> Figure {
        Figure { is_each: true, ..self }
    }

    /// With a published value: so much with so many connections.
    pub const fn published(self, value: f64, connections: usize, what: &'static str) -> Figure {
        Figure { published: Some(Published { value, connections, what }), ..self }
    }
}

/// Figures that several benchmarks have.
impl Figure {
    /// What a parked client takes in the server.
    pub const MEMORY: Figure =
        Figure::less("memory", "memory a connection, in the server", Unit::Bytes).each();

    /// What a client and its server take in the kernel.
    pub const KERNEL: Figure =
        Figure::less("kernel", "memory a connection, in the kernel, both ends", Unit::Bytes).each();

    /// How fast clients came.
    pub const CONNECT_RATE: Figure =
        Figure::more("connect_rate", "connects a second", Unit::PerSecond);

    /// What the audit found, …
    pub const DELIVERED: Figure = Figure::of("delivered", "messages delivered", Unit::Count);

    /// … and what it was to find.
    pub const EXPECTED: Figure = Figure::of("expected", "messages due", Unit::Count);

    /// Named more exactly.
    pub const fn named(self, name: &'static str) -> Figure {
        Figure { name, ..self }
    }
}

impl Scope {
    /// So many connections at the most.
    pub const fn of(connections: usize) -> Scope {
        Scope {
            size: Size { connections, time: Duration::ZERO },
            has_time: false,
            is_big: false,
            broadcasts: false,
            network: Network::Sockets,
        }
    }

    /// Held for so long, unless `--time` says otherwise.
    pub const fn held_s(self, seconds: u64) -> Scope {
        let time = Duration::from_secs(seconds);
        Scope { size: Size { time, ..self.size }, has_time: true, ..self }
    }

    /// Run only when it is named.
    pub const fn big(self) -> Scope {
        Scope { is_big: true, ..self }
    }

    /// Messages go to all clients at once.
    pub const fn broadcasting(self) -> Scope {
        Scope { broadcasts: true, ..self }
    }

    /// The clients' connections go over this.
    pub const fn over(self, network: Network) -> Scope {
        Scope { network, ..self }
    }

    /// Ends of each connection that the kernel of this machine has.
    pub const fn kernel_ends(&self) -> usize {
        match self.network {
            Network::Sockets => 2,
            Network::Tunnel => 1,
        }
    }
}

impl Benchmark {
    /// Its size with what was asked for instead.
    pub fn sized(&self, connections: Option<usize>, time: Option<Duration>) -> Size {
        Size {
            connections: connections.unwrap_or(self.scope.size.connections),
            time: time.unwrap_or(self.scope.size.time),
        }
    }

    /// What was published of a figure.
    pub fn figure(&self, key: &str) -> Option<&'static Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }

    /// Seconds that it takes about, at a size: a guess for people who wait.
    pub fn seconds(&self, size: &Size) -> f64 {
        /// Clients that come a second; they go as quickly.
        const CONNECTS_PER_S: f64 = 15_000.0;
        /// Starting, ending, and waiting for what is on its way.
        const AROUND_S: f64 = 5.0;
        let time = if self.scope.has_time { size.time.as_secs_f64() } else { 20.0 };
        AROUND_S + time + 2.0 * size.connections as f64 / CONNECTS_PER_S
    }
}

impl Size {
    /// Of `whole` clients of the original, `part` had a figure: so many are that here.
    pub fn part(&self, part: usize, whole: usize) -> usize {
        let scaled = part as u128 * self.connections as u128 / whole.max(1) as u128;
        (scaled as usize).clamp(1, self.connections.max(1))
    }

    /// In words.
    pub fn words(&self) -> String {
        format!("{} connections", count(self.connections as u64))
    }
}

/// Kilobytes of `ps` and `/proc`.
pub const KIB: f64 = 1024.0;

/// The `g` of `top`.
pub const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_scale_with_the_whole() {
        let size = |connections| Size { connections, time: Duration::ZERO };
        assert_eq!(size(10_000).part(100, 10_000), 100);
        assert_eq!(size(200).part(5_000, 10_000), 100);
        assert_eq!(size(200).part(100, 10_000), 2);
        assert_eq!(size(10).part(100, 10_000), 1);
        assert_eq!(size(20_000).part(10_000, 10_000), 20_000);
        assert_eq!(size(0).part(1, 10), 1);
    }
}
