//! What applications have of their own: users who are told of those whom they watch (see
//! [`Watchlists`]), and limits of channels.

use std::sync::Arc;

use super::MemoryEngine;
use crate::channel_limits::ChannelLimits;
use crate::events::EventSink;
use crate::frozen::{Decoder, Encoder, RecordKind, ThawError};
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::Publication;
use crate::watchlists::Watchlists;

/// Users that are looked at in one step.
const LOOKS_MAX: usize = 1_024;

impl MemoryEngine {
    /// The same engine, which notifies `events` of each channel that gets its first subscriber or
    /// loses its last one.
    #[must_use]
    pub fn with_events(mut self, events: Option<Arc<dyn EventSink>>) -> MemoryEngine {
        self.shared.events = events;
        self
    }

    /// The same engine, whose users may watch others. What another process has told is known.
    #[must_use]
    pub fn with_watchlists(
        mut self,
        now_ms: u64,
        watchlists: Option<Arc<Watchlists>>,
    ) -> MemoryEngine {
        let told = std::mem::take(&mut self.of_apps.thawed_watched);
        if let Some(watchlists) = &watchlists {
            watchlists.resume(now_ms, told);
        }
        self.of_apps.watchlists = watchlists;
        self
    }

    /// The same engine, whose applications have limits of channels.
    #[must_use]
    pub fn with_channel_limits(mut self, limits: Option<Arc<ChannelLimits>>) -> MemoryEngine {
        if let Some(limits) = &limits {
            limits.begin(self.all_followed().iter().map(|(channel, _)| channel));
        }
        self.of_apps.channel_limits = limits;
        self
    }

    /// Whether all of some channels may have a subscriber.
    ///
    /// # Errors
    ///
    /// The most channels of an application, which has them.
    pub fn check_channel_limits(&self, channels: &[ChannelName]) -> Result<(), u64> {
        let Some(limits) = &self.of_apps.channel_limits else { return Ok(()) };
        limits.check(channels, |channel| self.is_followed_anywhere(channel))
    }

    /// Subscriptions that were refused because their application has too many channels.
    pub fn refused_channels(&self) -> u64 {
        self.of_apps.channel_limits.as_ref().map_or(0, |limits| limits.refused())
    }

    /// True if users whose names begin with `prefix` may watch each other.
    pub fn has_watchlists(&self, prefix: &str) -> bool {
        self.of_apps.watchlists.as_ref().is_some_and(|watchlists| watchlists.have(prefix))
    }

    /// Whether a user is online, for somebody who follows the [log](ChannelName::online) of that by
    /// now. Whatever is published there later is newer.
    pub fn watch(&self, now_ms: u64, user: &str) -> bool {
        let Some(watchlists) = &self.of_apps.watchlists else { return false };
        let begin = || watchlists.begin(now_ms, user, self.is_online(user));
        watchlists.told(user).unwrap_or_else(begin)
    }

    /// True if somebody follows the inbox of a user, in any process.
    fn is_online(&self, user: &str) -> bool {
        self.is_followed_anywhere(&ChannelName::user(user))
    }

    /// True if a channel of an application has a subscriber, in any process.
    fn is_followed_anywhere(&self, channel: &ChannelName) -> bool {
        let tallies = self.members.tallies.as_ref();
        let counted = tallies.and_then(|tallies| tallies.has_any(channel));
        counted.unwrap_or_else(|| !self.audience(channel).workers.is_empty())
    }

    /// Tells what has changed of those whom somebody watches.
    pub(super) fn step_watchlists(&self, now_ms: u64) {
        let Some(watchlists) = &self.of_apps.watchlists else { return };
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
        let Some(watchlists) = &self.of_apps.watchlists else { return Ok(()) };
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
        self.of_apps.thawed_watched.push((user, is_online));
        Ok(())
    }
}
