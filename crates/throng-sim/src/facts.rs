//! The logs of changing channels: those whose messages have keys, are erased or replaced, or end.
//!
//! What the engine has made of them is learnt from its witness, and so are tombstones and notices.
//! From these facts follows what a state has, and which messages a subscription may pass over.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::{Body, Erasure, Message, StartAt};

use crate::random::Random;
use crate::{Check, ensure};

/// A message of a changing channel.
#[derive(Debug)]
pub(crate) struct Fact {
    pub(crate) offset: u64,
    /// Its envelope.
    pub(crate) shown: Value,
    pub(crate) key: Option<Box<str>>,
    removes_key: bool,
    /// True if it is a notice of erasure.
    pub(crate) is_notice: bool,
    pub(crate) is_end: bool,
    pub(crate) time_ms: u64,
    expires_ms: Option<u64>,
    /// The number of the erasure by which it is gone, among all of the world.
    pub(crate) erased_by: Option<usize>,
    /// True if it went with its channel: only those who followed that before get it.
    pub(crate) is_dropped: bool,
}

impl Fact {
    fn new(message: &Message, id_of: &dyn Fn(u64) -> String) -> Fact {
        let attributes = message.extras.attributes();
        let erasure = message.erasure();
        let mut shown = json!({
            "type": if erasure.is_some() { "erased" } else { "message" },
            message.channel.kind().noun(): message.channel.name(),
            "id": id_of(message.id.offset),
            "time": message.time_ms,
        });
        match erasure {
            Some(it) if it.is_single() => shown["erased"] = json!(id_of(it.last)),
            Some(it) => shown["erased_up_to"] = json!(id_of(it.last)),
            None => shown_body(&mut shown, &message.body, message.content_type.as_deref()),
        }
        let expires_ms = message.expires_ms.map(std::num::NonZero::get);
        let removes_key = message.removes_key();
        let facts = [
            ("expires", expires_ms.map(Value::from)),
            ("state_key", message.key().map(Value::from)),
            ("tombstone", removes_key.then_some(Value::Bool(true))),
            ("replaces", attributes.and_then(|it| it.replaces()).map(|it| json!(id_of(it)))),
        ];
        for (field, value) in facts {
            value.into_iter().for_each(|value| shown[field] = value);
        }
        Fact {
            offset: message.id.offset,
            shown,
            key: message.key().map(Into::into),
            removes_key,
            is_notice: erasure.is_some(),
            is_end: message.is_end(),
            time_ms: message.time_ms,
            expires_ms,
            erased_by: None,
            is_dropped: false,
        }
    }

    /// True if it sets a key: a state is made of such.
    pub(crate) fn sets_key(&self) -> bool {
        self.key.is_some() && !self.removes_key
    }

    fn is_gone(&self, now_ms: u64) -> bool {
        let is_expired = self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms);
        self.erased_by.is_some() || is_expired
    }
}

/// The log of a changing channel.
#[derive(Debug, Default)]
pub(crate) struct FactLog {
    facts: Vec<Fact>,
    /// True if the channel has ended, as the engine says.
    pub(crate) is_ended: bool,
    /// When it was last known that nobody had created the channel, which has to be.
    pub(crate) missing_ms: u64,
    /// The weight of all messages against limits.
    pub(crate) weight_bytes: usize,
}

impl FactLog {
    /// Learns of the next message. `erasures` counts those of the world.
    pub(crate) fn learn(
        &mut self,
        message: &Message,
        id_of: &dyn Fn(u64) -> String,
        erasures: &mut usize,
    ) {
        let replaced = message.extras.attributes().and_then(|it| it.replaces());
        let erased = message.erasure().or(replaced.map(Erasure::of));
        if let Some(Erasure { first, last }) = erased {
            let gone = self.facts.iter_mut().filter(|it| (first..=last).contains(&it.offset));
            gone.for_each(|fact| _ = fact.erased_by.get_or_insert(*erasures));
            *erasures += 1;
        }
        self.weight_bytes += message.weight_bytes();
        let mut fact = Fact::new(message, id_of);
        if message.channel.is_members() {
            fact.shown = shown_member(message, &id_of(message.id.offset));
        }
        self.facts.push(fact);
    }

    /// All messages go with their channel, whose time is over.
    pub(crate) fn drop_all(&mut self) {
        self.facts.iter_mut().for_each(|fact| fact.is_dropped = true);
    }

    /// True if the newest message can be read, or there is none. An end that is over cannot.
    pub(crate) fn has_newest(&self, now_ms: u64, max_age_ms: u64) -> bool {
        let newest = self.facts.last();
        newest.is_none_or(|fact| {
            let is_there = !fact.is_gone(now_ms) && !fact.is_dropped && !fact.is_end;
            is_there && fact.time_ms + max_age_ms > now_ms
        })
    }

    /// The offset of the newest message; 0 without messages.
    pub(crate) fn head(&self) -> u64 {
        self.facts.last().map_or(0, |fact| fact.offset)
    }

    /// The offset of some message, mostly of a new one, or one near to it that no message has.
    pub(crate) fn some_offset(&self, random: &mut Random) -> u64 {
        let back = if random.percent(80) { 12 } else { self.facts.len() };
        let fact = self.facts.iter().nth_back(random.below(back + 1));
        let beyond = if random.percent(5) { random.below(4) as u64 } else { 0 };
        fact.map_or(0, |fact| fact.offset) + beyond
    }

