//! Seeds: which, how, and what is said of one that fails.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use crate::client::Tamper;
use crate::notes::{Coverage, Notes};
use crate::world::World;

/// Seeds of a run, unless `THRONG_SEEDS` says otherwise.
pub const SEEDS: u64 = 256;

/// What became of one seed.
#[derive(Debug)]
pub struct Outcome {
    /// The seed itself.
    pub seed: u64,
    /// Tells its trace from others.
    pub hash: u64,
    /// The events that happened.
    pub coverage: Coverage,
    /// The objection, and the end of the trace.
    pub failure: Option<(String, String)>,
    /// Whether what a client received was spoilt, as asked.
    pub is_spoilt: bool,
}

impl Outcome {
    /// The failure, for people: what, the last steps, and how to see it again.
    pub fn report(&self) -> Option<String> {
        let (objection, tail) = self.failure.as_ref()?;
        let seed = self.seed;
        Some(format!(
            "{tail}\nseed {seed}: {objection}\n\
             again: THRONG_SEED={seed} cargo test -p throng-sim --test seeds -- --nocapture\n"
        ))
    }
}

/// Plays one seed.
pub fn seed(seed: u64, tamper: Option<Tamper>) -> Outcome {
    let notes = Rc::new(Notes::default());
    let played = catch_unwind(AssertUnwindSafe(|| World::play(seed, &notes, tamper)));
    let (result, is_spoilt) = match played {
        Ok(played) => played,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            (Err(format!("panic: {}", text.unwrap_or("?"))), false)
        }
    };
    Outcome {
        seed,
        hash: notes.hash(),
        coverage: notes.coverage(),
        failure: result.err().map(|objection| (objection, notes.tail())),
        is_spoilt,
    }
}

/// The seeds to play: `THRONG_SEED` names one, `THRONG_SEEDS` says how many.
pub fn seeds() -> std::ops::Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is `{text}`, and no number")))
    };
    match number("THRONG_SEED") {
        Some(one) => one..one + 1,
        None => 0..number("THRONG_SEEDS").unwrap_or(SEEDS),
    }
}

/// Plays many seeds, on two threads.
pub fn all(seeds: std::ops::Range<u64>) -> Vec<Outcome> {
    let half = |odd: u64| seeds.clone().filter(move |seed| seed % 2 == odd);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1).map(|it| seed(it, None)).collect::<Vec<_>>());
        let mut outcomes: Vec<_> = half(0).map(|it| seed(it, None)).collect();
        match other.join() {
            Ok(others) => outcomes.extend(others),
            Err(panic) => resume_unwind(panic),
        }
        outcomes.sort_by_key(|outcome| outcome.seed);
        outcomes
    })
}
