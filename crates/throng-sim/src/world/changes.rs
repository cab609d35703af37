//! What happens to changing channels: keys are set and removed, messages are erased and replaced.

use std::slice;

use throng_core::{
    Attributes, ChangeError, ChannelName, Condition, Erase, Erasure, KeyCondition, KeyQuery, Later,
    LogChange, MemoryStep, MessageId, Notification, Publication, PublishError, Ticket,
};

use super::World;

use crate::model::{Begin, Beginning};
use crate::recorder::FollowCall;
use crate::topics::KEYS_MAX;
use crate::{Check, ensure};

/// More than a channel may have, so that some are refused.
const KEYS: [&str; KEYS_MAX + 1] = ["a", "b", "c", "d", "e", "é/ü"];

/// Does something with a channel.
type Change = fn(&mut World, usize) -> Check;

/// What a seed chooses to do with a changing channel, and how often.
const CHANGES: [(usize, Change); 9] = [
    (50, World::set_key),
    (10, World::remove_key),
    (14, World::say),
    (8, World::set_key_if),
    (8, World::erase_some),
    (5, World::edit),
    (2, World::erase_all),
    (2, World::end),
    (25, World::open),
];

/// What a seed chooses to do with a channel that may be created, and how often.
const CHANGES_OF_MADE: [(usize, Change); 12] = [
    (16, World::create),
    (25, World::say),
    (14, World::append_several),
    (20, World::set_key),
    (6, World::remove_key),
    (4, World::set_key_if),
    (4, World::erase_some),
    (3, World::edit),
    (2, World::erase_all),
    (2, World::end),
    (8, World::open),
    (25, World::keep_one),
];

impl World {
    pub(super) fn is_changing(&self, channel: &ChannelName) -> Check<bool> {
        Ok(self.model.topics[self.model.topic(channel)?].is_changing)
    }

    /// The model learns what the witness has heard of changing channels.
    pub(super) fn learn(&mut self, heard: &[Notification]) -> Check {
        for notification in heard {
            if let Notification::Message { message, .. } = notification
                && self.is_changing(&message.channel)?
            {
                let topic = self.model.topic(&message.channel)?;
                self.check_member(topic, message)?;
                self.check_type(topic, message)?;
                self.model.learn(topic, message)?;
            }
        }
        Ok(())
    }

    /// Something happens to a changing channel.
    pub(super) fn change(&mut self) -> Check {
        let count = if self.random.percent(20) { self.random.between(2, 12) } else { 1 };
        let topics = self.model.changing();
        let topic = self.random.between(topics.start, topics.end - 1);
        for _ in 0..count {
            let is_made = self.model.topics[topic].is_made;
            let changes = if is_made { &CHANGES_OF_MADE[..] } else { &CHANGES };
            let weights: Vec<_> = changes.iter().map(|(weight, _)| *weight).collect();
            let at = self.random.weighted(&weights);
            self.stamp.touch(None);
            changes[at].1(self, topic)?;
            self.absorb()?;
            self.check_state(topic)?;
        }
        Ok(())
    }

    /// Checks that the engine has the values that follow from what it has published.
    fn check_state(&self, topic: usize) -> Check {
        let (channel, now_ms) = (self.model.topics[topic].channel_name(), self.now_ms());
        let query = KeyQuery { limit: 2 * KEYS_MAX, ..KeyQuery::default() };
        let page = self.engine.memory().keys(now_ms, &channel, &query);
        let mut found: Vec<_> = page.messages.iter().map(|it| it.id.offset).collect();
        found.sort_unstable();
        let expected = self.model.facts[topic].state(now_ms);
        ensure!(found == expected, "the state is {found:?} instead of {expected:?}");
        Ok(())
    }

    pub(super) fn set_key(&mut self, topic: usize) -> Check {
        let key = self.random.pick(&KEYS);
        let publication = self.value(topic, key);
        self.publish_change(publication, &[PublishError::StateFull])
    }

    /// A message that sets a key.
    fn value(&mut self, topic: usize, key: &str) -> Publication {
        let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
        Publication { attributes, ..self.brief(topic) }
    }

