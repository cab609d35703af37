//! The parameters of a worker for unit tests.

use std::sync::Arc;

use throng_access::AccessControl;
use throng_core::{Epoch, MemoryEngine, Rules, WorkerId, WorkerQueue};

use super::Setup;
use crate::compression::Compression;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// A lone worker with an engine of its own, where `access` says who may do what.
pub(crate) fn setup(access: Arc<AccessControl>) -> Setup {
    let settings = Arc::new(Settings::for_tests());
    let queue = Arc::new(WorkerQueue::new(|| {}));
    let rules = Arc::new(Rules::default());
    let queues = vec![Arc::clone(&queue)];
    let engine = MemoryEngine::new(Epoch::numbered(1), Arc::clone(&rules), queues, 1 << 20);
    Setup {
        generation: 0,
        id: WorkerId(0),
        engine: Arc::new(engine.into()),
        access,
        rules,
        compression: Arc::new(Compression::new(settings.compression)),
        settings,
        events: None,
        queue,
        pressure: Arc::default(),
        metrics: Metrics::new([9].into_iter()),
    }
}
