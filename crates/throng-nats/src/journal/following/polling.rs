//! Channels for which a server allows no subscription: they are polled.
//!
//! A server may limit the subscriptions of a connection or of an account. It refuses each one
//! beyond, says so, and does not say which: only that it was one of those that were made since the
//! last PONG. So all of these are taken back, and as many made again as were not refused. The
//! other channels are compared with the stream once a second, as all are after a loss: their
//! messages come late, and none is missing.
//!
//! # Invariants
//!
//! * While a channel is polled, no new one is subscribed to but to try whether there is room again.
//! * Nothing is settled between the rounds, and after one only what the stream had reached before
//!   the round that came before it: replicas may lag, and messages may be under way.

use super::Following;
use super::channels::SlotState;
use super::polled::{Polled, Round};
use crate::journal::outbox::{JournalAction, Outbox};
use crate::journal::queue::shrink;
use crate::journal::report::JournalReport;
use crate::journal::subscription::Subscription;
use crate::subject::Subjects;

/// How long after a round of comparisons the next one begins.
const POLL_MS: u64 = 1_000;

/// How long after a refusal it is tried whether there is room again.
const TRY_MS: u64 = 30_000;

impl Following {
    /// Subscribes to a channel that is new on this connection, or polls it if there is no room.
    pub(super) fn join(&mut self, slot: u32, subjects: &Subjects, outbox: &mut Outbox) {
        let subscribed = self.channels.len() - self.polled.count;
        let is_full = self.polled.room.is_some_and(|room| subscribed > room);
        if self.polled.count > 0 || is_full {
            self.poll(self.channels.subscription(slot));
        } else {
            self.subscribe(slot, subjects, outbox);
        }
    }

    fn subscribe(&mut self, slot: u32, subjects: &Subjects, outbox: &mut Outbox) {
        let subject = subjects.live(&self.channels.suffix(slot));
        let subscription = self.channels.subscription(slot);
        outbox.actions.push(JournalAction::Subscribe { subject, sid: subscription.sid() });
        self.polled.unconfirmed.push(subscription);
    }

    fn poll(&mut self, subscription: Subscription) {
        self.channels[subscription.slot].is_polled = true;
        self.polled.count += 1;
        self.polled.queue.push_back(subscription);
    }

    /// Subscribes to all channels on a new connection, as far as the last one had room.
    pub(in crate::journal) fn connected(&mut self, subjects: &Subjects, outbox: &mut Outbox) {
        self.polled.forget_connection();
        let mut left = self.polled.room.unwrap_or(usize::MAX);
        for slot in 0..self.channels.extent() {
            let channel = &mut self.channels[slot];
            channel.is_polled = false;
            if channel.state == SlotState::Free {
                continue;
            }
            if left > 0 {
                left -= 1;
                self.subscribe(slot, subjects, outbox);
            } else {
                self.poll(self.channels.subscription(slot));
            }
        }
    }

    /// The next PONG confirms all subscriptions made so far.
    pub(in crate::journal) fn pinged(&mut self) {
        self.polled.pings += 1;
        self.polled.pinged.push_back(std::mem::take(&mut self.polled.unconfirmed));
    }

    /// The server has refused a subscription.
    pub(in crate::journal) fn refused(&mut self) {
        self.polled.refusals += 1;
    }

    /// The server has taken what was subscribed to before a PING, or refused it before this.
    pub(in crate::journal) fn ponged(
        &mut self,
        now_ms: u64,
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        let Some(mut batch) = self.polled.pinged.pop_front() else { return };
        self.polled.pongs += 1;
        let refusals = std::mem::take(&mut self.polled.refusals);
        if refusals > batch.len() {
            outbox.report(JournalReport::Unheard);
        }
        let has_tried = self.polled.is_trying && !batch.is_empty();
        self.polled.is_trying &= !has_tried;
        if refusals == 0 {
            if has_tried {
                self.polled.tries = self.polled.tries.saturating_mul(2);
                self.polled.try_ms = now_ms;
                let subscribed = self.channels.len() - self.polled.count;
                self.polled.room = (self.polled.count > 0).then_some(subscribed);
            }
        } else {
            batch.retain(|one| self.channels.get(*one).is_some_and(|channel| !channel.is_polled));
            for one in &batch {
                outbox.actions.push(JournalAction::Unsubscribe { sid: one.sid() });
                self.poll(*one);
            }
            self.subscribe_some(batch.len().saturating_sub(refusals), subjects, outbox);
            self.polled.room = Some(self.channels.len() - self.polled.count);
            (self.polled.tries, self.polled.try_ms) = (1, now_ms + TRY_MS);
        }
        self.report_polled(outbox);
    }

