//! Questions to the workers that follow a channel.

use super::MemoryEngine;
use crate::connection_name::ConnectionName;
use crate::connection_scan::WantedTags;
use crate::engine::Audience;
use crate::later::{Answer, Later, Ticket};
use crate::name::ChannelName;
use crate::presence::{Asked, Presence, PresenceAsk, PresenceBusy};
use crate::worker_queue::Notification;

impl MemoryEngine {
    /// Queries who is in a channel here. Answers later if workers have to be asked, on the thread
    /// of one of them.
    pub fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        ask: impl Into<PresenceAsk>,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let cache = self.presence_cache();
        self.ask_followers(channel, |followers| {
            cache.ask(now_ms, channel, followers, ask.into(), later)
        })
    }

    /// Asks for the presence of a channel, and sends the query to the workers that follow it. If
    /// there is no query to send, the answer to an earlier one serves this one, too.
    fn ask_followers(
        &self,
        channel: &ChannelName,
        ask: impl FnOnce((usize, usize)) -> Result<Asked, PresenceBusy>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let Audience { subscribers, workers } = self.audience(channel);
        let connections = usize::try_from(subscribers).unwrap_or(usize::MAX);
        let (answer, query) = ask((connections, workers.len()))?;
        for (worker, local, id) in workers {
            let Some(query) = query.clone() else { break };
            self.post(worker, Notification::Presence { local, channel: id, query });
        }
        Ok(answer)
    }

    /// Queries whether a connection follows a channel, and its session has the wanted tags. Answers
    /// later if the connection's worker has to be asked.
    pub fn follows(
        &self,
        channel: &ChannelName,
        (connection, wanted): (ConnectionName, WantedTags),
        later: Later<'_, bool>,
    ) -> Answer<bool> {
        let followers = self.audience(channel).workers;
        match followers.into_iter().find(|(worker, ..)| *worker == connection.worker()) {
            None => false.into(),
            Some((worker, _, id)) => {
                let (ticket, answer): (Ticket<bool>, _) = later.ticket();
                let (name, channel) = (channel.clone(), id);
                let question = Notification::Follows { name, channel, connection, wanted, ticket };
                self.post(worker, question);
                answer
            }
        }
    }
}
