//! Keeps a channel followed, and the part that was read of it open, for a subscription that asks
//! for its start.

use std::sync::Arc;

use throng_core::ChannelId;
use throng_core::parts::HeldPart;

use super::shared::Shared;

/// See the module. Not to be dropped under the lock of the followed channels.
pub(super) struct Hold {
    pub(super) part: HeldPart,
    pub(super) id: ChannelId,
    pub(super) shared: Arc<Shared>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.release(self.id);
    }
}
