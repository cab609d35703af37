//! The stream's part of lists: the channels that have messages, a record or a state there.
//!
//! While lists are asked for, the node keeps the names of all these channels, some 90 bytes each
//! beside their text, and has what came since reported before each page. So a page has every
//! channel that had messages when it was asked for; and only the first page after a pause costs a
//! pass over all channels, in the server of NATS that has the consumer and here. It may last longer
//! than a request: its page is empty then, and the next one goes on.
//!
//! # Invariants
//!
//! * Names are learnt once at a time for each kind. A page that is asked for meanwhile waits for
//!   the next time: this one may have passed its channels already.
//! * What was learnt is forgotten with the epoch of the stream, and with anything that was not
//!   heard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{Kind, ListPart, ListQuery, ListedChannel, NameIndex, Ticket};

use crate::journal::{LastOfLog, NamedLog};

/// For how long names are kept after the last page, in milliseconds.
const KEPT_MS: u64 = 30_000;

/// A page waits so long for the names, in milliseconds: less than whoever asks for it.
const WAIT_MS: u64 = 1_000;

/// Pages that wait for the names of a kind, at most. Beyond it they have no part of the stream.
pub(super) const WAITING_MAX: usize = 256;

/// Names that are kept, at most: a gigabyte or so.
pub(super) const NAMES_MAX: usize = 8_000_000;

/// So many names are dropped within a millisecond.
const DROPPED_HERE_MAX: usize = 10_000;

/// The ends of a log in the stream: sequences, 0 without any.
#[derive(Debug, Default)]
pub(super) struct LogEnds {
    pub(super) message: u64,
    /// Of its record, or that of its state.
    pub(super) beside: u64,
}

pub(super) struct WaitingPage {
    pub(super) query: ListQuery,
    pub(super) since_ms: u64,
    pub(super) ticket: Ticket<ListPart>,
}

/// Names that are being learnt.
pub(super) struct Run {
    pub(super) token: u64,
    pub(super) is_anew: bool,
    /// The pages that it is for.
    pub(super) pages: Vec<WaitingPage>,
}

#[derive(Default)]
pub(super) struct NamesOfKind {
    pub(super) index: NameIndex<LogEnds>,
    /// True if the index has all names of some moment.
    pub(super) is_known: bool,
    /// Its length when names that are gone were removed last.
    pub(super) pruned: usize,
    pub(super) used_ms: u64,
    pub(super) run: Option<Run>,
    pub(super) waiting: Vec<WaitingPage>,
}

/// A page whose logs are being counted.
pub(super) struct CountedPage {
    pub(super) channels: Vec<ListedChannel>,
    pub(super) most: Vec<usize>,
    pub(super) part: ListPart,
    pub(super) ticket: Ticket<ListPart>,
}

#[derive(Default)]
pub(super) struct StoredState {
    /// Of channels, and of users.
    pub(super) kinds: [NamesOfKind; 2],
    pub(super) counted: HashMap<u64, CountedPage>,
}

/// See the module.
#[derive(Default)]
pub(super) struct StoredNames {
    state: Mutex<StoredState>,
    /// How many names were forgotten so far.
    forgotten: AtomicU64,
}

impl StoredNames {
    pub(super) fn lock(&self) -> MutexGuard<'_, StoredState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many names were forgotten so far, whose memory is free now.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// The stream is another one.
    pub(super) fn forget(&self) {
        self.lock().kinds.iter_mut().for_each(|kind| self.forget_kind(kind));
    }

    pub(super) fn forget_kind(&self, kind: &mut NamesOfKind) {
        let index = std::mem::take(&mut kind.index);
        (kind.is_known, kind.pruned) = (false, 0);
        self.forgotten.fetch_add(index.len() as u64, Ordering::Relaxed);
        if index.len() > DROPPED_HERE_MAX {
            // Without a thread of its own it is dropped here, with the closure.
            let _ = std::thread::Builder::new().name("list".into()).spawn(move || drop(index));
        }
    }

    /// Forgets names that nobody asks for any more, and answers pages that have waited for long.
    pub(super) fn tick(&self, now_ms: u64) {
        let mut late = Vec::new();
        for kind in &mut self.lock().kinds {
            let is_unused = now_ms.saturating_sub(kind.used_ms) >= KEPT_MS;
            if kind.run.is_none() && is_unused && !kind.index.is_empty() {
                self.forget_kind(kind);
            }
            let is_late = |page: &mut WaitingPage| now_ms.saturating_sub(page.since_ms) >= WAIT_MS;
            late.extend(kind.waiting.extract_if(.., is_late));
            let run = kind.run.iter_mut();
            late.extend(run.flat_map(|run| run.pages.extract_if(.., is_late)));
        }
        for WaitingPage { query, ticket, .. } in late {
            ticket.answer(ListPart::nothing_yet(&query));
        }
    }
}

impl NamesOfKind {
    /// Takes what was learnt; `first` is the first sequence of the stream once that was all.
    pub(super) fn learn(&mut self, logs: Vec<NamedLog>, first: Option<u64>) {
        for NamedLog { channel, sequence, last } in logs {
            let ends = self.index.entry(channel.name());
            match last {
                LastOfLog::Message => ends.message = sequence,
                LastOfLog::Beside => ends.beside = sequence,
            }
        }
        let Some(first) = first else { return };
        self.is_known = true;
        if self.index.len() / 2 > self.pruned {
            self.index.retain(|ends| ends.message >= first || ends.beside >= first);
            self.pruned = self.index.len();
        }
    }
}

/// By [`place`].
pub(super) const KINDS: [Kind; 2] = [Kind::Channel, Kind::User];

pub(super) fn place(kind: Kind) -> Option<usize> {
    KINDS.iter().position(|one| *one == kind)
}
