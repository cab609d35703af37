//! Where users go on whose connections have died on other nodes.
//!
//! A node tells the others which bookmarks were left with it, by keys. When a subscription begins
//! that may take one, its node asks all: one of them gives its bookmark away, the others say where
//! theirs are, so that the place is right for all of the user's pages. What a node has not heard
//! of, because it was cut off or had not started, it does not ask for. A node that stops takes its
//! bookmarks with it.

use std::sync::Arc;

use throng_core::{Answer, BookmarkKeys, ChannelName, Later, MessageId};

use super::asking::COUNT_MS;
use super::asks::NodeAnswers;
use super::bookmark_messages::{BookmarkAnswer, LeftElsewhere};
use super::questions::{LogName, Question};
use super::shared::NodeShared;
use crate::journal::JournalEvent;

impl NodeShared {
    /// As [`throng_core::journal::Cluster::tell_bookmarks`] has to.
    pub(super) fn tell_bookmarks(&self, left: &[(BookmarkKeys, u64)]) {
        if self.link.nodes() == 0 || !self.link.is_open() {
            return;
        }
        let left = left.iter().map(|(keys, for_ms)| LeftElsewhere {
            channel: keys.channel,
            user: keys.user,
            for_ms: *for_ms,
        });
        let told = Question::BookmarksLeft { node: self.name.clone(), left: left.collect() };
        // Texts and numbers always become JSON.
        self.tell(JournalEvent::Tell(serde_json::to_vec(&told).unwrap_or_default()));
    }

    pub(super) fn hear_bookmarks(&self, node: &str, left: Vec<LeftElsewhere>) {
        self.bookmarks.note((self.now_ms)(), node, left.into_iter());
    }

    pub(super) fn has_bookmarks_in(&self, now_ms: u64, channel: u64) -> bool {
        self.bookmarks.has_any_in(now_ms, channel)
    }

    /// As [`throng_core::journal::Cluster::bookmark_elsewhere`] has to.
    pub(super) fn bookmark_elsewhere(
        self: &Arc<NodeShared>,
        now_ms: u64,
        (user, channel): (&str, &ChannelName),
        later: Later<'_, ()>,
    ) -> Answer<()> {
        let keys = BookmarkKeys::of(user, channel);
        let known = self.bookmarks.nodes(now_ms, keys.user);
        let (Some((first, _)), Some(of)) = (known.first(), LogName::of(channel)) else {
            return ().into();
        };
        // One that is here is taken before others.
        let has_own = self.memory.bookmark(now_ms, user, channel).is_some();
        let from = (!has_own).then(|| first.to_string());
        let question = Question::Bookmark { of, user: user.to_owned(), from: from.clone() };
        let (ticket, answer) = later.ticket();
        let (shared, user, channel) = (Arc::clone(self), user.to_owned(), channel.clone());
        self.ask(&question, (COUNT_MS, false), move |answers| {
            shared.bring_bookmarks((&user, &channel), keys, (&known, from.as_deref()), answers);
            ticket.answer(());
        });
        answer
    }

    /// Takes over what other nodes have given and said. Of those that were `known` to have a
    /// bookmark, the ones that say so again are asked once more for the user's other pages.
    fn bring_bookmarks(
        &self,
        of: (&str, &ChannelName),
        keys: BookmarkKeys,
        (known, from): (&[(Arc<str>, u64)], Option<&str>),
        answers: NodeAnswers,
    ) {
        let now_ms = (self.now_ms)();
        let (mut places, mut is_given) = (Vec::<MessageId>::new(), false);
        let mut has_answered = from.is_none();
        self.bookmarks.forget(keys.user, known);
        for BookmarkAnswer { node, place, left_ms } in answers.read().found {
            has_answered |= from == Some(&*node);
            let Some(place) = place.and_then(|place| place.parse().ok()) else { continue };
            places.push(place);
            is_given |= from == Some(&*node);
            let left = LeftElsewhere { channel: keys.channel, user: keys.user, for_ms: left_ms };
            self.bookmarks.note(now_ms, &node, Some(left).filter(|_| left_ms > 0).into_iter());
        }
        if !has_answered {
            self.memory.note_unanswered_bookmark();
        }
        self.memory.bring_bookmarks(now_ms, of, &places, is_given);
    }

    /// Another node asks for a bookmark here.
    pub(super) fn tell_bookmark(
        &self,
        reply: String,
        (of, user): (&LogName, &str),
        from: Option<&str>,
    ) {
        let (now_ms, channel) = ((self.now_ms)(), of.name());
        let found = if from == Some(&*self.name) {
            self.memory.give_bookmark(now_ms, user, &channel)
        } else {
            self.memory.bookmark(now_ms, user, &channel)
        };
        let answer = BookmarkAnswer {
            node: self.name.as_str().into(),
            place: found.map(|place| place.to_string()),
            left_ms: self.memory.bookmark_left_ms(now_ms, user, &channel),
        };
        self.reply(reply, &answer);
    }
}
