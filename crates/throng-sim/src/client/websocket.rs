//! Publications and commands that a client sends on a WebSocket.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::{Body, ConnectionName, Kind, Publication, Published};

use super::Client;
use super::expected::{Command, Outgoing, PublishAnswer};
use super::message::noun;
use super::plan::Transport;
use super::view::{MESSAGE_BYTES_MAX, View};
use crate::decode::frames;
use crate::random::Random;
use crate::topics::ROOMS;
use crate::{Check, ensure};

impl Client {
    /// Queues a message or control frame; some messages compressed, some in two fragments.
    pub(super) fn send_frame(&mut self, opcode: u8, payload: &[u8]) {
        let mut out = Vec::new();
        let compressed;
        let is_compressed =
            self.plan.deflate && opcode < frames::CLOSE && !payload.len().is_multiple_of(3);
        let (opcode, payload) = if is_compressed {
            compressed = frames::deflate(payload);
            (opcode | frames::COMPRESSED, &compressed[..])
        } else {
            (opcode, payload)
        };
        let mask = [0x5a, payload.len() as u8, 0, opcode];
        let cut = payload.len() / 3;
        if opcode & 0x0f < frames::CLOSE && payload.len() % 4 == 3 {
            frames::write(&mut out, opcode, false, &payload[..cut], mask);
            frames::write(&mut out, 0, true, &payload[cut..], mask);
        } else {
            frames::write(&mut out, opcode, true, payload, mask);
        }
        self.queue(&out);
    }

    /// Publishes on a plain WebSocket. It may if it follows one channel, or a channel and a user;
    /// otherwise the server must close with 1008.
    pub(crate) fn publish_plain(&mut self, body: Body, view: View<'_>) {
        let targets = self.plan.targets.clone();
        let kind = |at: usize| targets.get(at).map(|&target| view.model.topics[target].kind);
        let may_publish =
            matches!((kind(0), kind(1), targets.len()), (_, None, _) | (_, Some(Kind::User), 2));
        let opcode = if matches!(body, Body::Binary(_)) { frames::BINARY } else { frames::TEXT };
        self.send_frame(opcode, body.bytes());
        if !may_publish {
            self.expected_close = Some(1008);
            return;
        }
        // A text frame does not say whether it is JSON.
        let body = match body {
            Body::Json(text) => Body::Text(text),
            other => other,
        };
        let channel = view.model.topics[targets[0]].channel_name();
        let publication = Publication::new(channel, body);
        self.publications.push_back(Outgoing { publication, is_excluded: false });
    }

