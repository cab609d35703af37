//! The sending half of a connection: key, next record number, and what became of the last record.
//!
//! This is the half that a delivery touches: it fits into one cache line, with eight bytes to
//! spare.

use thiserror::Error;

use crate::alert::Alert;
use crate::keys::{IV_BYTES, RecordKey};
use crate::record::{self, ALERT, APPLICATION_DATA, HANDSHAKE};
use crate::suite::Suite;

/// The handshake type of a key update, and its length. Whether the peer is asked for one follows.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];

/// How many records past the limit of a key are left for the key update and an alert.
const CONTROL_RECORDS_MAX: u64 = 8;

/// The key that seals, and the number of the next record.
///
/// A record takes its number when it is sealed. Only [`Outgoing::settle`] gives the number back,
/// if no byte of the record has left the process. Until the caller has told, nothing else is
/// sealed: so whatever a caller forgets or mixes up, no two records that leave have the same key
/// and number.
///
/// It moves and cannot be copied; it is overwritten with zeros when it is dropped.
#[repr(C)]
pub struct Outgoing {
    number: u64,
    key: RecordKey,
    suite: Suite,
    flags: SenderFlags,
}

const _: () = assert!(size_of::<Outgoing>() <= 56);

/// State to be remembered between two records; one of the constants below, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenderFlags(pub(crate) u8);

impl SenderFlags {
    /// The peer asks for a key update.
    pub(crate) fn request_update(&mut self) {
        self.0 |= UPDATE_REQUESTED;
    }

    /// Nothing more may be sealed.
    pub(crate) fn close(&mut self) {
        self.0 |= CLOSED;
    }

    /// True if data was sealed since the last time that this was asked.
    pub(crate) fn take_sent(&mut self) -> bool {
        let was_sent = self.0 & SENT != 0;
        self.0 &= !SENT;
        was_sent
    }
}

/// A record was sealed, and what became of it is not known yet.
const UNSETTLED: u8 = 1;
/// The peer asks for a key update, which has to come before the next application data.
const UPDATE_REQUESTED: u8 = 2;
/// An alert was sealed: nothing may follow.
const CLOSED: u8 = 4;
/// Data was sealed since `take_sent` was asked the last time.
const SENT: u8 = 8;
const FLAGS: u8 = UNSETTLED | UPDATE_REQUESTED | CLOSED | SENT;

/// Why nothing is sealed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SealError {
    /// The fate of the record before has to be reported first.
    #[error("the record before is not settled: call settle() or keep() first")]
    Unsettled,
    /// A key update comes first: the peer asked for it, or the key has sealed all that it may.
    #[error("a key update is due: call Incoming::seal_key_update() first")]
    KeyUpdateDue,
    /// The key has sealed all that it may and cannot be replaced: close the connection.
    #[error("the key has sealed as many records as it may: close the connection")]
    Exhausted,
    /// An alert was sealed before; nothing may follow it.
    #[error("the connection was closed by an alert: nothing more can be sent")]
    Closed,
}

/// A record that was sealed and whose fate is open. It belongs to the connection that sealed it.
#[must_use = "until it is settled, the connection seals nothing else"]
pub struct SealedRecord {
    /// The part of the nonce that no other record of any connection is likely to share.
    mark: u64,
    record_bytes: u32,
    content_bytes: u32,
}

impl SealedRecord {
    /// The length of the record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes as usize
    }

    /// How much of the content that was offered is in the record.
    pub fn content_bytes(&self) -> usize {
        self.content_bytes as usize
    }
}

// Not derived: the mark is a part of a secret.
impl std::fmt::Debug for SealedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed")
            .field("record_bytes", &self.record_bytes)
            .field("content_bytes", &self.content_bytes)
            .finish_non_exhaustive()
    }
}

/// The fate of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFate {
    /// All of it was written.
    Whole,
    /// A part was written. The caller keeps the rest, the last `rest_bytes` of this very record,
    /// and writes it before anything else.
    Part {
        /// How many bytes at the end of the record are still to be written.
        rest_bytes: usize,
    },
    /// Nothing was written. The caller throws the record away, and its content may be sealed
    /// again.
    NotAtAll,
}

impl Outgoing {
    pub(crate) fn new(suite: Suite, key: RecordKey, number: u64) -> Self {
        Self { number, key, suite, flags: SenderFlags(0) }
    }

    /// A half whose fields were kept elsewhere.
    pub(crate) fn again(suite: Suite, number: u64, flags: SenderFlags, key: RecordKey) -> Self {
        Self { number, key, suite, flags }
    }

    /// The suite of the connection.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Whether data can be sealed now, and what has to come first.
    pub fn check(&self) -> Result<(), SealError> {
        self.check_control()?;
        let is_used_up = self.number >= self.suite.max_records();
        if is_used_up && !self.suite.is_tls13() {
            return Err(SealError::Exhausted);
        }
        if is_used_up || self.flags.0 & UPDATE_REQUESTED != 0 {
            return Err(SealError::KeyUpdateDue);
        }
        Ok(())
    }

