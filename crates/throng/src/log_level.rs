//! The level of the log, which can change while the server runs.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Registry, reload};

/// Changes the level.
#[derive(Debug, Clone)]
pub(crate) struct LogLevelHandle(reload::Handle<LevelFilter, Registry>);

/// A filter for the log, and the way to change it.
pub(crate) fn filter(level: Level) -> (reload::Layer<LevelFilter, Registry>, LogLevelHandle) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    (filter, LogLevelHandle(handle))
}

impl LogLevelHandle {
    /// Logs from this level on.
    pub(crate) fn set(&self, level: Level) {
        // It fails only once there is no log any more.
        let _ = self.0.reload(LevelFilter::from_level(level));
    }
}
