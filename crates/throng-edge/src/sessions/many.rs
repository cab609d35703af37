//! Commands about many channels.
//!
//! They are executed in parts, each in a turn of its own, so that ten thousand channels hold up no
//! other connection. A part looks at all subscriptions of the connection once, and not once for
//! each channel.
//!
//! # Invariants
//!
//! * The policy is asked about all channels before the first is followed, so that nothing is half
//!   done while the application decides.
//! * A connection with a command of which a part is done gets no messages: see
//!   [`Connections::holds_messages`](crate::connection::Connections::holds_messages). Its new
//!   subscriptions are blocked, and get what they lack behind the answer.
//! * No such command is frozen: [`Sessions::conclude_many`] ends all of them before.

use std::slice;

use throng_access::{Action, Asker, Decision};
use throng_core::{
    AHEAD, Answer, ChannelName, Kind, Listener, QuestionId, RefusedForMemory, StartAt,
    SubscriptionTerms,
};
use throng_dialect::Saying;
use throng_dialect::saying::Start;
use throng_wire::subscribe::Replay;
use throng_wire::v1::{Begin, Entry, List, RawValue, Verb, Wanted};
use throng_wire::{ErrorResponse, Target};

use super::ask::Wait;
use super::client::Client;
use super::fetch::Starts;
use super::join::{Joining, already_subscribed, not_subscribed, one_user, start_at, still_kept};
use crate::connection::{Answers, Asked, Awaited, ConnectionId, Many, State, earliest};
use crate::counters::Counter;
use crate::delivery::{Survey, name_of};
use crate::net::Net;
use crate::sessions::Sessions;

/// What an entry costs of the turn and of the slice, in bytes of an answer: a part of 128 is an
/// eighth of a slice.
const ENTRY_COST_BYTES: usize = 256;

/// Entries that are executed together.
#[derive(Debug, Default)]
struct Part {
    entries: Vec<Entry>,
    /// The name of each entry that has a valid one.
    names: Vec<Option<ChannelName>>,
}

/// Subscriptions of a part that nothing stands against.
#[derive(Debug, Default)]
struct Chosen {
    /// Their numbers in the list.
    numbers: Vec<u32>,
    names: Vec<ChannelName>,
    starts: Vec<StartAt>,
}

impl<N: Net> Sessions<N> {
    /// Executes a command about many channels, and answers it; lets the rest of it wait for its
    /// next turn, or for an answer. `text` is the message that it is.
    pub(super) fn begin_many(
        &mut self,
        id: ConnectionId,
        reference: Option<Box<RawValue>>,
        list: List,
        text: &[u8],
    ) {
        // It has been parsed.
        let text = String::from_utf8_lossy(text).into_owned().into_boxed_str();
        self.go_on_many(id, Box::new(Many::new(text, reference, list)), Answers::default());
    }

    /// Goes on with such a command, with the answers that it has had.
    pub(super) fn go_on_many(
        &mut self,
        id: ConnectionId,
        mut many: Box<Many>,
        mut answers: Answers,
    ) {
        // A short list is asked about and followed in one turn.
        for _ in 0..2 {
            if let Err(wait) = self.next_part(id, &mut many, &mut answers) {
                return self.wait(id, wait, Asked::Many(many), answers);
            }
            if many.is_done() {
                return self.end_many(id, &many, answers.until_ms);
            }
        }
        self.wait_for_turn(id, Asked::Many(many), answers);
    }

    /// Goes on with such a command without the answers that it has waited for.
    pub(super) fn go_on_without(
        &mut self,
        id: ConnectionId,
        mut many: Box<Many>,
        answers: Answers,
        error: &ErrorResponse,
    ) {
        many.deny_fetching(error);
        self.go_on_many(id, many, answers);
    }

    /// Ends such a command without waiting any more.
    pub(super) fn finish_many(
        &mut self,
        id: ConnectionId,
        mut many: Box<Many>,
        mut answers: Answers,
    ) {
        many.deny_fetching(&ErrorResponse::unanswered());
        while !many.is_done() {
            if self.next_part(id, &mut many, &mut answers).is_err() {
                many.deny_fetching(&ErrorResponse::unanswered());
            }
        }
        self.end_many(id, &many, answers.until_ms);
    }

    /// Executes one part.
    ///
    /// # Errors
    ///
    /// The part needs answers that come later.
    fn next_part(
        &mut self,
        id: ConnectionId,
        many: &mut Many,
        answers: &mut Answers,
    ) -> Result<(), Wait> {
        match many.verb() {
            Verb::Unsubscribe => {
                self.end_part(id, many);
                Ok(())
            }
            Verb::Subscribe if many.has_asked() => self.begin_part(id, many, answers),
            Verb::Subscribe => self.ask_part(id, many, answers),
        }
    }

