//! Created channels: with a type and an end of their time, and with first messages; several
//! messages or none; deleted, and gone when their time is over.
//!
//! A keeper looks after those whose time may be over. Between its steps anything may happen, and it
//! goes with a frozen server.

use std::num::NonZeroU64;

use throng_core::{
    ChangeError, Condition, Creation, Erase, HistoryQuery, LogChange, LogState, Message, MessageId,
    Publication, PublishError,
};

use super::World;
use super::keeper::{JSON, Made, Step};
use crate::{Check, ensure};

/// How late a channel may go whose time is over, in milliseconds.
const LATE_MS: u64 = 100;

const TYPES: [&str; 3] = [JSON, "text/plain", "image/png"];

impl World {
    /// The error with which a channel refuses one of these publications.
    pub(super) fn refusal(&self, topic: usize, all: &[Publication]) -> Option<PublishError> {
        let made = self.creations.made.get(&topic);
        let must_exist = self.model.topics[topic].rule.must_exist;
        // The server removes keys, too.
        let mut all = all.iter().filter(|it| !it.removes_key()).peekable();
        match made {
            None if must_exist && all.peek().is_some() => Some(PublishError::NotCreated),
            _ if self.model.facts[topic].is_ended => Some(PublishError::Ended),
            Some(made) if !all.all(|it| made.takes(it)) => Some(PublishError::OtherType),
            _ => None,
        }
    }

    /// Checks a message of a channel: it has the type of that.
    pub(super) fn check_type(&mut self, topic: usize, message: &Message) -> Check {
        let Some(made) = self.creations.made.get_mut(&topic) else { return Ok(()) };
        made.used_ms = made.used_ms.max(message.time_ms);
        let is_of_server = message.is_end() || message.erasure().is_some() || message.removes_key();
        let wanted = made.content_type.filter(|_| !is_of_server);
        let own = message.content_type();
        let is_same = wanted.is_none_or(|wanted| own.split(';').next() == Some(wanted));
        ensure!(is_same, "{} is {own} in a channel of {wanted:?}", message.id);
        Ok(())
    }

    /// Creates a channel, perhaps with first messages; or as if nobody had created it.
    pub(super) fn create(&mut self, topic: usize) -> Check {
        let channel = self.model.topics[topic].channel_name();
        let state = self.engine.memory().state(&channel);
        let is_late = state.creation().is_some() || state.is_ended();
        if is_late && self.random.percent(70) {
            return Ok(());
        }
        let now_ms = self.now_ms();
        let content_type = self.random.percent(60).then(|| self.random.pick(&TYPES));
        let mut time_ms = |percent, from| {
            let ms = from + self.random.between(300, 9_000) as u64;
            NonZeroU64::new(ms).filter(|_| self.random.percent(percent))
        };
        let (ttl_ms, expires_ms) = (time_ms(60, 0), time_ms(15, now_ms));
        let made = Made { content_type, ttl_ms, expires_ms, used_ms: now_ms, is_over: false };
        let creation = Creation {
            content_type: content_type.map(Into::into),
            ttl_ms,
            expires_ms,
            ..Creation::at(now_ms)
        };
        let creation = creation.having_seen(state.head.offset, now_ms);
        let messages: Vec<_> = (0..self.random.below(4)).map(|_| self.brief(topic)).collect();
        let takes_all = messages.iter().all(|it| made.takes(it));
        self.notes.trace(format!("create {topic} {made:?}, with {} messages", messages.len()));
        let change = LogChange::create(channel.clone(), &creation, &state);
        // One that read the log before somebody else has created it, or ended.
        let condition = Condition { record: Some(0), ..Condition::default() };
        let condition = if is_late { condition } else { change.condition.clone() };
        let count = messages.len();
        let outcome = self.make(LogChange { messages, condition, ..change })?;
        let after = self.engine.memory().state(&channel);
        match outcome {
            Ok(()) => {
                ensure!(!is_late && takes_all, "created, with messages that it does not take");
                ensure!(after.head.offset == state.head.offset + count as u64, "{after:?}");
                self.notes.saw(if count > 0 { "made: with messages" } else { "made: empty" });
                self.creations.made.insert(topic, made);
                Ok(())
            }
            Err(ChangeError::Conflict(_)) if is_late => self.is_as_before(&state, &after),
            Err(ChangeError::Refused(PublishError::OtherType)) if !takes_all => {
                self.notes.saw("made: not, for one of its messages");
                self.is_as_before(&state, &after)
            }
            Err(error) => Err(format!("not created: {error}")),
        }
    }

