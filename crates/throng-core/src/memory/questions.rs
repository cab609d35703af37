//! Questions to the workers that follow a channel.

use std::sync::Arc;

use super::MemoryEngine;
use crate::connection_name::ConnectionName;
use crate::connection_scan::WantedTags;
use crate::engine::Audience;
use crate::id::{ChannelId, LocalId, WorkerId};
use crate::later::{Answer, Later, Ticket};
use crate::name::ChannelName;
use crate::presence::{Presence, PresenceBusy, PresenceQuery};
use crate::worker_queue::Notification;

impl MemoryEngine {
    /// Queries who is in a channel here. Answers later if workers have to be asked, on the thread
    /// of one of them.
    pub fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let Audience { subscribers, workers } = self.audience(channel);
        let connections = usize::try_from(subscribers).unwrap_or(usize::MAX);
        let followers = (connections, workers.len());
        let cache = self.presence_cache();
        let (answer, query) = cache.ask(now_ms, channel, followers, max_users, later)?;
        self.post_presence(workers, query);
        Ok(answer)
    }

    /// Like [`MemoryEngine::presence`], but never answers from a scan that began earlier. Callers
    /// limit how often.
    pub(crate) fn presence_anew(
        &self,
        channel: &ChannelName,
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let Audience { subscribers, workers } = self.audience(channel);
        let connections = usize::try_from(subscribers).unwrap_or(usize::MAX);
        let followers = (connections, workers.len());
        let cache = self.presence_cache();
        let (answer, query) = cache.ask_anew(channel, followers, max_users, later)?;
        self.post_presence(workers, query);
        Ok(answer)
    }

    /// Sends a presence query to the workers that follow its channel. Without one, the answer to
    /// another query serves this one, too.
    fn post_presence(
        &self,
        workers: Vec<(WorkerId, LocalId, ChannelId)>,
        query: Option<Arc<PresenceQuery>>,
    ) {
        let Some(query) = query else { return };
        for (worker, local, channel) in workers {
            let query = Arc::clone(&query);
            self.post(worker, Notification::Presence { local, channel, query });
        }
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
