//! Asks the access policy and others whose answers may come later, and lets a connection wait for
//! them.
//!
//! An answer that is there at once costs nothing here. One that comes later is posted to the
//! worker's queue under the name of its question, and [`Worker::answered`] finds what waits for it.

use std::sync::Arc;

use throng_access::{Action, Answers, Asker, Decision, Details, Identity};
use throng_core::{
    Answer, ChannelName, Engine, LateAnswer, Later, Listener, Notification, Outcome, Presence,
    Publication, QuestionId, ReadMarker, Ticket, WorkerId,
};
use throng_wire::ErrorResponse;

use super::client::Client;
use crate::connection::{Asked, ConnectionId, FetchedParts, Pending, Stage};
use crate::counters::Counter;
use crate::net::Net;
use crate::worker::Worker;
use crate::worker::clock::ticks;

/// The access policy's decision.
pub(in crate::worker) enum Permission {
    /// All of it is allowed, until this time if there is one, in milliseconds since 1970.
    Granted(Option<u64>),
    /// Some of it is not.
    Refused(ErrorResponse),
    /// Some of it is not decided yet.
    Later(Wait),
}

/// The newest answer for a request or command that has waited.
#[derive(Debug)]
pub(in crate::worker) enum Known {
    /// It is allowed, until this time if there is one, in milliseconds since 1970.
    Allowed(Option<u64>),
    /// It is allowed, and these follow the channel that it asks about.
    Presence(Presence),
    /// It was allowed, and this became of its publication.
    Published(Outcome),
    /// The keys that may verify its token have been read; or the token is refused, if there may be
    /// another one.
    Keys(Box<Answers>),
    /// The application has said who the client is.
    Client(Arc<Identity>),
    /// It is allowed, and the engine can read this of what it reads.
    Fetched(FetchedParts),
    /// It is allowed, and so far has the user read.
    Marker(ReadMarker),
}

impl Known {
    /// When what is allowed ends, in milliseconds since 1970; `None` if it does not.
    pub(super) fn until_ms(&self) -> Option<u64> {
        match self {
            Known::Allowed(until_ms) => *until_ms,
            Known::Fetched(fetched) => fetched.until_ms,
            Known::Presence(_)
            | Known::Published(_)
            | Known::Keys(_)
            | Known::Client(_)
            | Known::Marker(_) => None,
        }
    }
}

/// Answers that are to come.
pub(in crate::worker) struct Wait {
    question: u32,
    stage: Stage,
    told: Option<Arc<Identity>>,
}

impl Wait {
    pub(super) fn new(question: QuestionId, stage: Stage) -> Wait {
        Wait { question: question.number, stage, told: None }
    }

    /// True if what is known now is no answer to it: it is about another token of the request, or
    /// for the application to say who the client is.
    pub(super) fn is_new_after(&self, known: &Known) -> bool {
        match (known, &self.stage) {
            (Known::Keys(_), Stage::Client) => true,
            (Known::Keys(before), Stage::Keys(now)) => now.wait_for_others_than(before),
            _ => false,
        }
    }

    /// True if it is for the application to say who the client is.
    pub(super) fn is_for_client(&self) -> bool {
        matches!(self.stage, Stage::Client)
    }

    /// Remembers who the client is, if the application has said it: what has waited goes on without
    /// asking it again.
    pub(super) fn of(self, client: &Client) -> Wait {
        Wait { told: client.told().cloned(), ..self }
    }
}

