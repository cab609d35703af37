//! A client's connection after its handshake, in 112 bytes.
//!
//! A load generator holds clients by the million that mostly receive. So this form keeps the two
//! traffic secrets and the key that opens records, if it is an AES-128 key; it derives other keys
//! whenever it opens or seals, which takes some 0.4 µs a time. Connections without such secrets
//! (TLS 1.2) or with longer ones keep both halves on the heap.

use zeroize::Zeroize as _;

use crate::alert::Alert;
use crate::incoming::{End, Incoming, Opened, Role, StreamEnd};
use crate::keys::{IV_BYTES, RecordKey, Secret};
use crate::outgoing::{Outgoing, SealError, SenderFlags};
use crate::suite::Suite;

/// The length of SHA-256, the hash of two suites of TLS 1.3.
const SECRET_BYTES: usize = 32;

/// The length of a key of AES-128.
const KEY_BYTES: usize = 16;

/// An established connection of a client.
///
/// A sealed record has used its number for good: write all of it, in order, or close the
/// connection. A session moves and cannot be copied; its keys are overwritten with zeros when it is
/// dropped.
#[derive(Debug)]
pub struct ClientSession(Form);

enum Form {
    Small(SmallSession),
    Whole(Box<(Outgoing, Incoming)>),
}

// `Option` costs nothing, so a slab of sessions has 112 bytes for each.
const _: () = assert!(size_of::<Option<ClientSession>>() <= 112);

/// Both halves of a connection of TLS 1.3 with SHA-256.
#[repr(C)]
struct SmallSession {
    secret_in: [u8; SECRET_BYTES],
    secret_out: [u8; SECRET_BYTES],
    /// The key that follows from `secret_in`, and its initial vector, with AES-128.
    key_in: [u8; KEY_BYTES + IV_BYTES],
    number_in: u32,
    number_out: u32,
    skipped_bytes: u32,
    without_data: u8,
    flags_in: u8,
    flags_out: SenderFlags,
    suite: Suite,
}

impl Drop for SmallSession {
    fn drop(&mut self) {
        self.secret_in.zeroize();
        self.secret_out.zeroize();
        self.key_in.zeroize();
    }
}

impl ClientSession {
    /// Both halves of a connection whose last record is settled.
    pub fn new(outgoing: Outgoing, incoming: Incoming) -> Self {
        Self(match SmallSession::of(&outgoing, &incoming) {
            Some(small) => Form::Small(small),
            None => Form::Whole(Box::new((outgoing, incoming))),
        })
    }

    /// The suite of the connection.
    pub fn suite(&self) -> Suite {
        match &self.0 {
            Form::Small(small) => small.suite,
            Form::Whole(whole) => whole.0.suite(),
        }
    }

    /// Opens all complete records in `buffer`, as [`Incoming::open`] does.
    pub fn open(&mut self, buffer: &mut [u8]) -> Opened {
        match &mut self.0 {
            Form::Small(small) => small.open(buffer),
            Form::Whole(whole) => whole.1.open(&mut whole.0, buffer),
        }
    }

    /// Appends records with all of `content` to `out`, and a key update where one is due.
    pub fn seal(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        self.send(|outgoing, incoming| {
            let mut rest = content;
            while !rest.is_empty() {
                if outgoing.check() == Err(SealError::KeyUpdateDue) {
                    incoming.seal_key_update(outgoing, out)?;
                }
                let sealed = outgoing.seal([rest], out)?;
                rest = &rest[sealed.content_bytes()..];
                outgoing.keep(sealed);
            }
            Ok(())
        })
    }

    /// Appends an alert to `out`; nothing can be sealed after it.
    pub fn seal_alert(&mut self, alert: Alert, out: &mut Vec<u8>) -> Result<(), SealError> {
        self.send(|outgoing, _| outgoing.seal_alert(alert, out))
    }

    /// Says whether the end of the byte stream is the end of what the peer sent.
    pub fn stream_end(&self) -> StreamEnd {
        match &self.0 {
            Form::Small(small) => small.incoming().stream_end(),
            Form::Whole(whole) => whole.1.stream_end(),
        }
    }

