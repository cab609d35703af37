//! Another process becomes the node. To the servers it is a node that was cut off and is back: it
//! follows all channels anew, and reads what has come meanwhile.
//!
//! | step | the process that serves | the other one |
//! |---|---|---|
//! | it starts | serves | connects, and waits until the stream can be used |
//! | [`NatsJournal::hold`] | delivers nothing more, and everything else goes on | |
//! | [`NatsJournal::freeze`] | has answered all that was asked | thaws, follows, compares, reads |
//! | the other one serves: [`NatsJournal::cede`] | ends its connection | |
//! | or it does not: [`NatsJournal::go_on`] | reads what has come meanwhile | has ended |
//!
//! Other nodes know the node by a name, which stays. Their questions reach both processes while
//! both are connected, and they take the first answer under the name: so none is doubled, and none
//! is missing. The process that has not begun keeps questions until it has.

use std::sync::atomic::Ordering;

use throng_core::frozen::ThawError;
use throng_core::{ChannelId, ChannelName, Epoch, clock};

use super::NatsJournal;
use super::early::reason;
use super::followed::{Followed, FollowedEntry};
use super::frozen::{FrozenFollow, FrozenNode, NodeThaw};
use super::link::LinkState;
use super::shared::NodeShared;
use crate::journal::{JournalEvent, Resume};

/// Why a node cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError<E> {
    /// The connection is not as it was when messages were held.
    #[error("NATS cannot be used: {0}")]
    Away(String),
    /// The receiver of the records has failed.
    #[error(transparent)]
    Write(E),
}

impl NatsJournal {
    /// The name by which other nodes know this one. It stays when another process takes over.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Why the stream cannot be used; `None` if it can.
    pub fn trouble(&self) -> Option<String> {
        let state = self.state();
        (state != LinkState::Open).then(|| reason(state))
    }

    /// Delivers nothing that comes from the stream before [`NatsJournal::go_on`]. Everything else
    /// goes on. Returns whether it is so.
    pub fn hold(&self) -> bool {
        *self.shared.holding.lock() = None;
        self.shared.tell(JournalEvent::Hold);
        self.shared.holding.wait()
    }

    /// Delivers again, beginning with what came meanwhile.
    pub fn go_on(&self) {
        *self.shared.holding.lock() = None;
        self.shared.tell(JournalEvent::GoOn);
    }

    /// Ends the connection, as another process is the node now. Others are not told.
    pub fn cede(&self) {
        self.shared.tell(JournalEvent::Cede);
    }

    /// Writes the node, one record with each call of `write`. Call it while it is held and at rest,
    /// and freeze the memory engine beside it.
    ///
    /// # Errors
    ///
    /// The stream cannot be used, or `write` fails.
    pub fn freeze<E>(
        &self,
        mut write: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), FreezeError<E>> {
        let shared = &self.shared;
        if let Some(trouble) = self.trouble() {
            return Err(FreezeError::Away(trouble));
        }
        let held = shared.holding.lock().clone();
        let epoch = shared.link.epoch();
        let (Some(epoch), Some((_, held))) = (epoch, held.filter(|(held, _)| *held == epoch))
        else {
            return Err(FreezeError::Away("the stream is another one now".into()));
        };
        let (last, settled) = (shared.link.last(), shared.link.settled());
        let node = FrozenNode { epoch: epoch.number(), last, settled, held };
        node.encode().try_for_each(&mut write).map_err(FreezeError::Write)?;
        let mut channels = 0;
        let mut followed = shared.followed();
        followed.each(|channel, entry| {
            // The others are followed for a while, for those who come back.
            if shared.memory.followed_head(channel).is_some() {
                write(entry.freeze(channel).encode()).map_err(FreezeError::Write)?;
                channels += 1;
            }
            Ok(())
        })?;
        drop(followed);
        write(node.encode_end(channels)).map_err(FreezeError::Write)
    }
}

impl NodeShared {
    /// Takes over the channels that another process has followed. Returns what the connection is
    /// told of them.
    pub(super) fn thaw(&self, thaw: NodeThaw) -> Result<Vec<JournalEvent<'static>>, ThawError> {
        let (node, channels) = thaw.finish()?;
        self.link.resume(Epoch::numbered(node.epoch), (node.last, node.settled));
        let (mut live, mut joining) = (Vec::new(), Vec::new());
        let mut followed = self.followed();
        // The others have another journal now, and nobody follows them here.
        let is_followed =
            |channel: &FrozenFollow| self.memory.followed_head(&channel.name).is_some();
        let now_ms = (self.now_ms)();
        for channel in channels.into_iter().filter(is_followed) {
            self.memory.follow_members(now_ms, &channel.name);
            let (name, head, is_live) = (channel.name.clone(), channel.head, channel.is_live);
            let id = followed.thaw(channel);
            if is_live {
                live.push((id, name, head));
            } else {
                joining.push((id, name));
            }
        }
        let resume = Resume { epoch: node.epoch, held: node.held, channels: live };
        Ok(vec![JournalEvent::Resume(Box::new(resume)), JournalEvent::Follow(joining)])
    }

    /// True if all that was asked of the stream has its answer.
    pub(super) fn is_at_rest(&self) -> bool {
        // Last what is being answered, and was in one of these before.
        self.publications.len() == 0
            && self.logs.is_empty()
            && self.reads().is_empty()
            && self.states.is_at_rest()
            && self.waiting.load(Ordering::Acquire) == 0
    }
}

impl FollowedEntry {
    fn freeze(&self, name: &ChannelName) -> FrozenFollow {
        let FollowedEntry { head, newest, is_live, is_stale, .. } = self;
        FrozenFollow {
            name: name.clone(),
            head: *head,
            newest: *newest,
            wall_ms: clock::wall_ms(self.time_ms),
            is_live: *is_live,
            has_gap: self.has_gap,
            is_stale: *is_stale,
        }
    }
}

impl Followed {
    /// Adds a channel of a node that was frozen.
    fn thaw(&mut self, channel: FrozenFollow) -> ChannelId {
        let FrozenFollow { name, head, newest, wall_ms, is_live, has_gap, is_stale } = channel;
        let (id, entry, _) = self.add(&name);
        (entry.head, entry.newest) = (head, newest);
        entry.time_ms = clock::from_wall_ms(wall_ms);
        (entry.is_live, entry.has_gap, entry.is_stale) = (is_live, has_gap, is_stale);
        id
    }
}
