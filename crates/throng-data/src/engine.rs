//! The journal of durable channels: their logs are on the disk.
//!
//! Their followers, and their heads while they are followed, are in the memory engine. So a durable
//! channel that nobody follows takes no memory.
//!
//! # Invariants
//!
//! * A message is delivered, and its publisher answered, when it is as safe as the journal's `sync`
//!   promises; on the thread `journal-answers`, in the order of offsets.
//! * Nobody waits for the disk: parts of logs are read by other threads ([`Journal::fetch`]), and
//!   wait in memory for the subscription or page that they are for ([`throng_core::parts`]).
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `shared` | what all threads share: the memory engine, the logs, the open parts |
//! | `delivery` | what the journal's thread needs of the server |
//! | `expired_runs` | runs of expired messages, which pages pass over |
//! | `read` | what a subscription starts with, and pages |
//! | `read_keys` | pages of states |
//! | `read_state` | what a subscription starts with in a log with a state |
//! | `readers` | the threads that read |
//! | `markers` | how far users have read durable inboxes |
//! | `list` | the durable channels, for lists |

mod delivery;
mod expired_runs;
mod list;
mod markers;
mod read;
mod read_keys;
mod read_state;
mod readers;
mod shared;
#[cfg(test)]
mod state_world;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use throng_core::change::{ChangeError, ChangeOutcome, Erase, EraseOutcome, LogChange, LogState};
use throng_core::journal::{Journal, JournalIds, JournalUsage};
use throng_core::parts::{HeldPart, Limits, Parts};
use throng_core::{
    Answer, AskerId, ChannelName, EngineMetrics, ErasedMarkers, Fetched, HistoryQuery, KeyPage,
    KeyQuery, Kind, Later, ListPart, ListQuery, ListStep, Mark, Marked, MarkerKey, MarkersOf,
    Outcome, Publication, PublishError, Reading, Retention, Ticket,
};

use crate::journal::{DiskJournal, JournalRefused, JournalWritten, WhenDone};
use crate::logs::Entry;
pub use delivery::AnswerDelivery;
use list::DurableNames;
use markers::Markers;
use read::PAGE_BYTES_MAX;
use readers::{ReadTurn, Readers};
use shared::EngineShared;

/// See the module.
pub struct DurableLogs {
    shared: Arc<EngineShared>,
    journal: Arc<DiskJournal>,
    readers: Readers,
    markers: Arc<Markers>,
    names: DurableNames,
}

/// Reads of logs for clients, and refused ones since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFigures {
    /// Bytes that were read and wait for the subscription or page that they are for.
    pub held_bytes: u64,
    /// The limit of that.
    pub held_bytes_max: u64,
    /// Readings that wait for a thread.
    pub waiting: u64,
    /// Readings that were refused as others held the memory.
    pub refused_memory: u64,
    /// Readings that were refused as too many waited.
    pub refused_busy: u64,
    /// Readings that got less than they asked for, as the client held its share of the memory.
    pub shortened: u64,
}

impl DurableLogs {
    /// The logs of what `delivery` has. `journal` writes its logs, and delivers to it.
    ///
    /// # Errors
    ///
    /// An error of the system, if a thread cannot be started.
    pub fn start(delivery: &AnswerDelivery, journal: Arc<DiskJournal>) -> io::Result<DurableLogs> {
        let shared = delivery.shared();
        let markers = Arc::new(Markers::new(Arc::clone(&shared.logs), Arc::clone(&journal)));
        let (readers, names) = (Readers::start()?, DurableNames::default());
        Ok(DurableLogs { shared, journal, readers, markers, names })
    }