    fn send<R>(&mut self, call: impl FnOnce(&mut Outgoing, &mut Incoming) -> R) -> R {
        match &mut self.0 {
            Form::Small(small) => small.send(call),
            Form::Whole(whole) => call(&mut whole.0, &mut whole.1),
        }
    }
}

impl SmallSession {
    /// None unless everything fits.
    fn of(outgoing: &Outgoing, incoming: &Incoming) -> Option<Self> {
        let suite = outgoing.suite();
        if !suite.is_tls13() || suite.secret_bytes() != SECRET_BYTES || !outgoing.is_settled() {
            return None;
        }
        let mut small = Self {
            secret_in: [0; SECRET_BYTES],
            secret_out: [0; SECRET_BYTES],
            key_in: [0; KEY_BYTES + IV_BYTES],
            number_in: 0,
            number_out: 0,
            skipped_bytes: 0,
            without_data: 0,
            flags_in: 0,
            flags_out: SenderFlags(outgoing.fields().1),
            suite,
        };
        // No secret is zeros, so the key is derived here.
        let does_fit = small.keep_outgoing(outgoing) && small.keep_incoming(incoming);
        does_fit.then_some(small)
    }

    fn open(&mut self, buffer: &mut [u8]) -> Opened {
        let mut incoming = self.incoming();
        let key = self.suite.aead().key_len() == KEY_BYTES;
        let key = key.then(|| {
            let (key, iv) = self.key_in.split_at(KEY_BYTES);
            RecordKey::new(self.suite, key, iv).expect("a key of AES-128")
        });
        let mut opened = incoming.open_beside(&mut self.flags_out, key, buffer);
        if !self.keep_incoming(&incoming) {
            // 2^32 records under one key; AES-GCM has long needed another.
            opened.end = Some(End::Failed(Alert::InternalError));
        }
        opened
    }

    fn send<R>(&mut self, call: impl FnOnce(&mut Outgoing, &mut Incoming) -> R) -> R {
        let mut incoming = self.incoming();
        let key = RecordKey::derive(self.suite, incoming.secrets().2);
        let mut outgoing =
            Outgoing::again(self.suite, u64::from(self.number_out), self.flags_out, key);
        let result = call(&mut outgoing, &mut incoming);
        self.flags_out = *outgoing.flags_mut();
        let is_kept = self.keep_outgoing(&outgoing) && self.keep_incoming(&incoming);
        if !is_kept {
            // The numbers stay what they were, so nothing more may be sealed.
            self.flags_out.close();
        }
        result
    }

    fn incoming(&self) -> Incoming {
        let secret = |bytes: &[u8]| Secret::new(self.suite, bytes).expect("of SHA-256");
        let secrets = (secret(&self.secret_in), secret(&self.secret_out));
        let number = u64::from(self.number_in);
        let mut incoming = Incoming::new(Role::Client, self.suite, secrets, number);
        let is_restored =
            incoming.restore_counts((self.flags_in, self.skipped_bytes, self.without_data));
        debug_assert!(is_restored, "these were the counts of such a half");
        incoming
    }

    /// False if the number does not fit.
    fn keep_incoming(&mut self, incoming: &Incoming) -> bool {
        let (number, secret_in, secret_out) = incoming.secrets();
        if self.secret_in != secret_in.bytes(self.suite) {
            self.secret_in.copy_from_slice(secret_in.bytes(self.suite));
            self.derive_key(secret_in);
        }
        self.secret_out.copy_from_slice(secret_out.bytes(self.suite));
        (self.flags_in, self.skipped_bytes, self.without_data) = incoming.counts();
        let fitting = u32::try_from(number);
        self.number_in = fitting.unwrap_or(u32::MAX);
        fitting.is_ok()
    }

    /// Derives the key that opens records from a new secret, if there is room for it.
    fn derive_key(&mut self, secret_in: &Secret) {
        if self.suite.aead().key_len() == KEY_BYTES {
            let key = RecordKey::derive(self.suite, secret_in);
            let (own, iv) = self.key_in.split_at_mut(KEY_BYTES);
            own.copy_from_slice(key.key(self.suite));
            iv.copy_from_slice(key.iv());
        }
    }