    /// Publishes with a command of `throng.v1`.
    pub(crate) fn publish_v1(
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
        // JSON is published with the exact bytes that it has within the command.
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
            idempotency_key: key.map(Into::into),
            excluded: if is_echoed { None } else { self.name.map(ConnectionName::numbered) },
            ..Publication::new(view.model.topics[topic].channel_name(), body)
        };
        if view.is_secret(topic) {
            return self.command(value, Command::Refused("forbidden"));
        }
        let is_excluded = !is_echoed && self.will_follow.contains(&topic);
        self.publications.push_back(Outgoing { publication, is_excluded });
        self.command(value, Command::Publish(topic));
    }

    /// Records that the engine refused this client's next publication as busy.
    pub(crate) fn publication_refused(&mut self, publication: &Publication) -> Check {
        self.take_publication(publication)?;
        match self.plan.transport {
            Transport::V1 => self.engine.published.push_back(PublishAnswer::Busy),
            // Only a close frame can say so.
            _ => self.is_busy = true,
        }
        Ok(())
    }

    /// Records that the engine accepted this client's next publication as message `number` of the
    /// world.
    pub(crate) fn publication_accepted(
        &mut self,
        number: u64,
        publication: &Publication,
        answer: &Published,
    ) -> Check {
        self.last_published = self.last_published.max(number);
        let is_excluded = self.take_publication(publication)?;
        if self.plan.transport == Transport::V1 {
            let Published { id, subscribers, is_duplicate } = *answer;
            let subscribers = subscribers.saturating_sub(u64::from(is_excluded));
            let id = id.to_string();
            let answer = PublishAnswer::Accepted { id, subscribers, is_duplicate };
            self.engine.published.push_back(answer);
        }
        Ok(())
    }

    /// The worker publishes the client's next message. Returns whether the client is excluded.
    fn take_publication(&mut self, publication: &Publication) -> Check<bool> {
        ensure!(!self.is_busy, "published for a client that was refused as busy");
        // A publication that is not decided in time is refused, and the next one published.
        let is_it = |sent: &Outgoing| sent.publication.body == publication.body;
        while self.plan.transport == Transport::V1
            && self.publications.front().is_some_and(|sent| !is_it(sent))
            && self.publications.iter().any(is_it)
        {
            self.publications.pop_front();
            self.engine.published.push_back(PublishAnswer::Undecided);
        }
        let next = self.publications.pop_front().ok_or("published what no client sent")?;
        let Outgoing { publication: sent, is_excluded } = next;
        let is_same = sent.channel == publication.channel
            && sent.body == publication.body
            && sent.idempotency_key == publication.idempotency_key
            && sent.excluded == publication.excluded
            && sent.content_type == publication.content_type;
        ensure!(is_same, "sent {sent:?}, published {publication:?}");
        Ok(is_excluded)
    }

    /// Sends a random command of `throng.v1`, but no publication.
    pub(crate) fn send_command(&mut self, random: &mut Random, view: View<'_>) {
        let topic = random.below(view.model.lists);
        // Until it knows what it follows, the client only asks.
        let may_be_refused = view.may_be_late() || view.terms.memory_varies;
        let least = if may_be_refused && self.awaits_subscription() { 6 } else { 0 };
        match random.between(least, 9) {
            6..=7 if view.is_secret(topic) => {
                let kind = random.pick(&["history", "presence"]);
                self.command(self.named(kind, topic, view), Command::Refused("forbidden"));
            }
            0 if random.percent(50) && !view.model.changing().is_empty() => {
                self.subscribe_changing(random, view);
            }
            1..=2 if !view.model.members().is_empty() && random.percent(60) => {
                self.enter(random.pick(&ROOMS), random, view);
            }
            0..=2 => self.subscribe(topic, random, view),
            3 => self.unsubscribe(topic, view),
            4 => self.subscribe_many(random, view),
            5 => self.unsubscribe_many(random, view),
            6 => {
                let mut value = self.named("history", topic, view);
                value["limit"] = json!(random.between(1, 6));
                let count = random.below(view.model.len(topic) + 2);
                let offset = view.model.nth_offset(topic, count);
                match random.below(3) {
                    0 => value["before"] = json!(view.model.id(topic, offset)),
                    1 => value["after"] = json!(view.model.id(topic, offset)),
                    _ => {}
                }
                self.command(value, Command::History(topic));
            }
            7 => {
                let value = self.named("presence", topic, view);
                self.command(value, Command::Presence(topic));
            }
            8 => self.command(json!({"type": "ping"}), Command::Ping),
            _ => self.command(json!({"type": "dance"}), Command::Refused("bad_request")),
        }
    }

    fn subscribe(&mut self, topic: usize, random: &mut Random, view: View<'_>) {
        let mut value = self.named("subscribe", topic, view);
        begin_somewhere(&mut value, topic, random, view);
        match self.follows_one_more(topic, view) {
            Err(code) => self.command(value, Command::Refused(code)),
            Ok(()) => self.command(value, Command::Subscribe(topic, false)),
        }
    }

    /// Subscribes to a changing channel, or ends that.
    fn subscribe_changing(&mut self, random: &mut Random, view: View<'_>) {
        let topics = view.model.changing();
        let topic = random.between(topics.start, topics.end - 1);
        if self.will_follow.contains(&topic) {
            return self.unsubscribe(topic, view);
        }
        let mut value = self.named("subscribe", topic, view);
        let wants_state = random.percent(60);
        match random.below(4) {
            0..=1 => {
                let offset = view.model.facts[topic].some_offset(random);
                value["since"] = json!(view.model.id(topic, offset));
            }
            2 if !wants_state => value["history"] = json!(random.between(0, 9)),
            _ => {}
        }
        if wants_state {
            value["state"] = json!(true);
        }
        self.will_follow.push(topic);
        self.command(value, Command::Subscribe(topic, wants_state));
    }

    /// Notes that it will follow one more channel. Fails with the code of the error with which the
    /// server must refuse that.
    fn follows_one_more(&mut self, topic: usize, view: View<'_>) -> Result<(), &'static str> {
        let is_user = |at: usize| view.model.topics[at].kind == Kind::User;
        if view.is_secret(topic) {
            return Err("forbidden");
        }
        if self.will_follow.contains(&topic) {
            return Err("already_subscribed");
        }
        if is_user(topic) && self.will_follow.iter().any(|&other| is_user(other)) {
            return Err("bad_request");
        }
        self.will_follow.push(topic);
        Ok(())
    }

    fn subscribe_many(&mut self, random: &mut Random, view: View<'_>) {
        let (mut list, mut expected) = (Vec::new(), Vec::new());
        for topic in some_topics(random, view) {
            let named = &view.model.topics[topic];
            let mut entry = json!({noun(named.kind): named.name});
            begin_somewhere(&mut entry, topic, random, view);
            let is_bare = named.kind == Kind::Channel && random.percent(50);
            list.push(if is_bare { json!(named.name) } else { entry });
            expected.push((topic, self.follows_one_more(topic, view).err()));
        }
        let value = json!({"type": "subscribe", "channels": list});
        self.command(value, Command::SubscribeMany(expected));
    }

    fn unsubscribe_many(&mut self, random: &mut Random, view: View<'_>) {
        let (mut list, mut expected) = (Vec::new(), Vec::new());
        for topic in some_topics(random, view) {
            let named = &view.model.topics[topic];
            list.push(json!({noun(named.kind): named.name}));
            let at = self.will_follow.iter().position(|&known| known == topic);
            at.map(|at| self.will_follow.remove(at));
            expected.push((topic, at.is_some()));
        }
        let value = json!({"type": "unsubscribe", "channels": list});
        self.command(value, Command::UnsubscribeMany(expected));
    }

    pub(super) fn unsubscribe(&mut self, topic: usize, view: View<'_>) {
        let value = self.named("unsubscribe", topic, view);
        let Some(at) = self.will_follow.iter().position(|&known| known == topic) else {
            return self.command(value, Command::Refused("not_subscribed"));
        };
        self.will_follow.remove(at);
        self.command(value, Command::Unsubscribe(topic));
    }

    /// Sends a close frame, with or without a code.
    pub(crate) fn close_websocket(&mut self, random: &mut Random) {
        let with_code = random.percent(50);
        let payload: &[u8] = if with_code { b"\x03\xe8bye" } else { b"" };
        self.send_frame(frames::CLOSE, payload);
        self.expected_close = Some(if with_code { 1000 } else { 1005 });
    }

    /// Violates the protocol.
    pub(crate) fn violate(&mut self, random: &mut Random) {
        let mut out = Vec::new();
        if self.plan.transport == Transport::V1 && random.percent(40) {
            return self.acknowledge_falsely();
        }
        let large = vec![b'x'; MESSAGE_BYTES_MAX * 6 + 5000];
        let code = match random.below(if self.plan.deflate { 8 } else { 5 }) {
            // Not negotiated.
            4 if !self.plan.deflate => {
                frames::write(&mut out, frames::TEXT | frames::COMPRESSED, true, b"\0", [1; 4]);
                1002
            }
            4 => {
                frames::write(&mut out, frames::PING | frames::COMPRESSED, true, b"", [1; 4]);
                1002
            }
            5 => {
                let bomb = frames::deflate(&large);
                frames::write(&mut out, frames::TEXT | frames::COMPRESSED, true, &bomb, [1; 4]);
                1009
            }
            6 => {
                let text = frames::deflate(b"\xff\xfe");
                frames::write(&mut out, frames::TEXT | frames::COMPRESSED, true, &text, [1; 4]);
                1007
            }
            7 => {
                frames::write(&mut out, frames::TEXT | frames::COMPRESSED, true, b"\x07", [1; 4]);
                4007
            }
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
            _ if self.plan.transport == Transport::V1 => {
                frames::write(&mut out, frames::BINARY, true, b"{}", [1; 4]);
                1003
            }
            _ => {
                frames::write(&mut out, 5, true, b"", [1; 4]);
                1002
            }
        };
        self.queue(&out);
        self.expected_close = Some(code);
    }

    pub(super) fn named(&self, kind: &str, topic: usize, view: View<'_>) -> Value {
        let named = &view.model.topics[topic];
        json!({"type": kind, noun(named.kind): named.name})
    }

    pub(super) fn command(&mut self, mut value: Value, command: Command) {
        let reference = self.next_reference;
        self.next_reference += 1;
        value["ref"] = json!(reference);
        self.commands.push((reference, command));
        self.send_frame(frames::TEXT, value.to_string().as_bytes());
    }
}

/// Some channels, each once, with one user at most: if the first were refused, the next would not.
fn some_topics(random: &mut Random, view: View<'_>) -> Vec<usize> {
    let mut topics: Vec<usize> = Vec::new();
    for _ in 0..random.between(1, 6) {
        let topic = random.below(view.model.lists);
        let is_user = |&topic: &usize| view.model.topics[topic].kind == Kind::User;
        let is_second_user = is_user(&topic) && topics.iter().any(is_user);
        if !topics.contains(&topic) && !is_second_user {
            topics.push(topic);
        }
    }
    topics
}

/// Lets a subscription start at an id, or with some messages, or with the next one.
fn begin_somewhere(value: &mut Value, topic: usize, random: &mut Random, view: View<'_>) {
    match random.below(4) {
        0 => {
            let count = random.below(view.model.len(topic) + 3);
            value["since"] = json!(view.model.id(topic, view.model.nth_offset(topic, count)));
        }
        1 => value["history"] = json!(random.between(0, 9)),
        _ => {}
    }
}
