//! Notifications from engine and control plane to a worker.
//!
//! A worker takes its notifications before it sleeps, so posting wakes it only if it sleeps: at
//! most once for any number of notifications. They arrive in the order of posting, except urgent
//! ones, which a worker whose delivery lags takes first.

mod together;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use throng_wire::ErrorResponse;

use crate::connection_name::ConnectionName;
use crate::connection_scan::{ConnectionScan, WantedTags};
use crate::id::{ChannelId, LocalId};
use crate::later::Ticket;
use crate::message::Message;
use crate::name::ChannelName;
use crate::presence::{Presence, PresenceQuery};
use crate::publication::{Outcome, Replacement};
use crate::read_marker::Marked;
use crate::reading::Fetched;
use crate::receipt::ReceiptPart;
use together::Wake;
pub use together::wake_together;

/// A message from the engine or the control plane to a worker.
#[derive(Debug)]
pub enum Notification {
    /// The log of a channel that the worker follows has grown.
    Message {
        /// The worker's id for the channel. It may be another channel's by now.
        local: LocalId,
        /// The engine's id for the channel, which tells.
        channel: ChannelId,
        message: Arc<Message>,
        /// Counts what becomes of it, if its publisher wants to know.
        receipt: Option<Box<ReceiptPart>>,
    },
    /// A client asks who is in a channel.
    Presence {
        /// The worker's id for the channel.
        local: LocalId,
        /// The engine's id for the channel.
        channel: ChannelId,
        /// To be answered even if the worker does not follow the channel any more.
        query: Arc<PresenceQuery>,
    },
    /// A client asks whether a connection follows a channel.
    Follows {
        /// The channel that the question is about.
        name: ChannelName,
        /// The engine's id for the channel. It may be another channel's by now.
        channel: ChannelId,
        /// The connection that is asked about.
        connection: ConnectionName,
        /// The tags that its session must have.
        wanted: WantedTags,
        /// To be answered in any case.
        ticket: Ticket<bool>,
    },
    /// Earlier notifications that were not settled are now.
    Settled,
    /// The subscriptions that the server keeps for a user have changed.
    Kept(Box<KeptNotice>),
    /// Pass all connections, and do what the scan says with those that it is about.
    Scan(Arc<ConnectionScan>),
    /// The late answer to a question that the worker has asked for one of its connections.
    Answer {
        /// The question that it answers.
        question: QuestionId,
        /// The answer; `None` if there will be none.
        answer: Option<Box<LateAnswer>>,
    },
    /// Accept no new subscriptions, and ask the clients to leave, at an even pace that has come to
    /// the last one after this many milliseconds.
    Leave {
        /// The time in which all are asked.
        over_ms: u64,
    },
    /// Serve as before [`Notification::Leave`].
    Stay {
        /// Dropped by each worker once it does.
        held: Arc<dyn Any + Send + Sync>,
    },
    /// Accept no new connections and no new subscriptions.
    StopAccepting,
    /// Stop accepting, deliver the accepted messages, close all connections, and end.
    Drain,
}

impl Notification {
    /// True if the worker takes it before all others, however far delivery lags.
    fn is_urgent(&self) -> bool {
        match self {
            // A revoked token must end its connections within a second.
            Notification::Scan(_) | Notification::StopAccepting | Notification::Drain => true,
            _ => false,
        }
    }
}

/// Channels that a user has begun or ceased to follow. Which of both is to be looked up: they may
/// have changed again.
#[derive(Debug)]
pub struct KeptNotice {
    pub inbox: ChannelName,
    /// The worker's id for the inbox.
    pub local: LocalId,
    /// The engine's id for the inbox.
    pub channel: ChannelId,
    /// The channels that the user has begun or ceased to follow.
    pub names: Arc<[ChannelName]>,
    /// Dropped once the worker's connections of the user follow the channels, or do no more.
    pub done: Ticket<()>,
}

/// Names a question that a worker has asked for a connection, so that a late answer finds only what
/// waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuestionId {
    /// The connection that the worker asks for. It may have gone when the answer comes.
    pub connection: ConnectionName,
    /// Tells apart what is asked for the connection one after the other.
    pub number: u32,
    /// Tells apart what is asked at the same time: the place of a channel in a request.
    pub part: u32,
}

