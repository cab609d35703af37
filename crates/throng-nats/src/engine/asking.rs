//! This node's questions to all others, and their combined answers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use throng_core::{
    Answer, ChannelName, Delivered, Later, ListPart, ListQuery, MessageId, OtherNodes, Presence,
    PresenceAsk, PresenceBusy, ScanAction, ScanTarget, Scanned, Ticket,
};

use super::asks::NodeAnswers;
use super::questions::{
    ListAnswer, ListQuestion, LogName, PresenceAnswer, Question, ReceiptAnswer, RemoteAction,
    ScanAnswer, Target,
};
use super::shared::NodeShared;
use crate::journal::{Ask, JournalEvent, NodesAnswered};

/// How long the nodes have to say who follows a channel, in milliseconds.
pub(super) const COUNT_MS: u64 = 1_000;

/// How long the nodes have to pass their connections, in milliseconds. Those who ask wait for two
/// seconds.
const SCAN_MS: u64 = 1_500;

/// The answer to a presence query, which this node and the others have a part of.
struct Gathering {
    max_users: usize,
    parts: Mutex<GatheredParts>,
}

#[derive(Default)]
struct GatheredParts {
    /// `Some(None)` if the workers of this node do not answer.
    own: Option<Option<Presence>>,
    others: Option<OtherNodes<Vec<PresenceAnswer>>>,
    /// Whether other nodes may have members that are not known here.
    lacks_members: Option<bool>,
    ticket: Option<Ticket<Presence>>,
}

impl Gathering {
    fn add(&self, add: impl FnOnce(&mut GatheredParts)) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut parts);
        if parts.own.is_none() || parts.others.is_none() || parts.lacks_members.is_none() {
            return;
        }
        let GatheredParts { own, others, lacks_members, ticket } = std::mem::take(&mut *parts);
        drop(parts);
        // Dropped, the ticket says that there is no answer.
        if let (Some(Some(own)), Some(others), Some(ticket)) = (own, others, ticket) {
            let mut all = merge(own, others, self.max_users);
            all.is_partial |= lacks_members == Some(true);
            ticket.answer(all);
        }
    }
}

/// All nodes' presence: connections add up, and each user is named once.
fn merge(own: Presence, others: OtherNodes<Vec<PresenceAnswer>>, max_users: usize) -> Presence {
    let mut connections = own.connections;
    let (mut users, mut is_cut) = (BTreeSet::from_iter(own.users), own.is_cut);
    for answer in others.found {
        // Other nodes may say anything.
        connections = connections.saturating_add(answer.connections);
        users.extend(answer.users.into_iter().map(Arc::<str>::from));
        is_cut |= answer.more;
    }
    is_cut |= users.len() > max_users;
    let users = users.into_iter().take(max_users).collect();
    Presence { connections, users, is_cut, is_partial: own.is_partial || !others.is_complete }
}

impl NodeShared {
    pub(super) fn ask(
        &self,
        question: &Question,
        (wait_ms, must_reach_all): (u64, bool),
        done: impl FnOnce(NodeAnswers) + Send + 'static,
    ) {
        self.ask_some(question, None, (wait_ms, must_reach_all), done);
    }

    /// Asks the other nodes, or only one.
    pub(super) fn ask_some(
        &self,
        question: &Question,
        only: Option<Box<str>>,
        (wait_ms, must_reach_all): (u64, bool),
        done: impl FnOnce(NodeAnswers) + Send + 'static,
    ) {
        // Names and numbers always become JSON.
        let question = serde_json::to_vec(question).unwrap_or_default();
        let token = self.token();
        if self.asks.begin(token, Box::new(done)) {
            let ask = Ask { token, question, wait_ms, must_reach_all, only };
            self.tell(JournalEvent::Ask(ask));
        }
    }

    /// Other nodes have answered.
    pub(super) fn were_asked(&self, asked: NodesAnswered) {
        let NodesAnswered { token, answers: bytes, is_complete } = asked;
        self.asks.end(token, NodeAnswers { bytes, is_complete });
    }