    /// Subscribes to some of the polled channels: those that have been for longest.
    fn subscribe_some(&mut self, count: usize, subjects: &Subjects, outbox: &mut Outbox) {
        for _ in 0..count.min(self.polled.count) {
            while let Some(one) = self.polled.queue.pop_front() {
                let Some(channel) = self.channels.get(one).filter(|channel| channel.is_polled)
                else {
                    continue;
                };
                channel.is_polled = false;
                self.polled.count -= 1;
                self.subscribe(one.slot, subjects, outbox);
                // Messages before the subscription are compared once more.
                let head = self.channels[one.slot].head;
                self.unasked.push_back((one.slot, head));
                break;
            }
        }
        shrink(&mut self.polled.queue);
    }

    fn report_polled(&mut self, outbox: &mut Outbox) {
        let Polled { count, reported, .. } = self.polled;
        if count != reported {
            self.polled.reported = count;
            let subscribed = self.channels.len() - count;
            outbox.report(JournalReport::Polled { channels: count, subscribed });
        }
    }

    /// Compares the polled channels with the stream, which has reached `last`, and tries whether
    /// there is room for some of them.
    pub(in crate::journal) fn tick_polled(
        &mut self,
        now_ms: u64,
        (last, subjects): (u64, &Subjects),
        outbox: &mut Outbox,
    ) {
        self.report_polled(outbox);
        if self.polled.count == 0 || !outbox.is_connected() {
            self.polled.round = None;
            return;
        }
        if now_ms >= self.polled.try_ms && !self.polled.is_trying {
            self.polled.is_trying = true;
            (self.polled.tries, self.polled.try_ms) = (self.polled.tries.max(1), now_ms + TRY_MS);
            self.subscribe_some(self.polled.tries, subjects, outbox);
        }
        let is_quiet = self.unasked.is_empty() && self.heads.is_empty() && self.behind == 0;
        if let Some(round) = self.polled.round.filter(|_| is_quiet) {
            self.polled.round = None;
            self.polled.next_round_ms = now_ms + POLL_MS;
            let before = self.polled.before.replace(round);
            if let Some(before) = before.filter(|before| before.pings < self.polled.pongs) {
                outbox.report(JournalReport::Settled { up_to: before.floor });
            }
        }
        if self.polled.round.is_none() && now_ms >= self.polled.next_round_ms {
            self.polled.round = Some(Round { floor: last, pings: self.polled.pings });
            let mut queue = std::mem::take(&mut self.polled.queue);
            queue.retain(|one| self.channels.get(*one).is_some_and(|channel| channel.is_polled));
            for one in &queue {
                let head = self.channels[one.slot].head;
                self.unasked.push_back((one.slot, head));
            }
            self.polled.queue = queue;
        }
    }

