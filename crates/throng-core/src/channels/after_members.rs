//! Subscriptions to channels whose members other processes have, too.

use std::sync::Arc;

use super::Channels;
use crate::journal::Journal;
use crate::later::{Answer, Later, Ticket};
use crate::name::ChannelName;
use crate::parts::Limits;
use crate::reading::{Fetched, Reading};

impl Channels {
    /// Fetches the start of a subscription from the channel's journal once this process knows the
    /// members that others have: so who follows them has the whole list first.
    pub(super) fn fetch_after_members(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        (journal, reading, limits): (&Arc<dyn Journal>, Reading, Limits),
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let asker = later.asker();
        let (mut later, mut promised) = (Some(later), None);
        let mut issue = || {
            let asked = later.take().map(|later| later.ticket());
            let ticket = asked.map(|(ticket, answer)| {
                promised = Some(answer);
                ticket
            });
            let (journal, channel) = (Arc::clone(journal), channel.clone());
            Ticket::new(move |_| {
                let Some(ticket) = ticket.filter(Ticket::is_wanted) else { return };
                let mut ticket = Some(ticket);
                // Asked for once.
                let mut issue = || ticket.take().unwrap_or_else(|| Ticket::new(drop));
                let later = Later::new(&mut issue).of(asker);
                let fetched = journal.fetch(now_ms, &channel, reading, limits, later);
                if let (Answer::Now(fetched), Some(ticket)) = (fetched, ticket) {
                    ticket.answer(fetched);
                }
            })
        };
        let ready = self.memory.members_ready(now_ms, channel, Later::new(&mut issue));
        match (ready, later, promised) {
            (Answer::Later(_), _, Some(promised)) => promised,
            (_, Some(later), _) => journal.fetch(now_ms, channel, reading, limits, later),
            (_, None, _) => Fetched::in_memory().into(),
        }
    }
}
