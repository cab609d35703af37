//! What a client says on a WebSocket.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::{Body, ConnectionName, Kind, Publication, Published};

use super::message::noun;
use super::plan::{Given, Way};
use super::{Client, Command, View};
use crate::decode::frames;
use crate::random::Random;
use crate::{Check, ensure};

/// Something after which the server must close, with this code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(pub u16);

/// A publication on its way to the engine.
#[derive(Debug)]
pub(super) struct Said {
    publication: Publication,
    /// The client follows the channel, and is not to hear it.
    is_spared: bool,
}

/// The largest message of a world, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 3000;

impl Client {
    /// Queues a frame, sometimes in fragments.
    pub(super) fn say(&mut self, opcode: u8, payload: &[u8]) {
        let mut out = Vec::new();
        let mask = [0x5a, payload.len() as u8, 0, opcode];
        let cut = payload.len() / 3;
        if opcode < frames::CLOSE && payload.len() % 4 == 3 {
            frames::write(&mut out, opcode, false, &payload[..cut], mask);
            frames::write(&mut out, 0, true, &payload[cut..], mask);
        } else {
            frames::write(&mut out, opcode, true, payload, mask);
        }
        self.queue(&out);
    }

    /// Publishes on a plain WebSocket. Whether it may: it follows one channel, or one and a user.
    pub fn publish_plain(&mut self, body: Body, view: View<'_>) {
        let targets = self.plan.targets.clone();
        let kind = |at: usize| targets.get(at).map(|&target| view.model.topics[target].kind);
        let may =
            matches!((kind(0), kind(1), targets.len()), (_, None, _) | (_, Some(Kind::User), 2));
        let opcode = if matches!(body, Body::Binary(_)) { frames::BINARY } else { frames::TEXT };
        self.say(opcode, body.bytes());
        if !may {
            self.said = Some(Violation(1008));
            return;
        }
        // A WebSocket cannot say that a text is JSON.
        let body = match body {
            Body::Json(text) => Body::Text(text),
            other => other,
        };
        let channel = view.model.topics[targets[0]].channel_name();
        let publication = Publication {
            channel,
            body,
            content_type: None,
            idempotency_key: None,
            excluded: None,
        };
        self.publishing.push_back(Said { publication, is_spared: false });
    }

    /// Publishes with a command.
    pub fn publish_v1(
        &mut self,
        topic: usize,
        body: Body,
        key: Option<String>,
        is_echoed: bool,
        view: View<'_>,
    ) {
        let mut value = self.named("publish", topic, view);
        value["data"] = match &body {
            Body::Text(text) => json!(text),
            Body::Json(text) => serde_json::from_str(text).unwrap_or_default(),
            Body::Binary(bytes) => {
                value["encoding"] = json!("base64");
                json!(STANDARD.encode(bytes))
            }
        };
        // What is embedded is published as the client wrote it.
        let body = match body {
            Body::Json(_) => Body::Json(value["data"].to_string().into()),
            other => other,
        };
        if let Some(key) = &key {
            value["key"] = json!(key);
        }
        if !is_echoed {
            value["echo"] = json!(false);
        }
        let publication = Publication {
            channel: view.model.topics[topic].channel_name(),
            body,
            content_type: None,
            idempotency_key: key.map(Into::into),
            excluded: if is_echoed { None } else { self.name.map(ConnectionName) },
        };
        let is_spared = !is_echoed && self.will_follow.contains(&topic);
        self.publishing.push_back(Said { publication, is_spared });
        self.command(value, Command::Publish(topic));
    }

    /// The engine has refused what this client said.
    pub fn is_busy_with(&mut self, publication: &Publication) -> Check {
        self.take_said(publication)?;
        match self.plan.way {
            Way::V1 => self.known.published.push_back(None),
            // It has no other way to be told.
            _ => self.is_busy = true,
        }
        Ok(())
    }

    /// The engine has heard what this client said.
    pub fn is_heard(
        &mut self,
        number: u64,
        publication: &Publication,
        answer: &Published,
    ) -> Check {
        self.spoken = self.spoken.max(number);
        let is_spared = self.take_said(publication)?;
        if self.plan.way == Way::V1 {
            let Published { id, subscribers, is_duplicate } = *answer;
            let subscribers = subscribers.saturating_sub(u64::from(is_spared));
            self.known.published.push_back(Some((id.to_string(), subscribers, is_duplicate)));
        }
        Ok(())
    }

