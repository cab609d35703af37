//! Session tickets, and the keys that seal them.
//!
//! The server keeps nothing of a session: the ticket has it, sealed. A ticket is
//!
//! | bytes | field |
//! |---|---|
//! | 8 | name of the key |
//! | 12 | nonce, random |
//! | 8 | sealed: the time of issue, in seconds since 1970, big-endian |
//! | | sealed: the session, as rustls writes it |
//! | 16 | tag (AES-256-GCM) |
//!
//! Name and key follow from a secret of 32 bytes (HKDF). Without a file, secrets are random, and
//! the next one replaces the one that seals after half of the tickets' lifetime. With a file, which
//! several servers may share, the first secret seals and all open.

use std::fmt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::error::CertificateError;

/// The setting with the file, for errors.
pub(crate) const SETTING: &str = "tls-ticket-keys";

const SECRET_BYTES: usize = 32;
/// A key for another process: the secret, and since when it seals.
const KEY_BYTES: usize = SECRET_BYTES + 8;
const NAME_BYTES: usize = 8;
const NONCE_BYTES: usize = 12;
const TIME_BYTES: usize = 8;

/// How many secrets a file may have. Each ticket of a stranger is compared with all their names.
const SECRETS_MAX: usize = 16;

/// A secret with what follows from it.
struct TicketKey {
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    name: [u8; NAME_BYTES],
    /// When it began to seal, in seconds since 1970; 0 if it is of a file.
    since_s: u64,
}

impl TicketKey {
    fn new(secret: Zeroizing<[u8; SECRET_BYTES]>, since_s: u64) -> TicketKey {
        let mut name = [0; NAME_BYTES];
        let full: [u8; SECRET_BYTES] = *derive(&secret, b"throng ticket name");
        name.copy_from_slice(&full[..NAME_BYTES]);
        TicketKey { secret, name, since_s }
    }

    fn random(since_s: u64) -> Option<TicketKey> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        SystemRandom::new().fill(&mut *secret).ok()?;
        Some(TicketKey::new(secret, since_s))
    }

    /// Made anew for each ticket, in 130 ns, because ring's object is not overwritten when it is
    /// dropped where it lies for hours.
    fn aead(&self) -> Option<LessSafeKey> {
        let key = derive(&self.secret, b"throng ticket key");
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).ok()?))
    }
}

fn derive(secret: &[u8; SECRET_BYTES], label: &[u8]) -> Zeroizing<[u8; SECRET_BYTES]> {
    let mut derived = Zeroizing::new([0; SECRET_BYTES]);
    Prk::new_less_safe(HKDF_SHA256, secret)
        .expand(&[label], HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut *derived))
        .expect("32 bytes can be expanded to 32 bytes");
    derived
}

/// Seals sessions into tickets and opens them, for all threads.
pub(crate) struct Tickets {
    /// The one that seals first; never empty.
    keys: RwLock<Vec<TicketKey>>,
    lifetime_s: u32,
    /// True if the keys are of a file, and are not replaced here.
    is_of_file: bool,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

impl Tickets {
    /// With keys of its own. `None` if there is no randomness.
    pub(crate) fn random(lifetime_s: u32) -> Option<Tickets> {
        let keys = RwLock::new(vec![TicketKey::random(now_s())?]);
        Some(Tickets { keys, lifetime_s, is_of_file: false })
    }

    /// With the keys of a file.
    pub(crate) fn of_file(
        lifetime_s: u32,
        path: &Path,
        text: &Zeroizing<Vec<u8>>,
    ) -> Result<Tickets, CertificateError> {
        Ok(Tickets { keys: RwLock::new(read(path, text)?), lifetime_s, is_of_file: true })
    }

