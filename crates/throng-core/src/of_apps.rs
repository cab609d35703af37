//! What the memory has of applications.

use std::sync::Arc;

use crate::channel_limits::ChannelLimits;
use crate::watchlists::Watchlists;

/// What applications have of their own.
#[derive(Debug, Default)]
pub(crate) struct OfApps {
    pub(crate) watchlists: Option<Arc<Watchlists>>,
    pub(crate) channel_limits: Option<Arc<ChannelLimits>>,
    /// Users whom somebody watches, and whether another process has told that they are online.
    pub(crate) thawed_watched: Vec<(Box<str>, bool)>,
}
