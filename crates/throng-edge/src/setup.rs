//! The parameters of a worker, from which each of its objects takes its own.

use std::sync::Arc;

use throng_access::AccessControl;
use throng_core::events::EventSink;
use throng_core::{Channels, MemoryPressure, Rules, WorkerId, WorkerQueue};

use crate::compression::Compression;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// The parameters of a new worker.
#[derive(Clone)]
pub struct Setup {
    /// The generation before the first connection's. A random number, so that the name of a
    /// connection from before a restart names none afterwards.
    pub generation: u32,
    pub id: WorkerId,
    /// Settings of the data plane, shared by all workers.
    pub settings: Arc<Settings>,
    /// The logs, shared by both planes.
    pub engine: Arc<Channels>,
    /// Decides who may do what, for both planes.
    pub access: Arc<AccessControl>,
    pub rules: Arc<Rules>,
    pub compression: Arc<Compression>,
    /// Hears of connections that begin and end, if the application wants to know.
    pub events: Option<Arc<dyn EventSink>>,
    /// Notifications of the engine and the control plane for this worker.
    pub queue: Arc<WorkerQueue>,
    pub pressure: Arc<MemoryPressure>,
    /// All workers' metrics: a full worker looks for one that is not.
    pub metrics: Metrics,
}

#[cfg(test)]
pub(crate) mod fixture;
