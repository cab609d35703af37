//! Answers that may come later: of an access policy that calls out, of an engine that has to fetch,
//! of workers that are asked.
//!
//! A worker cannot wait for such an answer, and a task of the control plane must not hold a thread.
//! So a question comes with a [`Later`]. An immediate answer is [`Answer::Now`], which costs
//! nothing. Otherwise the [`Ticket`] is taken from the `Later`, and the answer goes through it from
//! any thread. The asker sets the deadline: an answer that comes after it is dropped. Before
//! expensive work, check that the asker still waits ([`Ticket::is_wanted`]).

use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

/// The asker of a question, to whom its share is charged: a connection, or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AskerId(u64);

impl AskerId {
    /// The server itself, which has no share.
    pub const SERVER: AskerId = AskerId(0);

    /// One that is nobody else's.
    pub fn next() -> AskerId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        AskerId(NEXT.fetch_add(1, Ordering::Relaxed) << 1 | 1)
    }

    /// The one of a connection, which `number` tells from all others of this process.
    pub const fn of_connection(number: u64) -> AskerId {
        AskerId((number + 1) << 1)
    }

    /// True if it is a client.
    pub fn is_client(self) -> bool {
        self != AskerId::SERVER
    }
}

/// The result of a question.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer<T> {
    /// The answer is there at once.
    Now(T),
    /// The answer comes through the ticket that was taken.
    Later(Promise),
}

impl<T> Answer<T> {
    /// The answer, if it is there.
    pub fn now(self) -> Option<T> {
        match self {
            Answer::Now(answer) => Some(answer),
            Answer::Later(_) => None,
        }
    }
}

impl<T> From<T> for Answer<T> {
    fn from(answer: T) -> Answer<T> {
        Answer::Now(answer)
    }
}

/// Shows that a ticket was taken. Only [`Later::ticket`] makes one.
#[derive(Debug, PartialEq, Eq)]
pub struct Promise(());

/// Allows to answer later. It makes the ticket on demand, so that an answer at once allocates
/// nothing.
pub struct Later<'a, T> {
    issue: &'a mut dyn FnMut() -> Ticket<T>,
    asker: AskerId,
}

impl<T> fmt::Debug for Later<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Later")
    }
}

impl<'a, T> Later<'a, T> {
    /// Takes the ticket from `issue` if there is need of one.
    pub fn new(issue: &'a mut dyn FnMut() -> Ticket<T>) -> Later<'a, T> {
        Later { issue, asker: AskerId::SERVER }
    }

    /// The same, of a client.
    #[must_use]
    pub fn of(self, asker: AskerId) -> Later<'a, T> {
        Later { asker, ..self }
    }

    /// The asker of the question.
    pub fn asker(&self) -> AskerId {
        self.asker
    }

    /// The ticket to answer with, and what to return until then.
    pub fn ticket(self) -> (Ticket<T>, Answer<T>) {
        ((self.issue)(), Answer::Later(Promise(())))
    }
}

/// Carries one answer to its asker. Dropped without an answer, it reports that none will come.
pub struct Ticket<T> {
    /// Called with `None` if the ticket is dropped.
    reply: Option<Box<dyn FnOnce(Option<T>) + Send>>,
    /// Kept alive by the asker while it waits, if it says so.
    asker: Option<Weak<()>>,
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ticket")
    }
}

impl<T> Ticket<T> {
    /// Calls `reply` once, on the thread that answers: with the answer, or with `None` if the
    /// ticket is dropped without one.
    pub fn new(reply: impl FnOnce(Option<T>) + Send + 'static) -> Ticket<T> {
        Ticket { reply: Some(Box::new(reply)), asker: None }
    }

    /// The ticket of an asker that waits as long as it keeps what `asker` points to.
    #[must_use]
    pub fn for_asker(mut self, asker: Weak<()>) -> Ticket<T> {
        self.asker = Some(asker);
        self
    }

    /// True unless the asker is known to have gone.
    pub fn is_wanted(&self) -> bool {
        self.asker.as_ref().is_none_or(|asker| asker.strong_count() > 0)
    }

    /// Answers the question.
    pub fn answer(mut self, answer: T) {
        if let Some(reply) = self.reply.take() {
            reply(Some(answer));
        }
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply(None);
        }
    }
}

/// Asks a question, and sends the answer whenever it comes; `None` if none will. For tests.
#[cfg(any(test, feature = "conformance"))]
pub fn ask<T: Send + 'static>(
    question: impl FnOnce(Later<'_, T>) -> Answer<T>,
) -> std::sync::mpsc::Receiver<Option<T>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut issue = || {
        let sender = sender.clone();
        // The send fails if the test has dropped its end.
        Ticket::new(move |answer| drop(sender.send(answer)))
    };
    if let Answer::Now(answer) = question(Later::new(&mut issue)) {
        sender.send(Some(answer)).expect("the receiver is here");
    }
    receiver
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn an_answer_at_once_takes_no_ticket() {
        let mut issue = || -> Ticket<u32> { panic!("no ticket is needed") };
        let at_once = |_: Later<'_, u32>| Answer::from(7);
        assert_eq!(at_once(Later::new(&mut issue)).now(), Some(7));
    }

    #[test]
    fn a_ticket_answers_once_from_any_thread() {
        let mut kept = None;
        let answers = ask(|later| {
            let (ticket, answer) = later.ticket();
            kept = Some(ticket);
            answer
        });
        assert!(answers.try_recv().is_err());
        let ticket = kept.expect("it was taken");
        std::thread::spawn(move || ticket.answer(7)).join().expect("it only answers");
        assert_eq!(answers.iter().collect::<Vec<_>>(), [Some(7)]);
    }

    #[test]
    fn a_ticket_is_wanted_while_its_asker_waits() {
        assert!(Ticket::<u32>::new(drop).is_wanted());
        let asker = Arc::new(());
        let ticket = Ticket::<u32>::new(drop).for_asker(Arc::downgrade(&asker));
        assert!(ticket.is_wanted());
        drop(asker);
        assert!(!ticket.is_wanted());
    }

    #[test]
    fn a_dropped_ticket_reports_that_no_answer_comes() {
        let answers = ask::<u32>(|later| later.ticket().1);
        assert_eq!(answers.iter().collect::<Vec<_>>(), [None]);
    }
}
