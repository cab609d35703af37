//! Replays the engine's record into the model, and checks what the witness received.

use throng_core::{MemoryStep, MessageId, Notification, Publication, Published, StartAt};

use super::World;
use crate::model::Page;
use crate::recorder::{FollowCall, HistoryCall, Record};
use crate::{Check, ensure};

impl World {
    /// Replays the calls of the engine since the last time.
    pub(super) fn absorb(&mut self) -> Check {
        for (client, until_ms) in self.policy.take_brief() {
            self.clients[client].allowed_until(until_ms);
        }
        let mut heard = Vec::new();
        self.queues[self.seats.len()].take(&mut heard);
        self.learn(&heard)?;
        for record in self.recorder.take() {
            self.replay(record)?;
        }
        self.check_witness(heard)?;
        self.learn_ends();
        self.note_members();
        self.settle_erasures();
        Ok(())
    }

    fn replay(&mut self, record: Record) -> Check {
        match record {
            // What has become of it, the witness tells.
            Record::Published { publication, .. } if self.is_changing(&publication.channel)? => {}
            Record::Published { now_ms, number, publication, has_capacity, result, client } => {
                let Ok(answer) = result else {
                    ensure!(!has_capacity, "refused as busy, but every worker queue has capacity");
                    return self.is_busy_with(&publication, client);
                };
                ensure!(
                    has_capacity || answer.is_duplicate,
                    "accepted, but a worker queue is full"
                );
                self.replay_accepted(now_ms, number, &publication, &answer, client)?;
            }
            Record::Followed(call) if self.is_changing(&call.channel)? => {
                self.replay_changing(call)?;
            }
            Record::Followed(call) => self.replay_follow(call)?,
            Record::Unfollowed { channel } => {
                let channel = channel.ok_or("an unknown channel was unfollowed")?;
                self.model.unfollowed(&channel)?;
            }
            Record::Paged(call) => self.replay_history(call)?,
        }
        Ok(())
    }

    fn replay_follow(&mut self, call: FollowCall) -> Check {
        let FollowCall { now_ms, channel, start, cursor, is_recovered, backlog, client, .. } = call;
        let begin = self.model.followed(now_ms, &channel, start)?;
        let is_expected = cursor.to_string() == self.model.id(begin.topic, begin.cursor)
            && is_recovered == begin.is_recovered;
        ensure!(
            is_expected,
            "{start:?} begins after {cursor}, {is_recovered:?}, instead of {begin:?}"
        );
        let (topic, cursor) = (begin.topic, begin.cursor);
        let pending = self.model.backlog(now_ms, topic, start, cursor);
        let expected: Vec<String> =
            pending.iter().map(|entry| self.model.id(topic, entry.offset)).collect();
        ensure!(
            expected.iter().eq(&backlog.iter().map(MessageId::to_string).collect::<Vec<_>>()),
            "the backlog {backlog:?} instead of {expected:?}"
        );
        if self.model.is_between_messages(topic, cursor) {
            self.notes.saw("offsets skip: resume between two messages");
        }
        let Some(client) = client else { return Ok(()) };
        self.notes.trace(format!("  {client} follows {topic} after {cursor}, {is_recovered:?}"));
        self.check_memory(client, MemoryStep::RefuseSubscriptions)?;
        self.clients[client].add_begin(begin, self.stamp.now());
        self.receipts.followed(client, topic);
        self.saw_in_fan_out("subscribe: in the middle of a fan-out");
        if !expected.is_empty() {
            self.notes.saw("subscribe: with a backlog");
        }
        if let StartAt::After(id) = start
            && is_recovered == Some(false)
            && self.model.lacks_evicted(topic, id.offset, now_ms)
        {
            self.notes.saw("resume: gap, evicted");
        }
        Ok(())
    }

    fn replay_history(&mut self, call: HistoryCall) -> Check {
        let HistoryCall { now_ms, channel, query, limit, ids, has_more, is_recovered, client } =
            call;
        let topic = self.model.topic(&channel)?;
        let offsets = ids.iter().map(|id| id.offset).collect();
        let page = Page { offsets, has_more, is_recovered };
        let expected = self.model.page(now_ms, topic, query, limit);
        ensure!(page == expected, "{page:?} instead of {expected:?}");
        if let Some(client) = client {
            self.check_memory(client, MemoryStep::RefuseReads)?;
            self.clients[client].add_page(page.offsets, has_more);
        }
        Ok(())
    }

    fn replay_accepted(
        &mut self,
        now_ms: u64,
        number: u64,
        publication: &Publication,
        answer: &Published,
        client: Option<usize>,
    ) -> Check {
        let topic = self.model.published(now_ms, number, publication, answer)?;
        let (offset, client_text) = (answer.id.offset, text(client));
        self.notes.trace(format!("  {topic} has {offset}, by {client_text}"));
        if answer.is_duplicate {
            self.notes.saw("publish: known key");
        }
        if let Some(client) = client {
            self.spoken += 1;
            self.clients[client].publication_accepted(number, publication, answer)?;
        }
        self.saw_in_fan_out("publish: in the middle of a fan-out");
        Ok(())
    }

    /// A publication was refused because a worker queue is full.
    fn is_busy_with(&mut self, publication: &Publication, client: Option<usize>) -> Check {
        self.notes.trace(format!("  {:?} is busy, for {}", publication.channel, text(client)));
        self.busy += 1;
        match client {
            Some(client) => self.clients[client].publication_refused(publication),
            None => {
                self.notes.saw("busy: publisher refused");
                Ok(())
            }
        }
    }

    /// The witness follows every pinned channel, and must receive exactly the accepted messages, in
    /// order.
    fn check_witness(&mut self, notifications: Vec<Notification>) -> Check {
        for notification in notifications {
            match notification {
                Notification::Message { message, .. } if message.is_volatile() => {}
                Notification::Message { message, .. } => {
                    let topic = self.model.topic(&message.channel)?;
                    if self.model.topics[topic].is_changing {
                        continue;
                    }
                    let (heard, offset) = (self.witnessed[topic], message.id.offset);
                    let previous = self.model.previous(topic, offset);
                    ensure!(previous == heard, "the witness got {offset} after {heard}");
                    ensure!(message.previous == heard, "{offset} names {}", message.previous);
                    let is_accepted = self
                        .model
                        .entry(topic, offset)
                        .is_some_and(|entry| entry.body == message.body);
                    ensure!(is_accepted, "the witness got {offset}, which was refused");
                    self.witnessed[topic] = offset;
                }
                Notification::Presence { query, .. } => query.answer([], false),
                Notification::Follows { .. }
                | Notification::Answer { .. }
                | Notification::Scan(_)
                | Notification::Settled
                | Notification::Kept(_)
                | Notification::Leave { .. }
                | Notification::Stay { .. }
                | Notification::StopAccepting
                | Notification::Drain => {
                    return Err("the witness got a notification that is not for it".into());
                }
            }
        }
        Ok(())
    }
}

fn text(client: Option<usize>) -> String {
    client.map_or_else(|| "us".into(), |client| client.to_string())
}
