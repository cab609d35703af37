//! The receiving half of a connection at rest, in 80 bytes.
//!
//! A server holds connections by the million that hardly ever speak. Secrets of SHA-256 and the
//! keys of TLS 1.2 are shorter than the longest ones, for which [`Incoming`] has room: without that
//! room a connection takes 32 bytes less.

use zeroize::Zeroize as _;

use crate::incoming::{Incoming, Role};
use crate::keys::{IV_BYTES, KEY_BYTES_MAX, Secret};
use crate::suite::Suite;

/// The length of SHA-256, the hash of two suites of TLS 1.3.
const SECRET_BYTES: usize = 32;

// TLS 1.2 has a key and no other secret.
const _: () = assert!(KEY_BYTES_MAX + IV_BYTES <= 2 * SECRET_BYTES);

/// The receiving half of a connection at rest: it moves to and from [`Incoming`], and cannot be
/// copied. It is overwritten with zeros when it is dropped.
#[repr(C)]
pub struct CompactIncoming {
    number: u64,
    /// TLS 1.3: the peer's traffic secret, and this side's. TLS 1.2: the key of the peer.
    secrets: [u8; 2 * SECRET_BYTES],
    skipped_bytes: u32,
    without_data: u8,
    flags: u8,
    suite: Suite,
}

// `Option` costs nothing.
const _: () = assert!(size_of::<Option<CompactIncoming>>() == 80);

impl Drop for CompactIncoming {
    fn drop(&mut self) {
        self.secrets.zeroize();
    }
}

impl Incoming {
    /// True if it has a compact form: unless its secrets are SHA-384's.
    pub fn is_compact(&self) -> bool {
        let suite = self.suite();
        !suite.is_tls13() || suite.secret_bytes() == SECRET_BYTES
    }

    /// The compact form.
    ///
    /// # Errors
    ///
    /// It has none, and is the same as before.
    pub fn compact(self) -> Result<CompactIncoming, Box<Incoming>> {
        if !self.is_compact() {
            return Err(Box::new(self));
        }
        let suite = self.suite();
        let (number, secret_in, secret_out) = self.secrets();
        let (flags, skipped_bytes, without_data) = self.counts();
        let mut secrets = [0; 2 * SECRET_BYTES];
        if suite.is_tls13() {
            secrets[..SECRET_BYTES].copy_from_slice(secret_in.bytes(suite));
            secrets[SECRET_BYTES..].copy_from_slice(secret_out.bytes(suite));
        } else {
            secrets[..KEY_BYTES_MAX + IV_BYTES].copy_from_slice(secret_in.kept_key());
        }
        let compact =
            CompactIncoming { number, secrets, skipped_bytes, without_data, flags, suite };
        secrets.zeroize();
        Ok(compact)
    }
}

impl CompactIncoming {
    /// The half, to open records with.
    pub fn whole(self) -> Incoming {
        let secret = |bytes: &[u8]| Secret::of_bytes(bytes).expect("shorter than the longest");
        let secrets = if self.suite.is_tls13() {
            let (secret_in, secret_out) = self.secrets.split_at(SECRET_BYTES);
            (secret(secret_in), secret(secret_out))
        } else {
            (secret(&self.secrets[..KEY_BYTES_MAX + IV_BYTES]), Secret::empty())
        };
        // The flags have the role.
        let mut incoming = Incoming::new(Role::Server, self.suite, secrets, self.number);
        let counts = (self.flags, self.skipped_bytes, self.without_data);
        let is_restored = incoming.restore_counts(counts);
        debug_assert!(is_restored, "these were the counts of such a half");
        incoming
    }
}

impl std::fmt::Debug for CompactIncoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactIncoming")
            .field("suite", &self.suite)
            .field("number", &self.number)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming::StreamEnd;
    use crate::keys::{RecordKey, SECRET_BYTES_MAX};
    use crate::outgoing::Outgoing;

    fn pair(suite: Suite) -> (Outgoing, Incoming, Outgoing) {
        let secret = |fill: u8| {
            Secret::new(suite, &[fill; SECRET_BYTES_MAX][..suite.secret_bytes()]).unwrap()
        };
        let key = |fill| RecordKey::derive(suite, &secret(fill));
        let kept = |fill| {
            if suite.is_tls13() { secret(fill) } else { Secret::of_key(&key(fill)) }
        };
        let own = if suite.is_tls13() { secret(2) } else { Secret::empty() };
        let incoming = Incoming::new(Role::Server, suite, (kept(1), own), 0);
        (Outgoing::new(suite, key(2), 0), incoming, Outgoing::new(suite, key(1), 0))
    }

    #[test]
    fn every_state_is_the_same_after_a_rest() {
        for suite in Suite::ALL {
            let (mut outgoing, mut incoming, mut peer) = pair(suite);
            // The peer's other half, which derives its next keys.
            let mut of_peer = Incoming::new(
                Role::Client,
                suite,
                (
                    Secret::of_bytes(incoming.secrets().2.bytes(suite)).unwrap(),
                    Secret::of_bytes(incoming.secrets().1.bytes(suite)).unwrap(),
                ),
                0,
            );
            for round in 0..8 {
                let mut records = Vec::new();
                if suite.is_tls13() && round % 3 == 2 {
                    of_peer.update_key(&mut peer, true, &mut records).unwrap();
                }
                let sealed = peer.seal([&[round; 9][..]], &mut records).unwrap();
                peer.keep(sealed);
                let opened = incoming.open(&mut outgoing, &mut records);
                assert_eq!((opened.end, opened.content_bytes), (None, 9), "{suite} {round}");
                assert_eq!(records[..9], [round; 9]);
                let before = (incoming.secrets().0, incoming.counts());
                incoming = match incoming.compact() {
                    Ok(compact) => compact.whole(),
                    Err(incoming) => {
                        assert_eq!(suite, Suite::Tls13Aes256Gcm);
                        *incoming
                    }
                };
                assert_eq!((incoming.secrets().0, incoming.counts()), before);
                if outgoing.check().is_err() {
                    let mut update = Vec::new();
                    incoming.seal_key_update(&mut outgoing, &mut update).unwrap();
                    assert_eq!(of_peer.open(&mut peer, &mut update).end, None, "{suite}");
                }
            }
            incoming.close();
            if let Ok(compact) = incoming.compact() {
                assert_eq!(compact.whole().stream_end(), StreamEnd::Clean);
            }
        }
    }
}
