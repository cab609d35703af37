//! Parses and prints numbers, sizes, times, rates, addresses and URLs: one grammar for every flag,
//! environment variable, settings file and report.
//!
//! | type | accepted text |
//! |---|---|
//! | [`Count`] | `1000000`, `1_000_000`, `1,000,000`, `300k`, `1.5M`, `2G`; `k` is 1000 |
//! | [`Size`] | `65536`, `64k`, `64KB`, `64KiB`, `1.5M`, `1GiB`; `k` is 1024 with every suffix |
//! | [`Time`] | `25`, `25s`, `500ms`, `1.5h`, `7d`; a number without a unit is in seconds |
//! | [`Rate`] | a number per second: `0.5`, `10k`, `1,000/s` |
//! | [`Address`] | `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `:8080`, `8080` |
//! | [`Ports`] | `8080`, `8080,8090`, `8080-8095` |
//! | [`Switch`] | `true`, `yes`, `on`, `1`; `false`, `no`, `off`, `0` |
//! | [`url`] | a URL, or an [`Address`], to which it adds `http://` |
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `address`, `count`, `number`, `size`, `switch`, `time`, `url` | the types above |
//! | [`format`] | numbers with units for people |
//! | [`paint`] | terminal colours, and escaping of untrusted text |
//! | [`suggest`] | "did you mean …?" |
//! | [`toml_error`] | explains TOML syntax errors |
//! | `value` | [`Value`]: what flags, variables and settings files need to know of a type |
//!
//! # Invariants
//!
//! - Units and words are case-insensitive, and a space may precede a unit.
//! - A value is exact or rejected: nothing is rounded, wrapped or truncated. Only [`Rate`] is a
//!   float.
//! - The output of `Display` parses back to the same value, and so does [`format::count`].

mod address;
mod count;
pub mod format;
mod invalid;
mod number;
pub mod paint;
mod size;
pub mod suggest;
mod switch;
mod time;
pub mod toml_error;
mod url;
mod value;

pub use address::{Address, Ports, range};
pub use count::{Count, Rate};
pub use invalid::Invalid;
pub use number::decimal;
pub use size::Size;
pub use switch::Switch;
pub use time::Time;
pub use url::{no_scheme, url};
pub use value::{Form, Value};

#[cfg(test)]
mod tests;
