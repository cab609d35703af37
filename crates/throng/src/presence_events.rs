//! Runs the presence events of a server.

use std::sync::Arc;
use std::time::Duration;

use throng_core::{Engine, PresenceEventSettings, PresenceEvents, clock};
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use crate::settings::{self, Settings};

/// How often the channels that have changed are looked at: how late an event may be.
const TICK: Duration = Duration::from_millis(100);

/// Publishes presence events until it is aborted; `None` if no channel has them. Requires the
/// runtime.
pub(crate) fn spawn(settings: &Settings, engine: &Arc<dyn Engine>) -> Option<AbortHandle> {
    if !settings::rules(settings).have_any_presence_events() {
        return None;
    }
    let mut events = PresenceEvents::new(PresenceEventSettings {
        grace_ms: u64::try_from(settings.presence.grace.0.as_millis()).unwrap_or(u64::MAX),
        max_named: settings.presence.max_named.0,
    });
    let engine = Arc::clone(engine);
    let task = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            events.step(clock::now_ms(), &*engine);
        }
    });
    Some(task.abort_handle())
}