impl<N: Net> Worker<N> {
    /// Asks whether a connection of `client` may do all of `actions`.
    pub(in crate::worker) fn ask_access<'a>(
        &mut self,
        id: ConnectionId,
        client: &Client,
        details: Details<'_>,
        actions: impl Iterator<Item = Action<'a>>,
    ) -> Permission {
        if let Client::Viewer = client {
            return Permission::Granted(None);
        }
        let credentials = client.credentials();
        let listener = Listener::Public;
        let asker = Asker { listener, credentials, details, is_repeated: false };
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics.worker());
        let (mut left, mut until_ms) = (0, None);
        for (part, action) in (0..).zip(actions) {
            if let Err(error) = client.check_user(action) {
                return Permission::Refused(error);
            }
            let question = QuestionId { part, ..question };
            let mut issue = || {
                ticket(engine, worker, question, |decision: Decision| {
                    LateAnswer::Decision(decision.allowed_until_ms())
                })
            };
            match self.access.policy.may(&asker, action, Later::new(&mut issue)) {
                Answer::Now(decision) => match decision.allowed_until_ms() {
                    Ok(end_ms) => until_ms = earliest(until_ms, end_ms),
                    // Late answers about other parts find nothing that waits, and are dropped.
                    Err(error) => return Permission::Refused(error),
                },
                // No answer can come before the wait is in place: it comes through this worker's
                // own queue.
                Answer::Later(_) => left += 1,
            }
        }
        match left {
            0 => Permission::Granted(until_ms),
            _ => Permission::Later(Wait::new(question, Stage::Access { left, until_ms })),
        }
    }

    /// Asks again about what was allowed before the connection waited: the rules may have been
    /// replaced meanwhile. What was asked elsewhere is not asked again.
    ///
    /// # Errors
    ///
    /// The first denial.
    pub(in crate::worker) fn ask_again<'a>(
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
            client.check_user(action)?;
            let mut issue = || Ticket::new(drop);
            let answer = self.access.policy.may(&asker, action, Later::new(&mut issue));
            answer.now().map_or(Ok(()), |decision| decision.allowed_until_ms().map(drop))
        })
    }

    /// Asks who is in a channel.
    pub(in crate::worker) fn ask_presence(
        &mut self,
        id: ConnectionId,
        channel: &ChannelName,
        max_users: usize,
    ) -> Result<Result<Presence, Wait>, ErrorResponse> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics.worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Presence);
        let later = Later::new(&mut issue);
        Ok(match self.engine.presence(self.clock.unix_ms(), channel, max_users, later)? {
            Answer::Now(presence) => Ok(presence),
            Answer::Later(_) => Err(Wait::new(question, Stage::Presence)),
        })
    }

    /// Publishes for a connection. Returns what became of it, or what to wait for.
    pub(in crate::worker) fn publish(
        &mut self,
        id: ConnectionId,
        publication: Publication,
    ) -> Result<Outcome, Wait> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics.worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Published);
        let later = Later::new(&mut issue);
        match self.engine.publish(self.clock.unix_ms(), publication, later) {
            Answer::Now(outcome) => Ok(outcome),
            Answer::Later(_) => Err(Wait::new(question, Stage::Publish)),
        }
    }

    /// Lets the connection wait for answers to what it has `asked`. Until then the worker acts on
    /// nothing that it sends.
    pub(in crate::worker) fn wait(&mut self, id: ConnectionId, wait: Wait, asked: Asked) {
        self.count(Counter::Waited);
        let timeout = ticks(self.settings.limits.wait_timeout).max(1);
        let deadline = self.clock.deadline_ticks(timeout);
        let Wait { question, stage, told } = wait;
        let pending = Pending { question, asked, stage, told };
        self.connections.begin_wait(id, pending, deadline);
    }

    pub(super) fn next_question(&mut self, id: ConnectionId) -> QuestionId {
        let connection = self.connections.name(id);
        QuestionId { connection, number: self.questions.next(), part: 0 }
    }
}

/// A ticket for one late answer, which is posted to the worker.
pub(super) fn ticket<T: 'static>(
    engine: &Arc<dyn Engine>,
    worker: WorkerId,
    question: QuestionId,
    wrap: fn(T) -> LateAnswer,
) -> Ticket<T> {
    let engine = Arc::clone(engine);
    Ticket::new(move |answer: Option<T>| {
        let answer = answer.map(|answer| Box::new(wrap(answer)));
        engine.post(worker, Notification::Answer { question, answer });
    })
}

/// The earlier of two times that may be none.
pub(super) fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
