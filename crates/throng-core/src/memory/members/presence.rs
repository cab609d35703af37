//! Presence events of channels that several processes serve: which of them have changed.
//!
//! Processes tell each other the keys of such channels, through the [exchange] of members and as if
//! these were members of one channel more, which no process has. So it is noticed when some were
//! lost. A process that watches a channel then asks for its users.
//!
//! [exchange]: crate::members::exchange

use crate::members::exchange::{Contact, MemberChange};
use crate::memory::MemoryEngine;
use crate::name::ChannelName;

/// No public name begins with a slash.
const NAME: &str = "/presence";

impl MemoryEngine {
    /// Tells others which channels have changed here.
    pub(crate) fn tell_changed_presence(&self, now_ms: u64) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let changed = self.presence_cache().watched.take_untold();
        if changed.has_more {
            exchange.lock().skip();
        }
        for key in changed.keys {
            if self.rule(&ChannelName::from_key(&key)).journal == Some(exchange.journal) {
                let channel = ChannelName::channel(NAME);
                exchange.push(now_ms, MemberChange { channel, key, value: None });
            }
        }
    }

    /// Notes that a channel has changed elsewhere. Returns false if the news is about members.
    pub(super) fn takes_changed_presence(&self, change: &MemberChange) -> bool {
        let is_its = change.channel.name() == NAME;
        if is_its {
            self.presence_cache().watched.mark_elsewhere(&change.key);
        }
        is_its
    }

    /// How well other processes are known; `None` if there are none.
    pub(crate) fn contact(&self, now_ms: u64) -> Option<Contact> {
        Some(self.members.exchange.get()?.lock().contact(now_ms))
    }
}