    /// The subscribers of a channel, on all nodes.
    pub(super) fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        ask: PresenceAsk,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let Some(of) = LogName::of(channel) else {
            return self.memory.presence(now_ms, channel, ask, later);
        };
        let PresenceAsk { max_users, is_anew } = ask;
        let gathering = Arc::new(Gathering { max_users, parts: Mutex::default() });
        let own = Arc::clone(&gathering);
        let mut issue = || {
            let own = Arc::clone(&own);
            Ticket::new(move |presence| own.add(|parts| parts.own = Some(presence)))
        };
        let asked = self.memory.presence(now_ms, channel, ask, Later::new(&mut issue))?;
        if let Answer::Now(presence) = asked {
            gathering.add(|parts| parts.own = Some(Some(presence)));
        }
        let (ticket, answer) = later.ticket();
        gathering.add(|parts| parts.ticket = Some(ticket));
        self.know_members(now_ms, channel, &gathering);
        let question = Question::Presence { of, users: max_users, anew: is_anew };
        self.ask(&question, (COUNT_MS, false), move |answers| {
            gathering.add(|parts| parts.others = Some(answers.read()));
        });
        Ok(answer)
    }

    /// Has the members on other nodes known here, if the channel has any.
    fn know_members(&self, now_ms: u64, channel: &ChannelName, gathering: &Arc<Gathering>) {
        let lacks = |lacks: Option<bool>| {
            let lacks = Some(lacks.unwrap_or(true));
            move |parts: &mut GatheredParts| parts.lacks_members = lacks
        };
        let mut issue = || {
            let gathering = Arc::clone(gathering);
            Ticket::new(move |answer| gathering.add(lacks(answer)))
        };
        let ready = self.memory.members_ready(now_ms, channel, Later::new(&mut issue));
        if let Answer::Now(partial) = ready {
            gathering.add(lacks(Some(partial)));
        }
    }

    /// How many follow a channel on other nodes.
    pub(super) fn subscribers_elsewhere(
        &self,
        channel: &ChannelName,
        later: Later<'_, OtherNodes<u64>>,
    ) -> Answer<OtherNodes<u64>> {
        let Some(of) = LogName::of(channel) else { return OtherNodes::default().into() };
        let (ticket, answer) = later.ticket();
        self.ask(&Question::Subscribers(of), (COUNT_MS, false), |answers| {
            let OtherNodes { found, is_complete } = answers.read::<u64>();
            let found = found.into_iter().fold(0, u64::saturating_add);
            ticket.answer(OtherNodes { found, is_complete });
        });
        answer
    }

    /// The delivery of a message on other nodes, once it is complete there or `wait_ms` are over.
    pub(super) fn delivered_elsewhere(
        &self,
        (channel, id): (&ChannelName, MessageId),
        wait_ms: u64,
        later: Later<'_, OtherNodes<Delivered>>,
    ) -> Answer<OtherNodes<Delivered>> {
        let Some(of) = LogName::of(channel) else { return OtherNodes::default().into() };
        let (ticket, answer) = later.ticket();
        let question = Question::Receipt { of, id: id.to_string(), wait_ms };
        self.ask(&question, (wait_ms + COUNT_MS, false), |answers| {
            let OtherNodes { found, is_complete } = answers.read::<ReceiptAnswer>();
            let found = found.into_iter().map(Delivered::from);
            let found = found.fold(Delivered::default(), Delivered::plus);
            ticket.answer(OtherNodes { found, is_complete });
        });
        answer
    }

    /// The parts of a page of a list that other nodes have.
    pub(super) fn list_elsewhere(
        &self,
        query: &ListQuery,
        later: Later<'_, OtherNodes<Vec<ListPart>>>,
    ) -> Answer<OtherNodes<Vec<ListPart>>> {
        let (ticket, answer) = later.ticket();
        let (question, kind) = (Question::List(ListQuestion::of(query)), query.kind);
        self.ask(&question, (COUNT_MS, false), move |answers| {
            let OtherNodes { found, is_complete } = answers.read::<ListAnswer>();
            let all = found.len();
            let found: Vec<_> = found.into_iter().filter_map(|answer| answer.part(kind)).collect();
            let is_complete = is_complete && found.len() == all;
            ticket.answer(OtherNodes { found, is_complete });
        });
        answer
    }

    /// Tells the other nodes what clients use here, if it is time.
    pub(super) fn tell_use(&self, now_ms: u64) {
        self.usage.expire(now_ms);
        let others = self.link.nodes() as usize;
        if others == 0 || !self.link.is_open() {
            return;
        }
        let Some(report) = self.usage.due(now_ms, others + 1) else { return };
        let (node, report) = (self.name.clone(), STANDARD.encode(report));
        self.ask(&Question::Use { node, report }, (COUNT_MS, false), drop);
    }

    /// Has other nodes pass their connections.
    pub(super) fn scan_elsewhere(
        &self,
        (target, action): (&ScanTarget, &ScanAction),
        later: Later<'_, OtherNodes<Scanned>>,
    ) -> Answer<OtherNodes<Scanned>> {
        let (Some(of), Some(todo)) = (Target::of(target), RemoteAction::of(action)) else {
            return OtherNodes::default().into();
        };
        // Closing connections must report each node that may not have heard of it.
        let must_reach_all = matches!(action, ScanAction::Close(_));
        let question = Question::Scan { target: of, action: todo };
        let (ticket, answer) = later.ticket();
        self.ask(&question, (SCAN_MS, must_reach_all), |answers| {
            let OtherNodes { found, is_complete } = answers.read::<ScanAnswer>();
            let mut all = Scanned::default();
            for Scanned { count, connections } in found.into_iter().map(ScanAnswer::scanned) {
                all.count = all.count.saturating_add(count);
                all.connections.extend(connections);
            }
            ticket.answer(OtherNodes { found: all, is_complete });
        });
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_several_nodes_are_named_once() {
        let own = |is_cut| Presence {
            connections: 2,
            users: vec!["bo".into(), "ann".into()],
            is_cut,
            is_partial: false,
        };
        let of = |users: &[&str]| PresenceAnswer {
            connections: users.len(),
            users: users.iter().copied().map(Box::from).collect(),
            more: false,
        };
        let others = |is_complete| {
            let found = vec![of(&["bo", "cy"]), of(&[]), of(&["ann"])];
            OtherNodes { found, is_complete }
        };
        let merged = merge(own(false), others(true), 3);
        let users = |merged: &Presence| merged.users.iter().map(|user| user.to_string()).collect();
        assert_eq!((merged.connections, merged.is_cut, merged.is_partial), (5, false, false));
        let named: Vec<String> = users(&merged);
        assert_eq!(named, ["ann", "bo", "cy"]);
        let merged = merge(own(false), others(false), 2);
        let named: Vec<String> = users(&merged);
        assert_eq!(
            (named, merged.is_cut, merged.is_partial),
            (vec!["ann".into(), "bo".into()], true, true)
        );
        assert!(merge(own(true), others(true), 9).is_cut);
        let most = PresenceAnswer { connections: usize::MAX, ..of(&[]) };
        let merged = merge(own(false), OtherNodes { found: vec![most], is_complete: true }, 3);
        assert_eq!(merged.connections, usize::MAX);
    }
}
