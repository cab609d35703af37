//! A page of a state: which of its keys are read.
//!
//! The leader names the subjects of all keys, which costs no message, and the newest messages of
//! those are read that the page has. So a page of a large state visits few messages: as many as it
//! has values, and tombstones between them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::json;
use throng_core::{KEYS_LOOKED_AT_MAX, KeyQuery};

use crate::api::get;
use crate::api::state::StateCopy;
use crate::subject::Subjects;

/// Bytes of the subjects in a request: servers accept messages of 1 MiB unless set.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// The keys of a page that is read.
#[derive(Debug)]
pub(super) struct Page {
    query: KeyQuery,
    /// Subjects that were named so far.
    listed: u64,
    /// Keys that are yet to be read.
    names: BTreeSet<Box<str>>,
    /// Keys of the last request.
    asked: Vec<Box<str>>,
    /// The number of keys so far, and of the last request.
    looked_at: usize,
    chunk: usize,
    /// The greatest key that was asked for.
    last: Option<Box<str>>,
}

#[derive(Deserialize)]
struct Info {
    state: InfoState,
    #[serde(default)]
    total: u64,
}

#[derive(Deserialize)]
struct InfoState {
    #[serde(default)]
    subjects: BTreeMap<Box<str>, u64>,
}

impl Page {
    pub(super) fn new(query: KeyQuery) -> Page {
        let (names, asked) = (BTreeSet::new(), Vec::new());
        Page { query, listed: 0, names, asked, looked_at: 0, chunk: 0, last: None }
    }

    /// The request for the names of keys, or of more of them.
    pub(super) fn names_request(&self, (subjects, suffix): (&Subjects, &str)) -> Vec<u8> {
        let request = json!({ "subjects_filter": subjects.keys(suffix), "offset": self.listed });
        request.to_string().into_bytes()
    }

    /// Takes names. Returns whether there are more; `None` if they cannot be read.
    pub(super) fn takes_names(&mut self, payload: &[u8], subjects: &Subjects) -> Option<bool> {
        let Info { state: InfoState { subjects: named }, total } =
            serde_json::from_slice(payload).ok()?;
        self.listed += named.len() as u64;
        let KeyQuery { prefix, after, .. } = &self.query;
        let keys = named.keys().filter_map(|subject| subjects.key_of(subject));
        let wanted = keys.filter(|key| {
            key.starts_with(&**prefix) && after.as_deref().is_none_or(|after| **key > *after)
        });
        self.names.extend(wanted);
        Some(!named.is_empty() && self.listed < total)
    }

    /// The request for the newest messages of the next keys, and the record; `None` if the page is
    /// complete.
    pub(super) fn values_request(
        &mut self,
        (subjects, suffix): (&Subjects, &str),
        found: usize,
    ) -> Option<Vec<u8>> {
        let limit = self.query.limit;
        let is_complete = found >= limit || self.looked_at >= limit + KEYS_LOOKED_AT_MAX;
        if is_complete || self.names.is_empty() {
            return None;
        }
        // More each time: tombstones may lie between.
        self.chunk = (2 * self.chunk).max(limit - found).min(get::HEADS_MAX);
        let (mut wanted, mut bytes) = (vec![subjects.state(suffix)], 0);
        while self.asked.len() < self.chunk && bytes < REQUEST_BYTES_MAX {
            let Some(key) = self.names.pop_first() else { break };
            let subject = subjects.key(suffix, &key);
            bytes += subject.len();
            wanted.push(subject);
            self.last = self.last.take().max(Some(key.clone()));
            self.asked.push(key);
        }
        self.looked_at += self.asked.len();
        Some(get::heads(&wanted))
    }

    /// Notes an answer that left out so many messages. Returns false if it had none at all.
    pub(super) fn was_answered(
        &mut self,
        copies: &BTreeMap<Box<str>, StateCopy>,
        left: u64,
    ) -> bool {
        let asked = std::mem::take(&mut self.asked);
        if left == 0 {
            // Keys without a message are gone meanwhile.
            return true;
        }
        let before = asked.len();
        let lacking: Vec<_> = asked.into_iter().filter(|key| !copies.contains_key(key)).collect();
        let is_more = lacking.len() < before;
        self.looked_at -= lacking.len();
        self.names.extend(lacking);
        is_more
    }

    /// Removes what is not on the page. Returns the key after which the next page goes on, if there
    /// may be one.
    pub(super) fn cut(self, copies: &mut BTreeMap<Box<str>, StateCopy>) -> Option<Box<str>> {
        copies.retain(|_, copy| !copy.is_tombstone());
        let Some(beyond) = copies.keys().nth(self.query.limit).cloned() else {
            return self.last.filter(|_| !self.names.is_empty());
        };
        copies.split_off(&beyond);
        copies.last_key_value().map(|(key, _)| key.clone()).or(self.query.after)
    }
}
