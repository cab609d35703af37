//! From engine and control plane to a worker.
//!
//! A worker that is awake looks into its mailbox before it sleeps, so posting wakes it only when it
//! sleeps: at most one wake-up for any amount of mail. The order of mail is the order of posting,
//! but for orders: a worker that is behind takes them first.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::message::Message;
use crate::presence::PresenceQuestion;
use crate::{ChannelId, LocalId};

/// What a worker is told.
#[derive(Debug)]
pub enum Mail {
    /// The log of a channel that the worker follows has grown.
    Message {
        /// Where the worker keeps the channel; stale if it follows another one there by now.
        local: LocalId,
        /// Which channel.
        channel: ChannelId,
        /// The new message.
        message: Arc<Message>,
    },
    /// Somebody asks who is in a channel.
    Presence {
        /// Where the worker keeps the channel.
        local: LocalId,
        /// Which channel.
        channel: ChannelId,
        /// The question, to be answered even if the channel is not followed any more.
        question: Arc<PresenceQuestion>,
    },
    /// Somebody asks whether a connection follows a channel.
    Follows {
        /// Which channel.
        channel: ChannelId,
        /// Which connection.
        connection: crate::ConnectionName,
        /// The question.
        question: FollowsQuestion,
    },
    /// Bytes for one connection, if it is still there: the late answer to something it asked.
    Answer {
        /// Which connection.
        connection: crate::ConnectionName,
        /// One text for it, framed by the worker.
        text: String,
    },
    /// Take no new connections and no new subscriptions.
    CloseDoors,
    /// Do so, deliver what was accepted, send everybody home, and end.
    Drain,
}

impl Mail {
    /// Whether it is for the worker itself, however far behind it is with everything else.
    fn is_order(&self) -> bool {
        matches!(self, Mail::CloseDoors | Mail::Drain)
    }
}

/// Takes the answer to [`Mail::Follows`]; dropped if there will be none.
pub struct FollowsQuestion(pub Box<dyn FnOnce(bool) + Send>);

impl std::fmt::Debug for FollowsQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FollowsQuestion")
    }
}

/// Messages that may wait for one worker: a publisher is refused beyond it, because the
/// worker does not keep up with delivery.
pub const MAIL_MAX: usize = 65_536;

/// And in bytes of message bodies.
pub const MAIL_BYTES_MAX: usize = 64 << 20;

/// What may wait in one mailbox before publishers are refused. The defaults suit every server; they
/// are parameters because tests have to reach them.
#[derive(Debug, Clone, Copy)]
pub struct MailLimits {
    /// Messages.
    pub messages_max: usize,
    /// And their bytes.
    pub bytes_max: usize,
}

impl Default for MailLimits {
    fn default() -> MailLimits {
        MailLimits { messages_max: MAIL_MAX, bytes_max: MAIL_BYTES_MAX }
    }
}

