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

use history::Row;
pub(crate) use sample::Sample;
pub(crate) use sampler::Sampler;

/// Samples that are kept: a quarter of an hour.
pub(crate) const SAMPLES_MAX: usize = 900;

/// What is kept of the samples.
#[derive(Debug, Default)]
pub(crate) struct Status(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    newest: Option<Sample>,
    /// Of all samples, the newest among them, what charts show.
    rows: VecDeque<Row>,
}

impl Status {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one more, and drops what is too old.
    pub(crate) fn add(&self, sample: Sample) {
        let mut kept = self.kept();
        if kept.rows.len() == SAMPLES_MAX {
            kept.rows.pop_front();
        }
        kept.rows.push_back(history::row(&sample));
        kept.newest = Some(sample);
    }

    /// The newest sample as JSON, with up to `history` of the last ones by column; nothing before
    /// the first one.
    pub(crate) fn json(&self, history: Option<usize>) -> Option<Vec<u8>> {
        let kept = self.kept();
        let columns = history.map(|count| {
            let skipped = kept.rows.len().saturating_sub(count);
            history::columns(kept.rows.iter().skip(skipped))
        });
        let newest = kept.newest.clone()?;
        drop(kept);
        Some(sample::with_history(&newest, columns))
    }
}
