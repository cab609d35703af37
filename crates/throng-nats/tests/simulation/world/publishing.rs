//! Publications of single messages and of batches, and their outcomes.

use throng_core::{AskerId, Body, Publication};
use throng_nats::journal::{JournalEvent, Outcome, PublishRequest};

use super::ends::{SeenEnd, may_end};
use super::keys::{self, SeenKey};
use super::{CHANNELS, World, channel, subject};

/// A publication that has no outcome yet.
#[derive(Debug)]
pub(super) struct Published {
    index: usize,
    body: String,
    has_key: bool,
    /// Whether the channel had ended before.
    seen: SeenEnd,
    /// The key that it sets or removes, and how the state was before.
    state: Option<(String, SeenKey)>,
}

impl World {
    pub(super) fn publish(&mut self, node: usize) {
        let (index, asker) = (self.random.below(CHANNELS), self.asker());
        self.publish_to(node, index, asker);
    }

    /// Publishes many messages of one client to a channel, as a batch does.
    pub(super) fn publish_batch(&mut self, node: usize) {
        let (index, asker) = (self.random.below(CHANNELS), self.asker());
        for _ in 0..2 + self.random.below(20) {
            self.publish_to(node, index, asker);
        }
    }

    /// One of three clients, or the server itself.
    fn asker(&mut self) -> AskerId {
        match self.random.below(4) {
            0 => AskerId::SERVER,
            number => AskerId::of_connection(number as u64),
        }
    }

    pub(super) fn publish_to(&mut self, node: usize, index: usize, asker: AskerId) {
        self.next_token += 1;
        let token = self.next_token;
        let key = self.random.percent(20).then(|| self.random.below(40));
        let body = match key {
            Some(key) => format!("key {key} of {index}"),
            None => format!("{token}"),
        };
        let attributes = if key.is_none() { self.key_of(index) } else { None };
        let publication = Publication {
            idempotency_key: key.map(|key| key.to_string().into()),
            attributes,
            ..Publication::new(channel(index), Body::Text(body.clone().into()))
        };
        if key.is_none() && asker.is_client() {
            self.nodes[node].order.entry((index, asker)).or_default().push(body);
        }
        self.publish_as(node, token, (index, asker), publication);
    }

    pub(super) fn publish_as(
        &mut self,
        node: usize,
        token: u64,
        (index, asker): (usize, AskerId),
        publication: Publication,
    ) {
        let Body::Text(body) = &publication.body else { panic!("{publication:?}") };
        let (body, has_key) = (body.to_string(), publication.idempotency_key.is_some());
        let seen = self.seen_end(index);
        let state = publication.key().map(|key| (key.to_owned(), self.seen_key(index, key)));
        let published = Published { index, body, has_key, seen, state };
        self.nodes[node].publications.insert(token, published);
        let (may_end, state) = (may_end(index), keys::limits(index));
        let request = PublishRequest { token, publication, asker, may_end, state };
        self.step(node, JournalEvent::Publish(request));
    }

    pub(super) fn published(&mut self, node: usize, token: u64, outcome: Outcome) {
        let published = self.nodes[node].publications.remove(&token);
        let Published { index, body, has_key, seen, state } =
            published.expect("it was published once");
        match outcome {
            Outcome::Stored { sequence, is_duplicate } => {
                assert!(has_key || !is_duplicate);
                assert!(has_key || self.was_open(index, seen), "{body}: {index} has ended");
                self.oracle.acknowledged(&subject(index), sequence, &body, has_key);
            }
            Outcome::Ended => {
                assert!(self.was_ended(index, seen), "{body}: {index} has not ended");
                self.tally.ended += 1;
                if !has_key {
                    self.oracle.refused.insert(body);
                }
            }
            Outcome::State(error) => {
                self.refused_by_state(index, state.expect("it has a key"), error);
                self.oracle.refused.insert(body);
            }
            Outcome::Unknown => self.tally.unknown += 1,
            Outcome::Busy | Outcome::Away => {
                self.tally.away += 1;
                if !has_key {
                    self.oracle.refused.insert(body);
                }
            }
            other @ (Outcome::Refused { .. } | Outcome::TooLarge { .. }) => panic!("{other:?}"),
        }
    }
}
