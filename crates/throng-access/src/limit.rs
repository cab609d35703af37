//! Limits per address, user and key: how often, and how many at a time.
//!
//! | module | what it is |
//! |---|---|
//! | `key` | who is limited, as a number |
//! | `rate` | events or bytes per second |
//! | `live` | how many at a time |
//!
//! No clock and no threads: time is passed in, and the owner decides who shares a limiter. Memory
//! is fixed, whatever comes.

mod key;
mod live;
mod rate;

pub use key::{LimitKey, LimitKeys};
pub use live::{AtLimit, LiveCounts};
pub use rate::{Rate, RateLimiter, TryLater};
