//! Subscriptions to changing channels: in order, without what is gone, and with the newest value of
//! each key.

use serde_json::Value;

use super::Client;
use super::expected::{Command, Follower};
use super::message::{Content, Received};
use super::plan::{Plan, Transport};
use super::receive::{all_recovered, check_recovered};
use super::view::View;
use crate::decode::http::Head;
use crate::facts::Fact;
use crate::model::{Begin, Beginning, Model};
use crate::pipe::End;
use crate::{Check, ensure};

impl Client {
    /// Records how one of this client's subscriptions to a changing channel began.
    pub(crate) fn add_beginning(&mut self, beginning: Beginning) {
        self.engine.beginnings.push_back(beginning);
    }

    /// It follows a changing channel.
    pub(super) fn follow_changing(&mut self, begin: &Begin, wants_state: bool) -> Check {
        let beginning = self.engine.beginnings.pop_front().ok_or("no changing channel began")?;
        ensure!(beginning.topic == begin.topic, "{beginning:?} instead of {begin:?}");
        self.followers.push(Follower::new(beginning, wants_state));
        Ok(())
    }

    pub(super) fn follower_at(&self, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        self.followers.iter().position(|follower| is_it(follower.topic()))
    }

    /// The place of the subscription to a changing channel that a message is of.
    pub(super) fn follower_of(&self, received: &Received, model: &Model) -> Option<usize> {
        match &received.content {
            Content::Envelope(value) => self.changing_of(value, model),
            Content::Compact(value) => self
                .follower_at(|at| self.numbers.get(&at).is_some_and(|number| value[0] == *number)),
            Content::Exact(..) | Content::Lines(_) => None,
        }
    }

    /// Checks that a message of a changing channel may come next.
    pub(super) fn fact(&mut self, at: usize, received: &Received, view: View<'_>) -> Check {
        let topic = self.followers[at].topic();
        let (facts, model) = (&view.model.facts[topic], view.model);
        let offset = match &received.content {
            Content::Compact(value) => value[1].as_u64().unwrap_or_default(),
            Content::Envelope(value) => {
                model.offset(topic, value["id"].as_str().unwrap_or_default())?
            }
            Content::Exact(..) | Content::Lines(_) => 0,
        };
        let fact = facts.get(offset).ok_or_else(|| format!("no message is {received:?}"))?;
        let is_same = match &received.content {
            Content::Compact(value) => *value == self.compact(topic, offset, fact.shown.clone()),
            Content::Envelope(value) => *value == fact.shown,
            Content::Exact(..) | Content::Lines(_) => false,
        };
        ensure!(is_same, "{received:?} instead of {}", fact.shown);
        if let Some(id) = &received.id {
            ensure!(model.offset(topic, id)? == offset, "the id {id} of {}", fact.shown);
        }
        self.check_erased(fact)?;
        self.fact_in_order(at, fact, view)?;
        view.notes.saw(match fact {
            Fact { is_notice: true, .. } => "changing: a notice of erasure",
            Fact { key: None, .. } => "changing: a message without a key",
            fact if fact.sets_key() => "changing: a value",
            _ => "changing: a tombstone",
        });
        Ok(())
    }

    /// Checks that no message is missing before one of a changing channel, and takes that.
    pub(super) fn fact_in_order(&mut self, at: usize, fact: &Fact, view: View<'_>) -> Check {
        let (topic, offset) = (self.followers[at].topic(), fact.offset);
        let follower = &mut self.followers[at];
        let is_later = offset > follower.offset;
        ensure!(is_later, "{offset} after {} of {topic}", follower.offset);
        if let Some(end) = follower.state_end {
            let is_of_state = offset <= end && fact.key.is_some();
            ensure!(is_of_state, "{} before the state ends at {end}", fact.shown);
        }
        follower.pass(offset, view)?;
        self.messages += 1;
        Ok(())
    }

    /// A frame that was begun after a message was erased does not have it.
    fn check_erased(&self, fact: &Fact) -> Check {
        let settled = fact.erased_by.and_then(|number| self.erasures.get(number));
        let is_late = settled.is_some_and(|settled| self.piece_from >= *settled);
        // The rest of a record over TLS is sealed already.
        let is_late = is_late && self.pipe.borrow().tls.is_none();
        ensure!(!is_late, "got {}, which was erased before the frame was begun", fact.shown);
        Ok(())
    }

