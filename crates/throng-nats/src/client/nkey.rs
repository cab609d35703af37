//! Keys of NATS (nkeys): Ed25519 in base32, with a letter for what they are of.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// The first five bits of a seed: `S`.
const SEED: u8 = 18 << 3;

/// The next five bits, in public keys as well: `U`, a user.
const USER: u8 = 20 << 3;

/// An error in a seed. None quotes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SeedError {
    /// Neither the letters nor the checksum of a seed.
    #[error("the seed of the nkey is damaged: copy it again; it begins with SU and has 58 letters")]
    Damaged,
    /// A seed of something else.
    #[error("the seed is not a user's: it must begin with SU")]
    NotOfUser,
}

/// The key of a user.
#[derive(Clone)]
pub struct UserKey(Arc<Ed25519KeyPair>);

impl UserKey {
    /// The key that a seed makes.
    ///
    /// # Errors
    ///
    /// [`SeedError`]
    pub fn from_seed(seed: &str) -> Result<UserKey, SeedError> {
        let bytes = from_base32(seed).ok_or(SeedError::Damaged)?;
        // Two bytes of what it is, the seed, a checksum.
        let Some((bytes, checksum)) = bytes.split_last_chunk::<2>() else {
            return Err(SeedError::Damaged);
        };
        let [first, second, seed @ ..] = bytes else { return Err(SeedError::Damaged) };
        if crc16(bytes).to_le_bytes() != *checksum || first & 0xf8 != SEED || seed.len() != 32 {
            return Err(SeedError::Damaged);
        }
        if (first & 0x07) << 5 | (second & 0xf8) >> 3 != USER {
            return Err(SeedError::NotOfUser);
        }
        let key = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| SeedError::Damaged)?;
        Ok(UserKey(Arc::new(key)))
    }

    /// The public key, as servers know the user.
    pub fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(self.0.public_key().as_ref());
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        to_base32(&bytes)
    }

    /// The signature of the server's challenge.
    pub(super) fn sign(&self, nonce: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.0.sign(nonce.as_bytes()))
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserKey({})", self.public())
    }
}

impl PartialEq for UserKey {
    fn eq(&self, other: &UserKey) -> bool {
        self.0.public_key().as_ref() == other.0.public_key().as_ref()
    }
}

impl Eq for UserKey {}

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// RFC 4648 without padding.
fn to_base32(bytes: &[u8]) -> String {
    let (mut text, mut bits, mut count) = (String::new(), 0_u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(ALPHABET[(bits >> count) as usize & 31]));
        }
    }
    if count > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - count)) as usize & 31]));
    }
    text
}

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        bits = bits << 5 | value as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// The checksum CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 }
        })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    /// A user's seed of these bytes.
    pub(crate) fn seed(secret: [u8; 32], of: u8) -> String {
        let mut bytes = vec![SEED | of >> 5, of << 3];
        bytes.extend_from_slice(&secret);
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        to_base32(&bytes)
    }

    #[test]
    fn a_seed_of_the_documentation_makes_its_public_key() {
        // From docs.nats.io, "NKeys".
        let key = UserKey::from_seed("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY");
        let public = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
        assert_eq!(key.map(|key| key.public()), Ok(public.to_owned()));
    }

    #[test]
    fn the_challenge_is_signed() {
        let key = UserKey::from_seed(&seed([7; 32], USER)).expect("it is a seed");
        let signature = BASE64_URL_SAFE_NO_PAD.decode(key.sign("nonce")).expect("it is base64");
        let public = UnparsedPublicKey::new(&ED25519, key.0.public_key().as_ref());
        assert!(public.verify(b"nonce", &signature).is_ok());
        assert!(public.verify(b"other", &signature).is_err());
    }

    #[test]
    fn what_is_no_seed_of_a_user_is_refused() {
        let good = seed([9; 32], USER);
        assert!(good.starts_with("SU") && good.len() == 58, "{good}");
        let account = seed([9; 32], 0);
        assert!(account.starts_with("SA"), "{account}");
        assert_eq!(UserKey::from_seed(&account), Err(SeedError::NotOfUser));
        let swapped = good.replacen(&good[10..12], "77", 1);
        for bad in ["", "SU", "su", &good[..57], &good.to_lowercase(), &swapped, "SU€"] {
            assert_eq!(UserKey::from_seed(bad), Err(SeedError::Damaged), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn base32_is_read_as_it_is_written(bytes: Vec<u8>) {
            prop_assert_eq!(from_base32(&to_base32(&bytes)), Some(bytes));
        }
    }
}
