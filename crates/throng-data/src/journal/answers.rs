//! The thread that delivers what is safe and answers publishers, while the next group is written.
//!
//! Groups come in their order, and so do the publications of each. Many publishers are answered
//! where that wakes them at less cost, if the server knows such a place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::{io, iter};

use super::outcome::{ChangeDone, JournalWritten, WhenDone};
use super::server::JournalServer;
use crate::logs::{Appended, Entry};

/// More publishers than this are answered elsewhere: to hand over costs as much as to wake one.
const ANSWERED_HERE_MAX: usize = 2;

/// Groups that wait at most. Then nothing more is written until one is answered.
const WAITING_MAX: usize = 2;

/// A group that is safe, and whom to tell.
pub(super) struct Safe {
    pub(super) appended: Vec<Appended>,
    pub(super) entries: Vec<Entry>,
    pub(super) done: Vec<WhenDone>,
    pub(super) changed: Vec<ChangeDone>,
    pub(super) is_stamped: bool,
}

enum KeyOrder {
    Answer(Safe),
    /// Says that everything before is answered.
    Tell(mpsc::Sender<()>),
}

/// See the module. Ends it when it is dropped, after all that waits.
pub(super) struct AnswerThread {
    orders: Option<SyncSender<KeyOrder>>,
    unanswered: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl AnswerThread {
    /// Starts the thread.
    pub(super) fn start(server: Arc<dyn JournalServer>) -> io::Result<AnswerThread> {
        let unanswered = Arc::<AtomicUsize>::default();
        let (orders, waiting) = mpsc::sync_channel(WAITING_MAX);
        let of_thread = Arc::clone(&unanswered);
        let thread = std::thread::Builder::new().name("journal-answers".into());
        let thread = thread.spawn(move || run(&*server, &of_thread, &waiting))?;
        Ok(AnswerThread { orders: Some(orders), unanswered, thread: Some(thread) })
    }

    /// How many groups are not answered, on whatever thread.
    pub(super) fn unanswered(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.unanswered)
    }

    fn send(&self, order: KeyOrder) {
        if let Some(orders) = &self.orders {
            // The thread ends only with this.
            let _ = orders.send(order);
        }
    }

    /// Delivers a group, and answers its publishers.
    pub(super) fn answer(&self, group: Safe) {
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        self.send(KeyOrder::Answer(group));
    }

    /// Waits until everything is delivered, and answered or about to be elsewhere.
    pub(super) fn wait(&self) {
        let (tell, told) = mpsc::channel();
        self.send(KeyOrder::Tell(tell));
        let _ = told.recv();
    }
}

impl Drop for AnswerThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It panics only with the process.
            let _ = thread.join();
        }
    }
}

fn run(server: &dyn JournalServer, unanswered: &Arc<AtomicUsize>, orders: &Receiver<KeyOrder>) {
    for order in orders {
        match order {
            KeyOrder::Answer(group) => answer(server, group, Unanswered(Arc::clone(unanswered))),
            KeyOrder::Tell(tell) => drop(tell.send(())),
        }
    }
}

/// A group that is not answered, until it is dropped.
struct Unanswered(Arc<AtomicUsize>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer(server: &dyn JournalServer, group: Safe, unanswered: Unanswered) {
    let Safe { appended, entries, done, changed, is_stamped } = group;
    let deliver = |(appended, entry): (Appended, &Entry)| {
        // The server's own messages have no receipts.
        let receipts = entry.publications().iter().map(|of| of.receipt.as_ref());
        let messages = appended.contents().iter().zip(receipts.chain(iter::repeat(None)));
        let deliver = messages.map(|(content, receipt)| server.deliver(content, receipt));
        let subscribers = deliver.sum();
        JournalWritten { appended, subscribers }
    };
    let written: Vec<_> = appended.into_iter().zip(&entries).map(deliver).collect();
    // First: whoever is told of a message finds it settled.
    if is_stamped {
        server.end_group();
    }
    changed.into_iter().for_each(|done| done(Ok(())));
    let are_many = done.len() > ANSWERED_HERE_MAX;
    let tell = move || {
        written.into_iter().zip(done).for_each(|(written, done)| done(Ok(written)));
        drop(unanswered);
    };
    if are_many {
        server.answer(Box::new(tell));
    } else {
        tell();
    }
}