    /// The state of a changing channel has come.
    pub(super) fn state(&mut self, at: usize, value: &Value, view: View<'_>) -> Check {
        let follower = &mut self.followers[at];
        let end = view.model.offset(follower.topic(), value["id"].as_str().unwrap_or_default())?;
        ensure!(follower.state_end == Some(end), "{value} instead of {:?}", follower.state_end);
        follower.pass(end + 1, view)?;
        follower.offset = end;
        follower.state_end = None;
        view.notes.saw("changing: a state");
        Ok(())
    }

    /// A changing channel has ended, and with it the subscription.
    pub(super) fn over(&mut self, at: usize, value: &Value, view: View<'_>) -> Check {
        let mut follower = self.followers.remove(at);
        let topic = follower.topic();
        let end = view.model.offset(topic, value["id"].as_str().unwrap_or_default())?;
        ensure!(view.model.facts[topic].has_end(0, end), "{value}, but it has not ended");
        ensure!(follower.state_end.is_none(), "{value} before the end of its state");
        follower.pass(end + 1, view)?;
        // The client may have left it and come again meanwhile.
        let comes_again = |(_, it): &(u64, Command)| it.followed() == Some(topic);
        if !self.commands.iter().any(comes_again) {
            self.will_follow.retain(|other| *other != topic);
        }
        self.is_over = self.plan.transport != Transport::V1;
        view.notes.saw("changing: ended");
        Ok(())
    }

    /// The client leaves a channel that has ended before that.
    pub(super) fn left_ended(&self, topic: usize, value: &Value, view: View<'_>) -> Check {
        let is_gone = self.follower_at(|at| at == topic).is_none();
        let is_expected = view.model.topics[topic].is_changing && is_gone;
        ensure!(is_expected && value["code"] == "not_subscribed", "{value}");
        view.notes.saw("changing: left after its end");
        Ok(())
    }

    /// The client came to a channel that has ended, and is told so at once.
    pub(super) fn begins_at_end(&mut self, head: &Head, plan: &Plan, view: View<'_>) -> Check {
        let begins = self.take_begins(plan)?;
        check_recovered(head, plan, &begins, view)?;
        self.gaps += u64::from(all_recovered(&begins) == Some(false));
        for begin in &begins {
            let beginning = self.engine.beginnings.pop_front().ok_or("no changing channel")?;
            let has_end = view.model.facts[begin.topic].has_end(0, beginning.head);
            ensure!(has_end && !plan.state, "{head:?}, and it has not ended");
        }
        ensure!(head.header("throng-ended") == Some("true"), "{head:?}");
        view.notes.saw("changing: had ended before");
        self.requests.pop_front();
        self.is_refused = true;
        Ok(())
    }

    /// True if a changing channel that it follows has ever ended.
    pub(super) fn may_have_ended(&self, view: View<'_>) -> bool {
        let has_end = |topic: usize| view.model.facts[topic].has_end(0, u64::MAX);
        self.followers.iter().any(|follower| has_end(follower.topic()))
    }

    /// True if its only channel has ended, and it has all of it. A stream is told of that by its
    /// own end alone.
    pub(super) fn has_come_to_end(&self, view: View<'_>) -> bool {
        let [follower] = &self.followers[..] else { return false };
        let facts = &view.model.facts[follower.topic()];
        let mut ends = facts.between(0, u64::MAX).filter(|fact| fact.is_end);
        let is_stream = self.plan.transport == Transport::Stream;
        is_stream
            && follower.state_end.is_none()
            && ends.any(|end| follower.lacks(end.offset, view).is_none())
    }

    /// Checks the end of a connection whose only channel has ended.
    pub(super) fn check_end_of_channel(&mut self, end: End, view: View<'_>) -> Check {
        let is_whole = self.has_last_chunk || self.plan.is_http10;
        ensure!(is_whole || end.is_full, "the end of a channel comes within a body: {end:?}");
        view.notes.saw("changing: a stream ended with its channel");
        Ok(())
    }