/// The inbox of one worker.
pub struct Mailbox {
    limits: MailLimits,
    queue: Mutex<Vec<Mail>>,
    waiting: AtomicUsize,
    /// Those that are messages. Questions have limits where they are asked; were they counted here,
    /// whoever asks could have publishers refused.
    waiting_messages: AtomicUsize,
    waiting_bytes: AtomicUsize,
    /// Whether there may be orders among what waits.
    has_orders: AtomicBool,
    is_awake: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// An empty mailbox. `wake` makes the sleeping worker look into it, from any thread.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Mailbox {
        Mailbox::with_limits(MailLimits::default(), wake)
    }

    /// An empty mailbox with limits of its own.
    pub fn with_limits(limits: MailLimits, wake: impl Fn() + Send + Sync + 'static) -> Mailbox {
        Mailbox {
            limits,
            queue: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            waiting_messages: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            has_orders: AtomicBool::new(false),
            is_awake: AtomicBool::new(false),
            wake: Box::new(wake),
        }
    }

    /// Whether the worker keeps up well enough for another message.
    pub fn has_room(&self) -> bool {
        self.waiting_messages.load(Ordering::Relaxed) < self.limits.messages_max
            && self.waiting_bytes.load(Ordering::Relaxed) < self.limits.bytes_max
    }

    /// Whether no mail waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Queues `mail`; the worker learns of it by [`Mailbox::wake`].
    pub fn post(&self, mail: Mail) {
        // Counted under the lock, as it is uncounted: the counts are those of the queue.
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Mail::Message { message, .. } = &mail {
            self.waiting_messages.fetch_add(1, Ordering::Relaxed);
            self.waiting_bytes.fetch_add(message.weight_bytes(), Ordering::Relaxed);
        }
        if mail.is_order() {
            self.has_orders.store(true, Ordering::Relaxed);
        }
        self.waiting.fetch_add(1, Ordering::Release);
        queue.push(mail);
    }

    /// Makes the worker look, if it sleeps. Called after [`Mailbox::post`], without any lock held.
    pub fn wake(&self) {
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            (self.wake)();
        }
    }

    /// Moves all mail to the end of `into`. Only the worker calls this.
    pub fn take(&self, into: &mut Vec<Mail>) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.store(0, Ordering::Relaxed);
        self.waiting_messages.store(0, Ordering::Relaxed);
        self.waiting_bytes.store(0, Ordering::Relaxed);
        if into.is_empty() {
            std::mem::swap(into, &mut *queue);
        } else {
            into.append(&mut queue);
        }
        if queue.capacity() > 4096 {
            *queue = Vec::new();
        }
    }

    /// Moves the orders to the end of `into`, ahead of all other mail, which waits on. Only the
    /// worker calls this.
    pub fn take_orders(&self, into: &mut Vec<Mail>) {
        if !self.has_orders.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_orders.store(false, Ordering::Relaxed);
        let orders = queue.extract_if(.., |mail| mail.is_order());
        let before = into.len();
        into.extend(orders);
        self.waiting.fetch_sub(into.len() - before, Ordering::Relaxed);
    }

    /// The worker is about to sleep: from now on posting wakes it. Returns whether it may sleep,
    /// that is whether there is no mail.
    pub fn doze(&self) -> bool {
        self.is_awake.store(false, Ordering::SeqCst);
        if self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return true;
        }
        self.is_awake.store(true, Ordering::SeqCst);
        false
    }

    /// The worker is about to sleep although there may be mail, which it cannot take: from now on
    /// posting wakes it.
    pub fn doze_anyway(&self) {
        self.is_awake.store(false, Ordering::SeqCst);
    }

    /// The worker has woken up.
    pub fn rouse(&self) {
        self.is_awake.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_on_its_mail_is_woken_by_more() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let mailbox = Mailbox::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        mailbox.rouse();
        mailbox.post(Mail::CloseDoors);
        mailbox.wake();
        assert!(!mailbox.doze(), "there is mail");
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        mailbox.doze_anyway();
        mailbox.wake();
        mailbox.wake();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn only_a_sleeping_worker_is_woken_and_once() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let mailbox = Mailbox::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let post = || {
            mailbox.post(Mail::Drain);
            mailbox.wake();
        };
        assert!(mailbox.doze());
        post();
        post();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(!mailbox.doze(), "there is mail");
        let mut mail = Vec::new();
        mailbox.take(&mut mail);
        assert_eq!(mail.len(), 2);
        post();
        assert_eq!(woken.load(Ordering::SeqCst), 1, "it is awake");
        mailbox.take(&mut mail);
        assert!(mailbox.doze());
        post();
        assert_eq!(woken.load(Ordering::SeqCst), 2);
    }

    /// A missed wake-up would leave this test waiting for ever.
    #[test]
    fn no_wake_up_is_missed() {
        const POSTERS: usize = 3;
        const EACH: usize = 20_000;
        let (wake, woken) = std::sync::mpsc::channel();
        let mailbox = Arc::new(Mailbox::new(move || {
            let _ = wake.send(());
        }));
        let post = |mailbox: Arc<Mailbox>| {
            move || {
                for _ in 0..EACH {
                    mailbox.post(Mail::Drain);
                    mailbox.wake();
                }
            }
        };
        let posters = [(); POSTERS].map(|()| std::thread::spawn(post(Arc::clone(&mailbox))));
        let mut mail = Vec::new();
        let mut taken = 0;
        loop {
            mailbox.take(&mut mail);
            taken += mail.drain(..).len();
            if taken == POSTERS * EACH {
                break;
            }
            if mailbox.doze() {
                woken.recv().expect("the mailbox keeps the other end");
                mailbox.rouse();
            }
        }
        for poster in posters {
            poster.join().expect("it only posts");
        }
        assert!(mailbox.has_room() && mailbox.doze());
    }

    #[test]
    fn orders_go_before_other_mail() {
        let mailbox = Mailbox::new(|| {});
        let connection = crate::ConnectionName(1);
        let answer = || Mail::Answer { connection, text: String::new() };
        for mail in [answer(), Mail::CloseDoors, answer(), Mail::Drain] {
            mailbox.post(mail);
        }
        let mut mail = Vec::new();
        mailbox.take_orders(&mut mail);
        assert!(matches!(mail[..], [Mail::CloseDoors, Mail::Drain]), "{mail:?}");
        mailbox.take_orders(&mut mail);
        assert!(mail.len() == 2 && !mailbox.is_empty());
        mailbox.take(&mut mail);
        assert!(mail.len() == 4 && mailbox.is_empty());
    }

    #[test]
    fn room_ends_with_bytes_too_and_comes_back() {
        let mailbox = Mailbox::new(|| {});
        let message = |bytes: usize| {
            let id = crate::MessageId { epoch: crate::Epoch::numbered(1), offset: 1 };
            let body = crate::Body::Binary(vec![0; bytes].into());
            let channel = crate::ChannelName::channel("a");
            Arc::new(Message::new(id, 0, 0, channel, body, None, None))
        };
        let local = LocalId(std::num::NonZeroU32::MIN);
        let channel = ChannelId(0);
        mailbox.post(Mail::Message { local, channel, message: message(MAIL_BYTES_MAX / 2) });
        assert!(mailbox.has_room());
        mailbox.post(Mail::Message { local, channel, message: message(MAIL_BYTES_MAX / 2) });
        assert!(!mailbox.has_room());
        let mut mail = Vec::new();
        mailbox.take(&mut mail);
        assert!(mailbox.has_room());
        let small = message(1);
        for _ in 0..MAIL_MAX {
            assert!(mailbox.has_room());
            // Nothing but messages takes a publisher's room.
            mailbox.post(Mail::CloseDoors);
            mailbox.post(Mail::Message { local, channel, message: Arc::clone(&small) });
        }
        assert!(!mailbox.has_room());
        mailbox.take(&mut mail);
        assert!(mailbox.has_room());
    }
}
