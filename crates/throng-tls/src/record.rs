//! One record: its header, how it is sealed, how it is opened. No state.

use ring::aead::{Aad, LessSafeKey, Nonce as RingNonce};

use crate::alert::Alert;
use crate::keys::{IV_BYTES, Nonce, RecordKey};
use crate::suite::Suite;

/// Content type, version and length.
pub const HEADER_BYTES: usize = 5;
/// The most content that a record may have.
pub const CONTENT_BYTES_MAX: usize = 1 << 14;
pub(crate) const EXPLICIT_NONCE_BYTES: usize = 8;
pub(crate) const TAG_BYTES: usize = 16;

/// Upper bound on a record's growth over its content, by padding and the algorithm's additions.
const EXPANSION_BYTES_MAX_TLS13: usize = 256;
const EXPANSION_BYTES_MAX_TLS12: usize = 2048;

/// The longest record of any version, with its header: what a buffer for one has to hold.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + CONTENT_BYTES_MAX + EXPANSION_BYTES_MAX_TLS12;

/// The version in the header of every sealed record, of TLS 1.2 and 1.3 alike.
const VERSION: [u8; 2] = [3, 3];

// Content types (RFC 8446, section 5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

impl Suite {
    /// How many bytes a record that is sealed here is longer than its content: 22 with TLS 1.3, 29
    /// or 21 with TLS 1.2.
    pub fn overhead_bytes(self) -> usize {
        let content_type = if self.is_tls13() { 1 } else { 0 };
        let nonce = if self.has_explicit_nonce() { EXPLICIT_NONCE_BYTES } else { 0 };
        HEADER_BYTES + nonce + content_type + TAG_BYTES
    }
}

/// The front of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header([u8; HEADER_BYTES]);

impl Header {
    /// None if the header is incomplete.
    pub(crate) fn read(input: &[u8]) -> Option<Self> {
        input.first_chunk().copied().map(Self)
    }

    pub(crate) fn content_type(self) -> u8 {
        self.0[0]
    }

    pub(crate) fn major_version(self) -> u8 {
        self.0[1]
    }

    /// The number of bytes that follow the header.
    pub(crate) fn body_bytes(self) -> usize {
        usize::from(u16::from_be_bytes([self.0[3], self.0[4]]))
    }

    /// The number of bytes of the record.
    pub(crate) fn record_bytes(self) -> usize {
        HEADER_BYTES + self.body_bytes()
    }

    /// Whether the header may stand before a sealed record of this suite.
    pub(crate) fn check(self, suite: Suite) -> Result<(), Alert> {
        let (is_expected, max_expansion_bytes) = if suite.is_tls13() {
            (self.content_type() == APPLICATION_DATA, EXPANSION_BYTES_MAX_TLS13)
        } else {
            let expected = [ALERT, HANDSHAKE, APPLICATION_DATA];
            (expected.contains(&self.content_type()), EXPANSION_BYTES_MAX_TLS12)
        };
        if !is_expected {
            return Err(Alert::UnexpectedMessage);
        }
        if self.body_bytes() > CONTENT_BYTES_MAX + max_expansion_bytes {
            return Err(Alert::RecordOverflow);
        }
        Ok(())
    }
}

/// The additional data of TLS 1.2.
fn additional_data(number: u64, header: Header, content_bytes: usize) -> [u8; 13] {
    let mut data = [0; 13];
    data[..8].copy_from_slice(&number.to_be_bytes());
    data[8..11].copy_from_slice(&header.0[..3]);
    let length = u16::try_from(content_bytes).expect("the length of a header is 16 bits");
    data[11..].copy_from_slice(&length.to_be_bytes());
    data
}

