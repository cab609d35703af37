//! Asks the access policy and others whose answers may come later, and lets a connection wait for
//! them.
//!
//! An answer that is there at once costs nothing here. One that comes later is posted to the
//! worker's queue under the name of its question, and [`Sessions::answered`] finds what waits for
//! it.

use std::sync::Arc;

use throng_access::limit::Refusal;
use throng_access::{Action, Asker, Decision, Details, Draft, Refused};
use throng_core::{
    Answer, ChannelName, Channels, LateAnswer, Later, Listener, Notification, Outcome, Presence,
    Publication, QuestionId, Replacement, Ticket, WorkerId,
};
use throng_wire::{ErrorResponse, Labels};

use super::client::Client;
use crate::connection::{Answers, Asked, Awaited, ConnectionId, NEVER, Pending, earliest};
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;

/// Why a request, a command or a frame does not go on for now.
pub(crate) enum Stop {
    /// It is refused.
    Refused(ErrorResponse),
    /// A limit of its client is reached.
    Limited(Refusal),
    /// An answer that it needs comes later.
    Later(Wait),
}

impl From<ErrorResponse> for Stop {
    fn from(error: ErrorResponse) -> Stop {
        Stop::Refused(error)
    }
}

/// An answer that is to come.
#[derive(Debug)]
pub(crate) struct Wait {
    question: u32,
    awaited: Awaited,
}

impl Wait {
    pub(super) fn new(question: QuestionId, awaited: Awaited) -> Wait {
        Wait { question: question.number, awaited }
    }
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Stop {
        match refused {
            Refused::Error(error) => Stop::Refused(error),
            Refused::Limited(refusal) => Stop::Limited(refusal),
        }
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Limited(refusal)
    }
}

impl From<Wait> for Stop {
    fn from(wait: Wait) -> Stop {
        Stop::Later(wait)
    }
}

