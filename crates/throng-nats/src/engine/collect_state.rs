//! The part of a reading that concerns the state of its channel.
//!
//! The log is read first, up to a head, and then the copies of keys' newest messages. Copies beyond
//! that head are left out: their messages come after it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use throng_core::parts::{Limits, Part, Start};
use throng_core::{Content, EntryCount, HistoryQuery, Reading, StartAt};

use super::collect::{Collect, Next, content, first_of};
use super::linked::StateCollect;
use crate::api::message::StoredMessage;
use crate::journal::{self, StateFacts};

impl Collect {
    /// Takes a part of the log of a channel with a state.
    pub(super) fn take_linked(
        &mut self,
        read: journal::Reading,
        time_ms: impl Fn(u64) -> u64,
    ) -> Next {
        let is_first = self.last.is_none();
        let Some(state) = &mut self.state else { return Next::Finish };
        state.is_whole_log &= read.is_whole;
        if !read.is_whole && !is_first {
            // The earlier messages are gone, too.
            state.read.clear();
            self.messages.clear();
            self.bytes = 0;
        }
        let left = read.left;
        if left == 0 {
            self.ended_at = read.ended_at;
        }
        for stored in read.messages {
            if let Some(state) = &mut self.state {
                state.read.push((stored.sequence, stored.link));
                state.has_keys |= stored.key().is_some();
            }
            self.take_stored(stored, &time_ms);
        }
        match self.last {
            Some(last) if left > 0 => Next::Read(last),
            _ => self.after_log(),
        }
    }

    fn after_log(&mut self) -> Next {
        let Some(state) = &mut self.state else { return Next::Finish };
        let at_least = state.newest_linked();
        if self.position.is_none() {
            return Next::ReadState { at_least, wants_bounds: false };
        }
        if state.is_whole_log && !state.is_cut {
            state.is_recovered = Some(true);
            if !self.lacks_state(self.source.lag) {
                return Next::Finish;
            }
        }
        Next::ReadState { at_least, wants_bounds: true }
    }

    /// Takes the state that was read after the log.
    pub(super) fn take_state(&mut self, facts: StateFacts, time_ms: impl Fn(u64) -> u64) -> Next {
        let source = &self.source;
        let copy = |stored: &StoredMessage| {
            let (sequence, time_ms) = (stored.sequence, time_ms(stored.wall_ms));
            let channel = source.channel.clone();
            Arc::new(content(channel, source.epoch, stored.clone(), sequence - 1, time_ms))
        };
        let copies = facts.messages.iter().map(copy).collect();
        let Some(state) = &mut self.state else { return Next::Finish };
        state.copies = Some(copies);
        let Some(position) = self.position else { return Next::Finish };
        let is_whole = facts.is_whole(position, &state.read, state.is_whole_log);
        let is_recovered = !state.lacks_plain && is_whole;
        state.is_recovered = Some(is_recovered);
        self.has_gap = !is_recovered;
        let is_page = matches!(self.reading, Reading::Page(..));
        if is_page && self.last.is_none() && facts.plain <= position {
            // All that came since has keys. Subscriptions get what comes after their heads.
            self.source.head = self.source.head.max(facts.head);
        }
        if is_recovered {
            return Next::Finish;
        }
        // Its client gets all there is.
        (self.position, self.last, self.bytes) = (None, None, 0);
        self.messages.clear();
        let is_recovered = Some(false);
        self.state = Some(Box::new(StateCollect { is_recovered, ..StateCollect::new() }));
        Next::Read(0)
    }

    /// The messages of a page or a start, by their offsets: values that the log does not have any
    /// more, and the log.
    fn merged(&self, after: u64) -> BTreeMap<u64, Arc<Content>> {
        let head = self.head();
        let copies = self.state.iter().flat_map(|state| &state.copies).flatten();
        let copies = copies.filter(|copy| copy.id.offset <= head);
        let all = copies.chain(&self.messages).filter(|content| content.id.offset > after);
        all.map(|content| (content.id.offset, Arc::clone(content))).collect()
    }

    /// The messages of a start: the newest of each key, and those without.
    fn newest(&self, start: StartAt, after: u64) -> Vec<Arc<Content>> {
        let all = self.merged(after);
        let mut newest = HashMap::<&str, u64>::new();
        for (offset, content) in &all {
            newest.extend(content.key().map(|key| (key, *offset)));
        }
        let last = all.last_key_value().map(|(offset, _)| *offset);
        let is_wanted = |(offset, content): &(&u64, &Arc<Content>)| match content.key() {
            _ if last == Some(**offset) => true,
            None => true,
            Some(key) => {
                newest.get(key) == Some(*offset)
                    && !content.is_expired(self.now_ms)
                    && !(start == StartAt::State && content.removes_key())
            }
        };
        let wanted = all.iter().filter(is_wanted).map(|(_, content)| {
            if content.is_expired(self.now_ms) {
                Arc::new(content.without_body())
            } else {
                Arc::clone(content)
            }
        });
        wanted.collect()
    }