    /// A message that may expire.
    pub(super) fn brief(&mut self, topic: usize) -> Publication {
        let body = self.body();
        let expires = self.random.percent(15);
        let expires_in_ms = expires.then(|| self.random.between(1, 4000) as u64);
        Publication {
            expires_in_ms,
            ..Publication::new(self.model.topics[topic].channel_name(), body)
        }
    }

    pub(super) fn remove_key(&mut self, topic: usize) -> Check {
        let (channel, key) = (self.model.topics[topic].channel_name(), self.random.pick(&KEYS));
        self.publish_change(Publication::tombstone(channel, key), &[PublishError::NoKey])
    }

    /// A message without a key.
    pub(super) fn say(&mut self, topic: usize) -> Check {
        let publication = self.brief(topic);
        self.publish_change(publication, &[])
    }

    fn publish_change(&mut self, publication: Publication, may_be: &[PublishError]) -> Check {
        self.notes.trace(format!("change {:?} {:?}", publication.channel, publication.key()));
        let topic = self.model.topic(&publication.channel)?;
        let expected = self.refusal(topic, slice::from_ref(&publication));
        let mut issue = || Ticket::new(drop);
        let answer = self.engine.publish(self.now_ms(), publication, Later::new(&mut issue));
        let outcome = answer.now().ok_or("a memory answers at once")?;
        match outcome {
            Ok(_) => ensure!(expected.is_none(), "taken instead of refused: {expected:?}"),
            Err(error) => {
                let is_right = self.may_refuse(topic, expected, error) || may_be.contains(&error);
                ensure!(is_right, "refused: {error}, not {expected:?}");
                self.notes.saw(match error {
                    PublishError::Ended => "changing: refused after the end",
                    PublishError::NotCreated => "made: refused before",
                    PublishError::OtherType => "made: refused for its type",
                    _ => "changing: refused",
                });
            }
        }
        Ok(())
    }

    /// Sets a key if it has a certain value.
    pub(super) fn set_key_if(&mut self, topic: usize) -> Check {
        let key = self.random.pick(&KEYS);
        let publication = self.value(topic, key);
        let newest = self.some_message(topic).filter(|_| self.random.percent(70));
        let facts = &self.model.facts[topic];
        let is_newest =
            |offset: &u64| facts.get(*offset).is_some_and(|it| it.key.as_deref() == Some(key));
        let value = facts.state(self.now_ms()).into_iter().find(is_newest);
        let newest = if self.random.percent(50) { value } else { newest };
        let is_right = newest == value;
        let expected = self.refusal(topic, slice::from_ref(&publication));
        self.notes.trace(format!("change {:?} {key} if {newest:?}", publication.channel));
        let change = LogChange::append(publication.channel.clone(), vec![publication]);
        let newest = newest.map(|offset| self.message_id(topic, offset)).transpose()?;
        let condition = Condition {
            key: Some(KeyCondition { key: key.into(), newest }),
            ..Condition::default()
        };
        match self.make(LogChange { condition, ..change })? {
            Err(ChangeError::KeyConflict(_)) => {
                ensure!(!is_right, "{key} has this value");
                self.notes.saw("changing: a key has another value");
                Ok(())
            }
            Err(ChangeError::Refused(PublishError::StateFull)) => Ok(()),
            Err(ChangeError::Refused(error)) if self.may_refuse(topic, expected, error) => Ok(()),
            Err(error) => Err(format!("refused: {error}")),
            Ok(()) => {
                ensure!(expected.is_none(), "taken instead of refused: {expected:?}");
                ensure!(is_right, "{key} has another value: {value:?}");
                Ok(())
            }
        }
    }

    pub(super) fn make(&self, change: LogChange) -> Check<Result<(), ChangeError>> {
        let mut issue = || Ticket::new(drop);
        let answer = self.engine.change(self.now_ms(), change, Later::new(&mut issue));
        Ok(answer.now().ok_or("a memory answers at once")?.map(drop))
    }

    fn message_id(&self, topic: usize, offset: u64) -> Check<MessageId> {
        self.model.id(topic, offset).parse().map_err(|error| format!("{error}"))
    }