    /// This node has published to a channel: a polled one need not wait for its round.
    pub(in crate::journal) fn stored(&mut self, now_ms: u64, suffix: &str, sequence: u64) {
        if self.polled.count > 0
            && let Some(slot) = self.find(suffix).filter(|slot| self.channels[*slot].is_polled)
        {
            self.reach(now_ms, slot, sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{ChannelId, ChannelName};

    use super::*;

    /// Channels that are followed on a connection.
    struct World {
        following: Following,
        subjects: Subjects,
        outbox: Outbox,
        now_ms: u64,
    }

    impl World {
        fn following(channels: std::ops::Range<u32>) -> World {
            let mut outbox = Outbox::new("s".into(), "n");
            outbox.connected(1 << 20);
            let subjects = Subjects::new("throng", "channels");
            let following = Following::new(false);
            let mut world = World { following, subjects, outbox, now_ms: 1_000 };
            world.follow(channels);
            world
        }

        fn follow(&mut self, channels: std::ops::Range<u32>) {
            let named = channels.map(|at| (ChannelId(at), ChannelName::channel(&format!("c{at}"))));
            self.following.follow(&self.subjects, named.collect(), 5, &mut self.outbox);
        }

        /// The server answers a PING after so many refusals.
        fn answer(&mut self, refusals: usize) {
            self.following.pinged();
            (0..refusals).for_each(|_| self.following.refused());
            self.following.ponged(self.now_ms, &self.subjects, &mut self.outbox);
        }

        fn tick(&mut self, ms: u64) {
            self.now_ms += ms;
            self.following.tick_polled(self.now_ms, (9, &self.subjects), &mut self.outbox);
        }

        /// The work so far: subscriptions, their ends, and the number of polled channels.
        fn done(&mut self) -> (usize, usize, Option<usize>) {
            let (mut begun, mut ended, mut polled) = (0, 0, None);
            for action in self.outbox.actions.drain(..) {
                match action {
                    JournalAction::Subscribe { sid, .. } => begun += usize::from(sid > 16),
                    JournalAction::Unsubscribe { .. } => ended += 1,
                    JournalAction::Report(JournalReport::Polled { channels, .. }) => {
                        polled = Some(channels)
                    }
                    _ => {}
                }
            }
            (begun, ended, polled)
        }
    }

    #[test]
    fn as_many_channels_keep_subscriptions_as_were_not_refused() {
        let mut world = World::following(0..10);
        assert_eq!(world.done(), (10, 0, None));
        world.answer(3);
        // Which ones were refused is not known.
        assert_eq!(world.done(), (7, 10, Some(3)));
        world.answer(0);
        world.follow(10..12);
        assert_eq!(world.done(), (0, 0, None), "there is no room");
        world.tick(50);
        assert_eq!(world.done(), (0, 0, Some(5)));
        assert!(!world.following.is_whole());
    }

    #[test]
    fn an_end_makes_room_for_a_polled_channel() {
        let mut world = World::following(0..4);
        world.answer(1);
        world.done();
        let subscribed = |world: &World| {
            let mut slots = world.following.channels.iter();
            slots.position(|channel| !channel.is_polled).expect("some are") as u32
        };
        let name = ChannelName::channel(&format!("c{}", subscribed(&world)));
        world.following.unfollow(&name, &mut world.outbox);
        world.tick(50);
        assert_eq!(world.done(), (1, 1, None));
        world.answer(0);
        assert_eq!(world.done(), (0, 0, Some(0)));
        assert!(world.following.polled.room.is_none());
    }

    #[test]
    fn whether_there_is_room_again_is_tried_now_and_then() {
        let mut world = World::following(0..8);
        world.done();
        world.answer(8);
        assert_eq!(world.done(), (0, 8, Some(8)));
        world.tick(TRY_MS / 2);
        assert_eq!(world.done(), (0, 0, None));
        world.tick(TRY_MS);
        assert_eq!(world.done().0, 1);
        world.answer(1);
        assert_eq!(world.done(), (0, 1, None), "one is polled again, as many as before");
        world.tick(TRY_MS);
        // The limit was raised: each try that fits doubles the next.
        for expected in [1, 2, 4, 1] {
            assert_eq!(world.done().0, expected);
            world.answer(0);
            world.tick(50);
        }
        assert_eq!(world.following.polled.count(), 0);
    }

    #[test]
    fn a_new_connection_respects_the_last_ones_limit() {
        let mut world = World::following(0..6);
        world.answer(2);
        world.done();
        world.following.disconnected();
        world.outbox.disconnected();
        world.outbox.connected(1 << 20);
        world.following.connected(&world.subjects, &mut world.outbox);
        assert_eq!(world.done().0, 4);
        assert_eq!(world.following.polled.count(), 2);
    }
}
