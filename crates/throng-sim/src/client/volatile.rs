//! Volatile messages: each comes at most once, to those that follow its channel, after what was
//! published before it.

use serde_json::{Value, json};

use super::Client;
use super::message::noun;
use super::plan::{Plan, Transport};
use super::view::View;
use crate::model::{Begin, VOLATILE, Volatile};
use crate::{Check, ensure};

/// A volatile message as a client received it.
#[derive(Debug)]
pub(super) enum Text {
    Plain(String),
    Envelope(Value),
    Compact(Value),
}

impl Text {
    /// A message without an envelope.
    pub(super) fn of(bytes: Vec<u8>) -> Check<Text> {
        String::from_utf8(bytes).map(Text::Plain).map_err(|error| error.to_string())
    }

    /// The message of the model with this text.
    fn find<'m>(&self, view: View<'m>) -> Check<(usize, &'m Volatile)> {
        let text = match self {
            Text::Plain(text) => text,
            Text::Envelope(value) => value["data"].as_str().unwrap_or_default(),
            Text::Compact(value) => value[2].as_str().unwrap_or_default(),
        };
        let number = text.strip_prefix(VOLATILE).and_then(|rest| rest.split(' ').next());
        let number = number.and_then(|number| number.parse().ok()).unwrap_or(usize::MAX);
        let entry = view.model.volatile.get(number).filter(|entry| entry.text == text);
        let entry = entry.ok_or_else(|| format!("no message is {self:?}"))?;
        if let Text::Envelope(value) = self {
            let topic = &view.model.topics[entry.topic];
            let expected = json!({
                "type": "message",
                noun(topic.kind): topic.name,
                "time": entry.time_ms,
                "data": entry.text,
            });
            ensure!(*value == expected, "{value} instead of {expected}");
        }
        Ok((number, entry))
    }
}

impl Client {
    pub(super) fn volatile(&mut self, text: &Text, view: View<'_>) -> Check {
        ensure!(self.greetings.is_empty(), "{text:?} came before {:?}", self.greetings);
        let (number, entry) = text.find(view)?;
        if let Text::Compact(value) = text {
            let mut expected =
                vec![json!(self.numbers.get(&entry.topic)), Value::Null, json!(entry.text)];
            expected.extend((self.plan.compact == Some(true)).then(|| json!(entry.time_ms)));
            ensure!(*value == Value::from(expected), "{value} in a compact envelope");
            view.notes.saw("volatile: compact");
        }
        self.volatile_in_order((number, entry), view)
    }

    /// The notice that a read marker has moved.
    pub(super) fn unread(&mut self, value: &Value, view: View<'_>) -> Check {
        ensure!(self.greetings.is_empty(), "{value} came before {:?}", self.greetings);
        let has_envelopes = self.plan.has_envelopes() || self.plan.compact.is_some();
        let has_notices = has_envelopes || self.plan.transport == Transport::Sse;
        ensure!(has_notices, "{value} among bodies alone");
        let text = value.to_string();
        // Several may say the same: this is the next of them.
        let mut all = view.model.volatile.iter().enumerate();
        let found = all.find(|(number, entry)| {
            let before = self.volatile.get(&entry.topic);
            entry.text == text && before.is_none_or(|before| before < number)
        });
        let found = found.ok_or_else(|| format!("no marker has moved to {text}"))?;
        view.notes.saw("unread: told");
        self.volatile_in_order(found, view)
    }

    fn volatile_in_order(&mut self, (number, entry): (usize, &Volatile), view: View<'_>) -> Check {
        let Volatile { topic, head, excluded, ref text, .. } = *entry;
        ensure!(excluded.is_none() || excluded != self.name, "{text:?} is not for this client");
        let cursor = self.cursors.iter().find(|cursor| cursor.topic == topic);
        let cursor = cursor.ok_or_else(|| format!("{topic} is not followed: {text:?}"))?;
        let reader = view.reader(self.name);
        ensure!(
            head <= cursor.offset || cursor.passes_over(head, reader, view.model),
            "{text:?} came before {:?}",
            view.model.next_for(topic, cursor.offset, reader).map(|next| next.offset)
        );
        self.note_volatile((topic, number), view)
    }

    fn note_volatile(&mut self, (topic, number): (usize, usize), view: View<'_>) -> Check {
        let before = self.volatile.insert(topic, number);
        ensure!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        view.notes.saw("volatile: received");
        self.messages += 1;
        Ok(())
    }

    /// Takes a volatile message from the end of an answer to a long-poll. Returns the rest.
    pub(super) fn volatile_in_answer<'b>(
        &mut self,
        body: Option<&'b [u8]>,
        (plan, begins, offsets): (&Plan, &[Begin], &[u64]),
        view: View<'_>,
    ) -> Check<(Option<&'b [u8]>, bool)> {
        let last = body.unwrap_or_default().split(|byte| *byte == b'\n').next_back();
        let last = last.unwrap_or_default();
        let text = if plan.envelope {
            let value = serde_json::from_slice::<Value>(last).ok();
            value.filter(|value| value.get("id").is_none()).map(Text::Envelope)
        } else {
            let is_volatile = last.starts_with(VOLATILE.as_bytes());
            is_volatile.then(|| Text::of(last.to_vec())).transpose()?
        };
        let (Some(text), Some(body)) = (text, body) else { return Ok((body, false)) };
        let (number, entry) = text.find(view)?;
        let at = begins.iter().position(|begin| begin.topic == entry.topic);
        let at = at.ok_or_else(|| format!("{} is not followed: {text:?}", entry.topic))?;
        ensure!(entry.head <= offsets[at], "{text:?} came before what was published earlier");
        self.note_volatile((entry.topic, number), view)?;
        view.notes.saw("volatile: answers a long-poll");
        let rest = body.len().checked_sub(last.len() + 1).map(|end| &body[..end]);
        Ok((rest, true))
    }
}
