//! Chooses subscriptions and publications.

use throng_core::{Body, ConnectionName, Kind, Publication, VolatilePublication};

use super::World;
use crate::client::plan::{Plan, SinceId, Start, Transport};
use crate::model::{VOLATILE, Volatile};
use crate::topics::{ROOMS, SQUARE};

impl World {
    pub(super) fn plan(&mut self) -> Plan {
        let weights = if self.kind.is_crowd { [36, 5, 26, 13, 20] } else { [22, 22, 24, 12, 20] };
        let transport =
            [Transport::Plain, Transport::V1, Transport::Sse, Transport::Stream, Transport::Poll]
                [self.random.weighted(&weights)];
        let targets = self.targets(transport);
        let is_http10 =
            !matches!(transport, Transport::Plain | Transport::V1) && self.random.percent(8);
        let changing = targets.first().filter(|at| self.model.topics[**at].is_changing).copied();
        let (start, state) = match changing {
            Some(topic) => self.start_in_changing(topic),
            None if targets.is_empty() => (Start::Live, false),
            None => (self.start(&targets), false),
        };
        let presence = self.presence(transport, &targets);
        let may_be_compact =
            matches!(transport, Transport::V1 | Transport::Sse | Transport::Stream);
        let is_compact = may_be_compact && self.random.percent(50);
        Plan {
            transport,
            start,
            state,
            presence,
            // Without chunks, only line ends separate messages, and bodies may contain them.
            envelope: self.random.percent(30)
                || (transport == Transport::Stream && is_http10)
                || changing.is_some(),
            compact: is_compact.then(|| self.random.percent(50)),
            welcome: self.random.percent(20).then(|| self.random.percent(50)),
            pace_ms: self.random.percent(15).then(|| self.random.between(10, 400) as u64),
            is_http10,
            keep_alive: self.random.percent(85),
            wait_s: self.random.between(0, 5) as u64,
            deflate: self.random.percent(50),
            targets,
        }
    }

    fn targets(&mut self, transport: Transport) -> Vec<usize> {
        if self.kind.is_crowd && self.random.percent(85) {
            return vec![SQUARE];
        }
        if transport == Transport::V1 && self.random.percent(10) {
            return Vec::new();
        }
        let has_envelopes = !matches!(transport, Transport::Plain | Transport::Poll);
        let changing = self.model.changing();
        if has_envelopes && !changing.is_empty() && self.random.percent(35) {
            return vec![self.random.between(changing.start, changing.end - 1)];
        }
        if !self.model.members().is_empty() && self.random.percent(35) {
            return self.room();
        }
        let count = if self.random.percent(60) { 1 } else { self.random.between(2, 5) };
        let mut targets: Vec<usize> = Vec::new();
        let mut user = None;
        for _ in 0..count {
            let topic = self.random.below(self.model.lists);
            if self.model.topics[topic].kind == Kind::User {
                user = Some(topic);
            } else if !targets.contains(&topic) {
                targets.push(topic);
            }
        }
        targets.extend(user);
        targets
    }

    /// A channel with members, mostly with a user.
    fn room(&mut self) -> Vec<usize> {
        let channel = self.random.pick(&ROOMS);
        let users = self.model.topics.iter().enumerate();
        let users: Vec<_> =
            users.filter(|(_, it)| it.kind == Kind::User).map(|(at, _)| at).collect();
        let user = self.random.percent(75).then(|| self.random.pick(&users));
        [channel].into_iter().chain(user).collect()
    }

    /// The channels whose members a client follows. One that polls does not.
    fn presence(
        &mut self,
        transport: Transport,
        targets: &[usize],
    ) -> Vec<(usize, Option<SinceId>)> {
        let mut wanted = Vec::new();
        for &channel in targets.iter().filter(|_| transport != Transport::Poll) {
            let Some(log) = self.model.members_of(channel) else { continue };
            if self.random.percent(40) {
                continue;
            }
            let known = match self.random.below(10) {
                0..=4 => None,
                5 => Some(SinceId::Foreign(1)),
                _ => Some(SinceId::Ours(self.model.facts[log].some_offset(&mut self.random))),
            };
            wanted.push((channel, known));
        }
        wanted
    }

    fn start(&mut self, targets: &[usize]) -> Start {
        match self.random.below(100) {
            0..=41 => Start::Live,
            42..=61 => Start::History(self.random.between(0, 12)),
            62..=97 => {
                let mut ids: Vec<SinceId> =
                    targets.iter().map(|&topic| self.since(topic)).collect();
                if self.random.percent(3) {
                    ids.push(SinceId::Foreign(1));
                }
                Start::Since(ids, self.random.percent(50))
            }
            _ => Start::Nonsense,
        }
    }

    /// Where a subscription to a changing channel starts, and whether that is with its state.
    fn start_in_changing(&mut self, topic: usize) -> (Start, bool) {
        let is_state = self.random.percent(60);
        let start = match self.random.below(10) {
            0..=2 => Start::Live,
            3 if !is_state => Start::History(self.random.between(0, 12)),
            4 => Start::Since(vec![SinceId::Foreign(1)], self.random.percent(50)),
            _ => {
                let offset = self.model.facts[topic].some_offset(&mut self.random);
                Start::Since(vec![SinceId::Ours(offset)], self.random.percent(50))
            }
        };
        (start, is_state)
    }

