//! Limits per address, user and key: how often, and how many at a time.
//!
//! | module | what it is |
//! |---|---|
//! | `limiter` | the limits of all clients of a server |
//! | `elsewhere` | their use on other nodes |
//! | `frozen` | what clients have used of rates, for a process that takes over |
//! | `settings` | the limits, as a server's settings give them |
//! | `refusal` | which limit a client has reached |
//! | `key` | who is limited, as a number |
//! | `rate` | events or bytes per second |
//! | `live` | how many at a time |
//!
//! No clock and no threads: time is passed in. Memory is fixed by the settings and by what clients
//! hold, whatever comes.

mod elsewhere;
mod frozen;
mod key;
mod limiter;
mod live;
mod rate;
mod refusal;
mod settings;

pub use frozen::UsedRates;
pub use key::{LimitKey, LimitKeys};
pub use limiter::{ClientKeys, Limiter, OtherQuantities, READ_BYTES_MIN};
pub use live::{AtLimit, LiveCounts};
pub use rate::{RateLimiter, RateMeter, TryLater};
pub use refusal::{Quantity, Refusal, Subject};
pub use settings::{ClientLimits, LimitSettings};
