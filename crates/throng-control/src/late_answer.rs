//! Waits for an answer that may come later: of the access policy, of the engine, of workers.

use std::sync::Arc;
use std::time::Duration;

use throng_core::{Answer, AskerId, Later, Ticket};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::timeout;

#[derive(Debug)]
pub(crate) enum PendingAnswer<T> {
    /// The answer was there at once.
    Answered(T),
    /// The answer is on its way. The sender is dropped if there will be none.
    Waits(oneshot::Receiver<T>, Asker),
}

/// Shows that somebody waits, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    kept: Arc<()>,
}

/// Asks a question. Does not wait.
pub(crate) fn ask<T, E>(
    question: impl FnOnce(Later<'_, T>) -> Result<Answer<T>, E>,
) -> Result<PendingAnswer<T>, E>
where
    T: Send + 'static,
{
    ask_holding(AskerId::next(), (), question)
}

/// Asks in the name of `asked_by`. Keeps `held` until there is an answer, or there can be none,
/// even if nobody waits.
pub(crate) fn ask_holding<T, E>(
    asked_by: AskerId,
    held: impl Send + 'static,
    question: impl FnOnce(Later<'_, T>) -> Result<Answer<T>, E>,
) -> Result<PendingAnswer<T>, E>
where
    T: Send + 'static,
{
    let mut held = Some(held);
    // On demand: an answer at once allocates nothing.
    let mut issued = None;
    let mut asker = None;
    let mut issue = || {
        let (sender, receiver) = oneshot::channel();
        issued = Some(receiver);
        let kept = Arc::downgrade(&asker.insert(Asker::default()).kept);
        let held = held.take();
        let ticket = Ticket::new(move |answer: Option<T>| {
            drop(held);
            // Sending fails only if the client has gone or has been refused.
            let _ = Some(sender).zip(answer).map(|(sender, answer)| sender.send(answer));
        });
        ticket.for_asker(kept)
    };
    match question(Later::new(&mut issue).of(asked_by))? {
        Answer::Now(answer) => Ok(PendingAnswer::Answered(answer)),
        Answer::Later(_) => {
            let receiver = issued.unwrap_or_else(|| oneshot::channel().1);
            Ok(PendingAnswer::Waits(receiver, asker.unwrap_or_default()))
        }
    }
}

impl<T> PendingAnswer<T> {
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, PendingAnswer::Answered(_))
    }

    /// Waits until the answer is there, for `max_wait` at most, or until it is known that there is
    /// none.
    pub(crate) async fn wait(&mut self, max_wait: Duration) {
        let PendingAnswer::Waits(receiver, _asker) = self else { return };
        match timeout(max_wait, receiver).await {
            Ok(Ok(answer)) => *self = PendingAnswer::Answered(answer),
            // It must not be asked again: this one says the same.
            Ok(Err(_)) => *self = PendingAnswer::Waits(oneshot::channel().1, Asker::default()),
            Err(_) => {}
        }
    }

    /// The answer; `None` if it does not come within `max_wait`, or not at all.
    pub(crate) async fn within(self, max_wait: Duration) -> Option<T> {
        match self {
            PendingAnswer::Answered(answer) => Some(answer),
            PendingAnswer::Waits(mut receiver, _asker) => match receiver.try_recv() {
                // Most answers to lines of a batch have come meanwhile: without a timer.
                Ok(answer) => Some(answer),
                Err(TryRecvError::Closed) => None,
                Err(TryRecvError::Empty) => {
                    timeout(max_wait, receiver).await.ok().and_then(Result::ok)
                }
            },
        }
    }
}

/// The answer to a question; `None` if it does not come within `max_wait`, or not at all.
pub(crate) async fn within<T, E>(
    max_wait: Duration,
    question: impl FnOnce(Later<'_, T>) -> Result<Answer<T>, E>,
) -> Result<Option<T>, E>
where
    T: Send + 'static,
{
    Ok(ask(question)?.within(max_wait).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(3600);

    fn ask_and_wait(
        max_wait: Duration,
        question: impl FnOnce(Later<'_, u32>) -> Result<Answer<u32>, &'static str>,
    ) -> Result<Option<u32>, &'static str> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(within(max_wait, question))
    }

    #[test]
    fn an_answer_is_awaited_whenever_it_comes() {
        assert_eq!(ask_and_wait(LONG, |_| Ok(7.into())), Ok(Some(7)));
        assert_eq!(ask_and_wait(LONG, |_| Err("refused")), Err("refused"));
        let later = ask_and_wait(LONG, |later| {
            let (ticket, answer) = later.ticket();
            assert!(ticket.is_wanted());
            std::thread::spawn(|| ticket.answer(7));
            Ok(answer)
        });
        assert_eq!(later, Ok(Some(7)));
    }

    #[test]
    fn an_answer_that_has_come_needs_no_timer() {
        // Without a driver for time, a timer would panic.
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut tickets = Vec::new();
        let mut ask_later = || {
            ask(|later: Later<'_, u32>| {
                let (ticket, answer) = later.ticket();
                tickets.push(ticket);
                Ok::<_, ()>(answer)
            })
        };
        let (answered, dropped) = (ask_later().expect("it asks"), ask_later().expect("it asks"));
        drop(tickets.pop());
        tickets.pop().expect("it was taken").answer(7);
        assert_eq!(runtime.block_on(answered.within(LONG)), Some(7));
        assert_eq!(runtime.block_on(dropped.within(LONG)), None);
    }

    #[test]
    fn a_wait_keeps_the_answer_for_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let mut kept = None;
            let mut asked = ask(|later: Later<'_, u32>| {
                let (ticket, answer) = later.ticket();
                kept = Some(ticket);
                Ok::<_, ()>(answer)
            })
            .expect("it is asked");
            asked.wait(SOON).await;
            assert!(!asked.is_answered());
            kept.take().expect("it was taken").answer(7);
            asked.wait(LONG).await;
            assert!(asked.is_answered());
            assert_eq!(asked.within(LONG).await, Some(7));
            let mut dropped =
                ask(|later: Later<'_, u32>| Ok::<_, ()>(later.ticket().1)).expect("it is asked");
            dropped.wait(LONG).await;
            assert_eq!(dropped.within(LONG).await, None);
        });
    }

    #[test]
    fn no_answer_ends_the_wait() {
        assert_eq!(
            ask_and_wait(LONG, |later| Ok(later.ticket().1)),
            Ok(None),
            "the ticket is dropped"
        );
        let mut kept = None;
        let late = ask_and_wait(SOON, |later| {
            let (ticket, answer) = later.ticket();
            kept = Some(ticket);
            Ok(answer)
        });
        assert_eq!(late, Ok(None), "the ticket is kept for too long");
        assert!(kept.is_some_and(|ticket| !ticket.is_wanted()), "nobody waits any more");
    }
}
