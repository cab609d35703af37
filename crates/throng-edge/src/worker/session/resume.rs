//! Goes on with requests and commands when their answers have come, and refuses those that have
//! waited too long.

use throng_core::{LateAnswer, PublishError, QuestionId};
use throng_wire::ErrorResponse;
use throng_wire::head::{self, Limits, Parsed};
use throng_wire::subscribe::{self, Request, Route};

use super::ask::{Known, earliest};
use super::shown::continues;
use crate::connection::{Asked, ConnectionId, Pending, Stage};
use crate::counters::Counter;
use crate::net::Net;
use crate::worker::Worker;
use crate::worker::error_response::Reader;

impl<N: Net> Worker<N> {
    /// A late answer has come; `None` if there will be none.
    pub(in crate::worker) fn answered(
        &mut self,
        question: QuestionId,
        answer: Option<Box<LateAnswer>>,
    ) {
        // The client may have gone since it asked, or may have been refused.
        let id = self.connections.find_name(question.connection);
        let waiting = id.and_then(|id| Some((id, self.connections.pending_mut(id)?)));
        let waiting = waiting.filter(|(_, pending)| pending.question == question.number);
        let Some((id, pending)) = waiting else { return self.count(Counter::UnawaitedAnswers) };
        let known = match (answer.map(|answer| *answer), &mut pending.stage) {
            (None, Stage::Publish) => Known::Published(Err(PublishError::Unknown)),
            (Some(LateAnswer::Published(outcome)), Stage::Publish) => Known::Published(outcome),
            (None, _) => return self.refuse_waiting(id, ErrorResponse::unanswered()),
            // One refusal decides. The answers about other channels will find nothing that waits.
            (Some(LateAnswer::Decision(Err(error))), Stage::Access { .. }) => {
                return self.refuse_waiting(id, error);
            }
            (Some(LateAnswer::Decision(Ok(end_ms))), Stage::Access { left, until_ms }) => {
                *until_ms = earliest(*until_ms, end_ms);
                *left -= 1;
                if *left > 0 {
                    return;
                }
                Known::Allowed(*until_ms)
            }
            (Some(LateAnswer::Keys(verdict)), Stage::Keys(answers)) => {
                if let Err(error) = verdict {
                    answers.refuse_awaited(error);
                }
                Known::Keys(std::mem::take(answers))
            }
            (Some(LateAnswer::Client(Err(error))), Stage::Client) => {
                self.charge_denial(id, &error);
                return self.refuse_waiting(id, error);
            }
            (Some(LateAnswer::Client(Ok(told))), Stage::Client) => match told.downcast() {
                Ok(identity) => Known::Client(identity),
                Err(_) => {
                    debug_assert!(false, "another type than was asked for");
                    return self.refuse_waiting(id, ErrorResponse::unanswered());
                }
            },
            (Some(LateAnswer::Presence(presence)), Stage::Presence) => Known::Presence(presence),
            (Some(LateAnswer::Marker(Err(error))), Stage::Marker | Stage::Fetch { .. }) => {
                return self.refuse_waiting(id, error);
            }
            (Some(LateAnswer::Marker(Ok(marker))), Stage::Marker) => Known::Marker(marker),
            (
                Some(part @ (LateAnswer::Fetched(_) | LateAnswer::Marker(Ok(_)))),
                Stage::Fetch { left, fetched },
            ) => {
                match part {
                    LateAnswer::Marker(Ok(marker)) => fetched.unread = Some(marker.unread),
                    LateAnswer::Fetched(part) => fetched.held.push(part),
                    _ => {}
                }
                *left -= 1;
                if *left > 0 {
                    return;
                }
                Known::Fetched(std::mem::take(fetched))
            }
            (Some(answer), stage) => {
                debug_assert!(false, "{answer:?} does not answer {stage:?}");
                return;
            }
        };
        self.resume(id, known);
    }

    /// The connection is due while it waits: the answer has not come in time.
    pub(in crate::worker) fn time_out_waiting(&mut self, id: ConnectionId) {
        self.count(Counter::WaitsTimedOut);
        if self.awaits_outcome(id) {
            return self.resume(id, Known::Published(Err(PublishError::Unknown)));
        }
        self.refuse_waiting(id, ErrorResponse::unanswered());
    }

