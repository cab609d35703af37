//! Numbers that nobody foresees: a permutation that only the owner of a secret knows.
//!
//! It is a Feistel network whose round function is HMAC with SHA-256. Each connection of an
//! application has a number hidden so, twice where it follows a channel that is signed. What is
//! hashed is as long as it is, so both halves of HMAC have read the secret beforehand, and each
//! takes one block.

use std::fmt;

use sha2::block_api::compress256;

/// Rounds. Four make the permutation strong (Luby and Rackoff, 1988).
const ROUNDS: u8 = 4;

/// The bytes of a block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// The state with which SHA-256 begins.
const BEGIN: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Hides numbers with a secret.
pub struct Hider {
    /// SHA-256 behind the first block of each half of HMAC, which is the secret.
    inner: [u32; 8],
    outer: [u32; 8],
}

impl Hider {
    /// With this secret.
    pub fn new(secret: &[u8; 32]) -> Hider {
        let begun = |pad: u8| {
            let mut block = [pad; BLOCK_BYTES];
            block.iter_mut().zip(secret).for_each(|(byte, secret)| *byte ^= secret);
            after(BEGIN, block)
        };
        Hider { inner: begun(0x36), outer: begun(0x5c) }
    }

    /// Another number in place of this one, which nobody can tell without the secret. Each `about`
    /// has a permutation of its own.
    pub fn hide(&self, number: u64, about: u64) -> u64 {
        (0..ROUNDS).fold(number, |number, round| {
            let (high, low) = ((number >> 32) as u32, number as u32);
            join(low, high ^ self.half(about, round, low))
        })
    }

    /// The number that [`Hider::hide`] has put this one in place of.
    pub fn reveal(&self, number: u64, about: u64) -> u64 {
        (0..ROUNDS).rev().fold(number, |number, round| {
            let (high, low) = ((number >> 32) as u32, number as u32);
            join(low ^ self.half(about, round, high), high)
        })
    }

    /// The first four bytes of the HMAC of what a round depends on.
    fn half(&self, about: u64, round: u8, half: u32) -> u32 {
        let mut text = [0; 17];
        text[..4].copy_from_slice(b"hide");
        text[4..12].copy_from_slice(&about.to_le_bytes());
        text[12] = round;
        text[13..].copy_from_slice(&half.to_le_bytes());
        let hash = after(self.inner, last_block(&text));
        let mut bytes = [0; 32];
        for (four, word) in bytes.as_chunks_mut().0.iter_mut().zip(hash) {
            *four = word.to_be_bytes();
        }
        after(self.outer, last_block(&bytes))[0].swap_bytes()
    }
}

fn after(mut state: [u32; 8], block: [u8; BLOCK_BYTES]) -> [u32; 8] {
    compress256(&mut state, &[block]);
    state
}

/// The second and last block of what is hashed, which ends with its length.
fn last_block(text: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..text.len()].copy_from_slice(text);
    block[text.len()] = 0x80;
    let bits = 8 * (BLOCK_BYTES + text.len()) as u64;
    block[BLOCK_BYTES - 8..].copy_from_slice(&bits.to_be_bytes());
    block
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Shows no secret.
impl fmt::Debug for Hider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hider")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_number_is_told_with_the_secret_only() {
        let (own, other) = (Hider::new(&[7; 32]), Hider::new(&[8; 32]));
        let numbers = [0, 1, 2, u64::from(u32::MAX), 1 << 32, u64::MAX];
        for number in numbers {
            let hidden = own.hide(number, 3);
            assert_eq!(own.reveal(hidden, 3), number);
            assert_ne!(own.reveal(hidden, 4), number);
            assert_ne!(other.reveal(hidden, 3), number);
        }
        // Neighbours are as far from each other as any two.
        let apart = |number: u64| (own.hide(number, 3) ^ own.hide(number + 1, 3)).count_ones();
        assert!((0..1_000).map(apart).sum::<u32>().abs_diff(32_000) < 1_000);
        assert_eq!(format!("{own:?}"), "Hider");
    }

    #[test]
    fn a_round_is_hmac() {
        let secret = [7; 32];
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
        for (about, round, half) in [(0, 0, 0), (u64::MAX, 3, u32::MAX), (9, 1, 0x0102_0304)] {
            let text = [b"hide", &about.to_le_bytes()[..], &[round], &half.to_le_bytes()].concat();
            let tag = ring::hmac::sign(&key, &text);
            let first = tag.as_ref().first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
            assert_eq!(Some(Hider::new(&secret).half(about, round, half)), first);
        }
    }
}