    /// False if the number does not fit.
    fn keep_outgoing(&mut self, outgoing: &Outgoing) -> bool {
        let fitting = u32::try_from(outgoing.fields().0);
        self.number_out = fitting.unwrap_or(u32::MAX);
        fitting.is_ok()
    }
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Small(small) => small.incoming().fmt(f),
            Self::Whole(whole) => whole.1.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::SECRET_BYTES_MAX;

    /// A client and its server.
    fn pair(suite: Suite) -> (ClientSession, Outgoing, Incoming) {
        let secret = |fill: u8| {
            Secret::new(suite, &[fill; SECRET_BYTES_MAX][..suite.secret_bytes()]).unwrap()
        };
        let key = |fill| RecordKey::derive(suite, &secret(fill));
        let kept = |fill| {
            if suite.is_tls13() { secret(fill) } else { Secret::of_key(&key(fill)) }
        };
        let client = ClientSession::new(
            Outgoing::new(suite, key(1), 0),
            Incoming::new(Role::Client, suite, (kept(2), kept(1)), 0),
        );
        let incoming = Incoming::new(Role::Server, suite, (kept(1), kept(2)), 0);
        (client, Outgoing::new(suite, key(2), 0), incoming)
    }

    fn to_client(outgoing: &mut Outgoing, content: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        let sealed = outgoing.seal([content], &mut records).unwrap();
        outgoing.keep(sealed);
        records
    }

    #[test]
    fn it_speaks_with_every_suite_across_key_updates() {
        for suite in Suite::ALL {
            let (mut client, mut outgoing, mut incoming) = pair(suite);
            for round in 0..6 {
                if suite.is_tls13() && round % 2 == 1 {
                    let mut update = Vec::new();
                    incoming.seal_key_update(&mut outgoing, &mut update).unwrap();
                    assert_eq!(client.open(&mut update).end, None, "{suite:?}");
                    // The server asks for one of the client's.
                    if let Form::Small(small) = &mut client.0 {
                        small.flags_out.request_update();
                    }
                }
                let mut records = to_client(&mut outgoing, b"down");
                records.extend(to_client(&mut outgoing, b"stairs"));
                let opened = client.open(&mut records);
                assert_eq!(&records[..opened.content_bytes], b"downstairs", "{suite:?} {round}");

                let long = vec![round; 40_000];
                let mut records = Vec::new();
                client.seal(&long, &mut records).unwrap();
                let opened = incoming.open(&mut outgoing, &mut records);
                assert_eq!((opened.end, opened.used_bytes), (None, records.len()), "{suite:?}");
                assert_eq!(&records[..opened.content_bytes], &long, "{suite:?} {round}");
            }
        }
    }

    #[test]
    fn an_end_is_clean_only_after_close_notify() {
        for suite in [Suite::Tls13Aes128Gcm, Suite::Tls12Aes128Gcm] {
            let (mut client, mut outgoing, mut incoming) = pair(suite);
            assert_eq!(client.stream_end(), StreamEnd::Truncated);
            let mut records = Vec::new();
            outgoing.seal_alert(Alert::CloseNotify, &mut records).unwrap();
            assert_eq!(client.open(&mut records).end, Some(End::Closed));
            assert_eq!(client.stream_end(), StreamEnd::Clean);

            let mut records = Vec::new();
            client.seal_alert(Alert::CloseNotify, &mut records).unwrap();
            assert_eq!(client.seal(b"more", &mut records), Err(SealError::Closed));
            assert_eq!(incoming.open(&mut outgoing, &mut records).end, Some(End::Closed));
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_not_used_again() {
        let suite = Suite::Tls13ChaCha20Poly1305;
        let (mut client, ..) = pair(suite);
        let Form::Small(small) = &mut client.0 else { panic!("it fits") };
        small.number_out = u32::MAX;
        let mut records = Vec::new();
        client.seal(b"last", &mut records).unwrap();
        assert_eq!(client.seal(b"more", &mut records), Err(SealError::Closed));
    }

    #[test]
    fn a_forged_record_ends_it() {
        let (mut client, mut outgoing, _) = pair(Suite::Tls13Aes128Gcm);
        let mut records = to_client(&mut outgoing, b"x");
        *records.last_mut().unwrap() ^= 1;
        assert_eq!(client.open(&mut records).end, Some(End::Failed(Alert::BadRecordMac)));
    }
}
