//! Carries what nodes tell each other of the members of channels, as [`MemberLink`] has it.

use std::sync::{Arc, Weak};

use throng_core::{MemberAsk, MemberChange, MemberLink};

use super::asking::COUNT_MS;
use super::asks::NodeAnswers;
use super::member_messages::{ChangeElsewhere, MembersAnswer, PartElsewhere, WantElsewhere};
use super::questions::Question;
use super::shared::NodeShared;
use crate::journal::JournalEvent;

/// The members of a node, and how the others are told of them.
pub(super) struct NodeLink(pub(super) Weak<NodeShared>);

impl MemberLink for NodeLink {
    fn tell(&self, first: u64, changes: &[MemberChange]) {
        let Some(shared) = self.0.upgrade() else { return };
        let changes = changes.iter().map(ChangeElsewhere::from).collect();
        let told = Question::MembersTold { node: shared.name.clone(), first, changes };
        // Texts and numbers always become JSON.
        shared.tell(JournalEvent::Tell(serde_json::to_vec(&told).unwrap_or_default()));
    }

    fn ask(&self, ask: MemberAsk) {
        let Some(shared) = self.0.upgrade() else { return };
        let MemberAsk { id, only, wants } = ask;
        let of = wants.into_iter().map(WantElsewhere::from).collect();
        let question = Question::Members { only: only.as_deref().map(str::to_owned), of };
        let asking = Weak::clone(&self.0);
        let done = move |answers: NodeAnswers| {
            let Some(shared) = asking.upgrade() else { return };
            let answers = answers.read::<MembersAnswer>().found.into_iter();
            let parts = |answer: MembersAnswer| {
                (answer.node, answer.parts.into_iter().map(PartElsewhere::part).collect())
            };
            shared.memory.members_answered((shared.now_ms)(), id, answers.map(parts).collect());
        };
        shared.ask_some(&question, only, (COUNT_MS, false), done);
    }
}

impl NodeShared {
    /// Has other nodes part with a user.
    pub(super) fn part_elsewhere(&self, user: &str, before_ms: u64) {
        let question = Question::PartWith { user: user.to_owned(), before_ms };
        self.ask(&question, (COUNT_MS, true), drop);
    }

    /// Another node has told of its members.
    pub(super) fn hear_members(&self, node: &str, first: u64, changes: Vec<ChangeElsewhere>) {
        let changes = changes.into_iter().map(ChangeElsewhere::change).collect();
        self.memory.hear_members((self.now_ms)(), node, first, changes);
    }

    /// Another node asks for the members here.
    pub(super) fn tell_members(
        self: &Arc<NodeShared>,
        reply: String,
        only: Option<String>,
        of: Vec<WantElsewhere>,
    ) {
        if only.is_some_and(|only| only != self.name) {
            return;
        }
        let wants = of.into_iter().map(WantElsewhere::want).collect();
        let parts = self.memory.member_parts((self.now_ms)(), wants);
        let parts = parts.iter().map(PartElsewhere::from).collect();
        self.reply(reply, &MembersAnswer { node: self.name.as_str().into(), parts });
    }
}
