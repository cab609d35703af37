//! Goes on with requests and commands when their answers have come, and refuses those that have
//! waited too long.

use throng_core::{LateAnswer, PublishError, QuestionId};
use throng_wire::ErrorResponse;

use super::shown::continues;
use crate::connection::{Answers, Asked, Awaited, ConnectionId, Pending, Taken};
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// A late answer has come; `None` if there will be none.
    pub(crate) fn answered(&mut self, question: QuestionId, answer: Option<Box<LateAnswer>>) {
        // The client may have gone since it asked, or may have been refused.
        let id = self.connections().find_name(question.connection);
        let asks = |id: &ConnectionId| {
            let pending = self.connections().pending(*id);
            pending.is_some_and(|pending| pending.question == question.number)
        };
        let Some(id) = id.filter(asks) else { return self.count(Counter::UnawaitedAnswers) };
        // Refusals count where the client gets them. One that has waited in vain has counted.
        match answer.as_deref() {
            Some(LateAnswer::Keys(Err((reason, _)))) => {
                self.access.refused_credentials.count(reason);
            }
            Some(LateAnswer::Client(Err(error))) => self.charge_denial(id, error),
            _ => {}
        }
        let Some(pending) = self.connections_mut().pending_mut(id) else { return };
        match pending.take(question.part, answer.map(|answer| *answer)) {
            Taken::All => self.resume(id),
            // It may have more to keep now.
            Taken::Some => self.connections_mut().update_buffered(id),
            Taken::Refused(error) => {
                if let Awaited::Keys = pending.awaited {
                    self.access.refused_credentials.count_unanswered();
                }
                self.refuse_waiting(id, error);
            }
        }
    }

    /// The connection is due while it waits: the answer has not come in time.
    pub(crate) fn time_out_waiting(&mut self, id: ConnectionId) {
        self.count(Counter::WaitsTimedOut);
        if self.awaits_outcome(id) {
            return self.resume_without_outcome(id);
        }
        if self.connections().pending(id).is_some_and(|it| matches!(it.awaited, Awaited::Keys)) {
            self.access.refused_credentials.count_unanswered();
        }
        self.refuse_waiting(id, ErrorResponse::unanswered());
    }

    /// Answers all publications without an outcome that it is unknown. Another process cannot learn
    /// it, and must not publish them again. Commands behind them stay input.
    pub(crate) fn conclude_publications(&mut self) {
        for index in 0..self.connections().extent() {
            let id = ConnectionId::new(index);
            // Not every place of the table is taken.
            if self.connections().get(id).is_some() && self.awaits_outcome(id) {
                self.turn(|sessions| sessions.resume_without_outcome(id));
            }
        }
    }

    /// True if a publication of the connection waits for its outcome.
    fn awaits_outcome(&self, id: ConnectionId) -> bool {
        let pending = self.connections().pending(id);
        pending.is_some_and(|pending| matches!(pending.awaited, Awaited::Publish))
    }

    fn resume_without_outcome(&mut self, id: ConnectionId) {
        if let Some(pending) = self.connections_mut().pending_mut(id) {
            pending.answers.outcome = Some(Err(PublishError::Unknown));
        }
        self.resume(id);
    }

    /// Refuses what waits. A command gets an error; anything else ends its connection.
    pub(crate) fn refuse_waiting(&mut self, id: ConnectionId, error: ErrorResponse) {
        let Some(pending) = self.end_wait(id) else { return };
        match pending.asked {
            Asked::Subscription(asked) => {
                self.refuse_subscriber(id, &asked.0, asked.1.bytes(), &error);
            }
            Asked::Input(input) => self.refuse_waiting_input(id, input.borrowed(), &error),
            Asked::Many(many) => self.go_on_without(id, many, pending.answers, &error),
            Asked::Message(_) => self.refuse_message(id, &error),
            Asked::Outcome => self.conclude_message(id, Err(PublishError::Unknown)),
        }
        self.read_on(id);
    }

    /// True if a long-poll waits that goes on where another one ended.
    pub(crate) fn is_waiting_poll(&self, id: ConnectionId) -> bool {
        match self.connections().pending(id).map(|pending| &pending.asked) {
            Some(Asked::Subscription(asked)) => continues(&asked.0),
            _ => false,
        }
    }

    /// Goes on with what waits, with all the answers that it has had.
    fn resume(&mut self, id: ConnectionId) {
        let Some(pending) = self.end_wait(id) else { return };
        let answers = Answers { has_waited: true, ..pending.answers };
        match pending.asked {
            Asked::Subscription(asked) => self.resume_subscription(id, &asked, answers),
            Asked::Input(input) => self.hear_again(id, input.borrowed(), answers),
            Asked::Many(many) => self.go_on_many(id, many, answers),
            Asked::Message(body) => self.publish_frame(id, body, answers),
            Asked::Outcome => {
                let outcome = answers.outcome.unwrap_or(Err(PublishError::Unknown));
                self.conclude_message(id, outcome);
            }
        }
        self.read_on(id);
    }

    /// Ends all commands about many channels of which a part is done, without waiting for any
    /// answer: another process could only begin again.
    pub(crate) fn conclude_many(&mut self) {
        for index in 0..self.connections().extent() {
            let id = ConnectionId::new(index);
            let has_begun = |pending: &Pending| match &pending.asked {
                Asked::Many(many) => many.has_begun(),
                _ => false,
            };
            // Not every place of the table is taken.
            if self.connections().get(id).is_some()
                && self.connections().pending(id).is_some_and(has_begun)
            {
                self.turn(|sessions| {
                    let pending = sessions.end_wait(id);
                    if let Some(Pending { asked: Asked::Many(many), answers, .. }) =
                        pending.map(|pending| *pending)
                    {
                        sessions.finish_many(id, many, answers);
                    }
                    sessions.read_on(id);
                });
            }
        }
    }

    /// Goes on with the message whose turn was spent, if there is one.
    pub(super) fn hear_on(&mut self, id: ConnectionId) {
        let awaited = self.connections().pending(id).map(|pending| &pending.awaited);
        if !matches!(awaited, Some(Awaited::Turn)) {
            return;
        }
        let Some(pending) = self.end_wait(id) else { return };
        self.budget().take_step();
        match pending.asked {
            Asked::Input(input) => self.hear(id, input.borrowed()),
            Asked::Many(many) => self.go_on_many(id, many, pending.answers),
            _ => debug_assert!(false, "nothing else has turns"),
        }
        self.connections_mut().trim_buffers(id);
    }

    fn end_wait(&mut self, id: ConnectionId) -> Option<Box<Pending>> {
        let pending = self.connections_mut().end_wait(id);
        debug_assert!(pending.is_some(), "{id:?} does not wait");
        self.resume_reading(id);
        pending
    }

    /// Goes on with what has come meanwhile.
    fn read_on(&mut self, id: ConnectionId) {
        self.connections_mut().trim_buffers(id);
        // Events are edge-triggered: what came while it waited raises none.
        self.defer_read(id);
    }
}