    /// Answers all publications without an outcome that it is unknown. Another process cannot learn
    /// it, and must not publish them again.
    pub(in crate::worker) fn conclude_publications(&mut self) {
        for index in 0..self.connections.extent() {
            let id = ConnectionId::new(index);
            // Not every place of the table is taken.
            if self.connections.get(id).is_some() && self.awaits_outcome(id) {
                let unknown = Known::Published(Err(PublishError::Unknown));
                self.turn(|worker| worker.resume(id, unknown));
            }
        }
    }

    /// True if a publication of the connection waits for its outcome.
    fn awaits_outcome(&self, id: ConnectionId) -> bool {
        let pending = self.connections.pending(id);
        pending.is_some_and(|pending| matches!(pending.stage, Stage::Publish))
    }

    /// Refuses what waits. A command gets an error; anything else ends its connection.
    pub(in crate::worker) fn refuse_waiting(&mut self, id: ConnectionId, error: ErrorResponse) {
        let Some(pending) = self.end_wait(id) else { return };
        match &pending.asked {
            Asked::Head(head) => match self.parse_again(head) {
                Some(request) => self.refuse_subscriber(id, &request, head, &error),
                None => self.refuse(id, &error, &Reader::default()),
            },
            Asked::Command(text) => self.refuse_command(id, text, error),
            Asked::Message(_) => self.refuse_message(id, &error),
            Asked::Outcome => self.conclude_message(id, Err(PublishError::Unknown)),
        }
        self.read_on(id);
    }

    /// True if a long-poll waits that goes on where another one ended.
    pub(in crate::worker) fn is_waiting_poll(&self, id: ConnectionId) -> bool {
        let Some(pending) = self.connections.pending(id) else { return false };
        match &pending.asked {
            Asked::Head(head) => self.parse_again(head).is_some_and(|request| continues(&request)),
            Asked::Command(_) | Asked::Message(_) | Asked::Outcome => false,
        }
    }

    /// Does what waits, with all that it has waited for.
    fn resume(&mut self, id: ConnectionId, known: Known) {
        let Some(pending) = self.end_wait(id) else { return };
        match pending.asked {
            Asked::Head(head) => match self.parse_again(&head) {
                Some(request) => self.follow_after_wait(id, &request, &head, known, pending.told),
                None => self.refuse(id, &ErrorResponse::unanswered(), &Reader::default()),
            },
            Asked::Command(text) => self.resume_command(id, &text, known),
            Asked::Message(body) => self.publish_allowed(id, body),
            Asked::Outcome => match known {
                Known::Published(outcome) => self.conclude_message(id, outcome),
                known => debug_assert!(false, "{known:?} is no outcome"),
            },
        }
        self.read_on(id);
    }

    fn end_wait(&mut self, id: ConnectionId) -> Option<Box<Pending>> {
        let pending = self.connections.end_wait(id);
        debug_assert!(pending.is_some(), "{id:?} does not wait");
        self.net.resume(&self.connections[id].socket);
        pending
    }

    /// Goes on with what has come meanwhile.
    fn read_on(&mut self, id: ConnectionId) {
        self.connections.trim_buffers(id);
        // Events are edge-triggered: what came while it waited raises none.
        self.deferred.defer_read(id, &mut self.connections);
    }

    /// The request that a head asks for, which was parsed before.
    fn parse_again(&self, bytes: &[u8]) -> Option<Box<Request>> {
        let limits = Limits { max_head_bytes: self.settings.max_head_bytes };
        let request = match head::parse(bytes, limits) {
            Ok(Parsed::Complete { head, .. }) => match subscribe::route(&head) {
                Ok(Route::Subscribe(request)) => Some(request),
                Ok(Route::Other) | Err(_) => None,
            },
            Ok(Parsed::Incomplete) | Err(_) => None,
        };
        debug_assert!(request.is_some(), "a head that has been parsed");
        request
    }
}
