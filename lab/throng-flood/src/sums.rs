//! Measurements that add up: those of several threads, and of one period and the next.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::protocol::refusal;

/// A measurement that others of its kind are added to.
pub(crate) trait Sum {
    /// Adds the measurement of another thread, or a later one of the same.
    fn add(&mut self, other: &Self);
}

/// Defines a struct of measurements. `+=` adds each field of another.
macro_rules! sums {
    (
        $(#[$attribute:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ty, )+
        }
    ) => {
        $(#[$attribute])*
        $vis struct $name { $( $(#[$of_field])* $field_vis $field: $type, )+ }

        impl std::ops::AddAssign<&$name> for $name {
            fn add_assign(&mut self, other: &$name) {
                $( $crate::sums::Sum::add(&mut self.$field, &other.$field); )+
            }
        }

        impl $crate::sums::Sum for $name {
            fn add(&mut self, other: &$name) {
                *self += other;
            }
        }
    };
}

pub(crate) use sums;

impl Sum for u64 {
    fn add(&mut self, other: &u64) {
        *self += other;
    }
}

impl<const N: usize> Sum for [u64; N] {
    fn add(&mut self, other: &[u64; N]) {
        self.iter_mut().zip(other).for_each(|(count, more)| *count += more);
    }
}

impl Sum for BTreeMap<Failure, u64> {
    fn add(&mut self, other: &BTreeMap<Failure, u64>) {
        for (failure, number) in other {
            refusal::count(self, failure.clone(), *number);
        }
    }
}

/// The largest of several times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongestNs(pub u64);

impl Sum for LongestNs {
    fn add(&mut self, other: &LongestNs) {
        self.0 = self.0.max(other.0);
    }
}

/// The time from the first to the last occurrence of something, in nanoseconds of the
/// `CLOCK_MONOTONIC` of one machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeSpan(Option<(u64, u64)>);

impl Sum for TimeSpan {
    fn add(&mut self, other: &TimeSpan) {
        self.0 = match (self.0, other.0) {
            (Some((first, last)), Some((other_first, other_last))) => {
                Some((first.min(other_first), last.max(other_last)))
            }
            (one, other) => one.or(other),
        };
    }
}

impl TimeSpan {
    /// Records an occurrence.
    pub fn note(&mut self, at_ns: u64) {
        self.add(&TimeSpan(Some((at_ns, at_ns))));
    }

    /// The time of the first occurrence.
    pub fn first_ns(self) -> Option<u64> {
        self.0.map(|(first, _)| first)
    }

    /// The time of the last occurrence.
    pub fn last_ns(self) -> Option<u64> {
        self.0.map(|(_, last)| last)
    }

    /// The length in seconds; `None` without an occurrence.
    pub fn seconds(self) -> Option<f64> {
        self.0.map(|(first, last)| (last - first) as f64 / 1e9)
    }
}

/// A histogram of nanoseconds to three digits: timestamps between two system calls are no more
/// precise than a microsecond. It resizes, so recording and adding cannot fail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nanoseconds(#[serde(with = "crate::buckets")] Histogram<u64>);

impl Default for Nanoseconds {
    fn default() -> Nanoseconds {
        Nanoseconds(Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed")))
    }
}

impl Nanoseconds {
    /// Records a value. (`saturating_record` would not resize.)
    pub(crate) fn record(&mut self, ns: u64) {
        let _ = self.0.record(ns);
    }
}

impl Sum for Nanoseconds {
    fn add(&mut self, other: &Nanoseconds) {
        let _ = self.0.add(&other.0);
    }
}

impl Deref for Nanoseconds {
    type Target = Histogram<u64>;

    fn deref(&self) -> &Histogram<u64> {
        &self.0
    }
}

impl DerefMut for Nanoseconds {
    fn deref_mut(&mut self) -> &mut Histogram<u64> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_covers_all_occurrences() {
        let mut span = TimeSpan::default();
        assert_eq!((span.seconds(), span.last_ns()), (None, None));
        span.note(7_000_000_000);
        assert_eq!(span.seconds(), Some(0.0));
        let mut other = TimeSpan::default();
        other.note(5_000_000_000);
        other.add(&TimeSpan::default());
        span.add(&other);
        assert_eq!((span.first_ns(), span.last_ns()), (Some(5_000_000_000), Some(7_000_000_000)));
        assert_eq!(span.seconds(), Some(2.0));
    }
}
