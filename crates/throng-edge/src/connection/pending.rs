//! A request or command that waits for answers.
//!
//! It keeps all answers that it has had, and goes on from the beginning with them: what is answered
//! is not asked again. So nothing is half done while a connection waits. Frozen state has the
//! client's bytes alone, and the process that reads it asks again.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_access::Identity;
use throng_core::{
    Body, Fetched, LateAnswer, Outcome, Presence, PublishError, ReadMarker, Replacement, Watermark,
};
use throng_wire::head::KeptHead;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse};

use super::id::Token;
use super::many::Many;

/// A client's request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Names the answers that it waits for; answers to earlier questions are not for it.
    pub(crate) question: u32,
    pub(crate) asked: Asked,
    pub(crate) awaited: Awaited,
    pub(crate) answers: Answers,
}

/// A close frame of a client, to be answered behind the messages that were published before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingClose {
    pub(crate) token: Token,
    /// The close code to answer with; `None` if the client gave none.
    pub(crate) code: Option<u16>,
}

#[derive(Debug)]
pub(crate) enum Asked {
    /// A request that subscribes, and its head.
    Subscription(Box<(Request, KeptHead)>),
    /// A message of the client, from the command on that waits.
    Input(Input<Box<[u8]>>),
    /// A command about many channels, of which a part may be done.
    Many(Box<Many>),
    /// A message to the channel of a plain WebSocket.
    Message(Body),
    /// Such a message, which the engine has: only its outcome is awaited.
    Outcome,
}

/// A message of a client, from one of its commands on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<B> {
    pub(crate) is_text: bool,
    /// The number of commands before it.
    pub(crate) commands: u32,
    pub(crate) bytes: B,
}

impl<'b> Input<&'b [u8]> {
    /// A whole message.
    pub(crate) fn new(is_text: bool, bytes: &'b [u8]) -> Input<&'b [u8]> {
        Input { is_text, commands: 0, bytes }
    }

    /// The rest behind the first command, which has `length` bytes.
    pub(crate) fn behind(self, length: usize) -> Input<&'b [u8]> {
        let bytes = self.bytes.get(length..).unwrap_or_default();
        Input { commands: self.commands + 1, bytes, ..self }
    }

    pub(crate) fn to_boxed(self) -> Input<Box<[u8]>> {
        let Input { is_text, commands, bytes } = self;
        Input { is_text, commands, bytes: bytes.into() }
    }
}

impl Input<Box<[u8]>> {
    pub(crate) fn borrowed(&self) -> Input<&[u8]> {
        Input { is_text: self.is_text, commands: self.commands, bytes: &self.bytes[..] }
    }
}

/// What a request waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// That the access policy allows all of it: so many decisions are still to come, at least one.
    Access { left: u32 },
    /// A decision of the access policy about each channel of a part; `left` are still to come.
    Verdicts { left: u32 },
    /// The keys that may verify its token.
    Keys,
    /// That the application says who the client is.
    Client,
    /// The followers of a channel.
    Presence,
    /// The outcome of its publication. The engine has it, so it must not be asked again.
    Publish,
    /// That the engine can read what the request reads, all of which is allowed: so many parts are
    /// still to come, at least one.
    Fetch { left: u32 },
    /// How far a user has read.
    Marker,
    /// That the channels that the server keeps for a user are read from its store.
    Kept,
    /// What other nodes have of its user's place in a channel.
    Bookmark,
    /// Nothing but the next turn of its connection.
    Turn,
}

/// All answers that a request, a command or a frame has had.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Answers about who its client is.
    pub(crate) identity: throng_access::Answers,
    /// True once it has waited for any of them.
    pub(crate) has_waited: bool,
    /// True once keys were read for one of its tokens.
    pub(crate) has_keys: bool,
    /// True once nothing is left to ask about its client. It is identified again all the same: its
    /// token may be revoked meanwhile.
    pub(crate) is_identified: bool,
    /// True once the access policy has allowed all of it.
    pub(crate) is_allowed: bool,
    /// The earliest end of what is allowed so far, in milliseconds since 1970.
    pub(crate) until_ms: Option<u64>,
    /// The content that its publication is allowed with, in place of its own.
    pub(crate) replacement: Option<Arc<Replacement>>,
    pub(crate) shown: ShownInfos,
    pub(crate) fetched: FetchedParts,
    pub(crate) presence: Option<Presence>,
    pub(crate) marker: Option<ReadMarker>,
    /// What became of its publication.
    pub(crate) outcome: Option<Outcome>,
}

/// What a client shows to the other members of channels, by their places in its request.
#[derive(Debug, Default)]
pub(crate) struct ShownInfos {
    by_place: BTreeMap<u32, Arc<str>>,
    bytes: usize,
}

impl ShownInfos {
    fn insert(&mut self, place: u32, info: Arc<str>) {
        self.bytes += info.len();
        let before = self.by_place.insert(place, info);
        self.bytes -= before.map_or(0, |before| before.len());
    }
}

