//! The states of channels: what was read of them, pages of keys, and values that expire.

use std::convert::Infallible;
use std::sync::Arc;

use throng_core::{
    Answer, ChangeError, ChannelName, Content, KeyPage, KeyQuery, Later, Message, MessageId,
    Publication, PublishError, RENEWED_AFTER, RecordChange, StateLimits, Ticket, clock,
};

use super::collect::content;
use super::open_logs::{LogTicket, OpenLog};
use super::pending::PendingRead;
use super::rest::CountGuard;
use super::shared::NodeShared;
use super::state_reads::{StateFor, lock};
use super::under_way::Load;
use crate::api::message::StoredMessage;
use crate::journal::{JournalEvent, LogEdit, LogRequest, ReadState, StateFacts};

/// After this time a key is removed again that could not be removed.
const AGAIN_MS: u64 = 1_000;

impl NodeShared {
    /// The limits of a channel's state, if it keeps one.
    pub(super) fn state_limits(&self, channel: &ChannelName) -> Option<StateLimits> {
        Some(self.memory.rule(channel).state).filter(|state| state.max_keys > 0)
    }

    fn tell_read_state(
        &self,
        wanted: StateFor,
        (channel, page): (ChannelName, Option<KeyQuery>),
        (at_least, wants_bounds): (u64, bool),
    ) {
        let token = self.token();
        let is_of_expiring = matches!(wanted, StateFor::Node(_));
        lock(&self.states.reads).insert(token, wanted);
        let read = ReadState { token, channel, page, at_least, wants_bounds, is_of_expiring };
        self.tell(JournalEvent::ReadState(read));
    }

    /// Reads the state of the channel of a reading.
    pub(super) fn read_state(&self, read: PendingRead, about: (u64, bool)) {
        let channel = read.collect.source().channel.clone();
        self.tell_read_state(StateFor::Part(Box::new(read)), (channel, None), about);
    }

    /// Other nodes may have set values while the stream was away, and the process before knew of
    /// some.
    pub(super) fn expect_expiries(&self) {
        let mut channels = Vec::new();
        let Ok(()) = self.followed().each(|channel, entry| -> Result<(), Infallible> {
            if entry.is_live && self.state_limits(channel).is_some() {
                channels.push(channel.clone());
            }
            Ok(())
        });
        channels.iter().for_each(|channel| self.expects_expiry(channel));
    }

    /// A channel is followed: its values that expire are this node's business, too.
    pub(super) fn expects_expiry(&self, channel: &ChannelName) {
        if self.state_limits(channel).is_some() {
            let wanted = StateFor::Node(channel.clone());
            self.tell_read_state(wanted, (channel.clone(), None), (0, false));
        }
    }

    pub(super) fn keys_of(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: KeyQuery,
        later: Later<'_, Result<KeyPage, ChangeError>>,
    ) -> Answer<Result<KeyPage, ChangeError>> {
        if self.state_limits(channel).is_none() {
            return Err(PublishError::NoState.into()).into();
        }
        if !self.link.is_open() {
            return Err(PublishError::Away.into()).into();
        }
        let (ticket, answer) = later.ticket();
        let wanted = StateFor::Page(channel.clone(), now_ms, ticket);
        self.tell_read_state(wanted, (channel.clone(), Some(query)), (0, false));
        answer
    }

    /// A state was read, or cannot be.
    pub(super) fn state_was_read(self: &Arc<NodeShared>, token: u64, state: Option<StateFacts>) {
        let _answering = CountGuard::new(&self.waiting);
        let Some(wanted) = lock(&self.states.reads).remove(&token) else { return };
        let channel = match &wanted {
            StateFor::Part(read) => &read.collect.source().channel,
            StateFor::Page(channel, ..) | StateFor::Node(channel) => channel,
        };
        for stored in state.iter().flat_map(|state| &state.messages) {
            if stored.expires_in_ms.is_some()
                && let Some(content) = self.stored_content(channel, stored)
            {
                self.states.note(&content);
            }
        }
        match (wanted, state) {
            (StateFor::Part(read), Some(state)) => self.part_has_state(*read, state),
            (StateFor::Page(channel, now_ms, ticket), Some(state)) => {
                let page = self.key_page((now_ms, &channel), state);
                ticket.answer(page.ok_or_else(|| PublishError::Away.into()));
            }
            (StateFor::Page(.., ticket), None) => ticket.answer(Err(PublishError::Away.into())),
            // Dropped, a ticket says that there is no answer.
            (StateFor::Part(_) | StateFor::Node(_), _) => {}
        }
    }

