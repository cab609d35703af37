//! The text of a key, and its hash.

use std::fmt;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::error::ServerKeyError;
use super::limits::{HASH_PREFIX, PREFIX};

/// Random characters of a key: 62^43 is more than 2^256.
const RANDOM_CHARACTERS: usize = 43;

/// Characters that check the others: 62^6 is more than 2^32.
const CHECK_CHARACTERS: usize = 6;

/// The length of every key.
pub const KEY_BYTES: usize = PREFIX.len() + RANDOM_CHARACTERS + CHECK_CHARACTERS;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The SHA-256 of a server key.
///
/// It has no `==`, which would stop at the first difference: a comparison takes the same time
/// whatever the hashes are. A test holds it so.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

#[cfg(test)]
thread_local! {
    /// How many hashes this thread has compared.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl KeyHash {
    /// The hash of no key that anybody has.
    pub(crate) const NONE: KeyHash = KeyHash([0; 32]);

    /// The hash of a key that a client has shown.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::NoPrefix`] and [`ServerKeyError::Mistyped`].
    pub fn of(key: &str) -> Result<KeyHash, ServerKeyError> {
        let body = key.strip_prefix(PREFIX).ok_or(ServerKeyError::NoPrefix)?;
        let is_plain = body.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_plain || body.len() != RANDOM_CHARACTERS + CHECK_CHARACTERS {
            return Err(ServerKeyError::Mistyped);
        }
        let (random, check) = body.split_at(RANDOM_CHARACTERS);
        if check.as_bytes() != check_characters(random) {
            return Err(ServerKeyError::Mistyped);
        }
        Ok(KeyHash(sha256(key.as_bytes())))
    }

    /// Parses a hash as settings have it.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::BadHash`].
    pub fn parse(text: &str) -> Result<KeyHash, ServerKeyError> {
        let digits = text.strip_prefix(HASH_PREFIX).ok_or(ServerKeyError::BadHash)?;
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ServerKeyError::BadHash);
        }
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = str::from_utf8(pair).map_err(|_| ServerKeyError::BadHash)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ServerKeyError::BadHash)?;
        }
        Ok(KeyHash(hash))
    }

    #[cfg(test)]
    pub(super) fn for_tests(text: &str) -> KeyHash {
        KeyHash(sha256(text.as_bytes()))
    }

    /// The SHA-256 in bytes, for what is derived from it.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The inverse of [`KeyHash::bytes`].
    pub(super) fn from_bytes(bytes: [u8; 32]) -> KeyHash {
        KeyHash(bytes)
    }

    /// True if both are the same. Takes the same time whatever they are.
    pub(super) fn is(&self, other: &KeyHash) -> bool {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        let differences =
            self.0.iter().zip(other.0).fold(0, |all, (one, other)| all | (one ^ other));
        // Keeps the compiler from leaving the loop at the first difference.
        std::hint::black_box(differences) == 0
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

/// Makes a new key.
///
/// # Errors
///
/// [`ServerKeyError::NoRandom`].
pub fn generate() -> Result<String, ServerKeyError> {
    let random = SystemRandom::new();
    let mut characters = Vec::with_capacity(RANDOM_CHARACTERS);
    let mut bytes = [0; 64];
    while characters.len() < RANDOM_CHARACTERS {
        random.fill(&mut bytes).map_err(|_| ServerKeyError::NoRandom)?;
        // A byte of 248 or more would make the first characters likelier than the others.
        let fair = bytes.iter().filter(|&&byte| byte < 248);
        characters.extend(fair.map(|&byte| ALPHABET[usize::from(byte) % ALPHABET.len()]));
    }
    let random = &characters[..RANDOM_CHARACTERS];
    let random = str::from_utf8(random).expect("letters and digits are ASCII");
    let check = check_characters(random);
    let check = str::from_utf8(&check).expect("letters and digits are ASCII");
    Ok(format!("{PREFIX}{random}{check}"))
}

/// The characters that check a key's random ones: the start of their hash, in base 62.
fn check_characters(random: &str) -> [u8; CHECK_CHARACTERS] {
    let hash = sha256(random.as_bytes());
    let mut rest = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
    let mut characters = [0; CHECK_CHARACTERS];
    for character in characters.iter_mut().rev() {
        *character = ALPHABET[rest as usize % ALPHABET.len()];
        rest /= ALPHABET.len() as u32;
    }
    characters
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_key_has_a_known_hash() {
        // Made by Python: `hashlib.sha256`, and base 62 with `divmod`.
        let key = "throng_key_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg25GAMC";
        let hash = "sha256:b21ac51ce014488d89a1ebb3baccfca77f82536907f87883c388bb261742a8d3";
        assert_eq!(KeyHash::of(key).unwrap().to_string(), hash);
    }

    /// Ambiguous, so that this file does not compile, if `KeyHash` has `==`.
    #[test]
    fn hashes_are_compared_by_no_operator() {
        trait HasNoEquality<Marker> {
            const HOLDS: bool = true;
        }
        struct HasEquality;
        impl<T> HasNoEquality<()> for T {}
        impl<T: PartialEq> HasNoEquality<HasEquality> for T {}
        const { assert!(<KeyHash as HasNoEquality<_>>::HOLDS) }
    }

    #[test]
    fn mistyped_keys_are_recognised() {
        let key = generate().unwrap();
        let other = |at: usize| {
            let mut bytes = key.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            String::from_utf8(bytes).unwrap()
        };
        for at in PREFIX.len()..KEY_BYTES {
            assert_eq!(KeyHash::of(&other(at)).unwrap_err(), ServerKeyError::Mistyped, "at {at}");
        }
        for at in 0..PREFIX.len() {
            assert_eq!(KeyHash::of(&other(at)).unwrap_err(), ServerKeyError::NoPrefix, "at {at}");
        }
        assert_eq!(KeyHash::of(&key[..KEY_BYTES - 1]).unwrap_err(), ServerKeyError::Mistyped);
        assert_eq!(KeyHash::of(&format!("{key}0")).unwrap_err(), ServerKeyError::Mistyped);
        let multibyte = format!("{PREFIX}{}", "é".repeat(24) + "a");
        assert_eq!(KeyHash::of(&multibyte).unwrap_err(), ServerKeyError::Mistyped);
    }

    #[test]
    fn bad_hashes_are_refused() {
        let digits = "0".repeat(64);
        assert!(KeyHash::parse(&format!("sha256:{digits}")).is_ok());
        let [plus, short, long] = [
            format!("sha256:+{}", &digits[1..]),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:0{digits}"),
        ];
        for bad in [digits.as_str(), "", "sha256:", &plus, &short, &long] {
            assert_eq!(KeyHash::parse(bad).unwrap_err(), ServerKeyError::BadHash, "{bad}");
        }
    }
}
