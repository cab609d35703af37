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

impl WorkerFigures {
    /// Connections that may be added.
    pub fn room(&self) -> u32 {
        self.capacity.saturating_sub(self.connections.load(Ordering::Relaxed))
    }
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
        let rooms = self.0.iter().map(WorkerFigures::room);
        let (at, most) = rooms.enumerate().max_by_key(|&(_, room)| room)?;
        (most > 0).then_some(WorkerId(at as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roomiest_has_room() {
        let figures = Figures::new([2, 3].into_iter());
        let fill = |worker| {
            figures.worker(WorkerId(worker)).connections.fetch_add(1, Ordering::Relaxed);
        };
        assert_eq!(figures.roomiest(), Some(WorkerId(1)));
        (0..3).for_each(|_| fill(1));
        assert_eq!(figures.roomiest(), Some(WorkerId(0)));
        (0..2).for_each(|_| fill(0));
        assert_eq!(figures.roomiest(), None);
        fill(0);
        assert_eq!(figures.roomiest(), None, "one that is on its way may be one too many");
    }
}
