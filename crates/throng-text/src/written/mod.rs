//! Values as people write them: one grammar for every flag, variable, file and report.
//!
//! | type | is written |
//! |---|---|
//! | [`Count`] | `1000000`, `1_000_000`, `1,000,000`, `300k`, `1.5M`, `2G`; `k` is 1000 |
//! | [`Size`] | `65536`, `64k`, `64KB`, `64KiB`, `1.5M`, `1GiB`; `k` is 1024, whatever follows it |
//! | [`Time`] | `25`, `25s`, `500ms`, `1.5h`, `7d`; a number without a unit counts seconds |
//! | [`Rate`] | a number per second: `0.5`, `10k`, `1,000/s` |
//! | [`Address`] | `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `:8080`, `8080` |
//! | [`Ports`] | `8080`, `8080,8090`, `8080-8095` |
//! | [`Switch`] | `true`, `yes`, `on`, `1`; `false`, `no`, `off`, `0` |
//! | [`url`] | a URL, or an [`Address`], which stands for `http://` |
//!
//! # Invariants
//!
//! - Units and words are read in any case, and a blank may stand before a unit.
//! - A value is exact or refused: nothing is rounded, wrapped or cut. Only a [`Rate`] is a float.
//! - What `Display` writes reads back as the same value, and so does what
//!   [`count`](crate::figures::count) writes.

mod address;
mod count;
mod number;
mod size;
mod switch;
mod time;
mod url;

use std::fmt::Display;

pub use address::{Address, Ports, range};
pub use count::{Count, Rate};
pub use number::decimal;
pub use size::Size;
pub use switch::Switch;
pub use time::Time;
pub use url::{no_scheme, url};

/// A value that cannot be read: what is wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    /// `written` is not what is `expected`.
    pub fn new(written: &str, expected: impl Display) -> Invalid {
        Invalid(format!("{written:?} is not {expected}"))
    }
}

#[cfg(test)]
mod tests;
