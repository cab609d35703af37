//! What the workers tell about themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use throng_core::{Counters, WorkerId};

/// One worker's figures.
#[derive(Debug, Default)]
pub struct WorkerFigures {
    /// Open connections.
    pub connections: AtomicU32,
    /// Connections that it has room for.
    pub capacity: u32,
    /// What it counts.
    pub counters: Arc<Counters>,
}

/// All workers' figures.
#[derive(Debug, Clone, Default)]
pub struct Figures(Arc<[WorkerFigures]>);

impl Figures {
    /// Figures of workers that have room for so many connections each.
    pub fn new(capacities: impl Iterator<Item = u32>) -> Figures {
        let of = |capacity| WorkerFigures { capacity, ..WorkerFigures::default() };
        Figures(capacities.map(of).collect())
    }

    /// Each worker's figures.
    pub fn workers(&self) -> &[WorkerFigures] {
        &self.0
    }

    /// The figures of one worker.
    pub fn worker(&self, worker: WorkerId) -> &WorkerFigures {
        &self.0[usize::from(worker.0)]
    }

    /// The worker with the most room, if any has some.
    pub fn roomiest(&self) -> Option<WorkerId> {
        let room = |figures: &WorkerFigures| {
            figures.capacity.saturating_sub(figures.connections.load(Ordering::Relaxed))
        };
        let (at, most) = self.0.iter().map(room).enumerate().max_by_key(|&(_, room)| room)?;
        (most > 0).then_some(WorkerId(at as u16))
    }
}
