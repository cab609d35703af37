//! The presence events of a server.

use std::sync::{Arc, Mutex};

use throng_core::{PresenceEventSettings, PresenceEvents};

use crate::settings::{self, Settings};

/// The presence events of a running server. While the control plane is held and at rest, nobody
/// else uses them.
pub(crate) type PresenceShared = Arc<Mutex<PresenceEvents>>;

/// The settings of presence events; `None` if no channel has them.
pub(crate) fn settings(settings: &Settings) -> Option<PresenceEventSettings> {
    settings::rules(settings).have_any_presence_events().then(|| PresenceEventSettings {
        grace_ms: u64::try_from(settings.presence.grace.0.as_millis()).unwrap_or(u64::MAX),
        max_named: settings.presence.max_named.0,
    })
}