    /// Appends several messages, or none.
    pub(super) fn append_several(&mut self, topic: usize) -> Check {
        let channel = self.model.topics[topic].channel_name();
        let before = self.engine.memory().state(&channel);
        let mut messages = Vec::new();
        for _ in 0..self.random.between(2, 4) {
            messages.push(self.brief(topic));
        }
        let refusal = self.refusal(topic, &messages);
        self.notes.trace(format!("append {} to {topic}", messages.len()));
        let count = messages.len() as u64;
        let change = LogChange::append(channel.clone(), messages);
        // Mostly somebody else has appended a message meanwhile.
        let is_late = before.head.offset > 0 && self.random.percent(20);
        let head = is_late.then(|| MessageId { offset: before.head.offset - 1, ..before.head });
        let condition = Condition { head, ..Condition::default() };
        let outcome = self.make(LogChange { condition, ..change })?;
        let after = self.engine.memory().state(&channel);
        match outcome {
            Ok(()) => {
                ensure!(refusal.is_none() && !is_late, "appended, but {refusal:?}");
                ensure!(after.head.offset == before.head.offset + count, "{after:?}");
                self.notes.saw("made: several messages");
                Ok(())
            }
            Err(ChangeError::Refused(error)) if self.may_refuse(topic, refusal, error) => {
                self.notes.saw("made: none of several messages");
                self.is_as_before(&before, &after)
            }
            Err(ChangeError::Conflict(_)) if is_late => self.is_as_before(&before, &after),
            Err(error) => Err(format!("not appended: {error}")),
        }
    }

    fn is_as_before(&self, before: &LogState, after: &LogState) -> Check {
        ensure!(before == after, "refused, but {before:?} has become {after:?}");
        Ok(())
    }

    /// True if a channel may have refused publications with this error.
    pub(super) fn may_refuse(
        &self,
        topic: usize,
        expected: Option<PublishError>,
        error: PublishError,
    ) -> bool {
        // Its end is over, and nothing has looked for that.
        Some(&error) == expected.as_ref() || error == PublishError::Ended && self.has_end(topic)
    }

    /// The creation of a channel that is erased goes with it.
    pub(super) fn is_erased(&mut self, topic: usize) {
        self.creations.made.remove(&topic);
        self.creations.next.retain(|(other, _)| *other != topic);
    }

    /// True if a channel can be used.
    pub(super) fn exists(&self, topic: usize) -> bool {
        !self.model.topics[topic].rule.must_exist || self.creations.made.contains_key(&topic)
    }

    /// A frozen server goes with its keeper. The next one is told of all channels that go.
    pub(super) fn replace_keeper(&mut self) -> Check {
        self.creations.due.clear();
        self.creations.next.clear();
        self.take_mortal()?;
        for (topic, made) in &self.creations.made {
            let is_mortal = made.until_ms() < u64::MAX;
            let is_known = self.creations.due.contains_key(topic);
            ensure!(is_known || !is_mortal, "{topic} is forgotten, which goes: {made:?}");
        }
        if !self.creations.made.is_empty() {
            self.notes.saw("made: in another process");
        }
        Ok(())
    }

    fn take_mortal(&mut self) -> Check {
        for channel in self.engine.take_mortal() {
            let topic = self.model.topic(&channel)?;
            self.creations.due.insert(topic, self.now_ms());
        }
        Ok(())
    }

    pub(super) fn keep_one(&mut self, _: usize) -> Check {
        self.keep().map(drop)
    }