    fn stored_content(&self, channel: &ChannelName, stored: &StoredMessage) -> Option<Content> {
        let (previous, time_ms) = (stored.sequence - 1, (self.from_wall_ms)(stored.wall_ms));
        Some(content(channel.clone(), self.link.epoch()?, stored.clone(), previous, time_ms))
    }

    /// `None` without an epoch.
    fn key_page(
        &self,
        (now_ms, channel): (u64, &ChannelName),
        state: StateFacts,
    ) -> Option<KeyPage> {
        let epoch = self.link.epoch()?;
        let contents = state.messages.iter().filter_map(|it| self.stored_content(channel, it));
        let mut values: Vec<_> =
            contents.filter(|it| !it.removes_key() && !it.is_expired(now_ms)).collect();
        values.sort_by(|one, other| one.key().cmp(&other.key()));
        let message = |content| Arc::new(Message::from(Arc::new(content)));
        // Without a record nothing with a key has come, up to a sequence that the stream has.
        let offset = if state.head == 0 { self.link.last() } else { state.head };
        let messages = values.into_iter().map(message).collect();
        Some(KeyPage { head: MessageId { epoch, offset }, messages, next: state.next })
    }

    /// A publication with a key is stored.
    pub(super) fn sets_key(&self, channel: &ChannelName, key: &str, (offset, for_ms): (u64, u64)) {
        let stored_ms = (self.from_wall_ms)(clock::wall_ms((self.now_ms)()));
        let due_ms = Some(stored_ms.saturating_add(for_ms));
        lock(&self.states.expiring).note(channel, key, (offset, due_ms));
    }

    /// A value of some channel was set long ago. It is removed if it has expired, and published
    /// again if subscriptions could soon not begin before it: no cursor is as far behind.
    pub(super) fn value_is_old(self: &Arc<NodeShared>, channel: &ChannelName, old: &StoredMessage) {
        let Some(content) = self.stored_content(channel, old) else { return };
        self.states.note(&content);
        if self.link.last().saturating_sub(RENEWED_AFTER) > old.sequence {
            let again = Publication::again(&content, (self.now_ms)());
            self.replace_value(again, old.sequence, || {});
        }
    }

    /// Removes the keys whose values have expired. All nodes that know of one do it, under the
    /// condition that it is still there.
    pub(super) fn remove_expired(self: &Arc<NodeShared>, now_ms: u64) {
        let due = lock(&self.states.expiring).due(now_ms);
        for (channel, key, offset) in due {
            let tombstone = Publication::tombstone(channel.clone(), &key);
            let shared = Arc::clone(self);
            self.replace_value(tombstone, offset, move || {
                let due_ms = Some(now_ms + AGAIN_MS);
                lock(&shared.states.expiring).note(&channel, &key, (offset, due_ms));
            });
        }
    }

    /// Publishes a message with a key, if the one at `offset` is still the key's newest. Calls
    /// `failed` if it is not known whether it is.
    fn replace_value(
        &self,
        publication: Publication,
        offset: u64,
        failed: impl FnOnce() + Send + 'static,
    ) {
        let channel = publication.channel.clone();
        let load = Load::of(std::slice::from_ref(&publication));
        let (state, key) = (self.state_limits(&channel), publication.key().map(Box::from));
        let (Some(state), Some(key)) = (state, key) else { return };
        if !self.link.is_open() || !self.publications.take_places(&channel, load) {
            return failed();
        }
        let edit = Box::new(LogEdit {
            head: None,
            record_version: None,
            key: Some((key, Some(offset))),
            messages: vec![publication],
            record: RecordChange::Keep,
            may_end: false,
        });
        let ticket = Ticket::new(move |outcome| match outcome {
            Some(Ok(_) | Err(ChangeError::KeyConflict(_))) => {}
            _ => failed(),
        });
        let (token, ticket) = (self.token(), LogTicket::Change(ticket, 1));
        self.logs.begin(token, OpenLog { channel: channel.clone(), load, ticket });
        let (request, state) = (LogRequest::Change(edit), Some(state));
        self.tell(JournalEvent::Log { token, channel, request, state });
    }
}