    pub(crate) fn get(&self, offset: u64) -> Option<&Fact> {
        let at = self.facts.binary_search_by_key(&offset, |fact| fact.offset).ok()?;
        Some(&self.facts[at])
    }

    /// The newest message of a key.
    pub(crate) fn newest(&self, key: &str) -> Option<&Fact> {
        self.facts.iter().rev().find(|fact| fact.key.as_deref() == Some(key))
    }

    /// The messages after `from` up to `to`.
    pub(crate) fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &Fact> {
        let at = self.facts.partition_point(|fact| fact.offset <= from);
        self.facts[at..].iter().take_while(move |fact| fact.offset <= to)
    }

    /// True if the channel has ever ended by a message up to `to`, and after `from`.
    pub(crate) fn has_end(&self, from: u64, to: u64) -> bool {
        self.between(from, to).any(|fact| fact.is_end)
    }

    /// When the channel ended last; 0 if it never did.
    pub(crate) fn end_ms(&self) -> u64 {
        self.facts.iter().rev().find(|fact| fact.is_end).map_or(0, |fact| fact.time_ms)
    }

    /// True if a later message has the key of this one.
    pub(crate) fn is_superseded(&self, fact: &Fact) -> bool {
        fact.key.is_some() && self.between(fact.offset, u64::MAX).any(|it| it.key == fact.key)
    }

    /// True if readers lack nothing for want of this message.
    pub(crate) fn is_dispensable(&self, fact: &Fact, now_ms: u64) -> bool {
        fact.is_gone(now_ms) || fact.is_end || self.is_superseded(fact)
    }

    /// Checks how the engine begins a subscription: at `start`, with the messages after `cursor` of
    /// which it has the `backlog`.
    pub(crate) fn check_begin(
        &self,
        now_ms: u64,
        start: StartAt,
        (cursor, head): (u64, u64),
        is_recovered: Option<bool>,
        backlog: &[u64],
    ) -> Check {
        // Tombstones may have come since.
        let is_known = head == 0 || self.get(head).is_some();
        ensure!(is_known, "the head is {head}, of {}", self.head());
        let are_known = backlog.iter().all(|it| *it > cursor && self.get(*it).is_some());
        ensure!(backlog.is_sorted() && are_known, "{backlog:?} after {cursor}");
        if start == StartAt::Live {
            let is_live = cursor == head && backlog.is_empty();
            ensure!(is_live, "live after {cursor} of {head}, with {backlog:?}");
            return Ok(());
        }
        if is_recovered == Some(true) {
            let StartAt::After(id) = start else { return Err(format!("{start:?} recovers")) };
            ensure!(cursor == id.offset && cursor <= head, "{id} recovers after {cursor}");
            let mut needed = self.between(cursor, head).filter(|fact| !fact.is_dropped);
            let lacks =
                needed.find(|it| !self.is_dispensable(it, now_ms) && !backlog.contains(&it.offset));
            ensure!(lacks.is_none(), "{start:?} recovers without {lacks:?}");
        } else if !matches!(start, StartAt::Last(_)) {
            let state = self.state(now_ms);
            let lacks = state.iter().find(|it| **it <= head && !backlog.contains(it));
            ensure!(lacks.is_none(), "{start:?} has {backlog:?}, of the state {state:?}");
        }
        Ok(())
    }

    /// The offsets of the values of all keys, in order.
    pub(crate) fn state(&self, now_ms: u64) -> Vec<u64> {
        let is_value = |fact: &&Fact| {
            fact.sets_key()
                && !fact.is_dropped
                && !fact.is_gone(now_ms)
                && !self.is_superseded(fact)
        };
        self.facts.iter().filter(is_value).map(|fact| fact.offset).collect()
    }
}

/// The member that a change is about, as all see it.
pub(crate) fn member_of(message: &Message) -> Value {
    serde_json::from_slice(message.body.bytes()).unwrap_or_default()
}

/// What has become of the member that a change is about.
pub(crate) fn event_of_member(message: &Message) -> &str {
    message.facts().event.unwrap_or_default()
}

/// What those who follow the members are told of a change.
fn shown_member(message: &Message, id: &str) -> Value {
    json!({
        "type": "presence",
        "channel": message.channel.name(),
        "event": event_of_member(message),
        "id": id,
        "time": message.time_ms,
        "member": member_of(message),
    })
}

/// Adds the fields of a body to an envelope.
pub(crate) fn shown_body(value: &mut Value, body: &Body, content_type: Option<&str>) {
    match (content_type, body) {
        (Some(content_type), _) => value["content_type"] = json!(content_type),
        (None, Body::Binary(_)) => value["content_type"] = json!("application/octet-stream"),
        (None, _) => {}
    }
    value["data"] = match body {
        Body::Text(text) => json!(text),
        Body::Json(text) => serde_json::from_str(text).unwrap_or_default(),
        Body::Binary(bytes) => {
            value["encoding"] = json!("base64");
            json!(STANDARD.encode(bytes))
        }
    };
}