impl Answers {
    /// The application says what the client shows to the other members of the channel in this
    /// place, and until when it may follow that.
    pub(crate) fn show(&mut self, place: u32, info: Arc<str>, until_ms: Option<u64>) {
        self.until_ms = earliest(self.until_ms, until_ms);
        self.shown.insert(place, info);
    }

    /// The application allows this part, and says more than that.
    fn allow(&mut self, part: u32, answer: LateAnswer) {
        match answer {
            LateAnswer::Shown { info, until_ms } => self.show(part, info, until_ms),
            LateAnswer::Replaced(content) => self.replacement = Some(content),
            _ => {}
        }
    }

    /// What the application has the client show in the channel in this place.
    pub(crate) fn shown(&self, place: u32) -> Option<&str> {
        self.shown.by_place.get(&place).map(|info| &**info)
    }

    /// Nothing is left to ask about the client. `told` is what the application has said of it.
    pub(crate) fn settle_identity(&mut self, told: Option<Arc<Identity>>, is_admitted: bool) {
        self.identity = throng_access::Answers::of_known(told, is_admitted);
        self.is_identified = true;
    }
}

/// The earlier of two times that may be none.
pub(crate) fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl FetchedParts {
    /// Takes a part that was fetched, or whether the channel in its place exists.
    fn take(&mut self, part: u32, answer: LateAnswer) {
        match answer {
            LateAnswer::Fetched(held) => self.held.push(held),
            LateAnswer::Exists(false) => self.missing.push(part),
            _ => {}
        }
    }

    /// Fails if a channel does not exist, and has to.
    pub(crate) fn check(&self) -> Result<(), ErrorResponse> {
        if self.missing.is_empty() { Ok(()) } else { Err(ErrorCode::NotCreated.into()) }
    }
}

/// Parts of logs that the engine has fetched for a request that is allowed.
#[derive(Debug, Default)]
pub(crate) struct FetchedParts {
    /// Keeps the parts of logs readable.
    pub(crate) held: Vec<Fetched>,
    /// Where the connection starts in the channels that the server keeps for its user.
    pub(crate) position: Option<Watermark>,
    /// How many messages the user has not read.
    pub(crate) unread: Option<u64>,
    /// The places of channels that do not exist, and have to.
    pub(crate) missing: Vec<u32>,
    /// True if the message is among the parts that tells the position.
    pub(crate) has_position: bool,
    /// True if all that the request starts with, or reads, is among the parts.
    pub(crate) is_complete: bool,
    /// Shows the engine that the connection waits for the rest.
    pub(crate) asker: Option<Arc<()>>,
    /// The channel of the request for whose bookmarks other nodes were asked last, by its place,
    /// and how often.
    pub(crate) bookmarks: (usize, u32),
}

/// The effect of an answer on what waits for it.
pub(crate) enum Taken {
    /// All that was awaited is there.
    All,
    /// More is to come.
    Some,
    /// What waits is refused.
    Refused(ErrorResponse),
}

impl Pending {
    /// Takes the answer to a part of the question; `None` if there will be none.
    pub(crate) fn take(&mut self, part: u32, answer: Option<LateAnswer>) -> Taken {
        use LateAnswer::{Bookmark, Exists, Kept, Replaced, Shown};
        if let Awaited::Verdicts { .. } = self.awaited {
            return self.take_verdict(part, answer);
        }
        let Pending { awaited, answers, .. } = self;
        match (answer, awaited) {
            (None, Awaited::Publish) => answers.outcome = Some(Err(PublishError::Unknown)),
            (None, _) => return Taken::Refused(ErrorResponse::unanswered()),
            (Some(LateAnswer::Published(outcome)), Awaited::Publish) => {
                answers.outcome = Some(outcome);
            }
            // One refusal decides. The answers about other channels will find nothing that waits.
            (Some(LateAnswer::Decision(Err(error))), Awaited::Access { .. })
            | (Some(LateAnswer::Marker(Err(error))), Awaited::Marker | Awaited::Fetch { .. })
            | (Some(LateAnswer::Kept(Err(error))), Awaited::Kept) => {
                return Taken::Refused(error);
            }
            (Some(LateAnswer::Decision(Ok(end_ms))), Awaited::Access { left }) => {
                answers.until_ms = earliest(answers.until_ms, end_ms);
                answers.is_allowed = *left == 1;
                return one_less(left);
            }
            (Some(LateAnswer::Keys(verdict)), Awaited::Keys) => {
                if let Err((_, error)) = verdict {
                    answers.identity.refuse_awaited(error);
                }
                answers.has_keys = true;
            }
            (Some(LateAnswer::Client(Err(error))), Awaited::Client) => {
                // Only a client without a token is not known. It may still show one on its
                // connection.
                if error.code != ErrorCode::Unauthorized {
                    return Taken::Refused(error);
                }
                answers.identity.deny(error);
            }
            (Some(LateAnswer::Client(Ok(told))), Awaited::Client) => match told.downcast() {
                Ok(told) => {
                    let told: Arc<Identity> = told;
                    // A client with a token was admitted before the question.
                    let is_admitted = told.is_narrowed();
                    answers.settle_identity(Some(told), is_admitted);
                }
                Err(_) => {
                    debug_assert!(false, "another type than was asked for");
                    return Taken::Refused(ErrorResponse::unanswered());
                }
            },
            (Some(answer @ (Shown { .. } | Replaced(_))), Awaited::Access { left }) => {
                answers.allow(part, answer);
                answers.is_allowed = *left == 1;
                return one_less(left);
            }
            (Some(LateAnswer::Presence(presence)), Awaited::Presence) => {
                answers.presence = Some(presence);
            }
            (Some(Kept(Ok(()))), Awaited::Kept) | (Some(Bookmark(())), Awaited::Bookmark) => {}
            (Some(LateAnswer::Marker(Ok(marker))), Awaited::Marker) => {
                answers.marker = Some(marker);
            }
            (Some(LateAnswer::Marker(Ok(marker))), Awaited::Fetch { left }) => {
                answers.fetched.unread = Some(marker.unread);
                return one_less(left);
            }
            (Some(answer @ (Exists(_) | LateAnswer::Fetched(_))), Awaited::Fetch { left }) => {
                answers.fetched.take(part, answer);
                return one_less(left);
            }
            (Some(answer), awaited) => {
                debug_assert!(false, "{answer:?} does not answer {awaited:?}");
                return Taken::Some;
            }
        }
        Taken::All
    }

