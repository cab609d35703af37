//! Changes of logs and erasure, which the journal answers later.

use throng_core::{
    Answer, ChangeError, ChangeOutcome, Changed, ChannelName, Condition, Erase, EraseOutcome,
    Erased, Later, LogChange, LogState, MessageId, PublishError, Ticket,
};

use super::link::count;
use super::open_logs::{LogTicket, OpenLog};
use super::rest::CountGuard;
use super::shared::NodeShared;
use super::under_way::Load;
use crate::journal::{JournalEvent, LogEdit, LogFacts, LogOutcome, LogRequest};

impl NodeShared {
    pub(super) fn change(
        &self,
        change: LogChange,
        later: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome> {
        let has_keys = change.has_keys();
        let LogChange { channel, condition, messages, record, .. } = change;
        if has_keys && self.state_limits(&channel).is_none() {
            return Err(PublishError::NoState.into()).into();
        }
        let Condition { head, record: record_version, key } = condition;
        let key = key.map(|key| (key.key, key.newest.map(|id| self.sequence(id))));
        let (load, count) = (Load::of(&messages), messages.len() as u64);
        let head = head.map(|id| self.sequence(id));
        let may_end = self.memory.rules().may_end(&channel);
        let edit = Box::new(LogEdit { head, record_version, key, messages, record, may_end });
        let ticket = |ticket| LogTicket::Change(ticket, count);
        self.ask_log((channel, load), LogRequest::Change(edit), later, ticket)
    }

    pub(super) fn ask_state(
        &self,
        channel: &ChannelName,
        later: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>> {
        let asked = (channel.clone(), Load::of(&[]));
        self.ask_log(asked, LogRequest::State, later, LogTicket::State)
    }

    pub(super) fn erase(
        &self,
        channel: &ChannelName,
        what: Erase,
        later: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome> {
        let request = match what {
            Erase::Message(id) => LogRequest::EraseMessage(self.sequence(id)),
            Erase::History => LogRequest::EraseHistory { with_record: false, up_to: None },
            Erase::Log => LogRequest::EraseHistory { with_record: true, up_to: None },
        };
        self.ask_log((channel.clone(), Load::of(&[])), request, later, LogTicket::Erase)
    }

    /// The sequence of a message; one that no message has, if it is of another epoch.
    fn sequence(&self, id: MessageId) -> u64 {
        if self.link.epoch() == Some(id.epoch) { id.offset } else { u64::MAX }
    }

    /// Has the journal take a request, if its channel has places for it.
    fn ask_log<T>(
        &self,
        (channel, load): (ChannelName, Load),
        request: LogRequest,
        later: Later<'_, Result<T, ChangeError>>,
        as_ticket: impl FnOnce(Ticket<Result<T, ChangeError>>) -> LogTicket,
    ) -> Answer<Result<T, ChangeError>> {
        let counts = &self.link.counts;
        let refused = if !self.link.is_open() {
            Some(PublishError::Away)
        } else if !self.publications.take_places(&channel, load) {
            count(&counts.busy);
            Some(PublishError::Busy)
        } else {
            None
        };
        if let Some(error) = refused {
            count(&counts.refused);
            return Err(error.into()).into();
        }
        let token = self.token();
        let (ticket, answer) = later.ticket();
        let open = OpenLog { channel: channel.clone(), load, ticket: as_ticket(ticket) };
        self.logs.begin(token, open);
        let state = self.state_limits(&channel);
        self.tell(JournalEvent::Log { token, channel, request, state });
        answer
    }

    /// The journal has an outcome.
    pub(super) fn log_answered(&self, token: u64, outcome: LogOutcome) {
        let _answering = CountGuard::new(&self.waiting);
        let Some(OpenLog { channel, load, ticket }) = self.logs.end(token) else {
            return;
        };
        self.publications.give_back(&channel, load);
        match ticket {
            LogTicket::Change(ticket, messages) => {
                let changed = match outcome {
                    LogOutcome::Changed { first, record } => self.changed(first, messages, record),
                    other => Err(self.change_error(other)),
                };
                // Its messages first: they were delivered before.
                self.deferred.act(&self.memory);
                ticket.answer(changed);
            }
            LogTicket::State(ticket) => ticket.answer(match outcome {
                LogOutcome::State(facts) => self.log_state(facts).ok_or_else(away),
                other => Err(self.change_error(other)),
            }),
            LogTicket::Erase(ticket) => ticket.answer(match outcome {
                LogOutcome::Erased(messages) => Ok(Erased { messages }),
                other => Err(self.change_error(other)),
            }),
        }
    }

    /// A change is stored, whose first message has this sequence.
    fn changed(&self, first: u64, messages: u64, record: u64) -> ChangeOutcome {
        let Some(epoch) = self.link.epoch() else { return Err(PublishError::Unknown.into()) };
        (0..messages).for_each(|_| count(&self.link.counts.accepted));
        if let Some(last) = (first + messages).checked_sub(1).filter(|_| messages > 0) {
            self.link.reached(last);
        }
        let ids = (first..first + messages).map(|offset| MessageId { epoch, offset });
        Ok(Changed { ids: ids.collect(), record })
    }

    /// `None` without an epoch.
    fn log_state(&self, facts: LogFacts) -> Option<LogState> {
        let LogFacts { head, record } = facts;
        let epoch = self.link.epoch()?;
        Some(LogState { head: MessageId { epoch, offset: head }, record })
    }

    fn change_error(&self, outcome: LogOutcome) -> ChangeError {
        match outcome {
            LogOutcome::Conflict(facts) => {
                self.log_state(facts).map_or_else(away, ChangeError::Conflict)
            }
            LogOutcome::KeyConflict(newest) => {
                let epoch = self.link.epoch();
                let id = |epoch| newest.map(|offset| MessageId { epoch, offset });
                epoch.map_or_else(away, |epoch| ChangeError::KeyConflict(id(epoch)))
            }
            LogOutcome::Unsupported(reason) => ChangeError::Unsupported(reason),
            LogOutcome::Failed(outcome) => self.not_stored(outcome).into(),
            LogOutcome::Changed { .. } | LogOutcome::State(_) | LogOutcome::Erased(_) => {
                PublishError::Unknown.into()
            }
        }
    }
}

fn away() -> ChangeError {
    PublishError::Away.into()
}
