//! A command about many channels, which is executed in parts.

use std::collections::HashMap;
use std::ops::Range;

use throng_core::MessageId;
use throng_dialect::Saying;
use throng_wire::v1::{Entry, List, ListReply, RawValue, Verb};
use throng_wire::{ErrorCode, ErrorResponse, Target};

/// Why a subscription has ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The client may not have it any more.
    Denied(ErrorResponse),
    /// The channel has ended, after this message.
    OfChannel(MessageId),
}

impl Ending {
    /// What the client is told of it.
    pub(crate) fn saying<'a>(&'a self, target: &'a Target, id: &'a mut String) -> Saying<'a> {
        match self {
            Ending::Denied(error) => Saying::Revoked(target, error),
            Ending::OfChannel(end) => {
                *id = end.to_string();
                Saying::Ended { target, id, is_last: false }
            }
        }
    }
}

/// A command about many channels, and how far it has come.
///
/// A `subscribe` first asks about the access to all of its channels, and then follows them. What it
/// follows gets no messages before the answer is written, which is one frame.
#[derive(Debug)]
pub(crate) struct Many {
    /// The whole message that it is.
    pub(crate) text: Box<str>,
    /// The client's own name for it, which the answer repeats.
    pub(crate) reference: Option<Box<RawValue>>,
    list: List,
    /// The number of entries about which the access policy was asked.
    asked: usize,
    /// The number of entries that are in the answer.
    done: usize,
    /// The number of entries behind them whose starts are fetched.
    fetching: usize,
    /// The entries among these that nothing stood against, by number, in the order in which their
    /// starts are fetched.
    fetched: Vec<u32>,
    /// The entries that are refused before their turn, by number.
    denied: HashMap<u32, ErrorResponse>,
    pub(crate) answer: ListReply,
    /// True if the client follows what the server keeps for its user with one of them.
    pub(crate) has_kept: bool,
    /// Subscriptions that have ended before the client has learnt that they began.
    pub(crate) ended: Vec<(Target, Ending)>,
}

impl Many {
    pub(crate) fn new(text: Box<str>, reference: Option<Box<RawValue>>, list: List) -> Many {
        let answer = ListReply::new(list.verb());
        let (asked, done, fetching) = (0, 0, 0);
        let (fetched, denied, ended) = (Vec::new(), HashMap::new(), Vec::new());
        Many {
            text,
            reference,
            list,
            asked,
            done,
            fetching,
            fetched,
            denied,
            answer,
            has_kept: false,
            ended,
        }
    }

    pub(crate) fn verb(&self) -> Verb {
        self.list.verb()
    }

    /// True if all entries are in the answer.
    pub(crate) fn is_done(&self) -> bool {
        self.done == self.list.len()
    }

    /// True if a part of it is executed, so that it cannot begin again.
    pub(crate) fn has_begun(&self) -> bool {
        self.done > 0
    }

    /// True if the connection gets no messages before the answer is written.
    pub(crate) fn holds_messages(&self) -> bool {
        self.has_begun() && self.verb() == Verb::Subscribe
    }

    /// True if the policy was asked about all entries.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked == self.list.len()
    }

    /// Takes the next entries, at most `max_entries`, to ask the policy about them.
    pub(crate) fn take_unasked(&mut self, max_entries: usize) -> Range<usize> {
        let from = self.asked;
        self.asked = (from + max_entries).min(self.list.len());
        from..self.asked
    }

    /// The next entries to execute, at most `max_entries`.
    pub(crate) fn next_part(&self, max_entries: usize) -> Range<usize> {
        self.done..(self.done + max_entries).min(self.list.len())
    }

    /// The entry with this number; `None` behind the last one.
    pub(crate) fn entry(&self, index: usize) -> Option<Entry> {
        self.list.entry(index, &self.text)
    }

    /// The entry with this number is refused in its turn, unless it is allowed before.
    pub(crate) fn deny(&mut self, index: u32, error: ErrorResponse) {
        self.denied.insert(index, error);
    }

    /// Notes what the access policy says of the entry with this number. Returns until when it is
    /// allowed, if that ends.
    pub(crate) fn decide(
        &mut self,
        index: u32,
        decision: Result<Option<u64>, ErrorResponse>,
    ) -> Option<u64> {
        match decision {
            Ok(until_ms) => {
                self.denied.remove(&index);
                until_ms
            }
            Err(error) => {
                self.deny(index, error);
                None
            }
        }
    }

    pub(crate) fn denial(&self, index: usize) -> Option<&ErrorResponse> {
        self.denied.get(&u32::try_from(index).ok()?)
    }

    /// Notes that the starts of the next `count` entries are being fetched, of those with these
    /// numbers.
    pub(crate) fn note_fetching(&mut self, count: usize, chosen: Vec<u32>) {
        (self.fetching, self.fetched) = (count, chosen);
    }

    /// Fails if a channel does not exist, and has to, or if something stood against its entry when
    /// that was asked. `missing` has the places of channels among all that were asked about.
    pub(crate) fn check_fetched(&self, index: usize, missing: &[u32]) -> Result<(), ErrorResponse> {
        match self.fetched.binary_search(&(index as u32)) {
            Err(_) => Err(ErrorResponse::unanswered()),
            Ok(place) if missing.contains(&(place as u32)) => Err(ErrorCode::NotCreated.into()),
            Ok(_) => Ok(()),
        }
    }

    /// Refuses, in their turn, the entries whose starts could not be fetched.
    pub(crate) fn deny_fetching(&mut self, error: &ErrorResponse) {
        for index in self.done..self.done + std::mem::take(&mut self.fetching) {
            self.deny(index as u32, error.clone());
        }
    }

    /// Notes that the answer has `count` more entries.
    pub(crate) fn note_done(&mut self, count: usize) {
        (self.done, self.fetching) = (self.done + count, 0);
    }

    /// Memory that no other connection shares.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.list.bytes() + self.answer.bytes()
    }
}
