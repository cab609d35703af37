//! Messages that are added to the logs of a shard, and posted to the workers that follow them.

use std::num::NonZeroU64;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::channel::Follower;
use super::super::shared::Shared;
use super::{Hashed, Shard, Wake, oldest_ms};
use crate::attributes::Extras;
use crate::creation::ReadAs;
use crate::holder::RoomHolder;
use crate::id::ChannelId;
use crate::log::Log;
use crate::message::{Content, InFlight, Message};
use crate::name::Kind;
use crate::publication::{Publication, PublishError, Published};
use crate::receipt::Receipt;
use crate::worker_queue::Notification;

/// The result of an append.
pub(super) struct Appended {
    offset: u64,
    subscribers: u64,
    pub(super) wake: Wake,
}

impl Shard {
    /// Publishes a message. Wake the returned workers once the lock is released.
    pub(in crate::memory) fn publish(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        (mut publication, mut known): (Publication, Option<ReadAs>),
    ) -> Result<(Published, Wake), PublishError> {
        let is_internal = publication.channel.kind() == Kind::Internal;
        let key = shared.idempotency_key(&publication);
        let earlier = key.and_then(|(key, _)| {
            let earlier = self.idempotency.find(now_ms, key, &shared.keys);
            earlier.or_else(|| shared.thawed_offset(now_ms, key))
        });
        if let Some(offset) = earlier {
            shared.duplicates.fetch_add(1, Ordering::Relaxed);
            let id = shared.message_id(offset);
            return Ok((Published { id, subscribers: 0, is_duplicate: true }, Wake::new()));
        }
        let name = Hashed { name: &publication.channel, hash };
        if let Some(replacement) = self.admit(shared, name, (&publication, known.as_mut()))? {
            (publication.body, publication.content_type) =
                (replacement.body, replacement.content_type);
        }
        self.check_keys(shared, name, slice::from_ref(&publication))?;
        let Appended { offset, subscribers, wake } =
            match self.slot_to_publish(shared, hash, &publication) {
                Some(slot) => self.append(shared, now_ms, slot, publication)?,
                None => self.append_nowhere(shared, hash, &publication)?,
            };
        // Not before it is appended: a refused publication may be tried again with the same key.
        if let Some(key) = key {
            self.idempotency.remember(now_ms, key, offset, &shared.keys);
        }
        // The samples that the server publishes for its status page are not counted.
        shared.published.fetch_add(u64::from(!is_internal), Ordering::Relaxed);
        let id = shared.message_id(offset);
        Ok((Published { id, subscribers, is_duplicate: false }, wake))
    }

    /// The channel of a publication. It is created if it keeps the message; `None` if the message
    /// is neither kept nor followed.
    fn slot_to_publish(
        &mut self,
        shared: &Shared,
        hash: u64,
        publication: &Publication,
    ) -> Option<u32> {
        let name = Hashed { name: &publication.channel, hash };
        let known = self.find(name);
        let rule = || shared.rules.get(shared.rules.find(name.name));
        let is_kept = || publication.key().is_some() || !rule().retention.is_none();
        if known.is_some() || !is_kept() {
            return known;
        }
        Some(self.find_or_create(shared, name))
    }

    /// Gives an offset to a message that is neither kept nor followed.
    fn append_nowhere(
        &mut self,
        shared: &Shared,
        hash: u64,
        publication: &Publication,
    ) -> Result<Appended, PublishError> {
        let offset = shared.next_offset(self.forgotten.head())?;
        self.forgotten.pass(hash, offset);
        let stamp = shared.stamps.begin(self.number);
        shared.lose(shared.rules.find(&publication.channel), stamp);
        shared.stamps.end(self.number);
        if let Some(receipt) = &publication.receipt {
            receipt.begin(0);
        }
        Ok(Appended { offset, subscribers: 0, wake: Wake::new() })
    }

    /// Appends a message to a channel's log and notifies the workers that follow it: all of them,
    /// or none and the publication is refused.
    fn append(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        slot: u32,
        publication: Publication,
    ) -> Result<Appended, PublishError> {
        let channel = &self.channels[slot];
        check_room(shared, channel.followers.as_slice())?;
        if channel.is_ended() && publication.is_refused_by_end() {
            return Err(PublishError::Ended);
        }
        let offset = shared.next_offset(channel.head)?;
        let mut appended = self.append_at(shared, now_ms, (slot, offset), publication);
        appended.wake.extend(self.renew_oldest_value(shared, now_ms, slot));
        Ok(appended)
    }

