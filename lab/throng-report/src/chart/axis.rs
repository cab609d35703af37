//! Axes: maps values to pixels, and chooses round ticks.

use crate::unit::{Unit, trimmed};

/// Maps values to pixels, linearly or logarithmically.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// The pixel of a value; values outside are clamped to the edges.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high, value) = if self.is_log {
            (self.low.ln(), self.high.ln(), value.max(self.low).ln())
        } else {
            (self.low, self.high, value)
        };
        let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// The first pixel.
    pub fn start(&self) -> f64 {
        self.from
    }

    /// The last pixel.
    pub fn end(&self) -> f64 {
        self.to
    }
}

/// A scale with its ticks.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Maps values to pixels.
    pub scale: Scale,
    /// Round values and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A linear axis from zero to a round value of at least `max`.
    pub(crate) fn linear(unit: Unit, max: f64, from: f64, to: f64) -> Axis {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let step = match unit {
            Unit::Clock => clock_step(max),
            Unit::Count => nice_step(max, 1.0, 4).max(1.0),
            _ => nice_step(max, unit.base(max), 4),
        };
        // Time ends with the run; other values get space above them.
        let steps = if unit == Unit::Clock { (max / step).floor() } else { (max / step).ceil() };
        let high = if unit == Unit::Clock { max } else { steps * step };
        let ticks = (0..=steps as u32).map(|nth| {
            let value = f64::from(nth) * step;
            (value, unit.tick(value, max))
        });
        let scale = Scale { low: 0.0, high, from, to, is_log: false };
        Axis { scale, ticks: ticks.collect() }
    }

    /// A logarithmic axis between round values that enclose `min` and `max`.
    pub fn log(unit: Unit, min: f64, max: f64, from: f64, to: f64) -> Axis {
        let min = if min.is_finite() && min > 0.0 { min } else { 1e-3 };
        let max = if max.is_finite() { max.max(min * 1.01) } else { min * 10.0 };
        if unit == Unit::Bytes {
            return Axis::log_bytes(min, max, from, to);
        }
        let (low, high) = (round_down(min), round_up(max));
        let is_narrow = (high / low).log10() < 3.01;
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.log10().floor());
        while decade <= high * 1.001 {
            let within: &[f64] = if is_narrow { &[1.0, 2.0, 5.0] } else { &[1.0] };
            for factor in within {
                let value = decade * factor;
                if value >= low * 0.999 && value <= high * 1.001 {
                    ticks.push((value, unit.tick(value, max)));
                }
            }
            decade *= 10.0;
        }
        Axis { scale: Scale { low, high, from, to, is_log: true }, ticks }
    }

    /// Ticks at powers of four, or at larger steps if that would be too many.
    fn log_bytes(min: f64, max: f64, from: f64, to: f64) -> Axis {
        const TICKS_MAX: f64 = 9.0;
        let exponent = |value: f64| value.max(1.0).log2() / 2.0;
        let (first, last) = (exponent(min).floor(), exponent(max).ceil());
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

    /// An axis of percentiles, up to the one above which a single one of `count` values lies.
    /// Its scale takes the share of values above.
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
    /// Swaps both ends. On a logarithmic scale that falls from left to right, `at` would clamp
    /// values to `low`, which is the larger end.
    fn flipped(self) -> Scale {
        Scale { low: self.high, high: self.low, from: self.to, to: self.from, is_log: true }
    }
}

/// The largest 1, 2 or 5 times a power of ten that is at most `value`.
fn round_down(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let factor = [5.0, 2.0, 1.0].into_iter().find(|factor| decade * factor <= value * 1.0001);
    decade * factor.unwrap_or(1.0)
}

/// The smallest 1, 2 or 5 times a power of ten that is at least `value`.
fn round_up(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    factors.map(|factor| decade * factor).find(|&round| round >= value * 0.9999).unwrap_or(value)
}

/// A round step that divides `max` into about `steps` steps.
fn nice_step(max: f64, base: f64, steps: u32) -> f64 {
    let raw = max / base / f64::from(steps);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round() {
        let axis = |unit, max| Axis::linear(unit, max, 0.0, 100.0);
        assert_eq!(labels(&axis(Unit::Count, 97_000.0)), ["0", "25 k", "50 k", "75 k", "100 k"]);
        assert_eq!(labels(&axis(Unit::Count, 2.0)), ["0", "1", "2"]);
        let gib = f64::from(1 << 30);
        assert_eq!(
            labels(&axis(Unit::Bytes, 3.1 * gib)),
            ["0", "1 GiB", "2 GiB", "3 GiB", "4 GiB"]
        );
        assert_eq!(
            labels(&axis(Unit::Clock, 140.0)),
            ["0:00", "0:20", "0:40", "1:00", "1:20", "1:40", "2:00", "2:20"]
        );
        assert_eq!(labels(&axis(Unit::Count, f64::NAN)), ["0", "1"]);
    }

    #[test]
    fn logarithmic_ticks_follow_decades() {
        let axis = Axis::log(Unit::Milliseconds, 0.3, 41.0, 0.0, 100.0);
        assert_eq!(
            labels(&axis),
            ["200 µs", "500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]
        );
        let axis = Axis::log(Unit::Milliseconds, 0.01, 9_000.0, 0.0, 100.0);
        assert_eq!(labels(&axis), ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        assert!(axis.scale.at(10.0) > axis.scale.at(1.0));
        assert!((axis.scale.at(0.0) - 0.0).abs() < 1e-9);
    }

    #[test]
    fn logarithmic_ticks_of_sizes_are_powers_of_two() {
        let axis = |min, max| Axis::log(Unit::Bytes, min, max, 0.0, 100.0);
        assert_eq!(labels(&axis(300.0, 46_080.0)), ["256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB"]);
        let wide = axis(0.5, 1e12);
        assert!(wide.ticks.len() <= 11, "{:?}", labels(&wide));
        assert!(wide.ticks[0].0 <= 1.0 && wide.ticks.last().is_some_and(|tick| tick.0 >= 1e12));
        assert_eq!(labels(&axis(1024.0, 1024.0)), ["1 KiB", "4 KiB"]);
    }

    #[test]
    fn rarer_percentiles_are_further_right() {
        let axis = Axis::percentiles(10_000, 0.0, 400.0);
        assert_eq!(labels(&axis), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((axis.scale.at(1.0) - 0.0).abs() < 1e-6);
        assert!((axis.scale.at(0.1) - 100.0).abs() < 1e-6);
        assert!((axis.scale.at(0.0001) - 400.0).abs() < 1e-6);
    }
}
