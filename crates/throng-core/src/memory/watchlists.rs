//! Tells users of those whom they watch: see [`Watchlists`].

use std::sync::Arc;

use super::MemoryEngine;
use crate::frozen::{Decoder, Encoder, RecordKind, ThawError};
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::Publication;
use crate::watchlists::Watchlists;

/// Users that are looked at in one step.
const LOOKS_MAX: usize = 1_024;

impl MemoryEngine {
    /// The same engine, whose users may watch others. What another process has told is known.
    #[must_use]
    pub fn with_watchlists(
        mut self,
        now_ms: u64,
        watchlists: Option<Arc<Watchlists>>,
    ) -> MemoryEngine {
        let told = std::mem::take(&mut self.thawed_watched);
        if let Some(watchlists) = &watchlists {
            watchlists.resume(now_ms, told);
        }
        self.watchlists = watchlists;
        self
    }

    /// True if users whose names begin with `prefix` may watch each other.
    pub fn has_watchlists(&self, prefix: &str) -> bool {
        self.watchlists.as_ref().is_some_and(|watchlists| watchlists.have(prefix))
    }

    /// Whether a user is online, for somebody who follows the [log](ChannelName::online) of that by
    /// now. Whatever is published there later is newer.
    pub fn watch(&self, now_ms: u64, user: &str) -> bool {
        let Some(watchlists) = &self.watchlists else { return false };
        let begin = || watchlists.begin(now_ms, user, self.is_online(user));
        watchlists.told(user).unwrap_or_else(begin)
    }

    /// True if somebody follows the inbox of a user, in any process.
    fn is_online(&self, user: &str) -> bool {
        let inbox = ChannelName::user(user);
        let tallies = self.members.tallies.as_ref();
        match tallies.and_then(|tallies| tallies.has_any(&inbox)) {
            Some(is_online) => is_online,
            None => !self.audience(&inbox).workers.is_empty(),
        }
    }

    /// Tells what has changed of those whom somebody watches.
    pub(super) fn step_watchlists(&self, now_ms: u64) {
        let Some(watchlists) = &self.watchlists else { return };
        for _ in 0..LOOKS_MAX {
            let Some(user) = watchlists.take_due(now_ms) else { break };
            self.tell_online(now_ms, watchlists, &user);
        }
        let is_watched = |user: &str| !self.audience(&ChannelName::online(user)).workers.is_empty();
        for user in watchlists.next_passed() {
            // Somebody may begin meanwhile, who is told what was known.
            if !is_watched(&user)
                && let Some(is_online) = watchlists.forget(&user)
                && is_watched(&user)
            {
                watchlists.begin(now_ms, &user, is_online);
            }
        }
    }

    fn tell_online(&self, now_ms: u64, watchlists: &Watchlists, user: &str) {
        let is_online = self.is_online(user);
        if !watchlists.tell(user, is_online) {
            return;
        }
        let word = if is_online { "online" } else { "offline" };
        let publication = Publication::new(ChannelName::online(user), Body::Text(word.into()));
        if self.publish_internal(now_ms, publication).is_err() {
            watchlists.tell_again(now_ms, user, !is_online);
        }
    }

    /// Writes what was told of each user whom somebody watches, with a record for each.
    pub(super) fn freeze_watchlists<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(watchlists) = &self.watchlists else { return Ok(()) };
        watchlists.each(|user, is_online| {
            let mut encoder = Encoder::new(RecordKind::Watched);
            encoder.bytes(user.as_bytes());
            encoder.u8(is_online.into());
            write(encoder.finish())
        })
    }

    /// Reads a record of [`MemoryEngine::freeze_watchlists`].
    pub(super) fn thaw_watched(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let user = decoder.text()?.into();
        let is_online = match decoder.u8()? {
            0 => false,
            1 => true,
            _ => return Err(ThawError::Invalid("whether a user is online")),
        };
        decoder.finish()?;
        self.thawed_watched.push((user, is_online));
        Ok(())
    }
}
