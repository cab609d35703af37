//! Delivery: the middle one of a worker's three objects. It moves cursors: it owns the
//! subscriptions, and writes each connection the messages that it lacks.
//!
//! It stands on [`Sockets`], which it calls as its own, and knows nothing of access: whoever is
//! subscribed gets the messages. What its ends mean above is listed below it, and taken there at
//! the end of the turn: connections that are condemned, streams that have ended.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `subscriptions` | begins and ends subscriptions, finds what they are about, and their lag |
//! | `fan_out` | one slice of the fan-outs: which subscribers it visits |
//! | `deliver` | writes a subscriber the messages that it lacks |
//! | `joined`, `held` | joins what is due to a connection, of all its channels |
//! | `turns` | the order of a connection's channels, if it takes a part each time |
//! | `acks` | frames that clients acknowledge, and what waits for that |
//! | `volatile` | writes volatile messages to those that keep up |
//! | `in_order` | takes messages in the order of their stamps; positions in all channels |
//! | `long_poll` | answers long-polls |
//! | `resumable`, `unconfirmed` | what clients confirm; what dead connections leave |
//! | `members` | subscriptions of members of channels, and to them |
//! | `heartbeat` | heartbeats and pings |
//! | `notice`, `replies`, `late` | what the server says to a subscriber beside messages |
//! | `close` | the last words to a subscriber |
//! | `frozen` | channels and subscriptions as bytes |
//! | `moved` | channels that have another journal since the worker was frozen |
//! | `answer`, `batch` | parts of a slice of a fan-out |

mod acks;
mod answer;
mod batch;
mod close;
mod deliver;
mod fan_out;
mod frozen;
mod heartbeat;
mod held;
mod in_order;
mod joined;
mod late;
mod long_poll;
mod members;
mod moved;
mod notice;
mod replies;
mod resumable;
mod state;
mod subscriptions;
#[cfg(test)]
mod tests;
mod turns;
mod unconfirmed;
mod volatile;

use std::collections::HashSet;
use std::sync::Arc;

use throng_core::{
    ChannelId, Channels, LocalId, Message, Notification, ReceiptPart, SubscriptionTable, Watermark,
    WorkerQueue,
};

use crate::compression::Compression;
use crate::connection::ConnectionId;
use crate::counters::Counter;
use crate::net::Net;
use crate::settings::Settings;
use crate::setup::Setup;
use crate::sockets::{Now, Sockets};
use batch::Batch;
use heartbeat::queue::HeartbeatQueue;
pub(crate) use heartbeat::{DEFERRED_TICKS_MAX, heartbeat_bytes};
use held::HeldSubscriptions;
pub(crate) use in_order::page_before_next;
use moved::Moved;
pub(crate) use notice::write_saying;
use replies::Replies;
pub(crate) use subscriptions::{Survey, name_of};
use unconfirmed::Unconfirmed;

/// What the connections of a worker follow, and how far each has come.
pub struct Delivery<N: Net> {
    /// The connections and what is written to them.
    sockets: Sockets<N>,
    settings: Arc<Settings>,
    /// The logs that subscriptions follow, shared by all workers.
    engine: Arc<Channels>,
    compression: Arc<Compression>,
    /// Notifications for this worker.
    queue: Arc<WorkerQueue>,
    /// The subscriptions of the connections: cursors, and replay buffers of the channels.
    subscriptions: SubscriptionTable,
    heartbeats: HeartbeatQueue,
    /// Answers to the message that is acted upon, if its dialect joins them.
    replies: Replies,
    /// All messages up to this one have come: they are in the replay buffers, or were written.
    watermark: Watermark,
    /// True if any connection may follow kept channels. Only they need `watermark`.
    has_kept: bool,
    /// True if clients are told that messages come late.
    is_late: bool,
    /// Clients that have to confirm what they have had.
    unconfirmed: Unconfirmed,
    /// Subscriptions of connections whose messages are joined.
    held: HeldSubscriptions,
    /// Channels whose numbers clients do not know yet, while the worker is thawed.
    renumbered: HashSet<ChannelId>,
    /// Channels that have another journal now, while the worker is thawed.
    moved: Moved,
    /// Reused: the channels that a connection leaves, the lists of a slice of a fan-out.
    channels: Vec<ChannelId>,
    batch: Batch,
}

impl<N: Net> Delivery<N> {
    /// No subscriptions.
    pub(crate) fn new(setup: &Setup, sockets: Sockets<N>) -> Delivery<N> {
        let mut subscriptions = SubscriptionTable::new(Arc::clone(&setup.rules));
        // The limit is the whole server's. Each worker has a fixed share, so that none has to ask
        // others.
        let workers = sockets.metrics().all().workers().len().max(1);
        subscriptions.set_max_blocked_bytes(setup.settings.limits.max_blocked_bytes / workers);
        Delivery {
            sockets,
            settings: Arc::clone(&setup.settings),
            engine: Arc::clone(&setup.engine),
            compression: Arc::clone(&setup.compression),
            queue: Arc::clone(&setup.queue),
            subscriptions,
            heartbeats: HeartbeatQueue::default(),
            watermark: setup.engine.watermark(),
            has_kept: false,
            is_late: false,
            replies: Replies::default(),
            unconfirmed: Unconfirmed::default(),
            held: HeldSubscriptions::default(),
            renumbered: HashSet::new(),
            moved: Moved::default(),
            channels: Vec::new(),
            batch: Batch::default(),
        }
    }

