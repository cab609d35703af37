//! A connection as bytes, so that another process or plane can go on with it.
//!
//! Version 1. Integers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | version |
//! | 1 | suite, as numbered in [`Suite`] |
//! | 1 | flags of the sending half: 2 a key update is asked for, 4 closed, 8 data was sent lately |
//! | 1 | flags of the receiving half: 1 client, 2 the peer has closed, 4 failed |
//! | 1 | records in a row without data |
//! | 4 | bytes of a session ticket to skip |
//! | 8 | number of the next record to send |
//! | 8 | number of the next record to receive |
//! | | TLS 1.3: own traffic secret, the peer's; 32 or 48 bytes each |
//! | | TLS 1.2: own key and initial vector, the peer's; 16 or 32, and 12 bytes each |
//!
//! The caller moves what it keeps of records along with these bytes: the part of one that came,
//! and the rest of one that was partly written.

use thiserror::Error;
use zeroize::Zeroize as _;

use crate::incoming::{Incoming, Role};
use crate::keys::{IV_BYTES, KEY_BYTES_MAX, RecordKey, SECRET_BYTES_MAX, Secret};
use crate::outgoing::Outgoing;
use crate::suite::Suite;

/// The version that is written, and the only one that is read.
pub const VERSION: u8 = 1;

const FIXED_BYTES: usize = 1 + 1 + 1 + 1 + 1 + 4 + 8 + 8;

/// The most bytes of a frozen connection.
pub const FROZEN_BYTES_MAX: usize = FIXED_BYTES + 2 * SECRET_BYTES_MAX;

const _: () = assert!(FIXED_BYTES + 2 * (KEY_BYTES_MAX + IV_BYTES) <= FROZEN_BYTES_MAX);

/// A frozen connection; overwritten with zeros when it is dropped.
///
/// It is keys: whoever has the bytes can read and forge what the connection carries, and two
/// processes that thaw the same bytes use numbers twice. Pass them on once, and nowhere else.
pub struct FrozenTls {
    bytes: [u8; FROZEN_BYTES_MAX],
    length: usize,
}

impl Drop for FrozenTls {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// Why a connection cannot be frozen or thawed. It has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrozenError {
    /// A record's fate is open: another process could use its number again.
    #[error("a TLS connection cannot be frozen before its last record is settled")]
    Unsettled,
    /// Written by another version.
    #[error("frozen TLS state has version {0}, and this program reads version {VERSION}")]
    Version(u8),
    #[error("frozen TLS state is damaged: it has a wrong length or an unknown value")]
    Damaged,
}

impl FrozenTls {
    /// The bytes to pass on.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// Writes a connection down. It is gone then, also after an error.
pub fn freeze(outgoing: Outgoing, incoming: Incoming) -> Result<FrozenTls, FrozenError> {
    if !outgoing.is_settled() {
        return Err(FrozenError::Unsettled);
    }
    let suite = outgoing.suite();
    let (number_out, flags_out, key_out) = outgoing.fields();
    let (number_in, secret_in, secret_out) = incoming.secrets();
    let (flags_in, skipped_bytes, without_data) = incoming.counts();

    let mut frozen = FrozenTls { bytes: [0; FROZEN_BYTES_MAX], length: 0 };
    frozen.put(&[VERSION, suite as u8, flags_out, flags_in, without_data]);
    frozen.put(&skipped_bytes.to_le_bytes());
    frozen.put(&number_out.to_le_bytes());
    frozen.put(&number_in.to_le_bytes());
    if suite.is_tls13() {
        frozen.put(secret_out.bytes(suite));
        frozen.put(secret_in.bytes(suite));
    } else {
        let key_in = secret_in.record_key(suite);
        for key in [key_out, &key_in] {
            frozen.put(key.key(suite));
            frozen.put(key.iv());
        }
    }
    Ok(frozen)
}

/// Reads a connection that was written down. No bytes make it panic.
///
/// Overwrite `bytes` afterwards, for they are keys.
pub fn thaw(bytes: &[u8]) -> Result<(Outgoing, Incoming), FrozenError> {
    let version = *bytes.first().ok_or(FrozenError::Damaged)?;
    if version != VERSION {
        return Err(FrozenError::Version(version));
    }
    thaw_fields(&mut Reader(&bytes[1..])).ok_or(FrozenError::Damaged)
}

fn thaw_fields(reader: &mut Reader<'_>) -> Option<(Outgoing, Incoming)> {
    let [suite, flags_out, flags_in, without_data] = reader.take_array()?;
    let suite = Suite::from_number(suite)?;
    let skipped_bytes = u32::from_le_bytes(reader.take_array()?);
    let number_out = u64::from_le_bytes(reader.take_array()?);
    let number_in = u64::from_le_bytes(reader.take_array()?);
    let (key_out, secret_in, secret_out);
    if suite.is_tls13() {
        secret_out = Secret::new(suite, reader.take(suite.secret_bytes())?)?;
        secret_in = Secret::new(suite, reader.take(suite.secret_bytes())?)?;
        key_out = RecordKey::derive(suite, &secret_out);
    } else {
        let key_bytes = suite.aead().key_len();
        key_out = RecordKey::new(suite, reader.take(key_bytes)?, reader.take(IV_BYTES)?)?;
        let key_in = RecordKey::new(suite, reader.take(key_bytes)?, reader.take(IV_BYTES)?)?;
        secret_in = Secret::of_key(&key_in);
        secret_out = Secret::empty();
    }
    if !reader.0.is_empty() {
        return None;
    }
    let outgoing = Outgoing::restore(suite, number_out, flags_out, key_out)?;
    let mut incoming = Incoming::new(Role::Server, suite, (secret_in, secret_out), number_in);
    let is_valid = incoming.restore_counts((flags_in, skipped_bytes, without_data));
    is_valid.then_some((outgoing, incoming))
}

/// The bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_array<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        self.take(COUNT)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections as version 1 writes them: in TLS 1.3 with a key update asked for, and in TLS 1.2
    /// with data sent lately. The keys are made up.
    fn kept() -> [Vec<u8>; 2] {
        let fixed = |suite, flags_out, flags_in| {
            let numbers = [5u64.to_le_bytes(), 9u64.to_le_bytes()].concat();
            [&[1, suite, flags_out, flags_in, 3, 0, 0, 0, 0], &*numbers].concat()
        };
        let of_tls13 = [fixed(1, 2, 0), vec![0xaa; 32], vec![0xbb; 32]].concat();
        let of_tls12 = [fixed(4, 8, 2), vec![0xaa; 16 + 12], vec![0xbb; 16 + 12]].concat();
        [of_tls13, of_tls12]
    }

    #[test]
    fn kept_connections_are_thawed() {
        for bytes in kept() {
            let (outgoing, incoming) = thaw(&bytes).unwrap();
            assert_eq!(freeze(outgoing, incoming).unwrap().as_bytes(), bytes);
            let other = [&[2], &bytes[1..]].concat();
            assert_eq!(thaw(&other).err(), Some(FrozenError::Version(2)));
        }
    }
}