    /// Writes the answer, and what the new subscriptions lack.
    fn end_many(&mut self, id: ConnectionId, many: &Many, until_ms: Option<u64>) {
        if self[id].state() != State::Streaming {
            return;
        }
        self.reply(id, &Saying::Many(&many.answer), many.reference.as_deref());
        self.flush_replies(id);
        if many.has_kept {
            self.tell_unconfirmed_numbers(id);
        }
        for (target, ending) in &many.ended {
            self.say(id, &ending.saying(target, &mut String::new()));
        }
        if many.verb() == Verb::Subscribe {
            self.flush_subscriptions(id);
            self.trim_replay_buffers(id);
            self.limit(id, until_ms);
        }
    }

    /// Asks the access policy about more entries.
    fn ask_part(
        &mut self,
        id: ConnectionId,
        many: &mut Many,
        answers: &mut Answers,
    ) -> Result<(), Wait> {
        let question = self.next_question(id);
        let (mut client, mut left, mut asked) = (None, 0, 0);
        for index in many.take_unasked(self.settings.limits.list_part) {
            asked += 1;
            // Others are refused in their turn.
            let Some(Entry { target: Some(target), wanted: Ok(_) }) = many.entry(index) else {
                continue;
            };
            let name = name_of(&target);
            let action = Action::Subscribe(&name);
            // A connection with commands has its user's name, whatever the action.
            let client = client.get_or_insert_with(|| self.client(id, action));
            let (credentials, details) = (client.credentials(), self.details(id, None));
            let listener = Listener::Public;
            let asker = Asker { listener, credentials, details, is_repeated: false };
            let part = index as u32;
            match self.ask_policy(&asker, action, QuestionId { part, ..question }) {
                Answer::Now(Decision::AllowedShowing { info, until_ms }) => {
                    many.decide(part, Ok(until_ms));
                    answers.show(part, info, until_ms);
                }
                Answer::Now(decision) => {
                    let until_ms = many.decide(part, decision.allowed_until_ms());
                    answers.until_ms = earliest(answers.until_ms, until_ms);
                }
                // Until the answer comes, which may be never.
                Answer::Later(_) => {
                    many.deny(part, ErrorResponse::unanswered());
                    left += 1;
                }
            }
        }
        self.budget().charge(asked * ENTRY_COST_BYTES);
        match left {
            0 => Ok(()),
            _ => Err(Wait::new(question, Awaited::Verdicts { left })),
        }
    }

    /// Reads the entries that are executed next. A user's inbox has a part of its own: with it
    /// begin or end the channels that the server keeps for the user.
    fn read_part(&mut self, many: &Many) -> Part {
        let mut part = Part::default();
        for index in many.next_part(self.settings.limits.list_part) {
            let Some(entry) = many.entry(index) else { break };
            let is_user = entry.target.as_ref().is_some_and(|target| target.kind == Kind::User);
            if is_user && !part.entries.is_empty() {
                break;
            }
            let target = entry.target.as_ref().filter(|_| entry.wanted.is_ok());
            part.names.push(target.map(name_of));
            part.entries.push(entry);
            if is_user {
                break;
            }
        }
        self.budget().charge(part.entries.len() * ENTRY_COST_BYTES);
        part
    }

    /// Follows the channels of the next entries.
    fn begin_part(
        &mut self,
        id: ConnectionId,
        many: &mut Many,
        answers: &mut Answers,
    ) -> Result<(), Wait> {
        let mut part = self.read_part(many);
        let chosen = self.choose(id, many, &mut part);
        let Chosen { numbers, names, starts } = &chosen;
        let user = names.first().filter(|name| name.kind() == Kind::User);
        // Other entries may be refused after a wait: answers are about those of then.
        if !answers.fetched.is_complete {
            many.note_fetching(part.entries.len(), numbers.clone());
        }
        if let Some(user) = user {
            self.await_kept(id, user.name())?;
        }
        let kept_of =
            user.filter(|user| self.has_kept_of(id, user.name()) && self.engine.fetches());
        let wanted = Starts { names, starts, kept_of: kept_of.cloned(), unread_of: None };
        self.fetch_starts(id, &wanted, &mut answers.fetched)?;
        let fetched = std::mem::take(&mut answers.fetched);
        let (mut next, has_numbers) = (0, self[id].encoding().has_numbers());
        let numbers = many.next_part(part.entries.len());
        for (number, Entry { target, wanted }) in numbers.zip(&part.entries) {
            let told = answers.shown(number as u32);
            let begun = wanted.clone().and_then(|Wanted { since, replay, pace_ms }| {
                if next % AHEAD == 0 {
                    self.look_ahead(&names[next..names.len().min(next + AHEAD)]);
                }
                let (name, start) = (&names[next], starts[next]);
                next += 1;
                many.check_fetched(number, &fetched.missing)?;
                self.limit_subscriptions(id, 1)
                    .inspect_err(|_| self.count(Counter::RefusedLimit))?;
                let member = self
                    .join_member(id, name, (None, told))
                    .inspect_err(|_| self.connections().end_subscriptions(id, 1))?;
                let terms = SubscriptionTerms { pace_ms, member, ..SubscriptionTerms::default() };
                let (position, resumes) = (fetched.position, since.is_some());
                let wants_state = replay == Some(Replay::State);
                let joining = Joining {
                    name,
                    start,
                    wants_state,
                    resumes,
                    position,
                    terms,
                    has_presence: false,
                    known: None,
                };
                Ok(self.join(id, joining))
            });
            match (begun, target) {
                (Ok(joined), Some(target)) => {
                    if let Some(subscription) = joined.subscription {
                        self.block(subscription);
                    }
                    let start = Start::of(&joined.followed);
                    let (id, head) = (start.id.to_string(), start.head.map(|it| it.to_string()));
                    let (head, recovered) = (head.as_deref(), start.recovered);
                    let number = has_numbers.then_some(start.number.0);
                    many.answer.subscribed(target, Begin { id: &id, head, recovered, number });
                    many.has_kept |= joined.has_kept;
                }
                (Ok(_), None) => debug_assert!(false, "an entry without a name is refused"),
                (Err(error), target) => self.refuse_entry(id, many, target.as_ref(), &error),
            }
        }
        many.note_done(part.entries.len());
        Ok(())
    }

