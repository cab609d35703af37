//! Channels that have to be created before they are used.

use super::Channels;
use crate::change::{ChangeError, LogState};
use crate::later::{Answer, Later, Ticket};
use crate::name::ChannelName;
use crate::publication::PublishError;

impl Channels {
    /// True if a channel may be used: it need not be created, or somebody has. There is no answer
    /// if its journal cannot tell.
    pub fn exists(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        later: Later<'_, bool>,
    ) -> Answer<bool> {
        if !self.memory.rules().must_exist(channel) {
            return true.into();
        }
        let Some((journal, _)) = self.journal_of(channel) else {
            return self.memory.is_created(channel).into();
        };
        let (asker, mut later, mut promised) = (later.asker(), Some(later), None);
        let mut issue = || {
            let ticket = later.take().map(|later| {
                let (ticket, answer) = later.ticket();
                promised = Some(answer);
                ticket
            });
            Ticket::new(move |state: Option<Result<LogState, ChangeError>>| {
                if let (Some(Ok(state)), Some(ticket)) = (state, ticket) {
                    ticket.answer(state.creation().is_some());
                }
            })
        };
        match journal.state(now_ms, channel, Later::new(&mut issue).of(asker)) {
            Answer::Now(Ok(state)) => state.creation().is_some().into(),
            // Without an answer the asker learns that there is none.
            Answer::Now(Err(_)) | Answer::Later(_) => match (promised, later) {
                (Some(answer), _) => answer,
                (None, Some(later)) => later.ticket().1,
                (None, None) => false.into(),
            },
        }
    }

    /// True if the head of a log says whether there was a message, also if there is none any more.
    pub fn has_own_head(&self, channel: &ChannelName) -> bool {
        let journal = self.journal_of(channel);
        journal.is_none_or(|(journal, _)| journal.ids(channel).are_consecutive)
    }

    /// Fails if a channel in memory has to be created and nobody has. A volatile message reaches
    /// subscribers alone, which channels in journals have only if they exist.
    pub(super) fn check_exists(&self, channel: &ChannelName) -> Result<(), PublishError> {
        let is_missing = self.memory.rules().must_exist(channel)
            && self.journal_of(channel).is_none()
            && !self.memory.is_created(channel);
        if is_missing { Err(PublishError::NotCreated) } else { Ok(()) }
    }
}