    /// The offset of some message that is no notice and not erased.
    fn some_message(&mut self, topic: usize) -> Option<u64> {
        let offset = self.model.facts[topic].some_offset(&mut self.random);
        let fact = self.model.facts[topic].get(offset)?;
        (fact.erased_by.is_none() && !fact.is_dropped && !fact.is_notice && !fact.is_end)
            .then_some(offset)
    }

    /// Erases some messages, such as those of a user.
    pub(super) fn erase_some(&mut self, topic: usize) -> Check {
        for _ in 0..if self.random.percent(70) { 1 } else { self.random.between(2, 5) } {
            let Some(offset) = self.some_message(topic) else { continue };
            let channel = self.model.topics[topic].channel_name();
            self.notes.trace(format!("erase {offset} of {topic}"));
            let made = self.make(LogChange::notice(channel.clone(), Erasure::of(offset)))?;
            made.map_err(|error| error.to_string())?;
            self.erase(&channel, Erase::Message(self.message_id(topic, offset)?))?;
            self.absorb()?;
        }
        Ok(())
    }

    pub(super) fn erase(&mut self, channel: &ChannelName, what: Erase) -> Check {
        self.notes.saw("changing: erased");
        self.saw_in_fan_out("changing: erased in the middle of a fan-out");
        let mut issue = || Ticket::new(drop);
        let answer = self.engine.erase(self.now_ms(), channel, what, Later::new(&mut issue));
        let erased = answer.now().ok_or("a memory answers at once")?;
        erased.map(drop).map_err(|error| error.to_string())
    }

    /// Replaces a message.
    pub(super) fn edit(&mut self, topic: usize) -> Check {
        let Some(offset) = self.some_message(topic) else { return Ok(()) };
        let fact = self.model.facts[topic].get(offset).expect("it is some message");
        let key = fact.key.clone();
        // The value of a key is replaced as long as it is that.
        if key.is_some() && !self.model.facts[topic].state(self.now_ms()).contains(&offset) {
            return Ok(());
        }
        let new = match &key {
            Some(key) => self.value(topic, key),
            None => self.brief(topic),
        };
        let attributes = Some(Attributes::replacing(new.attributes, offset));
        let new = Publication { attributes, ..new };
        let (channel, id) = (new.channel.clone(), self.message_id(topic, offset)?);
        self.notes.trace(format!("replace {offset} of {topic}"));
        self.notes.saw("changing: replaced");
        let key = key.map(|key| KeyCondition { key, newest: Some(id) });
        let condition = Condition { key, ..Condition::default() };
        let expected = self.refusal(topic, slice::from_ref(&new));
        let change = LogChange { condition, ..LogChange::append(channel.clone(), vec![new]) };
        match self.make(change)? {
            Err(ChangeError::Refused(error)) if self.may_refuse(topic, expected, error) => {
                return Ok(());
            }
            made => made.map_err(|error| error.to_string())?,
        }
        self.erase(&channel, Erase::Message(id))
    }

    /// Erases the history of a channel, or the channel.
    pub(super) fn erase_all(&mut self, topic: usize) -> Check {
        let channel = self.model.topics[topic].channel_name();
        let notice =
            LogChange::notice(channel.clone(), Erasure::up_to(self.model.facts[topic].head()));
        let is_history = self.random.percent(60);
        self.notes.trace(format!("erase all of {topic}, or its history: {is_history}"));
        // Where a history is erased, its notice stays.
        if is_history {
            self.erase(&channel, Erase::History)?;
        }
        let state = self.engine.memory().state(&channel);
        // A created channel goes with its creation, and its subscribers are told the end.
        let change = match LogChange::expire(channel.clone(), &state, false) {
            Some(end) if !is_history => {
                LogChange { messages: [notice.messages, end.messages].concat(), ..end }
            }
            _ => notice,
        };
        self.make(change)?.map_err(|error| error.to_string())?;
        if !is_history {
            self.absorb()?;
            self.erase(&channel, Erase::Log)?;
            self.is_erased(topic);
        }
        Ok(())
    }