    /// The subscriptions of a part that nothing stands against, in their order. The others become
    /// errors.
    fn choose(&self, id: ConnectionId, many: &Many, part: &mut Part) -> Chosen {
        let survey = self.survey(id, &part.names);
        let max_channels = self.max_channels(id);
        let is_short = self.relief.refuses(RefusedForMemory::Subscription);
        let (mut chosen, mut client) = (Chosen::default(), None);
        let numbers = many.next_part(part.entries.len());
        let numbered = numbers.zip(part.entries.iter_mut().zip(&part.names));
        for (place, (index, (entry, name))) in numbered.enumerate() {
            let (Ok(wanted), Some(name)) = (&entry.wanted, name) else { continue };
            let client = client.get_or_insert_with(|| self.client(id, Action::Subscribe(name)));
            let count = survey.asked + chosen.names.len();
            let start = match many.denial(index) {
                Some(error) => Err(error.clone()),
                None if is_short => Err(ErrorResponse::short_of_memory()),
                None if survey.found[place].is_some() || chosen.names.contains(name) => {
                    Err(already_subscribed(name))
                }
                None if name.kind() == Kind::User && survey.has_user => Err(one_user()),
                None if count >= max_channels => {
                    Err(ErrorResponse::too_many_channels(max_channels))
                }
                None => self
                    .check_channel_limits(slice::from_ref(name))
                    .and_then(|()| self.start_of(client, name, wanted)),
            };
            match start {
                Ok(start) => {
                    chosen.numbers.push(index as u32);
                    chosen.names.push(name.clone());
                    chosen.starts.push(start);
                }
                Err(error) => entry.wanted = Err(error),
            }
        }
        chosen
    }

    /// Where a subscription starts, if the present rules still allow it.
    fn start_of(
        &self,
        client: &Client,
        name: &ChannelName,
        wanted: &Wanted,
    ) -> Result<StartAt, ErrorResponse> {
        self.ask_again(client, std::iter::once(Action::Subscribe(name)))?;
        start_at(wanted.since.as_deref(), wanted.replay)
    }

    /// Ends the subscriptions of the next entries.
    fn end_part(&mut self, id: ConnectionId, many: &mut Many) {
        let part = self.read_part(many);
        let Survey { found, .. } = self.survey(id, &part.names);
        let events = self.survey_events(id, &part.names);
        let keeper = self.keeper_of(id);
        let mut ended = Vec::new();
        for (place, Entry { target, wanted }) in part.entries.iter().enumerate() {
            let end = wanted.as_ref().map_err(Clone::clone).and_then(|_| {
                let Some(target) = target else { return Ok(()) };
                let own = found[place].filter(|own| !ended.contains(own));
                let own = own.ok_or_else(|| not_subscribed(target))?;
                if self.leave_to_server(keeper.as_ref(), own, target) {
                    return Err(still_kept());
                }
                ended.extend([Some(own), events[place]].into_iter().flatten());
                if target.kind == Kind::User {
                    self.unfollow_kept(id);
                }
                Ok(())
            });
            match (end, target) {
                (Ok(()), Some(target)) => many.answer.unsubscribed(target),
                (Ok(()), None) => debug_assert!(false, "an entry without a name is refused"),
                (Err(error), target) => self.refuse_entry(id, many, target.as_ref(), &error),
            }
        }
        self.charge_departures(id, &ended);
        self.unfollow(id, &mut ended);
        many.note_done(part.entries.len());
    }

    fn refuse_entry(
        &self,
        id: ConnectionId,
        many: &mut Many,
        target: Option<&Target>,
        error: &ErrorResponse,
    ) {
        self.count(Counter::RefusedCommand);
        self.tell_refusal(id, error);
        many.answer.refused(target, error);
    }
}