    /// Appends a record with `content` to `out`. It holds 2^14 bytes of content; what is more is
    /// left for the next record. Tell [`Outgoing::settle`] how much of the record was written, or
    /// [`Outgoing::keep`] that all of it will be.
    pub fn seal<'a>(
        &mut self,
        content: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<SealedRecord, SealError> {
        self.check()?;
        let mark = self.mark(self.number);
        let (record_bytes, content_bytes) = self.append(APPLICATION_DATA, content, out);
        self.flags.0 |= UNSETTLED | SENT;
        Ok(SealedRecord {
            mark,
            record_bytes: record_bytes as u32,
            content_bytes: content_bytes as u32,
        })
    }

    /// Says that the first `written_bytes` of the record were written, and nothing of the rest.
    ///
    /// A record that belongs to another connection is a mistake of the caller. It gives no number
    /// back, and this connection seals nothing more.
    pub fn settle(&mut self, sealed: SealedRecord, written_bytes: usize) -> RecordFate {
        let record_bytes = sealed.record_bytes();
        debug_assert!(written_bytes <= record_bytes, "more was written than was sealed");
        let is_own = self.release(&sealed);
        if written_bytes == 0 {
            if is_own {
                self.number -= 1;
            }
            return RecordFate::NotAtAll;
        }
        match record_bytes.saturating_sub(written_bytes) {
            0 => RecordFate::Whole,
            rest_bytes => RecordFate::Part { rest_bytes },
        }
    }

    /// Says that the record is in a buffer of this connection and will be written before anything
    /// else, or the connection will be closed. Its number is used up.
    pub fn keep(&mut self, sealed: SealedRecord) {
        self.release(&sealed);
    }

    /// Appends an alert to `out`; `CloseNotify` is the orderly end. Nothing can be sealed after
    /// it. Its number is used up; if it cannot be written, it may be thrown away with the
    /// connection.
    pub fn seal_alert(&mut self, alert: Alert, out: &mut Vec<u8>) -> Result<(), SealError> {
        self.check_control()?;
        self.append(ALERT, [&alert.content()[..]], out);
        self.flags.0 |= CLOSED;
        Ok(())
    }

    /// Appends a key update to `out`, and goes on with the key that `next_key` returns.
    pub(crate) fn append_key_update(
        &mut self,
        next_key: impl FnOnce() -> RecordKey,
        asks: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        self.check_control()?;
        if !self.suite.is_tls13() {
            return Err(SealError::Exhausted);
        }
        self.append(HANDSHAKE, [&KEY_UPDATE[..], &[u8::from(asks)]], out);
        self.key = next_key();
        self.number = 0;
        self.flags.0 &= !UPDATE_REQUESTED;
        Ok(())
    }

    /// State that the other half sets for this one.
    pub(crate) fn flags_mut(&mut self) -> &mut SenderFlags {
        &mut self.flags
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.flags.0 & UNSETTLED == 0
    }

    /// Number, flags and key, for the frozen form.
    pub(crate) fn fields(&self) -> (u64, u8, &RecordKey) {
        (self.number, self.flags.0, &self.key)
    }

    /// The opposite of `fields`. None unless the values can belong to a settled connection.
    pub(crate) fn restore(suite: Suite, number: u64, flags: u8, key: RecordKey) -> Option<Self> {
        let is_valid = flags & !FLAGS == 0
            && flags & UNSETTLED == 0
            && number <= suite.max_records() + CONTROL_RECORDS_MAX
            && (suite.is_tls13() || flags & UPDATE_REQUESTED == 0);
        is_valid.then_some(Self { number, key, suite, flags: SenderFlags(flags) })
    }

    /// Whether a key update or an alert can be sealed.
    fn check_control(&self) -> Result<(), SealError> {
        if self.flags.0 & UNSETTLED != 0 {
            return Err(SealError::Unsettled);
        }
        if self.flags.0 & CLOSED != 0 {
            return Err(SealError::Closed);
        }
        if self.number >= self.suite.max_records() + CONTROL_RECORDS_MAX {
            return Err(SealError::Exhausted);
        }
        Ok(())
    }

    /// Seals and uses the number up. Returns the lengths of record and content.
    fn append<'a>(
        &mut self,
        content_type: u8,
        content: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) -> (usize, usize) {
        let start = out.len();
        let number = self.number;
        self.number += 1;
        let key = (self.suite, &self.key);
        let content_bytes = record::seal(key, number, content_type, content, out);
        (out.len() - start, content_bytes)
    }

    /// Makes room for the next record. Returns false, and closes, if `sealed` is of another
    /// connection.
    fn release(&mut self, sealed: &SealedRecord) -> bool {
        let is_own = self.flags.0 & UNSETTLED != 0
            && self.number.checked_sub(1).is_some_and(|number| self.mark(number) == sealed.mark);
        debug_assert!(is_own, "a record was settled with another connection");
        if is_own {
            self.flags.0 &= !UNSETTLED;
        } else {
            self.flags.0 |= CLOSED;
        }
        is_own
    }

    fn mark(&self, number: u64) -> u64 {
        let nonce = self.key.nonce(number);
        let tail = nonce[IV_BYTES - 8..].first_chunk().expect("a nonce has twelve bytes");
        u64::from_be_bytes(*tail)
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing")
            .field("suite", &self.suite)
            .field("number", &self.number)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