    /// A changing channel that a notice is about.
    pub(super) fn changing_of(&self, value: &Value, model: &Model) -> Option<usize> {
        self.follower_at(|at| match value["number"].as_u64() {
            _ if model.topics[at].is_of_members() => false,
            Some(number) => self.numbers.get(&at) == Some(&number),
            None => value["channel"] == model.topics[at].name,
        })
    }

    /// Values were passed over for newer ones.
    pub(super) fn passed_over(&mut self, at: usize, value: &Value, view: View<'_>) -> Check {
        let count = value["count"].as_u64().ok_or_else(|| format!("not counted: {value}"))?;
        ensure!(count > 0, "nothing skipped: {value}");
        view.notes.saw("changing: values passed over");
        self.followers[at].conflated.0 += count;
        Ok(())
    }

    /// Messages are gone before a slow client got them.
    pub(super) fn lagged(&mut self, at: usize, value: &Value, view: View<'_>) -> Check {
        let follower = &mut self.followers[at];
        let to = view.model.offset(follower.topic(), value["id"].as_str().unwrap_or_default())?;
        // What is lost may have been before a backlog that another one has brought back.
        ensure!(to >= follower.offset, "{value}, but the cursor is {}", follower.offset);
        ensure!(follower.state_end.is_none(), "{value} before the state has ended");
        ensure!(follower.may_lag(view), "{value} after {}, within the limits", follower.offset);
        follower.offset = to;
        // It may lack all that there is now.
        follower.beginning.head = view.model.facts[follower.topic()].head();
        follower.beginning.backlog.clear();
        self.gaps += 1;
        view.notes.saw("changing: a gap");
        Ok(())
    }

    /// True if it may be closed for its lag on a changing channel: a state cannot go on without
    /// some of its values.
    pub(super) fn may_lag_in_state(&self, view: View<'_>) -> bool {
        // The server may have begun some of which the client has not learnt.
        let has_others = !self.engine.beginnings.is_empty();
        has_others || self.followers.iter().any(|it| it.state_end.is_some() && it.may_lag(view))
    }

    /// Checks that it has got all of changing channels that was there before a moment.
    pub(super) fn check_has_facts(&self, before_ms: u64, view: View<'_>) -> Check {
        for follower in &self.followers {
            let name = view.model.topics[follower.topic()].name;
            let facts = view.model.facts[follower.topic()].between(0, u64::MAX);
            let to = facts.take_while(|fact| fact.time_ms < before_ms).last();
            let lacks = follower.lacks(to.map_or(0, |fact| fact.offset), view);
            ensure!(lacks.is_none(), "{lacks:?} of {name} is missing after {}", follower.offset);
        }
        Ok(())
    }

    /// At rest it has got all of changing channels.
    pub(super) fn check_facts_at_rest(&self, view: View<'_>) -> Check {
        self.check_has_facts(u64::MAX, view)?;
        self.check_lists(view)?;
        for follower in &self.followers {
            let is_ended = view.model.facts[follower.topic()].is_ended;
            ensure!(!is_ended, "a subscription goes on at its end: {follower:?}");
            ensure!(follower.state_end.is_none(), "the state has not ended: {follower:?}");
            let facts = &view.model.facts[follower.topic()];
            let passed = facts.between(follower.offset, u64::MAX);
            let most = follower.conflated.1 + passed.filter(|it| it.key.is_some()).count() as u64;
            let told = follower.conflated.0;
            ensure!(told <= most, "{told} values passed over, of {most} that did not come");
        }
        Ok(())
    }

    /// Every frame that begins from now on is begun after all erasures so far.
    pub(crate) fn erasures_settled(&mut self, count: usize) {
        let written = self.read_total + self.pipe.borrow().waiting_bytes();
        self.erasures.resize(count, written);
    }

    /// The most bytes that it reads at once: at the place of an erasure, what it has got of a frame
    /// tells whether that was begun before.
    pub(super) fn bytes_to_next_erasure(&self) -> usize {
        let next = self.erasures.iter().filter(|at| **at > self.read_total).min();
        next.map_or(usize::MAX, |at| at - self.read_total)
    }
}