    /// The keeper does its next step. Returns whether there was one.
    pub(super) fn keep(&mut self) -> Check<bool> {
        self.take_mortal()?;
        let now_ms = self.now_ms();
        let is_due = self.creations.due.iter().find(|(_, due_ms)| **due_ms <= now_ms);
        let due = is_due.map(|(topic, _)| *topic);
        match (due, self.creations.next.pop_front()) {
            (_, Some((topic, step))) => self.take_step(topic, step)?,
            (Some(topic), None) => {
                self.creations.due.remove(&topic);
                self.look(topic)?;
            }
            (None, None) => return Ok(false),
        }
        Ok(true)
    }

    /// Looks whether the time of a channel is over.
    fn look(&mut self, topic: usize) -> Check {
        let (channel, now_ms) = (self.model.topics[topic].channel_name(), self.now_ms());
        let state = self.engine.memory().state(&channel);
        let Some(creation) = state.creation().filter(Creation::is_mortal) else { return Ok(()) };
        let is_for_good = creation.is_over || creation.is_over_for_good(now_ms);
        if !is_for_good {
            let page = self.engine.memory().history(now_ms, &channel, HistoryQuery::Newest, 1);
            let newest = page.messages.last().filter(|message| message.id == state.head);
            let at_ms = match newest {
                _ if state.head.offset == creation.seen_offset => creation.seen_ms,
                Some(message) => message.time_ms,
                None => now_ms,
            };
            if at_ms > creation.seen_ms {
                let seen = creation.having_seen(state.head.offset, at_ms);
                let change = LogChange::create(channel, &seen, &state);
                self.creations.next.push_back((topic, Step::Note(change)));
                return Ok(());
            }
            if creation.until_ms() > now_ms {
                self.creations.due.insert(topic, creation.until_ms());
                return Ok(());
            }
        }
        let change = LogChange::expire(channel, &state, is_for_good).ok_or("nobody created it")?;
        self.creations.next.push_back((topic, Step::End(change)));
        Ok(())
    }

    fn take_step(&mut self, topic: usize, step: Step) -> Check {
        self.stamp.touch(None);
        let now_ms = self.now_ms();
        match step {
            Step::Note(change) => {
                let made = self.make(change)?;
                ensure!(matches!(made, Ok(()) | Err(ChangeError::Conflict(_))), "{made:?}");
                self.creations.due.insert(topic, now_ms);
            }
            Step::End(change) => match self.make(change)? {
                Ok(()) => {
                    if let Some(made) = self.creations.made.get_mut(&topic) {
                        made.is_over |= made.until_ms() <= now_ms;
                        ensure!(made.is_over, "{topic} ends before its time: {made:?}");
                    }
                    self.notes.trace(format!("the time of {topic} is over"));
                    self.creations.next.push_back((topic, Step::Erase));
                }
                Err(ChangeError::Conflict(_)) => {
                    self.notes.saw("made: used again at the last moment");
                    self.creations.due.insert(topic, now_ms);
                }
                Err(error) => return Err(format!("no end: {error}")),
            },
            Step::Erase => {
                let channel = self.model.topics[topic].channel_name();
                self.absorb()?;
                self.erase(&channel, Erase::Log)?;
                self.model.facts[topic].drop_all();
                self.is_erased(topic);
                self.notes.saw("made: its time is over");
            }
        }
        self.absorb()
    }

    /// At rest no channel is there whose time is over.
    pub(super) fn let_keeper_rest(&mut self) -> Check {
        while self.keep()? {}
        let now_ms = self.now_ms();
        for (topic, made) in &self.creations.made {
            // Where the newest message is gone, the channel may stay for longer.
            let max_age_ms = self.model.topics[*topic].rule.retention.max_age_ms;
            let is_whole = self.model.facts[*topic].has_newest(now_ms, max_age_ms);
            let is_over = made.is_over || made.until_ms() <= now_ms - LATE_MS && is_whole;
            ensure!(!is_over, "{topic} is there at {now_ms}: {made:?}");
        }
        Ok(())
    }
}