    pub(crate) fn into_sockets(self) -> Sockets<N> {
        self.sockets
    }

    /// The subscriptions of all connections.
    pub(crate) fn cursors(&self) -> &SubscriptionTable {
        &self.subscriptions
    }

    /// Sets the time of the events that follow. It never goes back.
    pub(crate) fn set_time(&mut self, now: Now) {
        self.sockets.set_clock(now);
        self.subscriptions.set_now(now.unix_ms);
    }

    /// Releases the messages that clocks hold, once these are due. If the worker holds so much that
    /// it takes no notifications, further clocks fire early.
    pub(crate) fn fire_clocks(&mut self) {
        self.subscriptions.fire_clocks();
        while !self.takes_notifications() && !self.is_fanning_out() {
            if !self.subscriptions.fire_early() {
                return;
            }
        }
    }

    /// Lets out all that clocks hold back: connections are about to end.
    pub(crate) fn stop_clocks(&mut self) {
        while self.subscriptions.fire_early() {}
    }

    /// Number of subscriptions of all connections.
    pub fn subscriptions_in_all(&self) -> usize {
        self.subscriptions.len()
    }

    /// True if notifications are taken. They are not while fan-outs are so far behind that the
    /// replay buffers hold [`Limits::max_pending_bytes`](crate::Limits::max_pending_bytes).
    pub fn takes_notifications(&self) -> bool {
        self.subscriptions.pending_bytes() <= self.settings.limits.max_pending_bytes
    }

    /// Takes all notifications, and remembers what is settled now.
    pub(crate) fn take_queue(&mut self, notifications: &mut Vec<Notification>) {
        // Before the queue is taken: what is settled now is in it, or was taken before.
        if self.has_kept {
            self.watermark = self.engine.watermark();
        }
        let are_watched = self.queue.take(notifications);
        self.subscriptions.begin_notifications(are_watched);
    }

    /// All notifications that were taken were acted upon.
    pub(crate) fn end_notifications(&mut self) {
        self.subscriptions.end_notifications();
    }

    /// Acts on a message of a channel. An excluded connection of this worker may show in its
    /// receipt if it `shows_excluded`.
    pub(crate) fn notified_of(
        &mut self,
        local: LocalId,
        channel: ChannelId,
        message: &Arc<Message>,
        receipt: Option<ReceiptPart>,
        shows_excluded: bool,
    ) {
        if message.is_volatile() {
            return self.notified_of_volatile(local, channel, message);
        }
        // It is late: engine and worker have given its ids to another channel.
        if self.subscriptions.has_log_elsewhere(local)
            && !self.engine.is_named(channel, &message.channel)
        {
            return self.subscriptions.pass_over(message, receipt);
        }
        if let Some(part) = receipt {
            let excluded = message.extras.excluded().filter(|_| shows_excluded);
            let excluded = excluded.and_then(|name| self.follower(name, channel));
            self.subscriptions.watch(local, channel, message, excluded, part);
        }
        self.subscriptions.append(local, channel, message);
        self.end_overdue_waits();
    }

    /// Settles the receipts of messages that were written, or never will be.
    pub(crate) fn settle_receipts(&mut self) {
        while let Some((watch, fate)) = self.sockets.next_settled() {
            self.subscriptions.settle(watch, fate);
        }
    }

    /// Reports the receipts that are complete.
    pub(crate) fn report_receipts(&mut self) {
        self.subscriptions.report_receipts();
    }

    /// Counts the messages that were dropped before they were written.
    pub(crate) fn count_dropped(&self) {
        self.metrics().add(Counter::VolatileDroppedBusy, self.queue.take_volatile_lost());
        self.metrics().set_total(Counter::ReplayMessagesEvicted, self.subscriptions.dropped());
    }

    /// Does what is due in each tick.
    pub(crate) fn end_receipts(&mut self) {
        self.subscriptions.end_receipts();
        self.allow_heartbeats();
    }

    /// Limits what replay buffers hold for subscribers that do not read.
    pub(crate) fn set_max_blocked_bytes(&mut self, bytes: usize) {
        self.subscriptions.set_max_blocked_bytes(bytes);
    }

    /// Frees what the next slice can make anew, and drops the oldest messages that replay buffers
    /// hold, at most so many.
    pub(crate) fn shrink(&mut self, messages: usize) {
        self.channels = Vec::new();
        self.batch = Batch::default();
        self.subscriptions.evict_oldest(messages);
    }

    /// Panics unless the parts agree with each other. For tests: it visits all connections.
    pub fn check_invariants(&self) {
        self.sockets.check_invariants();
        let places = (0..self.connections().extent()).map(ConnectionId::new);
        let ids = places.filter(|&id| self.connections().get(id).is_some());
        let mut linked = 0;
        for id in ids {
            linked += self.subscriptions(id).count();
        }
        assert_eq!(self.subscriptions.len(), linked, "subscriptions that connections link to");
    }
}

stands_on!(Delivery, sockets: Sockets);