    fn since(&mut self, topic: usize) -> SinceId {
        let messages = self.model.len(topic);
        match self.random.below(20) {
            0 => {
                self.notes.saw("resume: foreign epoch");
                SinceId::Foreign(self.model.head(topic))
            }
            1 => {
                self.notes.saw("resume: future id");
                SinceId::Ours(self.model.head(topic) + 1 + self.random.below(5) as u64)
            }
            2..=4 => {
                let count = self.random.below(messages + 1);
                // If offsets skip, mostly no message has the next offset.
                let max_beyond = usize::from(!self.model.are_consecutive(topic));
                let beyond = self.random.between(0, max_beyond) as u64;
                SinceId::Ours(self.model.nth_offset(topic, count) + beyond)
            }
            _ => {
                let count = messages.saturating_sub(self.random.below(10));
                SinceId::Ours(self.model.nth_offset(topic, count))
            }
        }
    }

    /// A body that no other message of the world has.
    pub(super) fn body(&mut self) -> Body {
        let length = match self.random.below(20) {
            0 => self.random.between(300, 2500),
            1..=4 => self.random.between(20, 130),
            _ => self.random.below(12),
        };
        self.body_of(length)
    }

    /// A body long enough to be sent in several parts.
    pub(super) fn large_body(&mut self) -> Body {
        let length = self.random.between(800, 2500);
        self.body_of(length)
    }

    fn body_of(&mut self, length: usize) -> Body {
        self.bodies += 1;
        let number = self.bodies;
        let filler: String = (0..length)
            .map(|at| match at % 17 {
                5 if length.is_multiple_of(3) => '\n',
                9 if length.is_multiple_of(5) => 'é',
                11 if length.is_multiple_of(7) => '\r',
                _ => char::from(b'a' + (at % 26) as u8),
            })
            .collect();
        match self.random.below(6) {
            0 => {
                let filler = filler.replace(['\n', '\r'], "\\n");
                let space = if length.is_multiple_of(4) { "\n " } else { "" };
                Body::Json(format!("{{\"n\":{number},{space}\"text\":\"{filler}\"}}").into())
            }
            1 => {
                let mut bytes = vec![0xff];
                bytes.extend_from_slice(&number.to_be_bytes());
                bytes.extend_from_slice(filler.as_bytes());
                Body::Binary(bytes.into())
            }
            _ => Body::Text(format!("m{number} {filler}.").into()),
        }
    }

    pub(super) fn publication(&mut self, topic: usize) -> Publication {
        let body = self.body();
        let content_type = match (&body, self.random.below(10)) {
            (Body::Text(_), 0) => Some("text/html"),
            (Body::Json(_), 0) => Some("application/ld+json"),
            (Body::Binary(_), 0) => Some("image/png"),
            _ => None,
        };
        let names: Vec<u64> = self.clients.iter().filter_map(|client| client.name()).collect();
        let is_for_all = names.is_empty() || self.random.percent(80);
        // The bytes of a log fall some time after its messages expire, too late for the model of a
        // limit of all logs together.
        let may_expire = self.terms.max_logs_bytes.is_none();
        let expires = may_expire && self.random.percent(15);
        let expires_in_ms = expires.then(|| self.random.between(1, 4000) as u64);
        let excluded = (!is_for_all).then(|| ConnectionName::numbered(self.random.pick(&names)));
        Publication {
            content_type: content_type.map(Into::into),
            idempotency_key: self.key().map(Into::into),
            excluded,
            expires_in_ms,
            ..Publication::new(self.model.topics[topic].channel_name(), body)
        }
    }

    /// A volatile message, which the model notes. Its text has no line break, so that it is the
    /// last line of an answer to a long-poll.
    pub(super) fn volatile_publication(&mut self, topic: usize) -> VolatilePublication {
        let number = self.model.volatile.len();
        let text = format!("{VOLATILE}{number} {}", "x".repeat(self.random.below(200)));
        let names: Vec<u64> = self.clients.iter().filter_map(|client| client.name()).collect();
        let is_for_all = names.is_empty() || self.random.percent(80);
        let excluded = (!is_for_all).then(|| self.random.pick(&names));
        let (head, time_ms) = (self.model.head(topic), self.now_ms());
        self.model.volatile.push(Volatile { topic, text: text.clone(), time_ms, head, excluded });
        VolatilePublication {
            excluded: excluded.map(ConnectionName::numbered),
            ..VolatilePublication::new(
                self.model.topics[topic].channel_name(),
                Body::Text(text.into()),
            )
        }
    }

    /// Sometimes one of a few idempotency keys, so that keys repeat.
    pub(super) fn key(&mut self) -> Option<String> {
        self.random.percent(15).then(|| format!("key-{}", self.random.below(12)))
    }
}
