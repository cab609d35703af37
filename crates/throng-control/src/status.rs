//! What the server tells about itself, once a second: `/status`, `/status.json`, `/status/stream`.
//!
//! One sampler reads what is counted anyway and makes a [`Sample`] of it, whatever the number of
//! viewers. The sample is published to an internal log, which viewers follow on the data plane like
//! any other SSE subscriber: a thousand of them cost one encoding and a thousand cursors. The last
//! [`SAMPLES_MAX`] are kept here, so that a page just opened shows the last quarter of an hour.
//! They are not in the log, because there they would be counted against the operator's limit on
//! history, and be the first to go when it is reached.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `sample` | one sample, as it is told |
//! | `sampler` | the loop, and what it must remember from one sample to the next |
//! | `machine` | what the kernel tells of this process and of its sockets |
//! | `history` | many samples, by column |

mod history;
mod machine;
mod sample;
mod sampler;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use sample::Sample;
pub(crate) use sampler::Sampler;

/// Samples that are kept: a quarter of an hour.
pub(crate) const SAMPLES_MAX: usize = 900;

/// The newest samples.
#[derive(Debug, Default)]
pub(crate) struct Status(Mutex<VecDeque<Sample>>);

impl Status {
    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one more, and drops what is too old.
    pub(crate) fn add(&self, sample: Sample) {
        let mut samples = self.samples();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The newest sample as JSON, with up to `history` of the last ones by column; nothing before
    /// the first one.
    pub(crate) fn json(&self, history: Option<usize>) -> Option<Vec<u8>> {
        let (newest, columns) = {
            let samples = self.samples();
            let newest = samples.back()?.clone();
            let columns = history.map(|count| {
                let skipped = samples.len().saturating_sub(count);
                history::columns(samples.iter().skip(skipped))
            });
            (newest, columns)
        };
        Some(sample::with_history(&newest, columns))
    }
}