/// An answer that was not there when the worker asked.
#[derive(Debug)]
pub enum LateAnswer {
    /// Of the access policy: until when it is allowed, in milliseconds since 1970, if that ends; or
    /// the error for the client.
    Decision(Result<Option<u64>, ErrorResponse>),
    /// Of the access policy: a subscription is allowed until then, and its client shows this to the
    /// other members of the channel.
    Shown { info: Arc<str>, until_ms: Option<u64> },
    /// Of the access policy: a publication is allowed with this content.
    Replaced(Arc<Replacement>),
    /// Of the keys that verify tokens: the token can be verified now; or the reason, which is
    /// counted, and the error for the client.
    Keys(Result<(), (&'static str, ErrorResponse)>),
    /// Of the application: who the client is, in a type that the asker knows; or the error for the
    /// client.
    Client(Result<Arc<dyn Any + Send + Sync>, ErrorResponse>),
    /// Of all workers that follow a channel.
    Presence(Presence),
    /// Of the engine: a part of a log can be read.
    Fetched(Fetched),
    /// Whether a channel exists.
    Exists(bool),
    /// Of the engine: what became of a publication.
    Published(Outcome),
    /// Of the engine: how far a user has read.
    Marker(Marked),
    /// Of the engine: what other processes have of a user's place in a channel is here.
    Bookmark(()),
    /// Of the kept subscriptions: a user's are read from the store; or the error for the client.
    Kept(Result<(), ErrorResponse>),
}

/// Messages that may wait for one worker. Beyond it publications are refused with `busy`, because
/// the worker does not keep up with delivery.
pub const QUEUE_MESSAGES_MAX: usize = 65_536;

/// Bytes of messages that may wait for one worker.
pub(crate) const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Limits of one queue, beyond which publications are refused. The defaults suit every server. They
/// are parameters because tests have to reach the limits.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    /// The maximum number of messages ([`QUEUE_MESSAGES_MAX`]).
    pub max_messages: usize,
    /// The maximum size of the messages ([`QUEUE_BYTES_MAX`]).
    pub max_bytes: usize,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        QueueLimits { max_messages: QUEUE_MESSAGES_MAX, max_bytes: QUEUE_BYTES_MAX }
    }
}

/// The notifications for one worker.
pub struct WorkerQueue {
    limits: QueueLimits,
    queue: Mutex<Vec<Notification>>,
    /// The length of `queue`, readable without the lock.
    waiting: AtomicUsize,
    /// How many of them are messages. Queries are limited elsewhere: if they counted here, a client
    /// that asks could make publications fail.
    waiting_messages: AtomicUsize,
    /// Bytes of those messages.
    waiting_bytes: AtomicUsize,
    has_receipts: AtomicBool,
    /// Deliveries of volatile messages that are not made because the queue had no room for them.
    volatile_lost: AtomicU64,
    /// True if there may be urgent notifications in the queue.
    has_urgent: AtomicBool,
    /// True if the worker will look into the queue without being woken.
    is_awake: AtomicBool,
    /// Wakes the worker, from any thread.
    wake: Wake,
}

