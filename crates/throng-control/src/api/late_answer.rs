//! Waits for an answer that may come later: of the access policy, of the engine, of workers.

use std::time::Duration;

use throng_core::{Answer, Later, Ticket};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The answer to a question; `None` if it does not come within `max_wait`, or not at all.
pub(super) async fn within<T, E>(
    max_wait: Duration,
    question: impl FnOnce(Later<'_, T>) -> Result<Answer<T>, E>,
) -> Result<Option<T>, E>
where
    T: Send + 'static,
{
    let mut receiver = None;
    let answer = {
        let mut issue = || {
            let (sender, answered) = oneshot::channel();
            receiver = Some(answered);
            Ticket::new(move |answer| {
                // Sending fails only if the client has gone or has been refused. A sender that is
                // dropped ends the wait.
                let _ = answer.map(|answer| sender.send(answer));
            })
        };
        question(Later::new(&mut issue))?
    };
    if let Answer::Now(answer) = answer {
        return Ok(Some(answer));
    }
    // An answer comes later only through the ticket.
    let Some(receiver) = receiver else { return Ok(None) };
    Ok(timeout(max_wait, receiver).await.ok().and_then(Result::ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(3600);

    fn ask(
        max_wait: Duration,
        question: impl FnOnce(Later<'_, u32>) -> Result<Answer<u32>, &'static str>,
    ) -> Result<Option<u32>, &'static str> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(within(max_wait, question))
    }

    #[test]
    fn an_answer_is_awaited_whenever_it_comes() {
        assert_eq!(ask(LONG, |_| Ok(7.into())), Ok(Some(7)));
        assert_eq!(ask(LONG, |_| Err("refused")), Err("refused"));
        let later = ask(LONG, |later| {
            let (ticket, answer) = later.ticket();
            std::thread::spawn(|| ticket.answer(7));
            Ok(answer)
        });
        assert_eq!(later, Ok(Some(7)));
    }

    #[test]
    fn no_answer_ends_the_wait() {
        assert_eq!(ask(LONG, |later| Ok(later.ticket().1)), Ok(None), "the ticket is dropped");
        let mut kept = None;
        let late = ask(SOON, |later| {
            let (ticket, answer) = later.ticket();
            kept = Some(ticket);
            Ok(answer)
        });
        assert_eq!(late, Ok(None), "the ticket is kept for too long");
    }
}