    /// The worker publishes what the client said next. Returns whether the client is spared it.
    fn take_said(&mut self, publication: &Publication) -> Check<bool> {
        ensure!(!self.is_busy, "published for a client that was refused");
        let said = self.publishing.pop_front().ok_or("published what nobody said")?;
        let Said { publication: said, is_spared } = said;
        let is_it = said.channel == publication.channel
            && said.body == publication.body
            && said.idempotency_key == publication.idempotency_key
            && said.excluded == publication.excluded
            && said.content_type == publication.content_type;
        ensure!(is_it, "said {said:?}, published {publication:?}");
        Ok(is_spared)
    }

    /// Some other command.
    pub fn speak_v1(&mut self, random: &mut Random, view: View<'_>) {
        let topic = random.below(view.model.topics.len());
        match random.below(8) {
            0..=2 => self.subscribe(topic, random, view),
            3 => self.unsubscribe(topic, view),
            4 => {
                let mut value = self.named("history", topic, view);
                value["limit"] = json!(random.between(1, 6));
                let offset = random.below(view.model.head(topic) as usize + 2) as u64;
                match random.below(3) {
                    0 => value["before"] = json!(view.model.id(offset)),
                    1 => value["after"] = json!(view.model.id(offset)),
                    _ => {}
                }
                self.command(value, Command::History(topic));
            }
            5 => {
                let value = self.named("presence", topic, view);
                self.command(value, Command::Presence(topic));
            }
            6 => self.command(json!({"type": "ping"}), Command::Ping),
            _ => self.command(json!({"type": "dance"}), Command::Refused("bad_request")),
        }
    }

    fn subscribe(&mut self, topic: usize, random: &mut Random, view: View<'_>) {
        let mut value = self.named("subscribe", topic, view);
        let given = match random.below(4) {
            0 => Some(Given::Ours(random.below(view.model.head(topic) as usize + 3) as u64)),
            1 => {
                value["history"] = json!(random.between(0, 9));
                None
            }
            _ => None,
        };
        if let Some(Given::Ours(offset)) = given {
            value["since"] = json!(view.model.id(offset));
        }
        let is_user = |at: usize| view.model.topics[at].kind == Kind::User;
        let refused = if self.will_follow.contains(&topic) {
            Some("already_subscribed")
        } else if is_user(topic) && self.will_follow.iter().any(|&other| is_user(other)) {
            Some("bad_request")
        } else {
            None
        };
        match refused {
            Some(code) => self.command(value, Command::Refused(code)),
            None => {
                self.will_follow.push(topic);
                self.command(value, Command::Subscribe(topic));
            }
        }
    }

    fn unsubscribe(&mut self, topic: usize, view: View<'_>) {
        let value = self.named("unsubscribe", topic, view);
        let Some(at) = self.will_follow.iter().position(|&known| known == topic) else {
            return self.command(value, Command::Refused("not_subscribed"));
        };
        self.will_follow.remove(at);
        self.command(value, Command::Unsubscribe(topic));
    }

    /// Closes the WebSocket, with a code or without.
    pub fn say_goodbye(&mut self, random: &mut Random) {
        let with_code = random.percent(50);
        let payload: &[u8] = if with_code { b"\x03\xe8bye" } else { b"" };
        self.say(frames::CLOSE, payload);
        self.said = Some(Violation(if with_code { 1000 } else { 1005 }));
    }

    /// Does what the protocol forbids.
    pub fn violate(&mut self, random: &mut Random) {
        let mut out = Vec::new();
        let large = vec![b'x'; MESSAGE_BYTES_MAX * 6 + 5000];
        let code = match random.below(4) {
            0 => {
                out.extend_from_slice(b"\x81\x02hi");
                1002
            }
            1 => {
                frames::write(&mut out, frames::TEXT, true, b"\xff\xfe", [1; 4]);
                1007
            }
            2 => {
                frames::write(&mut out, frames::TEXT, true, &large, [1; 4]);
                1009
            }
            _ if self.plan.way == Way::V1 => {
                frames::write(&mut out, frames::BINARY, true, b"{}", [1; 4]);
                1003
            }
            _ => {
                frames::write(&mut out, 5, true, b"", [1; 4]);
                1002
            }
        };
        self.queue(&out);
        self.said = Some(Violation(code));
    }

    fn named(&self, kind: &str, topic: usize, view: View<'_>) -> Value {
        let named = &view.model.topics[topic];
        json!({"type": kind, noun(named.kind): named.name})
    }

    fn command(&mut self, mut value: Value, command: Command) {
        let reference = self.next_reference;
        self.next_reference += 1;
        value["ref"] = json!(reference);
        self.commands.push((reference, command));
        self.say(frames::TEXT, value.to_string().as_bytes());
    }
}
