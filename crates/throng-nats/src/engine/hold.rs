//! Keeps a channel followed, and the part that was read of it open, for a subscription that asks
//! for its start.

use std::sync::Arc;

use throng_core::parts::HeldPart;
use throng_core::{ChannelId, ChannelName};

/// The owner of the followed channels.
pub(super) trait HoldOwner: Send + Sync {
    /// A subscription does not ask for the start of this channel any more.
    fn release(&self, id: ChannelId, channel: &ChannelName);
}

/// See the module. Not to be dropped under the lock of the followed channels.
pub(super) struct ChannelHold {
    pub(super) part: HeldPart,
    pub(super) id: ChannelId,
    pub(super) owner: Arc<dyn HoldOwner>,
}

impl Drop for ChannelHold {
    fn drop(&mut self) {
        self.owner.release(self.id, self.part.channel());
    }
}