    /// Has a log changed. Answers later, or why it is refused at once.
    fn submit<T: Send + 'static>(
        &self,
        entry: Entry,
        later: Later<'_, T>,
        told: Told<T>,
    ) -> Answer<T> {
        let shared = Arc::clone(&self.shared);
        let mut answer = None;
        let done = || -> WhenDone {
            let (ticket, later) = later.ticket();
            answer = Some(later);
            Box::new(move |result| ticket.answer(told(&shared, result)))
        };
        let taken = self.journal.append(entry, done);
        // One that is taken has its answer.
        let refused = || taken.err().unwrap_or(JournalRefused::Failed);
        answer.unwrap_or_else(|| told(&self.shared, Err(refused())).into())
    }

    /// Tells tests the time of the newest call: their clocks follow it.
    fn note_call(&self, now_ms: u64) {
        #[cfg(test)]
        self.shared.called_ms.fetch_max(now_ms, std::sync::atomic::Ordering::Relaxed);
        let _ = now_ms;
    }

    /// Reads for clients.
    pub fn read_figures(&self) -> ReadFigures {
        let (parts, readers) = (self.shared.parts.metrics(), self.readers.metrics());
        ReadFigures {
            held_bytes: parts.bytes,
            held_bytes_max: parts.max_bytes,
            waiting: readers.waiting,
            refused_memory: parts.refused,
            refused_busy: readers.refused,
            shortened: parts.shortened,
        }
    }
}

/// Tells an asker the outcome of a change.
type Told<T> = fn(&EngineShared, Result<JournalWritten, JournalRefused>) -> T;

/// How much is read at most, for a subscriber with these limits.
fn wanted(reading: Reading, limits: Limits) -> Limits {
    match reading {
        Reading::Start(_) | Reading::Page(HistoryQuery::FirstOfLast(_), _) => limits,
        Reading::Page(..) => Limits { bytes: PAGE_BYTES_MAX, ..limits },
    }
}

impl Journal for DurableLogs {
    fn append(
        &self,
        now_ms: u64,
        publication: Publication,
        retention: Retention,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        self.note_call(now_ms);
        let entry = Entry::Publication(publication, retention);
        self.submit(entry, later, EngineShared::outcome)
    }

