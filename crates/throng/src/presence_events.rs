//! Runs the presence events of a server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_control::Control;
use throng_core::{Channels, PresenceEventSettings, PresenceEvents, clock};
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use crate::settings::{self, Settings};

/// How often the channels that have changed are looked at: how late an event may be.
const TICK: Duration = Duration::from_millis(100);

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

/// Publishes presence events, if there are any, until it is aborted. Requires the runtime.
pub(crate) fn spawn(
    events: Option<&PresenceShared>,
    channels: &Arc<Channels>,
    control: &Arc<Control>,
) -> Option<AbortHandle> {
    let (events, channels, control) =
        (Arc::clone(events?), Arc::clone(channels), Arc::clone(control));
    let task = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            // Another process may go on with them.
            let Some(_acting) = control.hold().act() else { continue };
            let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
            events.step(clock::now_ms(), &channels);
        }
    });
    Some(task.abort_handle())
}