/// Appends to `out` a record with as much of `content` as a record holds. Returns the number of
/// bytes of `content` in it.
pub(crate) fn seal<'a>(
    (suite, key): (Suite, &RecordKey),
    number: u64,
    content_type: u8,
    content: impl IntoIterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) -> usize {
    let nonce = key.nonce(number);
    let start = out.len();
    out.extend([0; HEADER_BYTES]);
    if suite.has_explicit_nonce() {
        out.extend(&nonce[IV_BYTES - EXPLICIT_NONCE_BYTES..]);
    }
    let inner = out.len();
    let mut room = CONTENT_BYTES_MAX;
    for part in content {
        let taken = part.len().min(room);
        out.extend_from_slice(&part[..taken]);
        room -= taken;
    }
    let content_bytes = CONTENT_BYTES_MAX - room;

    let outer_type = if suite.is_tls13() { APPLICATION_DATA } else { content_type };
    if suite.is_tls13() {
        out.push(content_type);
    }
    let body_bytes = out.len() - start - HEADER_BYTES + TAG_BYTES;
    let length = u16::try_from(body_bytes).expect("a record of 2^14 bytes and its overhead");
    let header =
        Header([outer_type, VERSION[0], VERSION[1], length.to_be_bytes()[0], length as u8]);
    out[start..start + HEADER_BYTES].copy_from_slice(&header.0);

    let aead = key.to_aead(suite);
    let nonce = RingNonce::assume_unique_for_key(nonce);
    let body = &mut out[inner..];
    let tag = if suite.is_tls13() {
        aead.seal_in_place_separate_tag(nonce, Aad::from(header.0), body)
    } else {
        let data = additional_data(number, header, content_bytes);
        aead.seal_in_place_separate_tag(nonce, Aad::from(data), body)
    };
    out.extend_from_slice(tag.expect("a record is shorter than any algorithm's limit").as_ref());
    content_bytes
}

/// Opens the records of one direction, for as long as several are at hand.
pub(crate) struct Opener {
    suite: Suite,
    aead: LessSafeKey,
    key: RecordKey,
}

impl Opener {
    pub(crate) fn new(suite: Suite, key: RecordKey) -> Self {
        Self { suite, aead: key.to_aead(suite), key }
    }

    /// Opens the record that starts at `at` and is complete. Its content moves to `to`, which is
    /// not behind `at`. Returns the content's type and length. After an error the bytes from `to`
    /// on mean nothing.
    pub(crate) fn open(
        &self,
        number: u64,
        buffer: &mut [u8],
        to: usize,
        at: usize,
    ) -> Result<(u8, usize), Alert> {
        let header = Header::read(&buffer[at..]).ok_or(Alert::InternalError)?;
        header.check(self.suite)?;
        let (sealed, end) = (at + HEADER_BYTES, at + header.record_bytes());
        if self.suite.is_tls13() {
            let nonce = RingNonce::assume_unique_for_key(self.key.nonce(number));
            let source = sealed - to..;
            let inner =
                self.aead.open_within(nonce, Aad::from(header.0), &mut buffer[to..end], source);
            return unpad(inner.map_err(|_| Alert::BadRecordMac)?);
        }

        let explicit = if self.suite.has_explicit_nonce() { EXPLICIT_NONCE_BYTES } else { 0 };
        let Some(content_bytes) = header.body_bytes().checked_sub(explicit + TAG_BYTES) else {
            return Err(Alert::BadRecordMac);
        };
        let nonce = self.tls12_nonce(number, &buffer[sealed..sealed + explicit]);
        let content = self.aead.open_within(
            RingNonce::assume_unique_for_key(nonce),
            Aad::from(additional_data(number, header, content_bytes)),
            &mut buffer[to..end],
            sealed + explicit - to..,
        );
        let content_bytes = content.map_err(|_| Alert::BadRecordMac)?.len();
        if content_bytes > CONTENT_BYTES_MAX {
            return Err(Alert::RecordOverflow);
        }
        Ok((header.content_type(), content_bytes))
    }

    fn tls12_nonce(&self, number: u64, explicit: &[u8]) -> Nonce {
        if explicit.is_empty() {
            return self.key.nonce(number);
        }
        let mut nonce = *self.key.iv();
        nonce[IV_BYTES - EXPLICIT_NONCE_BYTES..].copy_from_slice(explicit);
        nonce
    }
}

/// Finds the content type behind the content of TLS 1.3: the last byte that is not zero.
fn unpad(inner: &[u8]) -> Result<(u8, usize), Alert> {
    if inner.len() > CONTENT_BYTES_MAX + 1 {
        return Err(Alert::RecordOverflow);
    }
    let last = inner.iter().rposition(|byte| *byte != 0).ok_or(Alert::UnexpectedMessage)?;
    Ok((inner[last], last))
}