    fn change(
        &self,
        _: u64,
        change: LogChange,
        retention: Retention,
        later: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome> {
        self.submit(Entry::Change(change, retention), later, EngineShared::changed)
    }

    fn state(
        &self,
        _: u64,
        channel: &ChannelName,
        later: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>> {
        let asker = later.asker();
        let (ticket, answer) = later.ticket();
        let (shared, of) = (Arc::clone(&self.shared), channel.clone());
        let mut ticket = Some(ticket);
        self.readers.submit(asker, channel, move || {
            if !ticket.as_ref().is_some_and(Ticket::is_wanted) {
                return ReadTurn::Done;
            }
            let Some(state) = shared.logs.state(&of).transpose() else { return ReadTurn::Again };
            let state = state.map_err(|_| PublishError::Away.into());
            ticket.take().into_iter().for_each(|ticket| ticket.answer(state.clone()));
            ReadTurn::Done
        });
        answer
    }

    fn keeps_states(&self) -> bool {
        true
    }

    fn keys(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: KeyQuery,
        later: Later<'_, Result<KeyPage, ChangeError>>,
    ) -> Answer<Result<KeyPage, ChangeError>> {
        let asker = later.asker();
        let (ticket, answer) = later.ticket();
        let (shared, of) = (Arc::clone(&self.shared), channel.clone());
        let (mut ticket, mut read) = (Some(ticket), None);
        self.readers.submit(asker, channel, move || {
            if !ticket.as_ref().is_some_and(Ticket::is_wanted) {
                return ReadTurn::Done;
            }
            let page = read_keys::page(&shared.logs, now_ms, (&of, &query), &mut read);
            let Some(page) = page.transpose() else { return ReadTurn::Later };
            let page = page.map_err(|_| PublishError::Away.into());
            if let Some(ticket) = ticket.take() {
                ticket.answer(page);
            }
            ReadTurn::Done
        });
        answer
    }

    /// What was erased is in the store's files until it is merged away: `throng data compact` does
    /// that at once, and so does a running store as more is written, at no certain time.
    fn erase(
        &self,
        _: u64,
        channel: &ChannelName,
        what: Erase,
        later: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome> {
        let retention = self.shared.memory.rule(channel).retention;
        let entry = Entry::Erase(channel.clone(), what, retention);
        self.submit(entry, later, EngineShared::erased)
    }

    fn parts(&self) -> &Parts {
        &self.shared.parts
    }

    fn ids(&self, _: &ChannelName) -> JournalIds {
        JournalIds { epoch: self.shared.logs.epoch(), are_consecutive: true }
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        // Before anything is read: see `throng_core::parts`.
        let (parts, asker) = (&self.shared.parts, later.asker());
        if let Reading::Start(start) = reading {
            let held = parts.open(channel, reading, limits, asker);
            if let Some(part) = self.shared.start_now(channel, start) {
                held.fill(part);
                return Fetched::held_by(held).into();
            }
        }
        let wanted = wanted(reading, limits);
        let (ticket, answer) = later.ticket();
        if let Some(held) = parts.ask(channel, reading, wanted, asker, ticket) {
            let (shared, mut under_way) = (Arc::clone(&self.shared), None);
            let turn = move || shared.turn(now_ms, &held, wanted, &mut under_way);
            self.readers.submit(asker, channel, turn);
        }
        answer
    }

    fn read_now(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
    ) -> Option<HeldPart> {
        let limits = wanted(reading, limits);
        let held = self.shared.parts.open(channel, reading, limits, AskerId::SERVER);
        let known = match reading {
            Reading::Start(start) => self.shared.start_now(channel, start),
            Reading::Page(..) => None,
        };
        let part = known.map_or_else(|| self.shared.read_now(now_ms, &held), |part| Ok(Some(part)));
        held.fill(part.ok().flatten()?);
        Some(held)
    }

    fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let asker = later.asker();
        let (ticket, answer) = later.ticket();
        let (markers, log, of) = (Arc::clone(&self.markers), of.log(), of.clone());
        let mut ticket = Some(ticket);
        self.readers.submit(asker, log, move || {
            // The client may have gone.
            let is_wanted = |ticket: &Ticket<_>| mark.is_some() || ticket.is_wanted();
            if let Some(ticket) = ticket.take().filter(is_wanted) {
                markers.read_marker(now_ms, &of, mark, ticket);
            }
            ReadTurn::Done
        });
        answer
    }

    fn erase_markers(
        &self,
        of: MarkersOf<'_>,
        later: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers> {
        let asker = later.asker();
        let (ticket, answer) = later.ticket();
        let markers = Arc::clone(&self.markers);
        let name = match of {
            MarkersOf::User(user) => ChannelName::user(user),
            MarkersOf::Channel(channel) => channel.clone(),
        };
        let (read_with, mut ticket) = (name.clone(), Some(ticket));
        self.readers.submit(asker, &read_with, move || {
            let of = match name.kind() {
                Kind::User => MarkersOf::User(name.name()),
                _ => MarkersOf::Channel(&name),
            };
            if let Some(ticket) = ticket.take() {
                markers.erase(of, ticket);
            }
            ReadTurn::Done
        });
        answer
    }

    fn list(&self, kind: Kind, after: u64) -> ListStep {
        list::step(&self.shared, kind, after)
    }

    fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        self.names.part(&self.shared, now_ms, query)
    }

    fn tick(&self, now_ms: u64, _: bool) {
        self.note_call(now_ms);
        self.names.tick(now_ms);
    }

    fn is_at_rest(&self) -> bool {
        // In this order: what is read may be written.
        self.readers.are_idle() && self.journal.is_idle()
    }

    fn metrics(&self, of_others: EngineMetrics) -> EngineMetrics {
        let states = self.journal.states();
        let (before, own) = (of_others.states_refused, self.shared.logs.states_refused());
        EngineMetrics {
            state_keys: of_others.state_keys + states.keys,
            state_bytes: of_others.state_bytes + states.bytes,
            states_refused: std::array::from_fn(|at| before[at] + own[at]),
            ..of_others
        }
    }

    fn usage(&self) -> JournalUsage {
        let held_shortly = self.journal.messages() + self.names.forgotten();
        JournalUsage { log_bytes: 0, held_shortly }
    }
}
