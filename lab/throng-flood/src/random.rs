//! Random numbers by position: the same seed and index give the same number, in any order and on
//! any thread, so nothing random is stored or shared.

/// The random number of an index (`SplitMix64`).
pub(crate) fn random(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A number from 0 up to, but not including, 1.
pub(crate) fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number below `end`, uniform to one part in `2^32`.
pub(crate) fn below(random: u64, end: u32) -> u32 {
    // The high half of a 64-bit product is less than `end`.
    (((random >> 32) * u64::from(end)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_range_and_spread() {
        let mut counts = [0; 10];
        for index in 0..10_000 {
            let number = random(9, index);
            assert!((0.0..1.0).contains(&unit(number)));
            counts[below(number, 10) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_eq!(below(u64::MAX, 10), 9);
        assert_eq!(below(0, 10), 0);
    }
}