    /// True if more messages without keys were read for a client that resumes than it may lag
    /// behind, so that it needs the whole state, which was not read.
    pub(super) fn lacks_state(&self, limits: Limits) -> bool {
        let is_without = |state: &StateCollect| state.copies.is_none();
        let resumes = matches!(self.reading, Reading::Start(StartAt::After(_) | StartAt::Since(_)));
        resumes
            && self.state.as_ref().is_some_and(|state| is_without(state))
            && Plain::of(self.messages.iter()).exceeds(limits)
    }

    pub(super) fn finish_state(mut self, limits: Limits) -> Part {
        match self.reading {
            Reading::Start(start) => Part::Start(self.start_of_state(start, limits)),
            Reading::Page(HistoryQuery::FirstOfLast(count), _) => {
                let start = self.start_of_state(StartAt::Last(count), limits);
                Part::Page(first_of(start))
            }
            Reading::Page(query, limit) => {
                let is_recovered = self.state.as_ref().and_then(|state| state.is_recovered);
                let merged = self.merged(self.position.unwrap_or(0));
                self.has_gap = is_recovered != Some(true);
                self.messages = merged.into_values().collect();
                Part::Page(self.page(query, limit))
            }
        }
    }

    fn start_of_state(&self, start: StartAt, limits: Limits) -> Start {
        let (head, is_ended) = (self.head(), self.has_ended());
        let state = self.state.as_ref();
        let resumes = matches!(start, StartAt::After(_) | StartAt::Since(_));
        let mut is_recovered = state.and_then(|state| state.is_recovered) == Some(true);
        let position = self.position.unwrap_or(0);
        let mut all = match start {
            StartAt::Live => Vec::new(),
            _ => self.newest(start, if is_recovered { position } else { 0 }),
        };
        if is_recovered && Plain::of(all.iter()).exceeds(limits) {
            is_recovered = false;
            all = self.newest(start, 0);
        }
        let is_sparse = state.is_some_and(|state| {
            let has_copies = state.copies.iter().flatten().next().is_some();
            has_copies || state.has_keys
        });
        let is_sparse = is_sparse || all.iter().any(|content| content.key().is_some());
        let is_counted = |content: &Content, has_notices: bool| {
            !content.is_expired(self.now_ms)
                && (content.is_notice() || !content.is_blank())
                && (has_notices || !content.is_notice())
        };
        match start {
            StartAt::Last(count) => {
                // Superseded ones count, and are left out.
                let merged = self.merged(0);
                let counted = merged.values().rev().filter(|content| is_counted(content, false));
                let first = counted.take(count).last().map(|content| content.id.offset);
                all.retain(|content| first.is_some_and(|first| content.id.offset >= first));
            }
            StartAt::From(time_ms) => {
                let is_wanted = |content: &Arc<Content>| {
                    content.time_ms >= time_ms && is_counted(content, true)
                };
                all.retain(is_wanted);
            }
            _ => {}
        }
        if !is_recovered {
            leave_out(&mut all, limits);
        }
        let cursor = match all.first() {
            None => head,
            Some(_) if is_recovered => position,
            Some(first) => first.previous,
        };
        Start {
            head: self.id(head),
            cursor,
            is_recovered: resumes.then_some(is_recovered),
            is_sparse,
            is_ended,
            messages: all,
        }
    }
}

/// Leaves out the oldest messages without keys beyond what a subscriber may lag behind. The newest
/// message stays.
fn leave_out(all: &mut Vec<Arc<Content>>, limits: Limits) {
    let mut plain = Plain::default();
    let newest = all.last().map(|content| content.id.offset);
    let mut kept = Vec::with_capacity(all.len());
    for content in all.drain(..).rev() {
        if content.key().is_none() {
            plain.add(&content);
            if plain.exceeds(limits) && newest != Some(content.id.offset) {
                continue;
            }
        }
        kept.push(content);
    }
    kept.reverse();
    *all = kept;
}

/// The messages without keys among some.
#[derive(Default)]
struct Plain {
    count: EntryCount,
    bytes: usize,
}

impl Plain {
    fn of<'a>(all: impl Iterator<Item = &'a Arc<Content>>) -> Plain {
        let mut plain = Plain::default();
        all.filter(|content| content.key().is_none()).for_each(|content| plain.add(content));
        plain
    }

    fn add(&mut self, content: &Content) {
        self.count.add(content.is_blank());
        self.bytes += content.weight_bytes();
    }

    fn exceeds(&self, limits: Limits) -> bool {
        self.count.exceeds(limits.messages) || self.bytes > limits.bytes
    }
}
