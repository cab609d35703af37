//! Reports of the server about itself, once a second: `/status.json` and `/status/stream`.
//!
//! One sampler reads counters that are kept anyway and makes a sample of them, whatever the number
//! of viewers. It publishes the sample to an internal log, which viewers follow on the data plane
//! like any other SSE subscriber: a thousand viewers cost one encoding and a thousand cursors. The
//! history is kept here and not in that log: there it would count against the operator's limit on
//! history, and be evicted first when the limit is reached.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `sampler` | the loop that makes the samples |
//! | `json` | the handler of `/status.json` |
//! | `totals` | the counters that a sample's rates are computed from |
//! | `minute` | durations over the last minute |
//! | `history` | the samples of the last quarter of an hour |
//! | `columns` | the values of samples by column, for charts |
//! | `host` | what the kernel reports about this process and its sockets |
//! | `sample` | one sample, as it is serialized |

mod columns;
pub(crate) mod history;
mod host;
pub(crate) mod json;
mod minute;
mod sample;
pub(crate) mod sampler;
mod totals;
