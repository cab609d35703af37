//! From values to places on paper: scales, round ticks, units.

use throng_units::format;

/// What values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things that are counted.
    Count,
    /// Things a second.
    PerSecond,
    /// Memory.
    Bytes,
    /// Latency.
    Milliseconds,
    /// Processor time a second.
    Cores,
    /// Seconds since the start.
    Clock,
    /// A part of all, 0 to 1.
    Share,
}

impl Unit {
    /// The value as it stands in a table.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Count => format::decimal(value),
            Unit::PerSecond => format::rate(value),
            Unit::Bytes => format::bytes(value),
            Unit::Milliseconds => format::milliseconds(value),
            Unit::Cores => format::cores(value),
            Unit::Clock => format::clock(value),
            // More digits would be noise.
            Unit::Share => format!("{} %", trimmed((value * 1e4).round() / 100.0)),
        }
    }

    /// The value as it stands at an axis, where it is round and room is short.
    fn tick(self, value: f64, most: f64) -> String {
        match self {
            Unit::Count | Unit::PerSecond => short(value),
            Unit::Bytes if value == 0.0 => "0".to_owned(),
            Unit::Bytes => {
                // All in one unit, so that they can be compared at a glance.
                let base = self.base(most);
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

    /// What a round step is a multiple of: a power of 1024 for memory.
    fn base(self, most: f64) -> f64 {
        if self != Unit::Bytes {
            return 1.0;
        }
        let mut base = 1.0;
        while most >= base * 1024.0 {
            base *= 1024.0;
        }
        base
    }
}

/// From values to pixels.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// Where a value is; one outside is at the edge.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high, value) = if self.is_log {
            (self.low.ln(), self.high.ln(), value.max(self.low).ln())
        } else {
            (self.low, self.high, value)
        };
        let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// The pixel at which the scale begins.
    pub fn start(&self) -> f64 {
        self.from
    }

    /// The pixel at which the scale ends.
    pub fn end(&self) -> f64 {
        self.to
    }
}

/// A scale with its round values.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The scale.
    pub scale: Scale,
    /// Round values and their names.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero to a round value that is no less than `most`.
    pub fn linear(unit: Unit, most: f64, from: f64, to: f64) -> Axis {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = match unit {
            Unit::Clock => clock_step(most),
            Unit::Count => nice_step(most, 1.0, 4).max(1.0),
            _ => nice_step(most, unit.base(most), 4),
        };
        // Time ends where the run ends; values get air above them.
        let steps = if unit == Unit::Clock { (most / step).floor() } else { (most / step).ceil() };
        let high = if unit == Unit::Clock { most } else { steps * step };
        let ticks = (0..=steps as u32).map(|nth| {
            let value = f64::from(nth) * step;
            (value, unit.tick(value, most))
        });
        let scale = Scale { low: 0.0, high, from, to, is_log: false };
        Axis { scale, ticks: ticks.collect() }
    }

    /// From a round value that is no more than `least` to one that is no less than `most`.
    pub fn log(unit: Unit, least: f64, most: f64, from: f64, to: f64) -> Axis {
        let least = if least.is_finite() && least > 0.0 { least } else { 1e-3 };
        let most = if most.is_finite() { most.max(least * 1.01) } else { least * 10.0 };
        if unit == Unit::Bytes {
            return Axis::log_bytes(least, most, from, to);
        }
        let (low, high) = (round_down(least), round_up(most));
        let is_narrow = (high / low).log10() < 3.01;
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.log10().floor());
        while decade <= high * 1.001 {
            let within: &[f64] = if is_narrow { &[1.0, 2.0, 5.0] } else { &[1.0] };
            for factor in within {
                let value = decade * factor;
                if value >= low * 0.999 && value <= high * 1.001 {
                    ticks.push((value, unit.tick(value, most)));
                }
            }
            decade *= 10.0;
        }
        Axis { scale: Scale { low, high, from, to, is_log: true }, ticks }
    }

    /// The same in powers of four, or of more where there would be too many.
    fn log_bytes(least: f64, most: f64, from: f64, to: f64) -> Axis {
        const TICKS_MAX: f64 = 9.0;
        let exponent = |value: f64| value.max(1.0).log2() / 2.0;
        let (first, last) = (exponent(least).floor(), exponent(most).ceil());
        let last = last.max(first + 1.0);
        let step = ((last - first) / TICKS_MAX).ceil();
        let steps = ((last - first) / step).ceil();
        let value = |nth: f64| 4_f64.powf(first + nth * step);
        let ticks = (0..=steps as u32).map(|nth| {
            let value = value(f64::from(nth));
            (value, Unit::Bytes.tick(value, value))
        });
        let scale = Scale { low: value(0.0), high: value(steps), from, to, is_log: true };
        Axis { scale, ticks: ticks.collect() }
    }

    /// Percentiles up to the one above which a single value of `count` lies; places are found by
    /// the share of values above.
    pub fn percentiles(count: u64, from: f64, to: f64) -> Axis {
        let high = (count.max(10) as f64).recip();
        let mut ticks = vec![(1.0, "0 %".to_owned()), (0.5, "50 %".to_owned())];
        let mut above = 0.1;
        while above >= high * 0.999 {
            ticks.push((above, format!("{} %", trimmed(100.0 - above * 100.0))));
            above /= 10.0;
        }
        Axis { scale: Scale { low: 1.0, high, from, to, is_log: false }.flipped(), ticks }
    }
}