    /// Takes the decision about one of many channels.
    fn take_verdict(&mut self, part: u32, answer: Option<LateAnswer>) -> Taken {
        let (Awaited::Verdicts { left }, Asked::Many(many)) = (&mut self.awaited, &mut self.asked)
        else {
            debug_assert!(false, "only a command about many channels waits for verdicts");
            return Taken::Some;
        };
        // One that is lost stays refused for now.
        let decision = match answer {
            Some(LateAnswer::Shown { info, until_ms }) => {
                self.answers.show(part, info, until_ms);
                Some(Ok(until_ms))
            }
            Some(LateAnswer::Decision(decision)) => Some(decision),
            _ => None,
        };
        if let Some(decision) = decision {
            let until_ms = many.decide(part, decision);
            self.answers.until_ms = earliest(self.answers.until_ms, until_ms);
        }
        one_less(left)
    }

    /// Memory that no other connection shares.
    pub(super) fn bytes(&self) -> usize {
        let asked = match &self.asked {
            Asked::Subscription(asked) => asked.1.bytes().len(),
            Asked::Input(input) => input.bytes.len(),
            Asked::Many(many) => many.bytes(),
            Asked::Message(body) => body.bytes().len(),
            Asked::Outcome => 0,
        };
        asked + self.answers.shown.bytes
    }
}

/// One of the answers that are still to come is there.
fn one_less(left: &mut u32) -> Taken {
    *left -= 1;
    if *left > 0 { Taken::Some } else { Taken::All }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(awaited: Awaited) -> Pending {
        let asked = Asked::Input(Input::new(true, b"{}").to_boxed());
        Pending { question: 1, asked, awaited, answers: Answers::default() }
    }

    fn decision(until_ms: Option<u64>) -> Option<LateAnswer> {
        Some(LateAnswer::Decision(Ok(until_ms)))
    }

    #[test]
    fn the_last_of_several_decisions_allows_until_the_earliest_end() {
        let mut pending = pending(Awaited::Access { left: 3 });
        assert!(matches!(pending.take(0, decision(Some(70))), Taken::Some));
        assert!(matches!(pending.take(0, decision(None)), Taken::Some));
        assert!(!pending.answers.is_allowed);
        assert!(matches!(pending.take(0, decision(Some(90))), Taken::All));
        assert!(pending.answers.is_allowed);
        assert_eq!(pending.answers.until_ms, Some(70));
    }

    #[test]
    fn what_a_client_is_to_show_counts_and_the_last_word_stands() {
        let mut pending = pending(Awaited::Access { left: 4 });
        let before = pending.bytes();
        for (part, info) in [(7, "{}"), (1, "[1]"), (7, "null")] {
            let shown = LateAnswer::Shown { info: info.into(), until_ms: None };
            assert!(matches!(pending.take(part, Some(shown)), Taken::Some));
        }
        let shown = [0, 1, 7].map(|place| pending.answers.shown(place));
        assert_eq!(shown, [None, Some("[1]"), Some("null")]);
        assert_eq!(pending.bytes(), before + 7);
    }

    #[test]
    fn one_denial_or_a_lost_answer_refuses() {
        let denied = LateAnswer::Decision(Err(ErrorResponse::unanswered()));
        for answer in [Some(denied), None] {
            let mut pending = pending(Awaited::Access { left: 2 });
            assert!(matches!(pending.take(0, answer), Taken::Refused(_)));
        }
    }

    #[test]
    fn a_lost_outcome_is_unknown() {
        let mut pending = pending(Awaited::Publish);
        assert!(matches!(pending.take(0, None), Taken::All));
        assert_eq!(pending.answers.outcome, Some(Err(PublishError::Unknown)));
    }
}
