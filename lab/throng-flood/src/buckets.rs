//! Histograms in messages between agents and coordinator, without loss.
//!
//! A histogram is its number of digits and its buckets: the lowest value of each, as the difference
//! to the one before, and its count, in LEB128 and Base64. Both sides have the same buckets, so
//! merging the histograms of all agents gives the one that a single process would have had.
//!
//! For `#[serde(with = "crate::buckets")]`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Deserializer, Serialize as _, Serializer, de};

pub(crate) fn serialize<C: Counter, S: Serializer>(
    histogram: &Histogram<C>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut bytes = vec![histogram.sigfig()];
    let mut before = 0;
    for bucket in histogram.iter_recorded() {
        // The iterator returns the highest value of a bucket; any of its values finds the bucket
        // again.
        let value = histogram.lowest_equivalent(bucket.value_iterated_to());
        write_number(&mut bytes, value - before);
        write_number(&mut bytes, bucket.count_since_last_iteration());
        before = value;
    }
    STANDARD_NO_PAD.encode(bytes).serialize(to)
}

pub(crate) fn deserialize<'de, C: Counter, D: Deserializer<'de>>(
    from: D,
) -> Result<Histogram<C>, D::Error> {
    let text = String::deserialize(from)?;
    let bytes = STANDARD_NO_PAD.decode(text).ok();
    bytes.and_then(|bytes| read(&bytes)).ok_or_else(|| de::Error::custom("not a histogram"))
}

fn read<C: Counter>(bytes: &[u8]) -> Option<Histogram<C>> {
    let (&digits, mut rest) = bytes.split_first()?;
    let mut histogram = Histogram::new(digits).ok()?;
    let mut value = 0_u64;
    while !rest.is_empty() {
        value = value.checked_add(read_number(&mut rest)?)?;
        let count = C::from_u64(read_number(&mut rest)?)?;
        histogram.record_n(value, count).ok()?;
    }
    Some(histogram)
}

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::sums::Nanoseconds;

    fn text(histogram: &Nanoseconds) -> String {
        serde_json::to_string(histogram).unwrap()
    }

    proptest! {
        // Histograms over the whole range are large.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn merging_parts_is_recording_all(
            values in prop::collection::vec(
                prop_oneof![0_u64..5_000, any::<u64>().prop_map(|value| value >> 20)], 0..300)
        ) {
            let mut whole = Nanoseconds::default();
            let mut parts: [Nanoseconds; 3] = Default::default();
            for (number, &value) in values.iter().enumerate() {
                whole.record(value);
                parts[number % 3].record(value);
            }
            let mut merged = Nanoseconds::default();
            for part in &parts {
                let part: Nanoseconds = serde_json::from_str(&text(part)).unwrap();
                merged.add(&*part).unwrap();
            }
            prop_assert_eq!(&merged, &whole);
            prop_assert_eq!(text(&merged), text(&whole));
            for quantile in [0.0, 0.5, 0.99, 0.999, 1.0] {
                let at = |histogram: &Nanoseconds| histogram.value_at_quantile(quantile);
                prop_assert_eq!(at(&merged), at(&whole));
            }
            prop_assert_eq!((merged.min(), merged.max()), (whole.min(), whole.max()));
        }

        #[test]
        fn whatever_comes_is_read_or_refused(text in "[A-Za-z0-9+/]{0,40}") {
            let _ = serde_json::from_value::<Nanoseconds>(text.into());
        }
    }
}
