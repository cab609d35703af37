//! Record keys and traffic secrets, and how one follows from the other (RFC 8446, section 7).
//!
//! Both are overwritten with zeros when they are dropped, and neither can be copied. The remains of
//! a move on the stack, and the key objects that ring makes for a call, are not overwritten.

use ring::aead::{LessSafeKey, UnboundKey};
use ring::hkdf;
use zeroize::Zeroize as _;

use crate::suite::Suite;

pub(crate) const KEY_BYTES_MAX: usize = 32;
pub(crate) const IV_BYTES: usize = 12;
/// The length of SHA-384, the longest hash of a suite.
pub(crate) const SECRET_BYTES_MAX: usize = 48;

/// A nonce; the bytes that a record may carry are its last eight.
pub(crate) type Nonce = [u8; IV_BYTES];

/// The key of one direction, and the value that record numbers turn into nonces. A shorter key is
/// followed by zeros.
#[derive(PartialEq, Eq)]
pub(crate) struct RecordKey {
    key: [u8; KEY_BYTES_MAX],
    iv: Nonce,
}

impl Drop for RecordKey {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

impl RecordKey {
    /// None unless `key` has the length for the suite and `iv` has twelve bytes.
    pub(crate) fn new(suite: Suite, key: &[u8], iv: &[u8]) -> Option<Self> {
        if key.len() != suite.aead().key_len() || iv.len() != IV_BYTES {
            return None;
        }
        let mut own = Self { key: [0; KEY_BYTES_MAX], iv: [0; IV_BYTES] };
        own.key[..key.len()].copy_from_slice(key);
        own.iv.copy_from_slice(iv);
        Some(own)
    }

    /// The key that belongs to a traffic secret of TLS 1.3.
    pub(crate) fn derive(suite: Suite, secret: &Secret) -> Self {
        let mut own = Self { key: [0; KEY_BYTES_MAX], iv: [0; IV_BYTES] };
        // One object for both: to make it takes a third of the time.
        let secret = secret.to_prk(suite);
        expand(&secret, b"key", &mut own.key[..suite.aead().key_len()]);
        expand(&secret, b"iv", &mut own.iv);
        own
    }

    /// ring's key object, of 544 bytes. To make one takes about 125 ns, which is why it is made
    /// for each record and not kept for each connection.
    pub(crate) fn to_aead(&self, suite: Suite) -> LessSafeKey {
        let key = UnboundKey::new(suite.aead(), self.key(suite));
        LessSafeKey::new(key.expect("`key` returns as many bytes as the algorithm needs"))
    }

    pub(crate) fn key(&self, suite: Suite) -> &[u8] {
        &self.key[..suite.aead().key_len()]
    }

    pub(crate) fn iv(&self) -> &Nonce {
        &self.iv
    }

    /// The nonce of the record with this number.
    pub(crate) fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[IV_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        nonce
    }
}

/// A traffic secret of TLS 1.3, followed by zeros; or, for TLS 1.2, a key in the same place.
#[derive(PartialEq, Eq)]
pub(crate) struct Secret([u8; SECRET_BYTES_MAX]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Secret {
    pub(crate) fn empty() -> Self {
        Self([0; SECRET_BYTES_MAX])
    }

    /// None unless `secret` is as long as the hash of the suite.
    pub(crate) fn new(suite: Suite, secret: &[u8]) -> Option<Self> {
        (secret.len() == suite.secret_bytes()).then(|| Self::of_bytes(secret)).flatten()
    }

    /// A secret whose suite is not known yet; None if it is too long for any.
    pub(crate) fn of_bytes(secret: &[u8]) -> Option<Self> {
        let mut own = Self::empty();
        own.0.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(own)
    }

    /// Keeps a key of TLS 1.2.
    pub(crate) fn of_key(key: &RecordKey) -> Self {
        let mut own = Self::empty();
        own.0[..KEY_BYTES_MAX].copy_from_slice(&key.key);
        own.0[KEY_BYTES_MAX..KEY_BYTES_MAX + IV_BYTES].copy_from_slice(&key.iv);
        own
    }

    /// The key that records are opened with: derived, or the one that was kept.
    pub(crate) fn record_key(&self, suite: Suite) -> RecordKey {
        if suite.is_tls13() {
            return RecordKey::derive(suite, self);
        }
        let mut own = RecordKey { key: [0; KEY_BYTES_MAX], iv: [0; IV_BYTES] };
        own.key.copy_from_slice(&self.0[..KEY_BYTES_MAX]);
        own.iv.copy_from_slice(&self.0[KEY_BYTES_MAX..KEY_BYTES_MAX + IV_BYTES]);
        own
    }

    pub(crate) fn bytes(&self, suite: Suite) -> &[u8] {
        &self.0[..suite.secret_bytes()]
    }

    /// The key of TLS 1.2 that [`Secret::of_key`] keeps, as bytes.
    pub(crate) fn kept_key(&self) -> &[u8] {
        &self.0[..KEY_BYTES_MAX + IV_BYTES]
    }

    /// The secret after a key update.
    pub(crate) fn next(&self, suite: Suite) -> Self {
        let mut next = Self::empty();
        expand(&self.to_prk(suite), b"traffic upd", &mut next.0[..suite.secret_bytes()]);
        next
    }

    fn to_prk(&self, suite: Suite) -> hkdf::Prk {
        hkdf::Prk::new_less_safe(suite.hkdf(), self.bytes(suite))
    }
}

/// `HKDF-Expand-Label` with an empty context.
fn expand(secret: &hkdf::Prk, label: &[u8], out: &mut [u8]) {
    const PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(out.len()).expect("no key is longer than 48 bytes").to_be_bytes();
    let label_bytes = [u8::try_from(PREFIX.len() + label.len()).expect("labels are short")];
    let info = [&length[..], &label_bytes, PREFIX, label, &[0]];
    secret
        .expand(&info, Length(out.len()))
        .and_then(|expanded| expanded.fill(out))
        .expect("a key is shorter than 255 hashes");
}

/// The length of what is derived.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}
