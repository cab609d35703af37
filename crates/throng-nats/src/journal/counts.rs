//! How many messages channels have in the stream, for the entries of a list.

use std::collections::{BTreeMap, VecDeque};

use super::outbox::{Outbox, Question};
use super::report::{CountedLog, JournalReport, LogCount};
use crate::api::get::{self, Part};
use crate::api::message;
use crate::api::state::KnownState;
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};

/// Channels that are asked about at a time.
const IN_FLIGHT_MAX: usize = 64;

/// Lists of channels that are counted or wait for it, at most. Beyond it they are refused.
const LISTS_MAX: usize = 256;

/// After this time without an answer a channel is asked about again.
const AGAIN_MS: u64 = 500;

/// A list that is not counted within this time is not counted at all.
const LIST_MS: u64 = 3_000;

struct List {
    logs: Vec<CountedLog>,
    counts: Vec<LogCount>,
    /// The channels of `logs` that are not counted yet.
    left: usize,
    began_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sought {
    Messages,
    Record,
    State,
}

/// A channel that is to be asked about: which one of which list.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    list: u64,
    place: usize,
    sought: Sought,
}

struct Asked {
    wanted: Wanted,
    at_ms: u64,
    /// The first message has come, and whether it has expired by its own time.
    first: Option<bool>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Counts {
    lists: BTreeMap<u64, List>,
    waiting: VecDeque<Wanted>,
    in_flight: BTreeMap<u64, Asked>,
}

impl Counts {
    /// Counts the messages of these channels. `token` comes back with the counts.
    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        (token, logs): (u64, Vec<CountedLog>),
        outbox: &mut Outbox,
    ) {
        if self.lists.len() >= LISTS_MAX {
            return outbox.report(JournalReport::Counted { token, counts: None });
        }
        let wanted =
            (0..logs.len()).map(|place| Wanted { list: token, place, sought: Sought::Messages });
        self.waiting.extend(wanted);
        let (left, counts) = (logs.len(), vec![LogCount::default(); logs.len()]);
        self.lists.insert(token, List { logs, counts, left, began_ms: now_ms });
        self.end_if_counted(token, outbox);
    }

    fn end_if_counted(&mut self, token: u64, outbox: &mut Outbox) {
        if self.lists.get(&token).is_some_and(|list| list.left == 0)
            && let Some(List { counts, .. }) = self.lists.remove(&token)
        {
            outbox.report(JournalReport::Counted { token, counts: Some(counts) });
        }
    }

    /// Asks about channels for which there is room, when it is `server_ms` at the servers.
    pub(super) fn send(
        &mut self,
        (now_ms, server_ms): (u64, u64),
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        while self.in_flight.len() < IN_FLIGHT_MAX
            && let Some(wanted) = self.waiting.pop_front()
        {
            // Of a list that was given up.
            let Some(list) = self.lists.get(&wanted.list) else { continue };
            let log = &list.logs[wanted.place];
            let suffix = subject::suffix(&log.channel).unwrap_or_default();
            let request = match wanted.sought {
                Sought::Messages => {
                    let since_ms = server_ms.saturating_sub(log.max_age_ms);
                    get::first_since(&subjects.ingest(&suffix), since_ms)
                }
                Sought::Record => get::last(&subjects.record(&suffix)),
                Sought::State => get::last(&subjects.state(&suffix)),
            };
            let token = outbox.read(Question::Counts, request);
            self.in_flight.insert(token, Asked { wanted, at_ms: now_ms, first: None });
        }
    }

    /// Takes a part of an answer, when it is `server_ms` at the servers.
    pub(super) fn answered(
        &mut self,
        (token, server_ms): (u64, u64),
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) {
        let Some(asked) = self.in_flight.get_mut(&token) else { return outbox.answered(token) };
        let sought = asked.wanted.sought;
        let count = match (get::part(headers), sought) {
            (Part::Message { .. }, Sought::Messages) => {
                let expires = message::parse(headers, b"")
                    .and_then(|stored| Some(stored.wall_ms.saturating_add(stored.expires_in_ms?)));
                asked.first = Some(expires.is_some_and(|expires_ms| expires_ms <= server_ms));
                return;
            }
            (Part::Message { .. }, Sought::Record) => {
                LogCount { is_kept: !payload.is_empty(), ..LogCount::default() }
            }
            (Part::Message { sequence, .. }, Sought::State) => {
                let known = KnownState::read(sequence, payload);
                known.map_or_else(LogCount::default, |known| LogCount {
                    messages: 0,
                    is_kept: known.record.keys > 0,
                    head: known.head(),
                })
            }
            (Part::End { left, .. }, Sought::Messages) => match asked.first {
                // The only one that there is.
                Some(true) if left == 0 => LogCount::default(),
                Some(_) => LogCount { messages: left + 1, ..LogCount::default() },
                None => LogCount::default(),
            },
            (Part::End { .. }, Sought::Record | Sought::State) => LogCount::default(),
            (Part::Failed, _) => {
                // The next tick asks again.
                asked.at_ms = 0;
                return;
            }
        };
        let wanted = asked.wanted;
        self.in_flight.remove(&token);
        outbox.answered(token);
        let Some(list) = self.lists.get_mut(&wanted.list) else { return };
        let next = match sought {
            Sought::Messages => Some(Sought::Record),
            Sought::Record => Some(Sought::State),
            Sought::State => None,
        };
        let is_over = count.messages > 0 || count.is_kept || !list.logs[wanted.place].may_be_kept;
        if let Some(sought) = next.filter(|_| !is_over) {
            return self.waiting.push_front(Wanted { sought, ..wanted });
        }
        list.counts[wanted.place] = count;
        list.left -= 1;
        self.end_if_counted(wanted.list, outbox);
    }

    /// The stream is away, or another one.
    pub(super) fn cancel(&mut self, outbox: &mut Outbox) {
        self.in_flight.keys().for_each(|token| outbox.answered(*token));
        self.in_flight.clear();
        self.waiting = VecDeque::new();
        for token in std::mem::take(&mut self.lists).into_keys() {
            outbox.report(JournalReport::Counted { token, counts: None });
        }
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let is_late = |asked: &Asked| now_ms.saturating_sub(asked.at_ms) >= AGAIN_MS;
        let late = self.in_flight.iter().filter(|(_, asked)| is_late(asked));
        for token in late.map(|(token, _)| *token).collect::<Vec<_>>() {
            outbox.answered(token);
            let asked = self.in_flight.remove(&token);
            self.waiting.extend(asked.map(|asked| asked.wanted));
        }
        let is_over = |list: &List| now_ms.saturating_sub(list.began_ms) >= LIST_MS;
        let over = self.lists.iter().filter(|(_, list)| is_over(list));
        for token in over.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.lists.remove(&token);
            outbox.report(JournalReport::Counted { token, counts: None });
        }
    }
}