    /// Ends a channel, perhaps with a last message.
    pub(super) fn end(&mut self, topic: usize) -> Check {
        let channel = self.model.topics[topic].channel_name();
        let state = self.engine.memory().state(&channel);
        if state.is_ended() {
            return Ok(());
        }
        let last = self.random.percent(50).then(|| self.brief(topic));
        self.notes.trace(format!("end {topic}"));
        let expected = last.as_ref().and_then(|it| self.refusal(topic, slice::from_ref(it)));
        match self.make(LogChange::end(channel, last, &state))? {
            Err(ChangeError::Refused(error)) if self.may_refuse(topic, expected, error) => Ok(()),
            made => made.map_err(|error| error.to_string()),
        }
    }

    /// Opens a channel again that has ended.
    pub(super) fn open(&mut self, topic: usize) -> Check {
        let channel = self.model.topics[topic].channel_name();
        let state = self.engine.memory().state(&channel);
        let Some(change) = LogChange::open(channel, &state) else { return Ok(()) };
        // What is being erased is not opened.
        if state.creation().is_some_and(|creation| creation.is_over) {
            return Ok(());
        }
        self.notes.trace(format!("open {topic}"));
        self.notes.saw("changing: opened again");
        self.make(change)?.map_err(|error| error.to_string())
    }

    /// True if the engine has a channel for ended.
    pub(super) fn has_end(&self, topic: usize) -> bool {
        self.engine.memory().state(&self.model.topics[topic].channel_name()).is_ended()
    }

    /// Learns from the engine which channels have ended: an end is over after some time.
    pub(super) fn learn_ends(&mut self) {
        for topic in self.model.changing() {
            let max_age_ms = self.model.topics[topic].rule.retention.max_age_ms;
            let is_over = self.model.facts[topic].end_ms() + max_age_ms <= self.now_ms();
            self.model.facts[topic].is_ended = self.has_end(topic) && !is_over;
            if !self.exists(topic) {
                self.model.facts[topic].missing_ms = self.now_ms();
            }
        }
    }

    /// Erases states, which do not go with time.
    pub(super) fn erase_states(&self) {
        for topic in &self.model.topics[self.model.lists..] {
            self.engine.memory().erase(self.now_ms(), &topic.channel_name(), Erase::Log);
        }
    }

    /// Once all workers have taken their mail, no frame begins with what was erased before.
    pub(super) fn settle_erasures(&mut self) {
        let workers = &self.queues[..self.seats.len()];
        if self.model.erasures > 0 && workers.iter().all(|queue| queue.is_empty()) {
            let count = self.model.erasures;
            self.clients.iter_mut().for_each(|client| client.erasures_settled(count));
        }
    }

    /// A subscription to a changing channel began.
    pub(super) fn replay_changing(&mut self, call: FollowCall) -> Check {
        let FollowCall { now_ms, channel, start, cursor, head, is_recovered, backlog, client } =
            call;
        let topic = self.model.topic(&channel)?;
        self.model.followed_changing(topic);
        let backlog: Vec<u64> = backlog.iter().map(|id| id.offset).collect();
        let places = (cursor.offset, head.offset);
        self.model.facts[topic].check_begin(now_ms, start, places, is_recovered, &backlog)?;
        let Some(client) = client else { return Ok(()) };
        self.notes.trace(format!("  {client} follows {topic} after {cursor}, {is_recovered:?}"));
        let exists = self.exists(topic) || self.view().may_be_late();
        ensure!(exists, "client {client} follows {topic}, which nobody has created");
        self.check_memory(client, MemoryStep::RefuseSubscriptions)?;
        let (cursor, head) = places;
        // Of members, no answer says where it began.
        if !self.model.topics[topic].is_of_members() {
            let begin = Begin { topic, cursor, is_recovered };
            self.clients[client].add_begin(begin, self.stamp.now());
        }
        let beginning = Beginning { topic, cursor, is_recovered, head, backlog };
        self.clients[client].add_beginning(beginning);
        self.saw_in_fan_out("subscribe: in the middle of a fan-out");
        if is_recovered == Some(true) {
            self.notes.saw("changing: recovered");
        }
        Ok(())
    }
}
