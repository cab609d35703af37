//! Publications to channels that may end: the stream itself decides whether one comes before the
//! end.
//!
//! Each is stored only if the record of its log is still the one that the node knows, and that one
//! is none of an end. A node that knows nothing takes it that there is no record. A refusal says
//! that there is another one, which is read from the stream's leader: after an end, whoever
//! published before it was asked is refused, and otherwise the publications are sent again.
//!
//! Of several servers the leader takes one message under a condition on a record at a time, from
//! all nodes. So there one publication of a channel is under way at a time.

use std::collections::HashMap;
use std::sync::Arc;

use throng_core::LogRecord;

use crate::api::beside;

/// After this time without an answer, the record is asked for again.
const AGAIN_MS: u64 = 1_000;

/// So often in a row a publication is sent again at once if another one was in its way.
const AT_ONCE_MAX: u32 = 3;

/// Records that are known of channels to which nothing is under way. Beyond it all are forgotten.
const RECORDS_MAX: usize = 1_024;

/// What is known of the record that publications of a channel depend on.
#[derive(Debug)]
pub(super) struct Gate {
    /// Its sequence; 0 if there is none. It is none of an end.
    expected: u64,
    /// What it says, if there is one.
    pub(super) record: Option<Arc<LogRecord>>,
    step: Step,
    /// How often in a row another message was in the way.
    collisions: u32,
    /// True if one publication is sent at a time.
    pub(super) is_narrow: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Publications are sent.
    Open,
    /// The record is to be read, at this time.
    Due(u64),
    /// It is being read, for the publications up to this number.
    Asked { token: u64, up_to: u64, at_ms: u64 },
}

impl Gate {
    pub(super) fn is_open(&self) -> bool {
        self.step == Step::Open
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        matches!(self.step, Step::Due(at_ms) if at_ms <= now_ms)
    }

    /// No answer comes any more.
    pub(super) fn disconnected(&mut self) {
        if !self.is_open() {
            self.step = Step::Due(0);
        }
    }

    /// The stream is another one.
    pub(super) fn begin_epoch(&mut self) {
        (self.expected, self.record, self.step) = (0, None, Step::Open);
    }

    /// Asks again what has no answer for long.
    pub(super) fn tick(&mut self, now_ms: u64) {
        if matches!(self.step, Step::Asked { at_ms, .. } if at_ms + AGAIN_MS <= now_ms) {
            self.step = Step::Due(now_ms);
        }
    }

    /// The headers of a publication, with its condition on the record with this subject.
    pub(super) fn headers(&self, headers: &[u8], record: &str) -> Arc<[u8]> {
        beside::under_condition(headers, record, self.expected).into()
    }

    /// The record is being read, for the publications up to this number.
    pub(super) fn asks(&mut self, now_ms: u64, token: u64, up_to: u64) {
        self.step = Step::Asked { token, up_to, at_ms: now_ms };
    }

    /// The publications that the question with this token was asked for, by the number of the last
    /// one; `None` if it is not the last question.
    pub(super) fn asked(&self, own: u64) -> Option<u64> {
        match self.step {
            Step::Asked { token, up_to, .. } if token == own => Some(up_to),
            _ => None,
        }
    }

    /// The record has this sequence, and is none of an end.
    pub(super) fn is_known(&mut self, sequence: u64, record: Option<Arc<LogRecord>>) {
        (self.expected, self.record, self.step) = (sequence, record, Step::Open);
    }

    /// The record is read at this time.
    pub(super) fn reads_at(&mut self, at_ms: u64) {
        self.step = Step::Due(at_ms);
    }

    /// A publication was not stored: the record is another one, as `is_other` says, or another
    /// message was in the way. Returns whether it may be sent again at once.
    pub(super) fn refused(&mut self, now_ms: u64, is_other: bool) -> bool {
        self.collisions = if is_other { 0 } else { self.collisions + 1 };
        if is_other && self.is_open() {
            self.step = Step::Due(now_ms);
        }
        self.collisions <= AT_ONCE_MAX
    }
}

/// A record that was read, and its sequence; `None` for one of an end.
type ReadRecord = Option<(u64, Option<Arc<LogRecord>>)>;

/// The records that were read, by the suffixes of their channels.
#[derive(Debug, Default)]
pub(super) struct KnownRecords(HashMap<Arc<str>, ReadRecord, foldhash::fast::RandomState>);

impl KnownRecords {
    /// `needs_creation`: of a channel that takes nothing without a record.
    pub(super) fn gate(&self, suffix: &str, is_narrow: bool, needs_creation: bool) -> Gate {
        let none = || (!needs_creation).then_some((0, None));
        let known = self.0.get(suffix).cloned().unwrap_or_else(none);
        let step = if known.is_some() { Step::Open } else { Step::Due(0) };
        let (expected, record) = known.unwrap_or_default();
        Gate { expected, record, step, collisions: 0, is_narrow }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn insert(&mut self, suffix: &Arc<str>, read: ReadRecord) {
        if read == Some((0, None)) {
            // As if nothing were known.
            self.0.remove(suffix);
            return;
        }
        if self.0.len() >= RECORDS_MAX {
            self.0.clear();
        }
        self.0.insert(Arc::clone(suffix), read);
    }
}