impl<N: Net> Sessions<N> {
    /// Asks whether a connection of `client` may do all of `actions`.
    ///
    /// # Errors
    ///
    /// Some of it is not allowed, or not decided yet.
    pub(crate) fn ask_access<'a>(
        &mut self,
        id: ConnectionId,
        client: &Client,
        details: Details<'_>,
        actions: impl Iterator<Item = Action<'a>>,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        if let Client::Viewer = client {
            answers.is_allowed = true;
            return Ok(());
        }
        let credentials = client.credentials();
        let listener = Listener::Public;
        let asker = Asker { listener, credentials, details, is_repeated: false };
        let question = self.next_question(id);
        let mut left = 0;
        for (part, action) in (0..).zip(actions) {
            match self.ask_policy(&asker, action, QuestionId { part, ..question }) {
                // After a denial, late answers about other parts find nothing that waits.
                Answer::Now(Decision::AllowedAs(content)) => answers.replacement = Some(content),
                Answer::Now(Decision::AllowedShowing { info, until_ms }) => {
                    answers.show(part, info, until_ms);
                }
                Answer::Now(decision) => {
                    answers.until_ms = earliest(answers.until_ms, decision.allowed_until_ms()?);
                }
                // No answer can come before the wait is in place: it comes through this worker's
                // own queue.
                Answer::Later(_) => left += 1,
            }
        }
        answers.is_allowed = left == 0;
        match left {
            0 => Ok(()),
            _ => Err(Wait::new(question, Awaited::Access { left }).into()),
        }
    }

    /// Asks the access policy. A late answer comes as the answer to `question`.
    pub(super) fn ask_policy(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        question: QuestionId,
    ) -> Answer<Decision> {
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let mut issue = || {
            ticket(engine, worker, question, |decision: Decision| match decision {
                Decision::AllowedAs(content) => LateAnswer::Replaced(content),
                Decision::AllowedShowing { info, until_ms } => LateAnswer::Shown { info, until_ms },
                decision => LateAnswer::Decision(decision.allowed_until_ms()),
            })
        };
        self.access.may(asker, action, Later::new(&mut issue))
    }

    /// The content of a publication, if the policy decides by it.
    ///
    /// # Errors
    ///
    /// The rules do not allow the publication whatever its content, or `parse` fails.
    pub(crate) fn draft(
        &self,
        client: &Client,
        action: Action<'_>,
        parse: impl FnOnce() -> Result<Replacement, ErrorResponse>,
    ) -> Result<Option<Replacement>, ErrorResponse> {
        let asker = Asker { credentials: client.credentials(), ..Asker::default() };
        if !self.access.reads_content(&asker, action) {
            return Ok(None);
        }
        // The error of one that may not publish is not about its content.
        self.ask_again(client, std::iter::once(action))?;
        parse().map(Some)
    }

    /// Asks again about what was allowed before the connection waited: the rules may have been
    /// replaced meanwhile. What was asked elsewhere is not asked again.
    ///
    /// # Errors
    ///
    /// The first denial.
    pub(crate) fn ask_again<'a>(
        &self,
        client: &Client,
        mut actions: impl Iterator<Item = Action<'a>>,
    ) -> Result<(), ErrorResponse> {
        if let Client::Viewer = client {
            return Ok(());
        }
        let asker =
            Asker { credentials: client.credentials(), is_repeated: true, ..Asker::default() };
        actions.try_for_each(|action| {
            let mut issue = || Ticket::new(drop);
            let answer = self.access.may(&asker, action, Later::new(&mut issue));
            answer.now().map_or(Ok(()), |decision| decision.allowed_until_ms().map(drop))
        })
    }

    /// Asks who is in a channel.
    pub(crate) fn ask_presence(
        &mut self,
        id: ConnectionId,
        channel: &ChannelName,
        max_users: usize,
    ) -> Result<Presence, Stop> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Presence);
        let later = Later::new(&mut issue);
        let asked = self.engine.presence(self.clock().unix_ms(), channel, max_users, later);
        match asked.map_err(ErrorResponse::from)? {
            Answer::Now(presence) => Ok(presence),
            Answer::Later(_) => Err(Wait::new(question, Awaited::Presence).into()),
        }
    }

    /// Publishes for a connection. Returns what became of it, or what to wait for.
    pub(crate) fn publish(
        &mut self,
        id: ConnectionId,
        publication: Publication,
    ) -> Result<Outcome, Wait> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Published);
        let later = Later::new(&mut issue);
        match self.engine.publish(self.clock().unix_ms(), publication, later) {
            Answer::Now(outcome) => Ok(outcome),
            Answer::Later(_) => Err(Wait::new(question, Awaited::Publish)),
        }
    }

    /// Lets the connection wait for an answer to what it has `asked`. Until then the worker acts on
    /// nothing that it sends.
    pub(crate) fn wait(&mut self, id: ConnectionId, wait: Wait, asked: Asked, answers: Answers) {
        self.count(Counter::Waited);
        let deadline = self.clock().deadline(self.settings.limits.wait_timeout);
        let Wait { question, awaited } = wait;
        let pending = Pending { question, asked, awaited, answers };
        self.connections_mut().begin_wait(id, pending, deadline);
    }

    /// Lets what is `asked` wait for the next turn of its connection, without a deadline.
    pub(super) fn wait_for_turn(&mut self, id: ConnectionId, asked: Asked, answers: Answers) {
        // A number that nobody answers.
        let question = self.next_question(id).number;
        let pending = Pending { question, asked, awaited: Awaited::Turn, answers };
        self.connections_mut().begin_wait(id, pending, NEVER);
        self.defer_read(id);
    }

    pub(super) fn next_question(&mut self, id: ConnectionId) -> QuestionId {
        let connection = self.connections().name(id);
        QuestionId { connection, number: self.questions.next(), part: 0 }
    }
}

/// The policy's view of the content of a publication with these labels.
pub(super) fn draft_of<'a>(content: &'a Replacement, labels: &'a Labels) -> Draft<'a> {
    let Replacement { body, content_type } = content;
    Draft { body, content_type: content_type.as_deref(), labels }
}

/// A ticket for one late answer, which is posted to the worker.
pub(super) fn ticket<T: 'static>(
    engine: &Arc<Channels>,
    worker: WorkerId,
    question: QuestionId,
    wrap: impl FnOnce(T) -> LateAnswer + Send + 'static,
) -> Ticket<T> {
    let engine = Arc::clone(engine);
    Ticket::new(move |answer: Option<T>| {
        let answer = answer.map(|answer| Box::new(wrap(answer)));
        engine.post(worker, Notification::Answer { question, answer });
    })
}