    /// The keys that were made here: 32 bytes of secret each, and since when it seals (8).
    pub(crate) fn keys(&self) -> Zeroizing<Vec<u8>> {
        if self.is_of_file {
            return Zeroizing::default();
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Zeroizing::new(Vec::with_capacity(keys.len() * KEY_BYTES));
        for key in keys.iter() {
            bytes.extend_from_slice(&*key.secret);
            bytes.extend_from_slice(&key.since_s.to_le_bytes());
        }
        bytes
    }

    /// Goes on with the keys of [`Tickets::keys`], unless there is a file of keys.
    pub(crate) fn take_over(&self, bytes: &[u8]) {
        let read = |bytes: &[u8]| {
            let (secret, since_s) = bytes.split_first_chunk()?;
            let since_s = u64::from_le_bytes(since_s.try_into().ok()?);
            Some(TicketKey::new(Zeroizing::new(*secret), since_s))
        };
        let keys: Option<Vec<_>> = bytes.chunks(KEY_BYTES).map(read).collect();
        if let Some(keys) = keys.filter(|keys| !keys.is_empty() && !self.is_of_file) {
            *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        }
    }

    fn seal(&self, now_s: u64, session: &[u8]) -> Option<Vec<u8>> {
        if !self.is_of_file {
            self.rotate(now_s)?;
        }
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.first()?;
        let mut sealed = Zeroizing::new(Vec::with_capacity(TIME_BYTES + session.len() + 16));
        sealed.extend_from_slice(&now_s.to_be_bytes());
        sealed.extend_from_slice(session);
        let aad = Aad::from(key.name);
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        key.aead()?.seal_in_place_append_tag(nonce_used, aad, &mut *sealed).ok()?;
        Some([&key.name[..], &nonce, &sealed].concat())
    }

    /// `None` if the ticket is not of these keys, or is too old.
    fn open(&self, now_s: u64, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.iter().find(|key| key.name == *name)?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = key.aead()?.open_in_place(nonce, Aad::from(key.name), &mut sealed).ok()?;
        let (issued_s, session) = plain.split_first_chunk::<TIME_BYTES>()?;
        let age_s = now_s.saturating_sub(u64::from_be_bytes(*issued_s));
        (age_s <= u64::from(self.lifetime_s)).then(|| session.to_vec())
    }

    /// Replaces the key that seals after half a lifetime, and forgets those whose tickets have all
    /// expired. `None` if there is no randomness.
    fn rotate(&self, now_s: u64) -> Option<()> {
        let lifetime_s = u64::from(self.lifetime_s);
        let is_due = |keys: &[TicketKey]| {
            keys.first().is_none_or(|key| now_s.saturating_sub(key.since_s) > lifetime_s / 2)
        };
        if !is_due(&self.keys.read().unwrap_or_else(PoisonError::into_inner)) {
            return Some(());
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have done it.
        if is_due(&keys) {
            keys.insert(0, TicketKey::random(now_s)?);
            // It sealed for half a lifetime, or longer if nothing was sealed meanwhile.
            let mut sealed_until_s = now_s;
            keys.retain(|key| {
                let is_used = now_s.saturating_sub(sealed_until_s) <= lifetime_s;
                sealed_until_s = key.since_s;
                is_used
            });
        }
        Some(())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.lifetime_s
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(now_s(), plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(now_s(), cipher)
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The secrets of a file: a line of 64 hexadecimal digits each; empty lines and those that begin
/// with `#` do not count.
fn read(path: &Path, text: &Zeroizing<Vec<u8>>) -> Result<Vec<TicketKey>, CertificateError> {
    let fault = |predicate: &str| CertificateError::of_file(SETTING, path, predicate);
    let mut keys = Vec::new();
    for (line, nth) in text.split(|byte| *byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let secret = secret(line).ok_or_else(|| {
            fault(&format!(
                "has something else than 64 hexadecimal digits in line {nth}; `openssl rand -hex \
                 32` makes a key"
            ))
        })?;
        keys.push(TicketKey::new(secret, 0));
    }
    match keys.len() {
        0 => Err(fault("has no key; `openssl rand -hex 32` makes one")),
        1..=SECRETS_MAX => Ok(keys),
        _ => Err(fault(&format!("has more than {SECRETS_MAX} keys; remove the oldest"))),
    }
}

fn secret(digits: &[u8]) -> Option<Zeroizing<[u8; SECRET_BYTES]>> {
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    if digits.len() != 2 * SECRET_BYTES {
        return None;
    }
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(text: &str) -> Result<Tickets, String> {
        Tickets::of_file(100, Path::new("keys"), &Zeroizing::new(text.into()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_ticket_opens_until_it_is_too_old() {
        let tickets = Tickets::random(100).unwrap();
        let now_s = now_s();
        let ticket = tickets.seal(now_s, b"session").unwrap();
        assert_eq!(tickets.open(now_s + 100, &ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(tickets.open(now_s + 101, &ticket), None);
    }

    #[test]
    fn tickets_survive_the_next_key_within_their_lifetime() {
        let tickets = Tickets::random(100).unwrap();
        let now_s = now_s();
        let first = tickets.seal(now_s, b"first").unwrap();
        let second = tickets.seal(now_s + 60, b"second").unwrap();
        assert_ne!(first[..NAME_BYTES], second[..NAME_BYTES], "another key seals");
        assert_eq!(tickets.open(now_s + 70, &first).as_deref(), Some(&b"first"[..]));
        assert_eq!(tickets.keys.read().unwrap().len(), 2);
        for later_s in [120, 180, 240, 1000] {
            tickets.seal(now_s + later_s, b"later").unwrap();
            assert!(tickets.keys.read().unwrap().len() <= 4);
        }
        // The key was forgotten, too.
        assert_eq!(tickets.open(now_s + 60, &first), None);
    }

    #[test]
    fn whoever_changes_a_ticket_gets_nothing() {
        let tickets = Tickets::random(100).unwrap();
        let ticket = tickets.seal(now_s(), b"session").unwrap();
        for place in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[place] ^= 1;
            assert_eq!(tickets.open(now_s(), &changed), None, "{place}");
            assert_eq!(tickets.open(now_s(), &ticket[..place]), None, "{place}");
        }
    }

    #[test]
    fn servers_that_share_a_file_open_each_others_tickets() {
        let (old, new) = ("11".repeat(32), "Ab".repeat(32));
        let one = of_file(&old).unwrap();
        let other = of_file(&format!("# new\n{new}\n\n{old}\r\n")).unwrap();
        let ticket = one.seal(now_s(), b"session").unwrap();
        assert_eq!(other.open(now_s(), &ticket).as_deref(), Some(&b"session"[..]));
        // The first key seals, which the other server does not have yet.
        assert_eq!(one.open(now_s(), &other.seal(now_s(), b"session").unwrap()), None);
    }

    #[test]
    fn errors_name_the_line_and_never_the_key() {
        for (text, expected) in [
            ("", "tls-ticket-keys: keys has no key;"),
            ("# comment\nabcdef", "tls-ticket-keys: keys has something else than 64 hexadecimal"),
            (&"xx".repeat(32), "tls-ticket-keys: keys has something else"),
            (&format!("{}\n", "11".repeat(32)).repeat(17), "tls-ticket-keys: keys has more than"),
        ] {
            let error = of_file(text).map(|_| "accepted").unwrap_err();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains("abcdef"), "{error}");
        }
    }
}
