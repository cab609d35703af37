//! Which queues of new connections become long, and the moments that clients are told.

use std::time::{Duration, Instant};

use throng_core::{Admission, AdmissionSettings, QueueLook, QueueWatch};

use crate::random::Random;

/// The time that new connections may wait.
const WAIT: Duration = Duration::from_millis(500);

/// The storms of a world.
pub(super) struct Storms {
    random: Random,
    rate: Option<u64>,
}

impl Storms {
    pub(super) fn new(mut random: Random) -> Storms {
        let has_storms = random.percent(25);
        let rate = random.pick(&[1, 20, 1000]);
        Storms { random, rate: has_storms.then_some(rate) }
    }

    /// No storms any more.
    pub(super) fn none() -> Storms {
        Storms { random: Random::new(0), rate: None }
    }

    /// The rate of moments; `None` without storms.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// True if the queue of a worker changes now.
    pub(super) fn changes(&mut self) -> bool {
        self.rate.is_some() && self.random.percent(3)
    }

    /// A queue that is long or short.
    pub(super) fn queue(&mut self) -> QueueWatch {
        let mut queue = QueueWatch::default();
        if self.random.percent(40) {
            let waited = Duration::from_millis(self.random.between(501, 3000) as u64);
            let (at, rate) = (Instant::now(), Some(5000));
            queue.observe(WAIT, QueueLook { at, waited, queued: 5000, accepted: 64, rate });
        }
        queue
    }
}

/// The moments of a world with storms of this rate.
pub(super) fn admission(rate: Option<u64>) -> Admission {
    let wait = if rate.is_some() { WAIT } else { Duration::ZERO };
    Admission::new(AdmissionSettings { wait, rate })
}