impl std::fmt::Debug for WorkerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerQueue").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl WorkerQueue {
    /// An empty queue. `wake` wakes the sleeping worker, from any thread.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> WorkerQueue {
        WorkerQueue::with_limits(QueueLimits::default(), wake)
    }

    /// An empty queue with other limits than the default ones.
    pub fn with_limits(
        limits: QueueLimits,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> WorkerQueue {
        WorkerQueue {
            limits,
            queue: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            waiting_messages: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            has_receipts: AtomicBool::new(false),
            volatile_lost: AtomicU64::new(0),
            has_urgent: AtomicBool::new(false),
            is_awake: AtomicBool::new(false),
            wake: Arc::new(wake),
        }
    }

    /// True if another message may be posted.
    pub fn has_room(&self) -> bool {
        // Without the lock: several publishers at once may exceed the limit by a message each.
        self.waiting_messages.load(Ordering::Relaxed) < self.limits.max_messages
            && self.waiting_bytes.load(Ordering::Relaxed) < self.limits.max_bytes
    }

    /// True if a volatile message may be posted. The second half of the queue is for others: a
    /// stream of cursors does not make publications fail that are kept.
    pub(crate) fn has_room_for_volatile(&self) -> bool {
        self.waiting_messages.load(Ordering::Relaxed) < self.limits.max_messages / 2
            && self.waiting_bytes.load(Ordering::Relaxed) < self.limits.max_bytes / 2
    }

    /// Counts deliveries of a volatile message that are not made, because it has no room.
    pub(crate) fn lose_volatile(&self, deliveries: u64) {
        self.volatile_lost.fetch_add(deliveries, Ordering::Relaxed);
    }

    /// The deliveries of volatile messages that were lost since the last call.
    pub fn take_volatile_lost(&self) -> u64 {
        // Mostly there are none, and all publishers write to the cell.
        if self.volatile_lost.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.volatile_lost.swap(0, Ordering::Relaxed)
    }

    /// True if no notification waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// True if a message with a receipt waits. Right about all that was posted before a call of the
    /// engine that has returned.
    pub fn has_receipts(&self) -> bool {
        self.has_receipts.load(Ordering::Relaxed)
    }

    /// Appends a notification. Call [`WorkerQueue::wake`] afterwards.
    pub fn post(&self, notification: Notification) {
        // The counts change under the lock only, so that they agree with the queue.
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Notification::Message { message, receipt, .. } = &notification {
            if receipt.is_some() {
                self.has_receipts.store(true, Ordering::Relaxed);
            }
            self.waiting_messages.fetch_add(1, Ordering::Relaxed);
            self.waiting_bytes.fetch_add(message.weight_bytes(), Ordering::Relaxed);
        }
        if notification.is_urgent() {
            self.has_urgent.store(true, Ordering::Relaxed);
        }
        self.waiting.fetch_add(1, Ordering::Release);
        queue.push(notification);
    }

    /// Makes the worker look, if it sleeps: at once, or within [`wake_together`] when the present
    /// poll ends. Called after [`WorkerQueue::post`], without any lock held.
    pub fn wake(&self) {
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            together::wake(&self.wake);
        }
    }

    /// Moves all notifications to the end of `into`. Returns whether a message among them has a
    /// receipt. Only the worker may call this.
    pub fn take(&self, into: &mut Vec<Notification>) -> bool {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.store(0, Ordering::Relaxed);
        self.waiting_messages.store(0, Ordering::Relaxed);
        self.waiting_bytes.store(0, Ordering::Relaxed);
        let has_receipts = self.has_receipts.swap(false, Ordering::Relaxed);
        if into.is_empty() {
            std::mem::swap(into, &mut *queue);
        } else {
            into.append(&mut queue);
        }
        if queue.capacity() > 4096 {
            *queue = Vec::new();
        }
        has_receipts
    }

    /// Moves the urgent notifications to the end of `into`, ahead of all others, which stay.
    /// Only the worker calls this.
    pub fn take_urgent(&self, into: &mut Vec<Notification>) {
        if !self.has_urgent.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: what is posted from now on sets it again.
        self.has_urgent.store(false, Ordering::Relaxed);
        let urgent = queue.extract_if(.., |notification| notification.is_urgent());
        let before = into.len();
        into.extend(urgent);
        self.waiting.fetch_sub(into.len() - before, Ordering::Relaxed);
    }

    /// Makes posting wake the worker from now on, and returns whether the worker may sleep: `false`
    /// if notifications wait, and then the worker stays awake.
    pub fn prepare_to_sleep(&self) -> bool {
        // Before the look: a notification that comes after it finds the worker asleep, and wakes
        // it.
        self.is_awake.store(false, Ordering::SeqCst);
        if self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return true;
        }
        self.is_awake.store(true, Ordering::SeqCst);
        false
    }

    /// Makes posting wake the worker from now on. The worker sleeps even if notifications wait,
    /// because it cannot take them.
    pub fn force_sleep(&self) {
        self.is_awake.store(false, Ordering::SeqCst);
    }

    /// Records that the worker is awake.
    pub fn finish_sleep(&self) {
        self.is_awake.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_forced_to_sleep_is_woken_by_the_next_post() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let queue = WorkerQueue::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        queue.finish_sleep();
        queue.post(Notification::StopAccepting);
        queue.wake();
        assert!(!queue.prepare_to_sleep(), "there is notifications");
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        queue.force_sleep();
        queue.wake();
        queue.wake();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn only_a_sleeping_worker_is_woken_and_once() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let queue = WorkerQueue::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let post = || {
            queue.post(Notification::Drain);
            queue.wake();
        };
        assert!(queue.prepare_to_sleep());
        post();
        post();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(!queue.prepare_to_sleep(), "there is notifications");
        let mut notifications = Vec::new();
        queue.take(&mut notifications);
        assert_eq!(notifications.len(), 2);
        post();
        assert_eq!(woken.load(Ordering::SeqCst), 1, "it is awake");
        queue.take(&mut notifications);
        assert!(queue.prepare_to_sleep());
        post();
        assert_eq!(woken.load(Ordering::SeqCst), 2);
    }

    /// A missed wake-up would leave this test waiting for ever.
    #[test]
    fn no_wake_up_is_missed() {
        const POSTERS: usize = 3;
        const EACH: usize = 20_000;
        let (wake, woken) = std::sync::mpsc::channel();
        let queue = Arc::new(WorkerQueue::new(move || {
            let _ = wake.send(());
        }));
        let post = |queue: Arc<WorkerQueue>| {
            move || {
                for _ in 0..EACH {
                    queue.post(Notification::Drain);
                    queue.wake();
                }
            }
        };
        let posters = [(); POSTERS].map(|()| std::thread::spawn(post(Arc::clone(&queue))));
        let mut notifications = Vec::new();
        let mut taken = 0;
        loop {
            queue.take(&mut notifications);
            taken += notifications.drain(..).len();
            if taken == POSTERS * EACH {
                break;
            }
            if queue.prepare_to_sleep() {
                woken.recv().expect("the queue keeps the other end");
                queue.finish_sleep();
            }
        }
        for poster in posters {
            poster.join().expect("it only posts");
        }
        assert!(queue.has_room() && queue.prepare_to_sleep());
    }

    #[test]
    fn urgent_notifications_overtake_the_others() {
        let queue = WorkerQueue::new(|| {});
        let question = QuestionId { connection: ConnectionName::numbered(1), number: 1, part: 0 };
        let answer = || Notification::Answer { question, answer: None };
        for notification in [answer(), Notification::StopAccepting, answer(), Notification::Drain] {
            queue.post(notification);
        }
        let mut notifications = Vec::new();
        queue.take_urgent(&mut notifications);
        assert!(
            matches!(notifications[..], [Notification::StopAccepting, Notification::Drain]),
            "{notifications:?}"
        );
        queue.take_urgent(&mut notifications);
        assert!(notifications.len() == 2 && !queue.is_empty());
        queue.take(&mut notifications);
        assert!(notifications.len() == 4 && queue.is_empty());
    }

    #[test]
    fn volatile_messages_leave_half_of_the_queue_to_others() {
        let limits = QueueLimits { max_messages: 4, ..QueueLimits::default() };
        let queue = WorkerQueue::with_limits(limits, || {});
        let id = crate::MessageId { epoch: crate::Epoch::numbered(1), offset: 1 };
        let channel = crate::ChannelName::channel("a");
        let message = Arc::new(Message::new(id, 0, 0, channel, crate::Body::Text("x".into())));
        let (local, channel) = (LocalId(std::num::NonZeroU32::MIN), ChannelId(0));
        let post = || {
            let message = Arc::clone(&message);
            queue.post(Notification::Message { local, channel, message, receipt: None });
        };
        post();
        assert!(queue.has_room_for_volatile());
        post();
        assert!(!queue.has_room_for_volatile() && queue.has_room());
        queue.lose_volatile(3);
        queue.lose_volatile(4);
        assert_eq!((queue.take_volatile_lost(), queue.take_volatile_lost()), (7, 0));
    }

    #[test]
    fn room_ends_with_bytes_too_and_comes_back() {
        let queue = WorkerQueue::new(|| {});
        let message = |bytes: usize| {
            let id = crate::MessageId { epoch: crate::Epoch::numbered(1), offset: 1 };
            let body = crate::Body::Binary(vec![0; bytes].into());
            let channel = crate::ChannelName::channel("a");
            Arc::new(Message::new(id, 0, 0, channel, body))
        };
        let local = LocalId(std::num::NonZeroU32::MIN);
        let channel = ChannelId(0);
        queue.post(Notification::Message {
            local,
            channel,
            message: message(QUEUE_BYTES_MAX / 2),
            receipt: None,
        });
        assert!(queue.has_room());
        queue.post(Notification::Message {
            local,
            channel,
            message: message(QUEUE_BYTES_MAX / 2),
            receipt: None,
        });
        assert!(!queue.has_room());
        let mut notifications = Vec::new();
        queue.take(&mut notifications);
        assert!(queue.has_room());
        let small = message(1);
        for _ in 0..QUEUE_MESSAGES_MAX {
            assert!(queue.has_room());
            // Nothing but messages takes a publisher's room.
            queue.post(Notification::StopAccepting);
            queue.post(Notification::Message {
                local,
                channel,
                message: Arc::clone(&small),
                receipt: None,
            });
        }
        assert!(!queue.has_room());
        queue.take(&mut notifications);
        assert!(queue.has_room());
    }
}