    /// Appends a message with this offset, whatever room there is.
    pub(super) fn append_at(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        (slot, offset): (u32, u64),
        publication: Publication,
    ) -> Appended {
        let id = self.id(slot);
        let channel = &mut self.channels[slot];
        let followers = channel.followers.as_slice();
        // Each publishing thread reads the clock itself, and expiry takes the first message for the
        // oldest.
        let newest_ms = channel.log.as_ref().and_then(|log| log.newest_ms()).unwrap_or(0);
        // Until it is posted and kept, nothing beyond it is settled.
        let (id_of_message, time_ms) = (shared.message_id(offset), now_ms.max(newest_ms));
        let Publication { channel: name, body, receipt, holder, .. } = publication;
        let content = Arc::new(Content {
            stamp: shared.stamps.begin(self.number),
            content_type: publication.content_type,
            extras: Extras::new(publication.excluded, publication.attributes),
            expires_ms: publication
                .expires_in_ms
                .and_then(|expires_in_ms| NonZeroU64::new(now_ms.saturating_add(expires_in_ms))),
            ..Content::new(id_of_message, channel.head, time_ms, name, body)
        });
        channel.head = offset;
        let receipt = receipt.as_ref();
        if let Some(receipt) = receipt {
            receipt.begin(channel.followers.subscribers());
        }
        let (message, wake) = post(shared, id, followers, &content, receipt);
        let subscribers = channel.followers.subscribers();
        self.keep(shared, slot, (content, holder), message.as_ref(), now_ms);
        shared.stamps.end(self.number);
        Appended { offset, subscribers, wake }
    }

    /// Keeps a message in the channel's log if the channel's rule says so.
    fn keep(
        &mut self,
        shared: &Shared,
        slot: u32,
        (content, holder): (Arc<Content>, RoomHolder),
        message: Option<&Arc<Message>>,
        now_ms: u64,
    ) {
        let channel = &mut self.channels[slot];
        let is_kept = || channel.log.as_ref().is_some_and(|log| log.has_keys());
        if shared.rules.get(channel.rule).retention.is_none()
            && content.key().is_none()
            && !is_kept()
        {
            return shared.lose(channel.rule, content.stamp);
        }
        let time_ms = content.time_ms;
        let is_first = channel.log.as_ref().is_none_or(|log| log.oldest_ms().is_none());
        let rule = channel.rule;
        let log = channel.log.get_or_insert_with(|| Box::new(Log::new(shared.lost(rule))));
        let message = message.map(Arc::downgrade).unwrap_or_default();
        shared.add(log, content, message, holder);
        self.plan_look(slot);
        let channel = &mut self.channels[slot];
        channel.expire(shared, now_ms);
        if is_first && channel.log.is_some() {
            let Shard { ages, channels, .. } = self;
            ages.add(time_ms, slot, |slot| oldest_ms(channels, slot));
        }
    }
}

/// Checks that the queues of these followers have room. Other shards may fill one meanwhile, which
/// then exceeds its limit by a few messages.
pub(super) fn check_room(shared: &Shared, followers: &[Follower]) -> Result<(), PublishError> {
    if followers.iter().all(|follower| shared.queue(follower.worker).has_room()) {
        return Ok(());
    }
    shared.busy.fetch_add(1, Ordering::Relaxed);
    Err(PublishError::Busy)
}

/// Posts a message to the workers that follow its channel. Returns it if there are any, and whom to
/// wake.
///
/// Posted under the shard's lock, so that each worker gets the messages in the order of their
/// offsets. Woken without it, because a wake-up is a system call.
pub(super) fn post(
    shared: &Shared,
    id: ChannelId,
    followers: &[Follower],
    content: &Arc<Content>,
    receipt: Option<&Arc<Receipt>>,
) -> (Option<Arc<Message>>, Wake) {
    if followers.is_empty() {
        return (None, Wake::new());
    }
    let (is_internal, content) = (content.channel.kind() == Kind::Internal, Arc::clone(content));
    // The delivery of samples for the status page is not measured.
    let message = Arc::new(if is_internal {
        Message::from(content)
    } else {
        Message::tracked(content, InFlight::to(followers.len()))
    });
    for follower in followers {
        shared.queue(follower.worker).post(Notification::Message {
            local: follower.local,
            channel: id,
            message: Arc::clone(&message),
            receipt: receipt.map(|receipt| Box::new(receipt.part(follower.subscribers))),
        });
    }
    (Some(message), followers.iter().map(|follower| follower.worker).collect())
}
