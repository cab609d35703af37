//! Runs seeds, and reports the ones that fail.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use crate::client::Tamper;
use crate::notes::{Coverage, Notes};
use crate::world::World;

/// The default number of seeds; `THRONG_SEEDS` overrides it.
pub const SEEDS: u64 = 256;

/// The result of one seed.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub hash: u64,
    pub coverage: Coverage,
    /// The objection, and the end of the trace.
    pub failure: Option<(String, String)>,
    /// True if a client's input was altered, as requested.
    pub is_tampered: bool,
}

impl Outcome {
    /// A readable report of the failure: the last steps, the objection, and the command that
    /// replays it.
    pub fn report(&self) -> Option<String> {
        let (objection, tail) = self.failure.as_ref()?;
        let seed = self.seed;
        Some(format!(
            "{tail}\nseed {seed}: {objection}\n\
             again: THRONG_SEED={seed} cargo test -p throng-sim --test seeds -- --nocapture\n"
        ))
    }
}

/// Runs one seed.
pub fn seed(seed: u64, tamper: Option<Tamper>) -> Outcome {
    let notes = Rc::new(Notes::default());
    let played = catch_unwind(AssertUnwindSafe(|| World::play(seed, &notes, tamper)));
    let (result, is_tampered) = match played {
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
        is_tampered,
    }
}

/// The seeds to run: the one in `THRONG_SEED`, or the first `THRONG_SEEDS`.
pub fn seeds() -> std::ops::Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
    };
    match number("THRONG_SEED") {
        Some(one) => one..one + 1,
        None => 0..number("THRONG_SEEDS").unwrap_or(SEEDS),
    }
}

/// Runs many seeds on two threads.
pub fn all(seeds: std::ops::Range<u64>) -> Vec<Outcome> {
    let half = |odd: u64| seeds.clone().filter(move |seed| seed % 2 == odd);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1).map(|number| seed(number, None)).collect::<Vec<_>>());
        let mut outcomes: Vec<_> = half(0).map(|number| seed(number, None)).collect();
        match other.join() {
            Ok(others) => outcomes.extend(others),
            Err(panic) => resume_unwind(panic),
        }
        outcomes.sort_by_key(|outcome| outcome.seed);
        outcomes
    })
}
