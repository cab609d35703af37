//! Units of measured values.

use throng_units::format;

/// The unit of a measured value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// A number of things per second.
    PerSecond,
    /// A size in bytes.
    Bytes,
    /// A latency in milliseconds.
    Milliseconds,
    /// Processor seconds per second.
    Cores,
    /// Seconds since the start, shown as a clock.
    Clock,
    /// A fraction from 0 to 1.
    Share,
}

impl Unit {
    const ALL: [Unit; 7] = [
        Unit::Count,
        Unit::PerSecond,
        Unit::Bytes,
        Unit::Milliseconds,
        Unit::Cores,
        Unit::Clock,
        Unit::Share,
    ];

    /// The unit's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Milliseconds => "milliseconds",
            Unit::PerSecond => "per_second",
            Unit::Cores => "cores",
            Unit::Share => "share",
            Unit::Clock => "seconds",
            Unit::Count => "count",
        }
    }

    /// The unit with this [name](Self::name); [`Unit::Count`] for an unknown one.
    pub fn named(name: &str) -> Unit {
        Unit::ALL.into_iter().find(|unit| unit.name() == name).unwrap_or(Unit::Count)
    }

    /// The value with its unit, as in a table.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Count => format::decimal(value),
            Unit::PerSecond => format::rate(value),
            Unit::Bytes => format::bytes(value),
            Unit::Milliseconds => format::milliseconds(value),
            Unit::Cores => format::cores(value),
            Unit::Clock => format::clock(value),
            // Two decimals: more would be noise.
            Unit::Share => format!("{} %", trimmed((value * 1e4).round() / 100.0)),
        }
    }

    /// A round value in short form, as an axis label. `max` is the largest value of the axis.
    pub(crate) fn tick(self, value: f64, max: f64) -> String {
        match self {
            Unit::Count | Unit::PerSecond => short(value),
            Unit::Bytes if value == 0.0 => "0".to_owned(),
            Unit::Bytes => {
                // All labels of an axis use the unit of its largest value.
                let base = self.base(max);
                let unit = format::bytes(base);
                format!("{} {}", trimmed(value / base), unit.rsplit(' ').next().unwrap_or("B"))
            }
            Unit::Milliseconds if value >= 1000.0 => format!("{} s", trimmed(value / 1e3)),
            Unit::Milliseconds if value == 0.0 => "0".to_owned(),
            Unit::Milliseconds if value >= 1.0 => format!("{} ms", trimmed(value)),
            Unit::Milliseconds => format!("{} µs", trimmed(value * 1e3)),
            Unit::Cores => trimmed(value),
            Unit::Clock | Unit::Share => self.show(value),
        }
    }

    /// What round steps are multiples of: a power of 1024 for sizes, otherwise 1.
    pub(crate) fn base(self, max: f64) -> f64 {
        if self != Unit::Bytes {
            return 1.0;
        }
        let mut base = 1.0;
        while max >= base * 1024.0 {
            base *= 1024.0;
        }
        base
    }
}

/// `150,000` becomes `150 k`.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{} G", trimmed(value / 1e9)),
        value if value >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{} k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

/// `2.50` becomes `2.5`, and `3.00` becomes `3`.
pub(crate) fn trimmed(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for unit in Unit::ALL {
            assert_eq!(Unit::named(unit.name()), unit);
        }
        assert_eq!(Unit::named("parsecs"), Unit::Count);
    }
}
