//! Requests about a channel with a state, and where they stand.

use std::collections::VecDeque;
use std::sync::Arc;

use throng_core::StateLimits;

use super::view::{PartOf, View};
use crate::api::beside::Found;
use crate::journal::logs::Entry;
use crate::journal::outbox::Outbox;
use crate::journal::report::{LogEdit, LogOutcome, LogRequest, Outcome, PublishRequest};

/// What a channel has, as it was counted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The sequence of the record then.
    pub(super) sequence: u64,
    pub(super) keys: u64,
    pub(super) bytes: u64,
    pub(super) expiring: u64,
    pub(super) removed: u64,
    pub(super) floor: u64,
    /// The keys whose tombstones are dropped.
    pub(super) dropped: Vec<Box<str>>,
}

/// A request about a channel.
#[derive(Debug)]
pub(super) enum Work {
    Publish(PublishRequest),
    Change {
        token: u64,
        edit: Box<LogEdit>,
    },
    /// The first part of an erasure: the state forgets it, then [`super::logs`] erases it.
    Forget {
        token: u64,
        request: LogRequest,
        /// The key whose newest message is erased, and that message, once it was looked for.
        gone: Option<(Box<str>, u64)>,
    },
    /// To count what there is, and to drop tombstones.
    Count(Option<Box<Counted>>),
}

#[derive(Debug)]
pub(super) struct Item {
    pub(super) work: Work,
    pub(super) taken_ms: u64,
}

/// A batch that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) batch: String,
    /// The sequence of the record that it needs.
    pub(super) record: u64,
    /// What is sent again if it was lost.
    pub(super) all: Arc<[Entry]>,
    pub(super) entries: usize,
    pub(super) messages: usize,
    pub(super) fates: Vec<Result<Done, Refusal>>,
    /// How often it was sent.
    pub(super) sends: u32,
}

#[derive(Debug)]
pub(super) enum Step {
    /// It begins at `at_ms`.
    Begin,
    /// Its copies are looked through.
    Scan,
    Read(Vec<(u64, PartOf)>, View),
    Store(u64, Sent),
    Resolve(Resolving, Sent),
    /// What was forgotten is removed.
    Remove(u64, Sent, u64),
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) queue: VecDeque<Item>,
    /// So many of them are handled now.
    pub(super) taken: usize,
    pub(super) limits: StateLimits,
    pub(super) step: Step,
    pub(super) at_ms: u64,
    pub(super) seen: Option<View>,
    pub(super) collisions: u32,
}

/// The questions for the first message behind the record, and for the record.
#[derive(Debug, Default)]
pub(super) struct Resolving {
    pub(super) tokens: [u64; 2],
    pub(super) found: [Option<Option<Found>>; 2],
}

impl Resolving {
    pub(super) fn is_asked(&self) -> bool {
        self.tokens != [0; 2]
    }

    pub(super) fn forget(&self, outbox: &mut Outbox) {
        self.tokens.iter().for_each(|token| outbox.answered(*token));
    }
}

/// What becomes of a request if its batch is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Done {
    /// The publication is the message at this place, or that message has its idempotency key.
    Published {
        at: usize,
        is_duplicate: bool,
    },
    /// The messages of a change begin at this place. The record of the log is at the other one,
    /// or has this version.
    Changed {
        at: usize,
        record: Result<usize, u64>,
    },
    Forgotten(Forgotten),
    Counted,
}

/// What a state does not have any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forgotten {
    /// A value, whose copy has this sequence. It is still to be erased.
    Copy(u64),
    /// All that came up to this message. The copies are still to be removed.
    UpTo(u64),
}

/// What becomes of a request that stores nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    Publication(Outcome),
    Log(LogOutcome),
    /// Nothing has to be forgotten.
    Nothing,
}