impl Scale {
    /// On a logarithmic scale that falls from left to right `at` must not cut values at `low`, so
    /// ends are exchanged.
    fn flipped(self) -> Scale {
        Scale { low: self.high, high: self.low, from: self.to, to: self.from, is_log: true }
    }
}

/// The largest of 1, 2 and 5 times a power of ten that is no more than the value.
fn round_down(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let factor = [5.0, 2.0, 1.0].into_iter().find(|factor| decade * factor <= value * 1.0001);
    decade * factor.unwrap_or(1.0)
}

/// The smallest of 1, 2 and 5 times a power of ten that is no less than the value.
fn round_up(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    factors.map(|factor| decade * factor).find(|&round| round >= value * 0.9999).unwrap_or(value)
}

/// A round step, so that there are about as many.
fn nice_step(most: f64, base: f64, steps: u32) -> f64 {
    let raw = most / base / f64::from(steps);
    let decade = 10_f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter();
    let factor = factors.map(|factor| decade * factor).find(|&step| step >= raw * 0.999);
    factor.unwrap_or(raw) * base
}

fn clock_step(seconds: f64) -> f64 {
    const STEPS: [f64; 13] =
        [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0];
    let fitting = STEPS.into_iter().find(|step| seconds / step <= 9.0);
    fitting.unwrap_or_else(|| (seconds / 9.0 / 3_600.0).ceil() * 3_600.0)
}

/// `150,000` as `150 k`.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{} G", trimmed(value / 1e9)),
        value if value >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{} k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

/// `2.50` as `2.5`, `3.00` as `3`.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn ticks_are_round() {
        let axis = |unit, most| Axis::linear(unit, most, 0.0, 100.0);
        assert_eq!(names(&axis(Unit::Count, 97_000.0)), ["0", "25 k", "50 k", "75 k", "100 k"]);
        assert_eq!(names(&axis(Unit::Count, 2.0)), ["0", "1", "2"]);
        let gib = f64::from(1 << 30);
        assert_eq!(names(&axis(Unit::Bytes, 3.1 * gib)), ["0", "1 GiB", "2 GiB", "3 GiB", "4 GiB"]);
        assert_eq!(
            names(&axis(Unit::Clock, 140.0)),
            ["0:00", "0:20", "0:40", "1:00", "1:20", "1:40", "2:00", "2:20"]
        );
        assert_eq!(names(&axis(Unit::Count, f64::NAN)), ["0", "1"]);
    }

    #[test]
    fn logarithmic_ticks() {
        let axis = Axis::log(Unit::Milliseconds, 0.3, 41.0, 0.0, 100.0);
        assert_eq!(
            names(&axis),
            ["200 µs", "500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]
        );
        let axis = Axis::log(Unit::Milliseconds, 0.01, 9_000.0, 0.0, 100.0);
        assert_eq!(names(&axis), ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        assert!(axis.scale.at(10.0) > axis.scale.at(1.0));
        assert!((axis.scale.at(0.0) - 0.0).abs() < 1e-9);
    }

    #[test]
    fn memory_on_a_logarithmic_scale_has_round_names() {
        let axis = |least, most| Axis::log(Unit::Bytes, least, most, 0.0, 100.0);
        assert_eq!(names(&axis(300.0, 46_080.0)), ["256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB"]);
        let wide = axis(0.5, 1e12);
        assert!(wide.ticks.len() <= 11, "{:?}", names(&wide));
        assert!(wide.ticks[0].0 <= 1.0 && wide.ticks.last().is_some_and(|tick| tick.0 >= 1e12));
        assert_eq!(names(&axis(1024.0, 1024.0)), ["1 KiB", "4 KiB"]);
    }

    #[test]
    fn percentiles_grow_to_the_right() {
        let axis = Axis::percentiles(10_000, 0.0, 400.0);
        assert_eq!(names(&axis), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((axis.scale.at(1.0) - 0.0).abs() < 1e-6);
        assert!((axis.scale.at(0.1) - 100.0).abs() < 1e-6);
        assert!((axis.scale.at(0.0001) - 400.0).abs() < 1e-6);
    }
}
